"""What the generative baselines share: residual quantisation, beam search along a prefix tree, text as tokens."""
