"""A linear model of a language model's grades, over sentence vectors that are there anyway (knowledge distillation).

Hinton et al. 2015. The score is s(t, m) = sum over fields f of (a_f * q_t + b_f) . d_mf, with q_t the vector of the
request and d_mf that of a field of the server: a_f weighs the dimensions of their product, b_f is a prior on servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from study.advisor.arrays import Float64Array, FloatArray
from study.advisor.encoders.sentence import DIMENSION
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_csv

FIELDS = ("description", "all")  # of `study.advisor.retrieval.field_dense`
VIEW = "description"  # of a request
COLUMNS = [f"{kind}_{field}" for field in FIELDS for kind in ("product", "server")]


@dataclass(frozen=True)
class Student:
    """`weights`: shape (DIMENSION, len(COLUMNS)), a_f and b_f of each field."""

    weights: Float64Array

    @property
    def asks(self) -> bool:
        """Whether a score depends on the request."""
        return bool(self.weights[:, ::2].any())

    def scores(self, requests: FloatArray, fields: Mapping[str, FloatArray]) -> FloatArray:
        """How well each server suits its request, shape (n,); comparable within one request.

        `requests`: shape (n, DIMENSION), or of one row for all. `fields`: vectors of the servers by field.
        """
        return (features(requests, fields) @ self.weights.T.ravel()).astype(np.float32)

    def save(self, file: Path) -> None:
        """Write the weights as a table, one dimension a row."""
        write_csv(file, pd.DataFrame(self.weights, columns=COLUMNS))

    @classmethod
    def load(cls, file: Path) -> Student:
        """Raises StudyError: there is none, or it is not whole."""
        fix = "run: study analyse usefulness/distilled dataset=task2mcp"
        if not file.is_file():
            raise StudyError("no distilled model", file=file, fix=fix)
        try:
            table = pd.read_csv(file)
            if list(table.columns) != COLUMNS or len(table) != DIMENSION:
                raise ValueError(f"{len(table)} rows of {', '.join(map(str, table.columns))[:80]}")
            weights = table.to_numpy(np.float64)
            if not np.isfinite(weights).all():
                raise ValueError("a weight is no number")
        except (OSError, ValueError) as error:
            raise StudyError(f"not a distilled model: {error}", file=file, fix=fix) from error
        return cls(weights)


def file_of(dataset: str) -> Path:
    """Where the student of a data set's tasks lies."""
    return paths.results(dataset) / "usefulness" / "distilled_weights.csv"


def features(requests: FloatArray, fields: Mapping[str, FloatArray]) -> Float64Array:
    """What the weights of each column of `COLUMNS` meet, side by side, shape (n, len(COLUMNS) * DIMENSION)."""
    parts = [part for field in FIELDS for part in (requests * fields[field], fields[field])]
    return np.concatenate(parts, axis=1).astype(np.float64)
