"""Semantic Tool Discovery: an index of tool documents, searched by meaning, by words, or by both."""
