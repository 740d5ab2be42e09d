"""T2MRec (He et al. 2026): the paper's method, one file per part."""
