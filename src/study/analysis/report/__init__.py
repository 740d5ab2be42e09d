"""What all notebooks share: reading results, tables in three formats, and the style of figures."""
