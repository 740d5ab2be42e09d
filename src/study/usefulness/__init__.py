"""Ranking servers by how useful they are for a task; no released label is used."""
