"""`study tools serve`: one MCP server through which a host finds and calls the tools of many."""
