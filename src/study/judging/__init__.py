"""The judged collection: topics, pools, two blind readings, and what they say about labels and systems."""
