"""T2MRec with the language names of the authors' program, which it compares under other aliases than this study's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from study.data.dataset import Dataset, FloatArray
from study.data.splits import Split
from study.t2mrec.structure import StructuralFeatures, indicator
from study.t2mrec.system import T2MRec

# What the program takes for one language (`T2MRec/main_T2MRec.py`). Unlike `study.t2mrec.structure.LANGUAGE_ALIASES` it
# tells "shell" from "bash" and has no "node.js" and "python3".
PROGRAM_ALIASES: Mapping[str, str] = {
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
}


def program_languages(text: str) -> frozenset[str]:
    """The programming languages of a field, split and named as the program does."""
    tokens = (token.strip().lower() for token in re.split(r"[|,;/\\\n\t()]", text))
    return frozenset(PROGRAM_ALIASES.get(token, token) for token in tokens if token)


class ProgramFeatures(StructuralFeatures):
    """The structural features, the language feature by `program_languages`.

    The program's lists of operating systems differ from this study's, too, but on Task2MCP they give the same pairs.

    Args:
        servers: as for `StructuralFeatures`.
    """

    def __init__(self, servers: pd.DataFrame) -> None:
        super().__init__(servers)
        sets = [program_languages(text) for text in servers["language"]]
        self.language_index = {name: i for i, name in enumerate(sorted(frozenset().union(*sets)))}
        self.server_languages = indicator(sets, self.language_index)

    def between(
        self, category: Sequence[str], subcategory: Sequence[str], language: Sequence[str], theme: Sequence[str]
    ) -> FloatArray:
        """As `StructuralFeatures.between`, shape (3, n_tasks, n_servers)."""
        features = super().between(category, subcategory, language, theme)
        tasks = indicator((program_languages(text) for text in language), self.language_index)
        features[1] = (tasks @ self.server_languages.T).toarray() > 0
        return features


class T2MRecProgramLanguages(T2MRec):
    """T2MRec whose language feature (eq. 15) is the program's; all else unchanged."""

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train as `T2MRec` does: structure takes no part in training."""
        super().fit(data, split, seed=seed, workdir=workdir)
        self.structure = ProgramFeatures(data.servers)
