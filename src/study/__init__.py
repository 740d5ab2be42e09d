"""A reproduction of T2MRec: rank the MCP servers that help with a software development task."""

__version__ = "0.1.0"
