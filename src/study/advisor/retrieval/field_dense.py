"""Field-aware dense ranking by need: several views of a task against several fields of a server, one sum."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from study.advisor.arrays import FloatArray, IntArray
from study.advisor.encoders.sentence import cosines, encode
from study.advisor.retrieval.fields import FIELDS, VIEWS, texts
from study.advisor.retrieval.names import ProductNames
from study.base.errors import StudyError, require_one_of
from study.base.settings import build_settings

if TYPE_CHECKING:
    from study.data.dataset import Dataset
    from study.data.splits import Split

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
    pairs = zip(servers["name"], servers["description"], strict=True)
    return np.asarray([bool(_TEMPLATE.search(f"{name} {text}")) for name, text in pairs], dtype=np.float32)


PRIORS: dict[str, Callable[[pd.DataFrame], FloatArray]] = {"stars": stars, "template": template}


def combined_priors(servers: pd.DataFrame, weights: Mapping[str, float]) -> FloatArray:
    """The weighted sum of the named priors, shape (n_servers,), float32; zeros where none is named."""
    total = np.zeros(len(servers), dtype=np.float32)
    for name, weight in weights.items():
        total += np.float32(weight) * PRIORS[name](servers)
    return total


@dataclass(frozen=True)
class Part:
    """One term of the score: what is read of the task (of `VIEWS`) and of the server (of `FIELDS`), and its weight."""

    view: str
    field: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        require_one_of(self.view, "view", VIEWS, column="model.parts.view")
        require_one_of(self.field, "field", FIELDS, column="model.parts.field")


@dataclass
class FieldDense:
    """s(t, m) = z(sum over parts of w * z(cos(E(view_t), E(field_m)))) + sum over priors of v * p_m + b * named(t, m).

    z standardises over the catalogue (mean 0, standard deviation 1 of each task's scores), so that a weight means the
    same for every view and field. named is 1 for a server that bears a product's name which the task mentions. No label
    is used. `parts` have view, field and weight; `priors` are weights by name (`PRIORS`); `product_bonus` is b, and 0
    leaves product names out; `encoder` is a key of `study.advisor.encoders.sentence.PACKAGES`.
    """

    parts: Sequence[Mapping[str, str | float]] = ({"view": "all", "field": "all", "weight": 1.0},)
    priors: Mapping[str, float] = field(default_factory=dict)
    product_bonus: float = 0.0
    encoder: str = "minilm"

    def __post_init__(self) -> None:
        """Refuse parts and priors that do not exist."""
        if not self.parts:
            raise StudyError("there is no part", column="model.parts", fix="name at least one view and field")
        pairs = enumerate(self.parts)
        self.terms = [build_settings(Part, dict(part), None, f"model.parts.{number}") for number, part in pairs]
        for name in self.priors:
            require_one_of(name, "prior", PRIORS, column="model.priors")

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Encode every server (cached on disk); nothing is random."""
        self.index(data.servers)
        self.tasks = data.tasks

    def index(self, servers: pd.DataFrame) -> None:
        """Make a catalogue (columns as in `Dataset.servers`) ready for requests."""
        self.fields = {
            name: encode(texts(servers, FIELDS, name), model=self.encoder)
            for name in sorted({term.field for term in self.terms})
        }
        self.prior = combined_priors(servers, self.priors)
        self.products = ProductNames.of(servers) if self.product_bonus else None

    def score(self, tasks: IntArray) -> FloatArray:
        """Scores, shape (len(tasks), n_servers)."""
        return self.score_requests(self.tasks.iloc[tasks])

    def score_requests(self, requests: pd.DataFrame, *, store: bool = True) -> FloatArray:
        """Scores for requests (columns as in `Dataset.tasks`; name or theme may be empty), shape (len(requests),
        n_servers), float32. `store`: False keeps passing texts out of the encoder's cache."""
        return self.total(self.contributions(requests, store=store), self.bonus(requests))

    def total(self, contributions: Mapping[str, FloatArray], bonus: FloatArray | None) -> FloatArray:
        """The scores that `contributions` and `bonus` of some requests give, of their shape."""
        total = standardised(sum(contributions.values()))  # type: ignore[arg-type]
        total += self.prior
        if bonus is not None:
            total += bonus
        return total

    def bonus(self, requests: pd.DataFrame) -> FloatArray | None:
        """What the products that requests name add, shape (len(requests), n_servers); None without product names."""
        if self.products is None:
            return None
        return np.float32(self.product_bonus) * self.products.named(texts(requests, VIEWS, "request"))

    def contributions(self, requests: pd.DataFrame, *, store: bool = True) -> dict[str, FloatArray]:
        """The weighted terms of the score by ``view x field``, each of shape (len(requests), n_servers)."""
        views = encoded_views(self.terms, requests, partial(encode, model=self.encoder, store=store))
        return weighted(self.terms, views, self.fields)


def encoded_views(
    terms: Sequence[Part], requests: pd.DataFrame, encode: Callable[[list[str]], FloatArray]
) -> dict[str, FloatArray]:
    """The vectors of every view of requests that `terms` read, each of shape (len(requests), width). `encode`: is
    called once for all views, so that a single request waits for the encoder once."""
    names = sorted({term.view for term in terms})
    stacked = [text for name in names for text in texts(requests, VIEWS, name)]
    # Each text once: the views of a user's request are mostly one text.
    row_of = {text: row for row, text in enumerate(dict.fromkeys(stacked))}
    vectors = encode(list(row_of))[[row_of[text] for text in stacked]]
    return dict(zip(names, vectors.reshape(len(names), len(requests), -1), strict=True))


def weighted(
    terms: Sequence[Part], views: Mapping[str, FloatArray], fields: Mapping[str, FloatArray], mark: str = ""
) -> dict[str, FloatArray]:
    """The standardised cosine of each term times its weight, shape (n_requests, n_servers), by ``view x field`` with
    `mark` behind it."""
    return {
        f"{term.view} x {term.field}{mark}": np.float32(term.weight)
        * standardised(cosines(views[term.view], fields[term.field]))
        for term in terms
    }


def standardised(scores: FloatArray) -> FloatArray:
    """Each row with mean 0 and standard deviation 1 (a constant row becomes 0), shape unchanged, float32."""
    centred = scores - scores.mean(axis=1, keepdims=True)
    spread = centred.std(axis=1, keepdims=True)
    return np.asarray(centred / np.where(spread > 0, spread, 1), dtype=np.float32)
