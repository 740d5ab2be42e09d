"""The tool-level systems: from a task or a request to tools of MCP servers, with their schemas."""
