"""The open catalogue of MCP servers: read from registries and own files, merged, versioned, and started from."""
