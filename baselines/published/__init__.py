"""What the paper's baselines that are written here share: training with selection, sampling, propagation, ratings."""
