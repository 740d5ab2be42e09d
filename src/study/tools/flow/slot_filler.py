"""A slot filler: the arguments of a known tool, copied from pieces of the instruction.

Two logistic regressions stand in for the paper's language model; their features name no tool.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression

from study.advisor.retrieval.documents import Parameter, Tool, ToolCatalog, resolve
from study.advisor.retrieval.lexical import words_of
from study.data.dataset import FloatArray
from study.tools.collections import same_value
from study.tools.flow.samples import Sample
from study.tools.flow.settings import Copying

PATTERNS = {
    "quoted": re.compile(r"\"([^\"\n]{1,400})\"|(?<!\w)'([^'\n]{1,400})'(?!\w)|“([^”\n]{1,400})”|`([^`\n]{1,400})`"),
    "url": re.compile(r"(?:https?|ftp)://[^\s\"'<>)\]]{1,400}"),
    "email": re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,5}"),
    "date": re.compile(r"\b\d{4}-\d{2}-\d{2}(?:T[\d:.Z+-]{1,30})?"),
    # Not the 1 of fix-1, and not the ending of report.txt, which looks like a CSS selector.
    "number": re.compile(r"(?<![\w.])(?<![A-Za-z]-)-?\d{1,15}(?:\.\d{1,15})?(?![\w])"),
    "code": re.compile(r"\b[A-Z]{2,6}\b|(?<!\w)[#.][A-Za-z][\w-]{1,60}(?:\s?[>+~]\s?[\w.#-]{1,60}){0,4}"),
    "path": re.compile(r"(?<![\w:/])/?(?:[\w.-]{1,80}/){1,10}[\w.-]{1,80}|\b[\w-]{1,80}\.[a-z]{2,5}\b"),
    "name": re.compile(r"\b[A-Z][\w'-]{1,40}(?:[ ,]{1,2}[A-Z][\w'-]{1,40}){0,5}"),
    # An identifier: letters with a digit or an underscore among them, such as fix-1 or user_name.
    "slug": re.compile(r"(?<![\w/.-])(?=[\w-]{0,60}[\d_])[A-Za-z][\w-]{1,60}(?![\w/-])"),
    "word": re.compile(r"\b[\w-]{2,40}\b"),
}
KINDS = tuple(PATTERNS)
# What ends a sentence and not a value.
TRAILING = ".,;:!?)]}\"'"
NUMERIC = ("integer", "number")
TYPES = ("string", "integer", "number", "boolean", "array", "object")


class Span(NamedTuple):
    """One piece: its kind, its text, and where it begins (letters from the start)."""

    kind: str
    text: str
    start: int


@lru_cache(maxsize=20_000)  # an instruction is read for every tool that may be called
def spans(text: str, *, letters: int, most: int) -> list[Span]:
    """At most `most` pieces of the first `letters`, in the order of `KINDS`, then of the text; a text of two kinds
    counts as the first."""
    by_text: dict[str, Span] = {}
    for kind, match in ((name, match) for name in KINDS for match in PATTERNS[name].finditer(text[:letters])):
        inner = next((part for part in match.groups() if part), None) or match.group()
        clean = inner.rstrip(TRAILING)
        if kind == "quoted":
            clean = inner.strip().rstrip(",.;:") or inner.strip()
        if clean and clean not in by_text:
            by_text[clean] = Span(kind, clean, match.start())
        if len(by_text) >= most:
            break
    return list(by_text.values())


def stands_alone(text: str) -> bool:
    """Whether a value is a piece by its form, so that people write it without quotation marks."""
    return any(PATTERNS[kind].fullmatch(text) for kind in KINDS if kind not in ("quoted", "word"))


def kind_of(stated: Mapping[str, Any]) -> str:
    """The JSON type of a parameter; string where the schema does not say."""
    kind, branches = stated.get("type"), stated.get("anyOf")
    kinds = [*kind] if isinstance(kind, list) else [kind]
    kinds += [one.get("type") for one in branches if isinstance(one, Mapping)] if isinstance(branches, list) else []
    return next((name for name in kinds if name in TYPES), "string")


def convert(text: str, kind: str) -> Any:
    """A span as a value of a JSON type; None where it cannot be one."""
    if kind not in NUMERIC:
        return [text] if kind == "array" else text if kind == "string" else None
    try:
        number = float(text)
    except ValueError:
        return None
    if math.isfinite(number) and number.is_integer() and (kind == "integer" or "." not in text):
        return int(number)
    return number if math.isfinite(number) and kind == "number" else None


# Words of parameter names that ask for a kind of piece.
HINTS = {
    "url": {"url", "link", "uri", "website"},
    "email": {"email", "mail"},
    "date": {"date", "day", "since", "until"},
    "path": {"path", "file", "directory"},
    "number": {"count", "limit", "max", "num", "latitude", "longitude", "id"},
    "code": {"code", "state", "selector", "country", "symbol"},
    "name": {"city", "name", "location", "title"},
    "quoted": {"query", "keyword", "text", "message", "expression", "term"},
}
# Kinds of pieces that say what they are, and words beside those of `HINTS` that ask for one.
PEOPLE = {"address", "attendees", "contact", "recipient", "recipients", "sender", "user"}
FORMS = {
    "url": {"address", "endpoint", "href", "image", "page", "repository", "site", "source", "src", "webhook"},
    "email": PEOPLE | {"bcc", "cc", "from", "to"},
    "date": {"after", "before", "deadline", "due", "end", "from", "month", "start", "time", "to", "when", "year"},
}
SAME = 1e-4  # sums of scores that differ by less are equal
NEGATED = re.compile(r"\b(?:without|not|no|disable|exclude|false)\b")
Linear = tuple[FloatArray, float]  # weights and intercept of a logistic regression
UNTRAINED: Linear = (np.zeros(0, dtype=np.float32), 0.0)


@dataclass(frozen=True)
class Option:
    """A value that a parameter may get, what speaks for it, where the text says it (None: nowhere), and which form of
    `FORMS` it has there; a part of a date, such as its year, counts as one."""

    value: Any
    features: FloatArray
    start: int | None = None
    form: str = ""


@dataclass
class Chosen:
    """A parameter, the values that it could get, their scores, and the place of the chosen (None: none)."""

    parameter: Parameter
    options: Sequence[Option]
    scores: FloatArray
    row: int | None

    @property
    def option(self) -> Option:
        """The chosen value."""
        assert self.row is not None
        return self.options[self.row]

    @property
    def probability(self) -> float:
        """That the value is right, as the regression sees it; 0 where there is none, and where a piece of a form of
        `FORMS` would go to a parameter whose name and description have none of the form's words."""
        if self.row is None:
            return 0.0
        form, words = self.option.form, {*words_of(self.parameter.name), *words_of(self.parameter.description)}
        if form and not words & (HINTS[form] | FORMS[form]):
            return 0.0
        return float(1 / (1 + np.exp(-self.scores[self.row])))


