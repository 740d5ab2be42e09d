"""Structural compatibility of a task and a server (paper, eq. 11-17)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from study.advisor.arrays import FloatArray, IntArray

FEATURES = ("category", "language", "theme")
COLUMNS = ("category", "subcategory", "language", "theme")  # of a task, that the features read

# Names of operating systems and what they are called. A theme or system mentions one if an alias occurs in it as a
# *substring*: the authors' rule, kept although "Machining" then mentions macOS ("mac") and "PV/wind" Windows ("win").
SYSTEM_ALIASES: Mapping[str, tuple[str, ...]] = {
    "windows": ("windows", "win"),
    "macos": ("macos", "mac", "osx", "os x", "darwin"),
    "linux": ("linux", "ubuntu", "debian"),
    "ios": ("ios",),
    "android": ("android",),
}
# Whose aliases -> what parts the languages of a field, and what each is also called. The list of the authors' program
# (`T2MRec/main_T2MRec.py`), unlike this study's, tells "shell" from "bash" and lacks "node.js" and "python3".
SEPARATORS = {"study": r"[,;/|]", "program": r"[|,;/\\\n\t()]"}
CALLED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "study": {
        "javascript": ("js", "node", "node.js", "nodejs"),
        "typescript": ("ts",),
        "python": ("py", "python3"),
        "go": ("golang",),
        "c#": ("csharp",),
        "c++": ("cpp",),
        "bash": ("shell", "sh"),
    },
    "program": {
        "javascript": ("js", "node", "nodejs"),
        "typescript": ("ts",),
        "python": ("py",),
        "cpp": ("c++", "cplusplus"),
        "csharp": ("c#", "c-sharp"),
        "go": ("golang",),
        "objectivec": ("objective-c", "obj-c"),
        "shell": ("shell script", "sh"),
        "bash": ("bash script",),
    },
}
ALIASES = {whose: {alias: name for name, forms in names.items() for alias in forms} for whose, names in CALLED.items()}


def languages(text: str, aliases: str = "study") -> frozenset[str]:
    """The programming languages of a field that lists some, after aliasing by a list of `ALIASES`."""
    tokens = (token.strip().lower() for token in re.split(SEPARATORS[aliases], text))
    return frozenset(ALIASES[aliases].get(token, token) for token in tokens if token)


def operating_systems(text: str) -> frozenset[str]:
    """The operating systems that a text mentions, by substring."""
    lowered = text.lower()
    return frozenset(name for name, aliases in SYSTEM_ALIASES.items() if any(alias in lowered for alias in aliases))


def index(names: Iterable[Iterable[Hashable]]) -> dict[Any, IntArray]:
    """For every name the numbers of the servers that have it, ascending. `names`: of each server."""
    by_name: dict[Any, list[int]] = defaultdict(list)
    for row, names_of_server in enumerate(names):
        for name in names_of_server:
            by_name[name].append(row)
    return {name: np.array(rows) for name, rows in by_name.items()}


class StructuralFeatures:
    """phi_cat, phi_lan and phi_the of eq. 12 between any tasks and one catalogue, a table with columns category,
    subcategory, language and system as released.

    Category (eq. 13-14): names are compared exactly; the tree distance 0, 2 or 4 becomes 1, 0.5 or 0.
    Language, theme (eq. 15-16): 1 where the two share a language, or an operating system, else 0.
    `aliases`: whose names of languages count, a key of `ALIASES`. The program's list of operating systems differs from
    this study's, too, but on Task2MCP it gives the same pairs.
    """

    def __init__(self, servers: pd.DataFrame, *, aliases: str = "study") -> None:
        self.aliases, self.n_servers = aliases, len(servers)
        self.category, self.subcategory = (servers[name].to_numpy(dtype=str) for name in COLUMNS[:2])
        self.category_index = index([name] for name in servers["category"])
        self.leaf_index = index([leaf] for leaf in zip(servers["category"], servers["subcategory"], strict=True))
        self.language_index = index(languages(text, aliases) for text in servers["language"])
        self.system_index = index(map(operating_systems, servers["system"]))

    def __call__(self, tasks: pd.DataFrame) -> FloatArray:
        """`between` of a table's tasks."""
        return self.between(*(tasks[name].tolist() for name in COLUMNS))

    def between(self, *attributes: Sequence[str]) -> FloatArray:
        """The three features of every pair, shape (3, n_tasks, n_servers), each in [0, 1], from tasks' `COLUMNS`."""
        return np.array(self._rows(attributes, (1, 1, 1)))

    def score(self, tasks: pd.DataFrame, weights: tuple[float, float, float]) -> FloatArray:
        """`structural_score` of a table's tasks and the catalogue, shape (n_tasks, n_servers)."""
        category, language, theme = self._rows([tasks[name] for name in COLUMNS], weights)
        scores = np.stack(category)
        for row, one, other in zip(scores, language, theme, strict=True):
            row += one
            row += other
        return scores

    def _rows(self, tasks: Sequence[Iterable[str]], weights: tuple[float, float, float]) -> list[list[FloatArray]]:
        """The three weighted features of tasks with these `COLUMNS`, a row of shape (n_servers,) for each task, which
        tasks with equal attributes share."""
        w_cat, w_lan, w_the = np.asarray(weights, np.float32)

        @cache
        def by_category(name: str, leaf: str) -> FloatArray:
            return self._row((self.category_index, [name], w_cat / 2), (self.leaf_index, [(name, leaf)], w_cat))

        @cache
        def by_language(text: str) -> FloatArray:
            return self._row((self.language_index, languages(text, self.aliases), w_lan))

        @cache
        def by_theme(text: str) -> FloatArray:
            return self._row((self.system_index, operating_systems(text), w_the))

        category, subcategory, language, theme = tasks
        parts = map(by_category, category, subcategory), map(by_language, language), map(by_theme, theme)
        return [list(rows) for rows in parts]

    def _row(self, *parts: tuple[dict[Any, IntArray], Iterable[Any], np.float32]) -> FloatArray:
        """A value where a server has one of some names, 0 elsewhere; later parts override earlier ones."""
        row = np.zeros(self.n_servers, np.float32)
        for servers, names, value in parts:
            for name in names:
                row[servers.get(name, [])] = value
        return row


def structural_score(features: FloatArray, weights: tuple[float, float, float]) -> FloatArray:
    """s_str = w_cat phi_cat + w_lan phi_lan + w_the phi_the (eq. 17), shape (b, n_servers), float32.

    `features`: of `StructuralFeatures`, shape (3, b, n_servers); `weights`: the paper takes equal ones (1/3 each).
    """
    return np.tensordot(np.asarray(weights, np.float32), features, axes=1)
