"""Answer a request: read it, rank, adjust, and say what is known of each server."""
