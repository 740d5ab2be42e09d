"""What the generative baselines share: residual quantisation, prefix trees and beam search, small transformers."""
