"""One file per baseline: a system that is not the paper's model."""
