"""The word lists of the synthetic data set, read from words.yaml beside this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Facet(NamedTuple):
    """One facet of a topic: its name, and the words that tasks, servers, or both use for it."""

    name: str
    task: tuple[str, ...]
    server: tuple[str, ...]
    shared: tuple[str, ...]


_LISTS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
TOPICS = {
    topic: tuple(
        Facet(name, *(tuple(words[side].split()) for side in Facet._fields[1:])) for name, words in facets.items()
    )
    for topic, facets in _LISTS["topics"].items()
}
TASK_CATEGORIES: dict[str, tuple[str, ...]] = {name: tuple(parts) for name, parts in _LISTS["task_categories"].items()}
LANGUAGES: dict[str, tuple[float, float]] = {name: tuple(shares) for name, shares in _LISTS["languages"].items()}
SIDE_LANGUAGES, LICENCES, SYSTEMS, TASK_VERBS, SERVER_VERBS, THEME_ENDINGS = (
    tuple(_LISTS[name])
    for name in ("side_languages", "licences", "systems", "task_verbs", "server_verbs", "theme_endings")
)
SYLLABLES = tuple(first + vowel for first in "bcdfgklmnprstv" for vowel in "aeio")
