"""A lexical probe: whether a server of the name in a request comes first, where it is the tool and where it is not."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.config.compose import build_system, load
from study.data.dataset import Dataset, FloatArray
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation.ranking import tie_order
from study.usefulness.products import key

EMPTY = ("language", "category", "theme", "subcategory")
KEYS = {"seed", "requests", "top1", "systems", "kinds", "not_the_tool"}
# The forms of the requests, as the table names them.
WRITTEN, LOWER, NOT_THE_TOOL = "as written", "lower case", "word is not the tool"
SLOT = "{product}"


@dataclass(frozen=True)
class Probe:
    """One request.

    Attributes:
        form: one of `WRITTEN`, `LOWER` and `NOT_THE_TOOL`.
        kind: of the product or word.
        word: a product, or a word that is not the tool, as the request writes it.
        sentence: the request, with `SLOT` where a product stands.
        bearers: rows of the servers whose name holds the word.
    """

    form: str
    kind: str
    word: str
    sentence: str
    bearers: tuple[int, ...]

    @property
    def text(self) -> str:
        """The request as it is asked."""
        return self.sentence.replace(SLOT, self.word)


def check(settings: Mapping[str, Any]) -> None:
    """Refuse settings of ``conf/best/probes.yaml`` that would ask something else than they seem to.

    Raises:
        StudyError: a kind or a request has other keys than those that are read, a sentence has no place for a product,
            a word does not stand in its text or names nothing, or a text is there twice.
    """
    for kind, entry in settings["kinds"].items():
        column = f"kinds.{kind}"
        _keys(entry, {"products", "sentences"}, column)
        for sentence in entry["sentences"]:
            if SLOT not in sentence:
                raise StudyError(f"no product is asked for: {sentence}", column=column, fix=f"write {SLOT} in it")
    seen: set[str] = set()
    for kind, entries in settings["not_the_tool"].items():
        for number, entry in enumerate(entries):
            column = f"not_the_tool.{kind}.{number}"
            _keys(entry, {"word", "text"}, column)
            word, text = str(entry["word"]), str(entry["text"])
            if not key(word) or not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text):
                raise StudyError(f"{word!r} is no name in: {text}", column=column, fix="write it as the text does")
            if text in seen:
                raise StudyError(f"asked twice: {text}", column=column, fix="remove one of them")
            seen.add(text)


def _keys(entry: object, expected: set[str], column: str) -> None:
    if not isinstance(entry, Mapping) or set(entry) != expected:
        raise StudyError(
            "its keys are not those that are read", column=column, fix=f"its keys: {', '.join(sorted(expected))}"
        )


def draw(settings: Mapping[str, Any], servers: pd.DataFrame) -> list[Probe]:
    """The requests for a product that the catalogue can answer, at most `requests` of them, by seed, as written."""
    names = [key(name) for name in servers["name"]]
    found = [
        Probe(WRITTEN, kind, product, sentence, bearers)
        for kind, entry in settings["kinds"].items()
        for product in entry["products"]
        if (bearers := _bearers(names, product))
        for sentence in entry["sentences"]
    ]
    chosen = np.random.default_rng(settings["seed"]).permutation(len(found))[: settings["requests"]]
    return [found[place] for place in sorted(chosen)]


def lower_case(probe: Probe) -> Probe:
    """The same request with the product in lower case; the rest of the sentence stays as it is."""
    return replace(probe, form=LOWER, word=probe.word.lower())


def not_the_tool(settings: Mapping[str, Any], servers: pd.DataFrame) -> list[Probe]:
    """The requests with a word that must not decide, where the catalogue has a server of that name."""
    names = [key(name) for name in servers["name"]]
    return [
        Probe(NOT_THE_TOOL, kind, entry["word"], entry["text"], bearers)
        for kind, entries in settings["not_the_tool"].items()
        for entry in entries
        if (bearers := _bearers(names, entry["word"]))
    ]


def _bearers(names: Sequence[tuple[str, ...]], word: str) -> tuple[int, ...]:
    wanted = key(word)
    return tuple(row for row, words in enumerate(names) if _holds(words, wanted))


def _holds(words: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether the wanted words stand together in a name."""
    return bool(wanted) and any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1))


def all_forms(settings: Mapping[str, Any], servers: pd.DataFrame) -> list[Probe]:
    """Every request to ask, form by form."""
    written = draw(settings, servers)
    return [*written, *map(lower_case, written), *not_the_tool(settings, servers)]


def as_tasks(probes: Sequence[Probe]) -> pd.DataFrame:
    """The requests in the form of tasks: the text is the description, everything else is empty."""
    frame = pd.DataFrame({"id": np.arange(len(probes)), "name": "", "description": [probe.text for probe in probes]})
    return frame.assign(**dict.fromkeys(EMPTY, ""))


def scores(name: str, data: Dataset, probes: Sequence[Probe]) -> FloatArray:
    """Scores of a system of ``conf/system`` that learns from no label, shape (len(probes), n_servers)."""
    nothing = sp.csr_matrix((len(probes), data.n_servers), dtype=np.float32)
    lists = tuple(np.empty(0, dtype=np.int64) for _ in probes)
    asked = Dataset("probes", data.servers, as_tasks(probes), nothing, lists)
    system = build_system(load([f"system={name}"]).system)
    with tempfile.TemporaryDirectory() as folder:
        system.fit(asked, Split("cold", nothing, nothing, nothing, cold=True), seed=0, workdir=Path(folder))
    found: FloatArray = system.score(np.arange(len(probes)))
    return found


def first_bears_word(scores: FloatArray, probes: Sequence[Probe], order: np.ndarray) -> np.ndarray:
    """Whether the first server of each request bears its word, ties in the given order; shape (n,), bool.

    Args:
        scores: shape (n, n_servers).
        order: from `study.evaluation.ranking.tie_order`.
    """
    first = order[scores[:, order].argmax(axis=1)]
    return np.array([int(row) in probe.bearers for row, probe in zip(first, probes, strict=True)], dtype=bool)


def shares(bears: np.ndarray, probes: Sequence[Probe]) -> pd.DataFrame:
    """How often the first server bears the word, by form, and in each form for all requests and then by kind.

    Args:
        bears: from `first_bears_word`.

    Returns: columns form, kind, requests (their number) and first_bears_word (the share).
    """
    facts = {"form": [probe.form for probe in probes], "kind": [probe.kind for probe in probes], "bears": bears}
    found = []
    for form, own in pd.DataFrame(facts).groupby("form", sort=False):
        kinds = pd.concat([own.assign(kind="all"), own]).groupby("kind", sort=False)["bears"]
        table = kinds.agg(requests="size", first_bears_word="mean").reset_index()
        found.append(table.assign(form=form))
    return pd.concat(found, ignore_index=True)[["form", "kind", "requests", "first_bears_word"]]


def table(settings: Mapping[str, Any], data: Dataset) -> pd.DataFrame:
    """Every system's shares: the columns of `shares` behind the column system."""
    check(settings)
    asked = all_forms(settings, data.servers)
    order = tie_order(data.n_servers, 0)
    found = []
    for name in settings["systems"]:
        bears = first_bears_word(scores(name, data, asked), asked, order)
        found.append(shares(bears, asked).assign(system=name))
    return pd.concat(found, ignore_index=True)[["system", "form", "kind", "requests", "first_bears_word"]]