def property_of(tool: Tool, name: str) -> Mapping[str, Any]:
    """What the schema says of one parameter; empty where it says nothing."""
    properties = tool.schema.get("properties")
    stated = resolve(properties.get(name), tool.schema) if isinstance(properties, Mapping) else None
    return stated if isinstance(stated, Mapping) else {}


def options(text: str, pieces: Sequence[Span], parameter: Parameter, stated: Mapping[str, Any]) -> list[Option]:
    """Every value that the parameter could get: listed ones, truth values, its default, pieces of the text. `pieces`:
    the text's pieces. `stated`: what the schema says of the parameter."""
    kind, lower, listed = kind_of(stated), text.lower(), stated.get("enum")
    values: list[tuple[Any, Span | None]] = []
    if isinstance(listed, list):
        values = [(value, None) for value in listed[:50]]
    elif kind == "boolean":
        values = [(True, None), (False, None)]
    else:
        values = [(value, span) for span in pieces if (value := convert(span.text, kind)) is not None]
    standard = [stated["default"]] if "default" in stated else []
    values += [(default, None) for default in standard if not any(same_value(value, default) for value, _ in values)]
    words, dates = set(words_of(parameter.name)), [piece for piece in pieces if piece.kind == "date"]
    described = set(words_of(parameter.description)) - words
    named, negated = bool(words & set(words_of(lower))), bool(NEGATED.search(lower))
    hinted = [bool(words & HINTS.get(name, set())) for name in KINDS]
    listed_options, seen = list[Option](), Counter[str]()
    for value, span in values:
        of_kind = [span is not None and span.kind == name for name in KINDS]
        if span is None:
            order, before, size, form = 0.0, set[str](), 0.0, ""
        else:
            seen[span.kind] += 1
            order, size = 1 / seen[span.kind], min(len(span.text), 100) / 100
            before = set(words_of(lower[max(0, span.start - 40) : span.start])[-4:])
            dated = any(0 <= span.start - date.start < len(date.text) for date in dates)
            form = span.kind if span.kind in FORMS else "date" if dated else ""
        row = [
            *of_kind,
            *[of_this and hint for of_this, hint in zip(of_kind, hinted, strict=True)],
            bool(words & before),
            bool(described & before),
            order,
            span is not None and kind in NUMERIC,
            size,
            bool(described) and span is not None and str(value).lower() in parameter.description.lower(),
            span is None and not isinstance(value, bool) and str(value).lower() in lower,
            any(same_value(value, default) for default in standard),
            value is True,
            value is True and named,
            value is False and negated,
        ]
        listed_options.append(Option(value, np.array(row, dtype=np.float32), span.start if span else None, form))
    return listed_options


