"""Composing the configuration, checking it, and reading the files of `conf/`."""
