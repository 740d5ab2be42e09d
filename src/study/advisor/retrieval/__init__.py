"""Texts, vectors and rankings of servers and tools: one form of document, pure functions."""
