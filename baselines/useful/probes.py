"""A lexical probe: requests that name a product must be answered with a server of that product."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from baselines.useful.products import key
from study.config import build_system, load
from study.data.dataset import Dataset, FloatArray
from study.data.splits import Split

EMPTY = ("language", "category", "theme", "subcategory")


@dataclass(frozen=True)
class Probe:
    """One request.

    Attributes:
        kind: of the product.
        product: as written.
        text: the request.
        answers: rows of the servers whose name holds the product's words together.
    """

    kind: str
    product: str
    text: str
    answers: tuple[int, ...]


def draw(settings: Mapping[str, Any], servers: pd.DataFrame) -> list[Probe]:
    """The requests of ``conf/best/probes.yaml`` that the catalogue can answer, at most `requests` of them, by seed."""
    keys = [key(name) for name in servers["name"]]
    found = []
    for kind, entry in settings["kinds"].items():
        for product in entry["products"]:
            wanted = key(product)
            answers = tuple(row for row, words in enumerate(keys) if _holds(words, wanted))
            if answers:
                found += [Probe(kind, product, text.format(product=product), answers) for text in entry["sentences"]]
    chosen = np.random.default_rng(settings["seed"]).permutation(len(found))[: settings["requests"]]
    return [found[place] for place in sorted(chosen)]


def as_tasks(probes: list[Probe]) -> pd.DataFrame:
    """The requests in the form of tasks: the text is the description, everything else is empty."""
    frame = pd.DataFrame({"id": np.arange(len(probes)), "name": "", "description": [probe.text for probe in probes]})
    return frame.assign(**dict.fromkeys(EMPTY, ""))


def answered(scores: FloatArray, probes: list[Probe], order: np.ndarray) -> np.ndarray:
    """Whether the first server of each request is one of its answers, ties in the given order; shape (n,), bool.

    Args:
        scores: shape (n, n_servers).
        order: from `study.evaluation.ranking.tie_order`.
    """
    first = order[scores[:, order].argmax(axis=1)]
    return np.array([int(row) in probe.answers for row, probe in zip(first, probes, strict=True)], dtype=bool)


def _holds(words: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether the wanted words stand together in a name."""
    return bool(wanted) and any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1))


def scores(name: str, data: Dataset, probes: list[Probe]) -> FloatArray:
    """Scores of a system of ``conf/system`` that learns from no label, shape (len(probes), n_servers)."""
    nothing = sp.csr_matrix((len(probes), data.n_servers), dtype=np.float32)
    lists = tuple(np.empty(0, dtype=np.int64) for _ in probes)
    asked = Dataset("probes", data.servers, as_tasks(probes), nothing, lists)
    system = build_system(load([f"system={name}"]).system)
    with tempfile.TemporaryDirectory() as folder:
        system.fit(asked, Split("cold", nothing, nothing, nothing, cold=True), seed=0, workdir=Path(folder))
    found: FloatArray = system.score(np.arange(len(probes)))
    return found
