"""The judged collection: topics, pool, two blind annotation passes, and what they say about labels and systems."""
