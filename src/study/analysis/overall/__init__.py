"""Research question 1: every system beside the paper's Table 3, with its tuning, convergence and cost."""
