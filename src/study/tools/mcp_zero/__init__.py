"""MCP-Zero: the agent asks for a server and a tool in words, and the request is routed in two stages."""
