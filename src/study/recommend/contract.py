"""What a saved model is: anything that names servers for one request, without the data set and without a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field
from difflib import get_close_matches
from typing import Any, ClassVar, Protocol

from study.errors import StudyError

LONGEST_REQUEST = 20_000  # characters; a longer request is a file pasted by mistake


class Answer(Protocol):
    """One recommended server. Every answer is a dataclass, whose fields are what ``--json`` prints."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def rank(self) -> int:
        """From 1."""

    @property
    def server_id(self) -> int:
        """As in the catalogue."""

    @property
    def name(self) -> str:
        """A stranger's text."""

    @property
    def url(self) -> str:
        """A stranger's text."""

    @property
    def score(self) -> float:
        """What the order follows."""

    def shown(self) -> Mapping[str, float | str]:
        """The parts of the score, and what else stands beside it in a table, by heading."""


class SavedModel(Protocol):
    """A saved model. `recommend` and `warnings` are asked with the same request."""

    @property
    def title(self) -> str:
        """How a table names the model."""

    @property
    def caption(self) -> str:
        """What its score is, in one line."""

    def recommend(
        self, text: str, *, language: str = "", category: str = "", subcategory: str = "", theme: str = "", k: int = 5
    ) -> Sequence[Answer]:
        """The `k` best servers for a task described in words, best first.

        Raises:
            StudyError: empty or oversized text, or `k` outside the catalogue.
        """

    def warnings(
        self, text: str, *, language: str = "", category: str = "", subcategory: str = "", theme: str = ""
    ) -> list[str]:
        """What of a request the model cannot use, one sentence each; empty where it uses everything."""


def require_request(text: str, k: int, n_servers: int) -> None:
    """Refuse a request that no model can answer.

    Raises:
        StudyError: empty or oversized text, or `k` outside the catalogue.
    """
    if not text.strip() or len(text) > LONGEST_REQUEST:
        problem = "is empty" if not text.strip() else f"has {len(text)} characters, at most {LONGEST_REQUEST} are read"
        raise StudyError(
            f"the request {problem}", fix='say what is to be done, e.g. "read a PDF and extract all tables"'
        )
    if not 1 <= k <= n_servers:
        raise StudyError(f"k = {k} is outside 1 ... {n_servers}, the size of the catalogue", fix="choose another -k")


def nearest(word: str, known: Iterable[str]) -> str:
    """The known names most like `word`, as the end of a sentence."""
    spelling = {name.casefold(): name for name in known}
    near = [repr(spelling[name]) for name in get_close_matches(word.casefold(), spelling, n=3)]
    return f" (nearest: {', '.join(near)})" if near else ""
