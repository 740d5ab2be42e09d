"""What a developer uses: find, start and call MCP servers and their tools."""
