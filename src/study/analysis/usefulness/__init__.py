"""The judged collection and the recommender by usefulness: choices, calibration, cost."""
