"""Data: pinned sources, schemas, cleaning, splits, and the synthetic generator."""
