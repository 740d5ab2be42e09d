"""The tables of ``messages.yaml``: what is said to the agent, and what must come of it."""

from pathlib import Path

import yaml

MESSAGES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def stated(constraints):
    """Constraints of the file as a specification holds them: lists as tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in constraints.items()}
