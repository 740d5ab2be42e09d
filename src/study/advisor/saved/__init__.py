"""Fitted models that answer a request."""
