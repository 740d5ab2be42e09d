"""Answering one request from a saved model: what every saved model offers, `best` as one of them, and the table."""
