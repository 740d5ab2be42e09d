"""Sentence encoders: a packaged MiniLM, or an endpoint."""
