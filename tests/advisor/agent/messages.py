"""The tables of ``messages.yaml``: what is said to the agent, and what must come of it; and the made-up servers of
``hostile.yaml``, whose texts attack whoever reads them."""

import re
from pathlib import Path

import yaml

MESSAGES = yaml.safe_load(Path(__file__).with_name("messages.yaml").read_text(encoding="utf-8"))
KINDS = yaml.safe_load(Path(__file__).with_name("hostile.yaml").read_text(encoding="utf-8"))
IDS = range(901, 951)


def stated(constraints):
    """Constraints of the file as a specification holds them: lists as tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in constraints.items()}


def named_ids(text):
    """The servers that a sentence names by id, outside of quotations."""
    return [int(found) for found in re.findall(r"\bid (\d+)", re.sub("“[^”]*”", "", text))]


def hostile_rows():
    """Rows for the toy catalogue, ids from 901 on, and their addresses by id."""
    made, urls = [], {}
    entries = [entry for kind in KINDS.values() for entry in kind]
    for server, (name, description, url, *times) in zip(IDS, entries, strict=True):
        made.append((server, name, description * (times or [1])[0], "Python", "mit", "", 5, "non-official", ""))
        urls[server] = url or f"https://github.com/hostile/{server}"
    return made, urls
