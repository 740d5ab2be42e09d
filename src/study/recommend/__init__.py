"""Answering one request with a saved system."""
