"""Intent-based ranking: intent analysis, candidates, five factors, context filters, feedback."""
