"""The paper's re-ranker: a language model that may only re-order the pool (section 4.4.3, figure 5)."""
