"""Research question 3: settings varied one by one and jointly (Figures 7 to 9)."""
