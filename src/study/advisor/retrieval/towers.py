"""Using a trained tower: numpy alone, so that a recommendation needs no deep-learning library to start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from study.advisor.arrays import FloatArray


@dataclass(frozen=True)
class TowerWeights:
    """One trained tower."""

    wide: FloatArray  # W_1 transposed, one row per term, shape (d, hidden)
    bias: FloatArray  # of the first layer, shape (hidden,)
    rest: list[tuple[FloatArray, FloatArray]]  # weight (out, in) and bias (out,) of every further layer

    def arrays(self, prefix: str) -> dict[str, FloatArray]:
        """The weights under the names by which a file holds them."""
        named = {f"{prefix}.wide": self.wide, f"{prefix}.bias": self.bias}
        for i, (weight, bias) in enumerate(self.rest):
            named |= {f"{prefix}.rest.{i}.weight": weight, f"{prefix}.rest.{i}.bias": bias}
        return named

    @classmethod
    def from_arrays(cls, arrays: dict[str, FloatArray], prefix: str) -> TowerWeights:
        """Rebuild what `arrays` gave."""
        depth = sum(name.startswith(f"{prefix}.rest.") and name.endswith(".weight") for name in arrays)
        rest = [(arrays[f"{prefix}.rest.{i}.weight"], arrays[f"{prefix}.rest.{i}.bias"]) for i in range(depth)]
        return cls(arrays[f"{prefix}.wide"], arrays[f"{prefix}.bias"], rest)


def normalize(rows: FloatArray) -> FloatArray:
    """Rows scaled to unit length, zero rows left at zero (as torch.nn.functional.normalize: eps 1e-12)."""
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    unit: FloatArray = rows / np.maximum(length, 1e-12)[:, None]
    return unit


def embed(tower: TowerWeights, vectors: Any) -> FloatArray:
    """z = g(v) / |g(v)| (eq. 6-7) without dropout, shape (n, d'), float32. `vectors`: lexical ones, shape (n, d),
    `study.advisor.retrieval.lexical.SparseRows` or CSR."""
    x = np.asarray(vectors @ tower.wide) + tower.bias
    for weight, bias in tower.rest:
        x = np.maximum(x, 0, out=x) @ weight.T + bias
    return normalize(x)
