"""MCP-Flow (Wang et al. 2025): instructions made from tools, function calls, and a small model that learns them."""
