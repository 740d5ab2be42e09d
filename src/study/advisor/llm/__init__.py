"""Language models: an OpenAI-compatible client, and the cassette that keeps replies."""
