"""What `best` is worth beyond its mean score: calibration, diversity, cost, ideas one at a time, learning curves."""
