"""Ranking servers by how useful they are for a task: no released label is used, choices are made on judged topics."""