class SlotFiller:
    """The two regressions. `fit` learns them from calls, `fill` writes the arguments of one call.

    `value`: which piece is a parameter's value. `setting`: whether an optional parameter is set. Both apply to any
    catalogue's tools.
    """

    def __init__(
        self, catalog: ToolCatalog, settings: Copying, value: Linear = UNTRAINED, setting: Linear = UNTRAINED
    ) -> None:
        self.catalog, self.settings, self.value, self.setting = catalog, settings, value, setting
        self._made: dict[tuple[str, int], list[tuple[Parameter, Mapping[str, Any], list[Option]]]] = {}

    def fit(self, samples: Sequence[Sample], more: Sequence[Sample] = ()) -> SlotFiller:
        """Learn from the calls of `samples`; a value that no piece of its text gives teaches nothing about pieces.
        `more`: calls that teach which piece is whose, but not which optional parameters are set."""
        rows, right, sets, chosen = [], [], [], []
        for number, sample in enumerate([*samples, *more]):
            for parameter, stated, listed in self.listed(sample.text, sample.tool):
                given = parameter.name in sample.arguments
                if not parameter.required and number < len(samples):
                    sets.append((parameter, stated, listed, sample.text))
                    chosen.append(given)
                hits = [given and same_value(option.value, sample.arguments[parameter.name]) for option in listed]
                if any(hits):
                    rows += [option.features for option in listed]
                    right += hits
        self.value = _regression(np.array(rows, dtype=np.float32), np.array(right), self.settings.strength)
        features = np.array([self._setting(*one) for one in sets], dtype=np.float32)
        self.setting = _regression(features, np.array(chosen), self.settings.strength)
        return self

    def fill(
        self, text: str, tool: int, names: Sequence[str] | None = None, *, absent: Any = "", least: float = 0.0
    ) -> dict[str, Any]:
        """Arguments for a tool; see `choose`. `absent`: value of a parameter for which neither its schema nor the text
        holds any, or none with a probability of at least `least`."""
        return {
            one.parameter.name: absent if one.row is None or one.probability < least else one.option.value
            for one in self.choose(text, tool, names)
        }

    def choose(self, text: str, tool: int, names: Sequence[str] | None = None) -> list[Chosen]:
        """The parameters to set, each with the value that fits best. `names`: their names; None sets the required ones
        and those that the text seems to want."""
        chosen, taken = list[Chosen](), set[str]()
        for parameter, stated, listed in self.listed(text, tool):
            if names is None and not parameter.required:
                score = _apply(self.setting, self._setting(parameter, stated, listed, text)[None])[0]
                if float(1 / (1 + np.exp(-score))) < 0.5:
                    continue
            elif names is not None and parameter.name not in names:
                continue
            scores = self._scores(listed)
            # Two parameters seldom share one piece of the text: a taken one comes after every other.
            order = sorted(range(len(listed)), key=lambda row: (repr(listed[row].value) in taken, -scores[row]))
            chosen.append(Chosen(parameter, listed, scores, order[0] if order else None))
            if order and type(value := listed[order[0]].value) in (str, int, float):
                taken.add(repr(value))
        exchange(chosen)
        return chosen

    def required(self, text: str, tool: int) -> dict[str, Any]:
        """Required parameters with the first value that fits each; the empty text where none does."""
        listed = self.listed(text, tool)
        return {one.name: values[0].value if values else "" for one, _, values in listed if one.required}

    def listed(self, text: str, tool: int) -> list[tuple[Parameter, Mapping[str, Any], list[Option]]]:
        """Every parameter of a tool with what its schema says and the values that it could get."""
        if (text, tool) not in self._made:
            pieces = spans(text, letters=self.settings.letters, most=self.settings.spans)
            described = self.catalog.tools[tool]
            stated = [(parameter, property_of(described, parameter.name)) for parameter in described.parameters]
            self._made[text, tool] = [(p, s, options(text, pieces, p, s)) for p, s in stated]
        return self._made[text, tool]

    def _scores(self, listed: Sequence[Option]) -> FloatArray:
        features = [option.features for option in listed]
        return _apply(self.value, np.array(features, dtype=np.float32)) if features else np.zeros(0, dtype=np.float32)

    def _setting(self, parameter: Parameter, stated: Mapping[str, Any], listed: list[Option], text: str) -> FloatArray:
        """What speaks for setting an optional parameter."""
        words, kind = set(words_of(parameter.name)), kind_of(stated)
        common, standard = len(words & set(words_of(text))), "default" in stated
        best = float(np.max(self._scores(listed), initial=-10.0))
        row = [*(kind == name for name in TYPES), standard, common / (len(words) or 1)]
        return np.array([*row, best, (kind in NUMERIC) * best, standard * common], dtype=np.float32)


