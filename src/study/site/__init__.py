"""The study as a folder of static pages, made from committed tables, figures, executed notebooks and docs."""
