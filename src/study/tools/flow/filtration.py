"""Which instructions are kept (section 3.3): not too like the description, of some quality, answerable.

The paper has two language models judge quality and choose the tool. Without them quality is a rule of ten points, and
the two models that must not both fail are dense and word search.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from study.data.dataset import FloatArray
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.flow.calls import plain
from study.tools.flow.samples import Sample
from study.tools.flow.settings import Filtration

# What is left where a value should stand.
PLACEHOLDER = re.compile(
    r"<[^<>]{1,40}>|\{[^{}]{1,40}\}|\[(?:insert|your|enter)[^\]]{0,40}\]|\b(?:TODO|lorem ipsum)\b", re.I
)
SHORT, LONG = 5, 90
RULES = ("similarity", "quality", "invocation")


def quality(text: str, tool_name: str, arguments: Mapping[str, Any]) -> float:
    """Points from 0 to 10 by the four questions of the paper's prompt 6, each answered by a rule.

    Clarity 3: between `SHORT` and `LONG` words. Specificity 2: a digit, a capital inside, a quotation or an address.
    Relevance 2: the tool's name is not given away. Completeness 3: the share of the arguments' values that the text
    holds (truth values need not be said), none where a placeholder is left.
    """
    words = text.split()
    clarity = 3.0 * (SHORT <= len(words) <= LONG)
    specific = 2.0 * bool(re.search(r"\d|[\"“'`]\S|://|(?<=\s)[A-Z]", text))
    relevance = 2.0 * (plain(tool_name) not in plain(text) or len(plain(tool_name)) < 4)
    values = [value for value in arguments.values() if not isinstance(value, bool)]
    held = [plain(value if isinstance(value, str) else json.dumps(value)) in plain(text) for value in values]
    complete = 0.0 if PLACEHOLDER.search(text) else 3.0 * (sum(held) / len(held) if held else 1.0)
    return clarity + specific + relevance + complete


def invoked(scores: Sequence[FloatArray], tools: np.ndarray, candidates: int, seed: int) -> np.ndarray:
    """Whether one judge at least finds the right tool among it and random others, shape (n,).

    Args:
        scores: per judge, shape (n, n_tools).
        tools: the right ones, shape (n,).
        candidates: tools among which is chosen.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    found = np.zeros(len(tools), dtype=bool)
    for row, tool in enumerate(tools):
        others = rng.choice(scores[0].shape[1] - 1, size=candidates - 1, replace=False)
        others += others >= tool
        found[row] = any(judge[row, tool] > judge[row, others].max() for judge in scores)
    return found


def filtrate(
    samples: Sequence[Sample], catalog: ToolCatalog, dense: FloatArray, words: FloatArray, bounds: Filtration, seed: int
) -> tuple[list[Sample], pd.DataFrame]:
    """The samples that pass, and a table of the rules: columns rule, bound, removed, only (removed by it alone), mean.

    Args:
        dense, words: of instruction and tool, shape (n, n_tools).
    """
    tools = np.array([sample.tool for sample in samples], dtype=np.int64)
    similarity = dense[np.arange(len(samples)), tools]
    points = np.array([quality(s.text, catalog.tools[s.tool].name, s.arguments) for s in samples])
    passed = {
        "similarity": similarity <= bounds.similarity,
        "quality": points >= bounds.quality,
        "invocation": invoked([dense, words], tools, bounds.candidates, seed),
    }
    every = np.stack([passed[rule] for rule in RULES])
    means = {"similarity": similarity.mean(), "quality": points.mean(), "invocation": passed["invocation"].mean()}
    limits = {"similarity": bounds.similarity, "quality": bounds.quality, "invocation": bounds.candidates}
    lines = [
        {
            "rule": rule,
            "bound": limits[rule],
            "samples": len(samples),
            "removed": int((~every[place]).sum()),
            "removed_by_it_alone": int((~every[place] & np.delete(every, place, axis=0).all(axis=0)).sum()),
            "mean": float(means[rule]),
        }
        for place, rule in enumerate(RULES)
    ]
    keep = [bool(column.all()) for column in every.T]
    return [sample for sample, good in zip(samples, keep, strict=True) if good], pd.DataFrame(lines)


def diversity(vectors: FloatArray) -> float:
    """Mean cosine distance of all pairs (appendix B.2); NaN for fewer than two.

    Args:
        vectors: shape (n, d), length 1.
    """
    n = len(vectors)
    if n < 2:
        return float("nan")
    total = vectors.astype(np.float64).sum(axis=0)
    return float(1 - (total @ total - n) / (n * (n - 1)))
