"""Figures of the tool-level systems."""
