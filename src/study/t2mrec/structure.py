"""Structural compatibility of a task and a server (paper, eq. 11-17)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.data.dataset import FloatArray

FEATURES = ("category", "language", "theme")

# Names of operating systems and what they are called. A theme or system mentions one if an alias occurs in it as a
# *substring*: the authors' rule, kept although "Machining" then mentions macOS ("mac") and "PV/wind" Windows ("win").
SYSTEM_ALIASES: Mapping[str, tuple[str, ...]] = {
    "windows": ("windows", "win"),
    "macos": ("macos", "mac", "osx", "os x", "darwin"),
    "linux": ("linux", "ubuntu", "debian"),
    "ios": ("ios",),
    "android": ("android",),
}
# Whose aliases -> what parts the languages of a field, and what is taken for one language. The list of the authors'
# program (`T2MRec/main_T2MRec.py`), unlike this study's, tells "shell" from "bash" and lacks "node.js" and "python3".
SEPARATORS = {"study": r"[,;/|]", "program": r"[|,;/\\\n\t()]"}
ALIASES: Mapping[str, Mapping[str, str]] = {
    "study": {
        "js": "javascript",
        "node": "javascript",
        "node.js": "javascript",
        "nodejs": "javascript",
        "ts": "typescript",
        "py": "python",
        "python3": "python",
        "golang": "go",
        "csharp": "c#",
        "cpp": "c++",
        "shell": "bash",
        "sh": "bash",
    },
    "program": {
        "js": "javascript",
        "node": "javascript",
        "nodejs": "javascript",
        "ts": "typescript",
        "py": "python",
        "c++": "cpp",
        "cplusplus": "cpp",
        "c#": "csharp",
        "c-sharp": "csharp",
        "golang": "go",
        "objective-c": "objectivec",
        "obj-c": "objectivec",
        "shell script": "shell",
        "sh": "shell",
        "bash script": "bash",
    },
}


def languages(text: str, aliases: str = "study") -> frozenset[str]:
    """The programming languages of a field that lists some, after aliasing. `aliases`: a key of `ALIASES`."""
    tokens = (token.strip().lower() for token in re.split(SEPARATORS[aliases], text))
    return frozenset(ALIASES[aliases].get(token, token) for token in tokens if token)


def operating_systems(text: str) -> frozenset[str]:
    """The operating systems that a text mentions, by substring."""
    lowered = text.lower()
    return frozenset(name for name, aliases in SYSTEM_ALIASES.items() if any(alias in lowered for alias in aliases))


def indicator(sets: Iterable[frozenset[str]], vocabulary: Mapping[str, int]) -> sp.csr_matrix:
    """Membership of each set's elements, shape (len(sets), len(vocabulary)), float32; unknown elements are dropped."""
    rows = [sorted(vocabulary[item] for item in items if item in vocabulary) for items in sets]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    indices = np.fromiter((column for row in rows for column in row), dtype=np.int64)
    return sp.csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape=(len(rows), len(vocabulary)))


class StructuralFeatures:
    """phi_cat, phi_lan and phi_the of eq. 12 between any tasks and one catalogue.

    Args:
        servers: the catalogue, with columns category, subcategory, language and system as released.
        aliases: whose names of languages count, a key of `ALIASES`. The program's list of operating systems differs
            from this study's, too, but on Task2MCP it gives the same pairs.
    """

    def __init__(self, servers: pd.DataFrame, *, aliases: str = "study") -> None:
        self.parse = partial(languages, aliases=aliases)
        self.category = servers["category"].to_numpy(dtype=str)
        self.subcategory = servers["subcategory"].to_numpy(dtype=str)
        language_sets = [self.parse(text) for text in servers["language"]]
        system_sets = [operating_systems(text) for text in servers["system"]]
        self.language_index = {name: i for i, name in enumerate(sorted(frozenset().union(*language_sets)))}
        self.system_index = {name: i for i, name in enumerate(sorted(SYSTEM_ALIASES))}
        self.server_languages = indicator(language_sets, self.language_index)
        self.server_systems = indicator(system_sets, self.system_index)

    def __call__(self, tasks: pd.DataFrame) -> FloatArray:
        """The three features of every pair of a table's tasks and the catalogue, see `between`."""
        return self.between(*(list(tasks[name]) for name in ("category", "subcategory", "language", "theme")))

    def between(
        self, category: Sequence[str], subcategory: Sequence[str], language: Sequence[str], theme: Sequence[str]
    ) -> FloatArray:
        """The three features of every pair, shape (3, n_tasks, n_servers), each in [0, 1], from the tasks' attributes.

        Category (eq. 13-14): names are compared exactly; the tree distance 0, 2 or 4 becomes 1, 0.5 or 0.
        Language, theme (eq. 15-16): 1 where the two share a language, or an operating system, else 0.
        """
        same_category = np.array(category, dtype=str)[:, None] == self.category[None, :]
        same_leaf = same_category & (np.array(subcategory, dtype=str)[:, None] == self.subcategory[None, :])
        proximity = (same_category.astype(np.float32) + same_leaf) / 2
        task_languages = indicator(map(self.parse, language), self.language_index)
        task_systems = indicator((operating_systems(text) for text in theme), self.system_index)
        shared_language = (task_languages @ self.server_languages.T).toarray() > 0
        shared_system = (task_systems @ self.server_systems.T).toarray() > 0
        return np.stack([proximity, shared_language.astype(np.float32), shared_system.astype(np.float32)])


def structural_score(features: FloatArray, weights: tuple[float, float, float]) -> FloatArray:
    """s_str = w_cat phi_cat + w_lan phi_lan + w_the phi_the (eq. 17).

    Args:
        features: from `StructuralFeatures`, shape (3, b, n_servers).
        weights: w_cat, w_lan, w_the; the paper takes equal ones (1/3 each).

    Returns: shape (b, n_servers), float32.
    """
    return np.tensordot(np.asarray(weights, np.float32), features, axes=1)
