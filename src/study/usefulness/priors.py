"""Qualities of a server that do not depend on the task: how often it is starred, whether it is a template."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from study.data.dataset import FloatArray

# Servers that help to build servers, not to do a task; the guidelines grade them 0 for nearly every task.
_TEMPLATE = re.compile(
    r"\b(?:template|boilerplate|starter|tutorial|demo|hello.?world|sdk|inspector|proxy|gateway|example|sample|scaffold"
    r"|framework|learning|course|playground|quickstart|educational)\b",
    re.IGNORECASE,
)


def stars(servers: pd.DataFrame) -> FloatArray:
    """log(1 + stars), standardised over the catalogue; an unknown number counts as none. Shape (n_servers,)."""
    if "stars_count" not in servers:
        return np.zeros(len(servers), dtype=np.float32)
    counts = pd.to_numeric(servers["stars_count"], errors="coerce").fillna(0).clip(lower=0)
    logs = np.log1p(counts.to_numpy(dtype=np.float64))
    spread = logs.std()
    return np.asarray((logs - logs.mean()) / (spread if spread > 0 else 1), dtype=np.float32)


def template(servers: pd.DataFrame) -> FloatArray:
    """1 where name or description says template, demo, tutorial, framework or the like, else 0. Shape (n_servers,)."""
    found = [bool(_TEMPLATE.search(f"{name} {text}")) for name, text in _names(servers)]
    return np.asarray(found, dtype=np.float32)


def _names(servers: pd.DataFrame) -> zip[tuple[str, str]]:
    return zip(servers["name"], servers["description"], strict=True)


PRIORS: dict[str, Callable[[pd.DataFrame], FloatArray]] = {"stars": stars, "template": template}


def combined(servers: pd.DataFrame, weights: Mapping[str, float]) -> FloatArray:
    """The weighted sum of the named priors, shape (n_servers,), float32; zeros where none is named."""
    total = np.zeros(len(servers), dtype=np.float32)
    for name, weight in weights.items():
        total += np.float32(weight) * PRIORS[name](servers)
    return total