def exchange(chosen: Sequence[Chosen]) -> None:
    """Let two parameters change pieces, in place, where both together then fit better, or as well and in the order of
    the text."""
    for one, other in combinations((filled for filled in chosen if filled.row is not None), 2):
        first, second = one.option.start, other.option.start
        if first is None or second is None:
            continue
        to_one = next((row for row, option in enumerate(one.options) if option.start == second), None)
        to_other = next((row for row, option in enumerate(other.options) if option.start == first), None)
        if to_one is None or to_other is None:
            continue
        gain = one.scores[to_one] + other.scores[to_other] - one.scores[one.row] - other.scores[other.row]
        if gain > SAME or (abs(gain) <= SAME and first > second):
            one.row, other.row = to_one, to_other


def _regression(rows: FloatArray, right: np.ndarray, strength: float) -> Linear:
    """Weights and intercept; where there is one class alone, no weights and an intercept that names it."""
    if len(set(right.tolist())) < 2:
        width = rows.shape[1] if rows.ndim == 2 else 0
        return np.zeros(width, dtype=np.float32), 10.0 if len(right) and right.all() else -10.0
    model = LogisticRegression(C=strength, max_iter=1000).fit(rows, right)
    return model.coef_[0].astype(np.float32), float(model.intercept_[0])


def _apply(model: Linear, rows: FloatArray) -> FloatArray:
    weights, intercept = model
    scores = rows @ weights + intercept if len(weights) else np.full(len(rows), intercept)
    return np.asarray(scores, dtype=np.float32)
