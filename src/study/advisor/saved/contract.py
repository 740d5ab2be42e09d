"""What a saved model is, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol, Self

from study.base.errors import StudyError

if TYPE_CHECKING:
    import pandas as pd

ATTRIBUTES = ("language", "category", "subcategory", "theme")  # that a request may state beside its words
LONGEST_REQUEST = 20_000  # characters; a longer request is a file pasted by mistake


@dataclass(frozen=True)
class Recommendation:
    """One recommended server. Its fields are what ``--json`` prints; name, url and description are strangers' text."""

    rank: int  # from 1
    server_id: int
    name: str
    url: str
    score: float  # what the order follows; each model's `caption` says what it is
    # Parts of the score, by name: those of `study.advisor.saved.field_dense.explain`, or s_sem and s_str of T2MRec.
    parts: Mapping[str, float]
    description: str = ""
    language: str = ""
    stage: str = ""  # T2MRec: ``anchor`` (by fused score) or ``expansion`` (by the centroid of task and anchors)
    features: Mapping[str, float] = field(default_factory=dict)  # T2MRec: phi_cat, phi_lan, phi_the

    @classmethod
    def of(cls, rank: int, server: Mapping[str, Any], score: float, parts: Mapping[str, float], **more: Any) -> Self:
        """A row of the catalogue as an answer; numbers are rounded to six decimals."""
        texts = {name: server[name] for name in ("name", "url", "description", "language")}
        return cls(rank, int(server["id"]), score=round(float(score), 6), parts=rounded(parts), **texts, **more)

    def table_cells(self) -> dict[str, float | str]:
        """What a table prints beside the score, by heading."""
        return {**self.parts, **({"stage": self.stage} if self.stage else {})}


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """The values with six decimals."""
    return {name: round(float(value), 6) for name, value in values.items()}


class SavedModel(Protocol):
    """It names servers for one request, without the data set and without a network."""

    title: str  # how a table names the model
    caption: str  # what its score is, in one line
    servers: pd.DataFrame  # the catalogue: columns id, name, url, description, language at least
    standardised: bool  # whether scores are in standard deviations over the catalogue, so that a prior can be added

    def __hash__(self) -> int:
        """What is worked out once for a model is kept by it."""

    def recommend(self, text: str, *, k: int = 5, **attributes: str) -> Sequence[Recommendation]:
        """The `k` best servers for a task described in words, best first. `attributes`: of `ATTRIBUTES`, used as far as
        the model reads them. Raises StudyError: empty or oversized text, or `k` outside the catalogue."""

    def closeness(self, text: str, nearest: int) -> tuple[str, float] | None:
        """How close a request is to its `nearest` servers, after the name of the encoder, whose scale it has (key of
        ``fit`` in conf/recommend/answering.yaml); None if the model has no such measure."""

    def warnings(self, text: str, **attributes: str) -> list[str]:
        """What of a request the model cannot use, one sentence each; empty where it uses everything."""


def stated(attributes: Mapping[str, str]) -> dict[str, str]:
    """Every one of `ATTRIBUTES`, empty where a request does not state it. Raises TypeError: another name."""
    if unknown := sorted(attributes.keys() - {*ATTRIBUTES}):
        raise TypeError(f"unknown attributes {unknown}")
    return {name: attributes.get(name, "") for name in ATTRIBUTES}


def require_request(text: str, k: int, n_servers: int) -> None:
    """Refuse a request that no model can answer: empty or oversized text, or `k` outside the catalogue."""
    if not text.strip() or len(text) > LONGEST_REQUEST:
        problem = "is empty" if not text.strip() else f"has {len(text)} characters, at most {LONGEST_REQUEST} are read"
        fix = 'say what is to be done, e.g. "read a PDF and extract all tables"'
        raise StudyError(f"the request {problem}", fix=fix)
    if not 1 <= k <= n_servers:
        raise StudyError(f"k = {k} is outside 1 ... {n_servers}, the size of the catalogue", fix="choose another -k")


def nearest(word: str, names: Iterable[str]) -> str:
    """The known names most like `word`, as the end of a sentence."""
    spelling = {name.casefold(): name for name in names}
    near = [repr(spelling[name]) for name in get_close_matches(word.casefold(), spelling, n=3)]
    return f" (nearest: {', '.join(near)})" if near else ""
