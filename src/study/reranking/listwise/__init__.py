"""A re-ranker of the pool that needs no language model: pairwise features and boosted trees (not in the paper)."""
