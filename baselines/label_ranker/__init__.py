"""Fitting the released labels as well as possible, annotation habits included. It says nothing about usefulness."""
