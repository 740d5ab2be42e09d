"""Sweeps over settings: what is varied, trials that several workers share, and what they leave behind."""
