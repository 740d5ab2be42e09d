"""Tuning and sweeps."""
