"""Published collections of tools and queries."""
