"""The `study` command; one module per group of commands."""
