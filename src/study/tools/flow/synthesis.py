"""Instructions made from tools (section 3.2): first instructions, slots filled, then rewritten to be harder.

The three steps are written by a `Writer`: by templates and rules, or by a language model at an endpoint
(`study.tools.flow.endpoint`). Every step keeps the ground truth: the tool is given, and the arguments are those whose
values were put into the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from study.tools.catalogues.catalog import ToolCatalog
from study.tools.discovery.words import tokens
from study.tools.flow.samples import Sample, key
from study.tools.flow.slot_filler import HINTS, property_of
from study.tools.flow.spans import kind_of, stands_alone

SENTENCE = re.compile(r"(?<=[a-z)])[.!?](?:\s|$)|\n")
MAX_LETTERS = 160


class Writer(Protocol):
    """Who writes the instructions; a step that fails gives nothing, and its instruction is left out."""

    def first(self, catalog: ToolCatalog, tool: int, number: int) -> list[str]:
        """At most `number` different instructions that need the tool, without its name."""
        ...

    def fill(self, catalog: ToolCatalog, tool: int, text: str) -> tuple[str, dict[str, Any]] | None:
        """The instruction with a value for every required parameter, and the arguments of its call."""
        ...

    def evolve(self, text: str, arguments: Mapping[str, Any]) -> str | None:
        """A harder instruction for the same call."""
        ...


class Templates:
    """The writer without a model.

    Args:
        openings: texts with one ``{}`` for what the tool does.
        rewrites: texts with one ``{}`` for the instruction that they make harder.
        values: example values by kind of parameter (see `HINTS`) and by JSON type.
        seed: of every choice.
        quoted: share of the values in quotation marks (see `said`).
    """

    def __init__(
        self,
        openings: Sequence[str],
        rewrites: Sequence[str],
        values: Mapping[str, Sequence[Any]],
        seed: int,
        quoted: float = 1.0,
    ) -> None:
        """Prepare the choices."""
        self.openings, self.rewrites, self.values, self.quoted = openings, rewrites, values, quoted
        self.rng = np.random.default_rng(seed)

    def first(self, catalog: ToolCatalog, tool: int, number: int) -> list[str]:
        """Openings around the first sentence of the description, from which the tool's name is removed."""
        own = catalog.tools[tool]
        name = re.compile(re.escape(own.name), re.IGNORECASE)
        does = name.sub("", SENTENCE.split(own.description.strip())[0])[:MAX_LETTERS].strip(" .:-") or " ".join(
            tokens(own.name)
        )
        does = does[:1].lower() + does[1:]
        chosen = self.rng.permutation(len(self.openings))[:number]
        return [self.openings[place].format(_safe(does)) for place in chosen]

    def fill(self, catalog: ToolCatalog, tool: int, text: str) -> tuple[str, dict[str, Any]] | None:
        """A phrase per required parameter, with a value from its schema or of its kind."""
        arguments: dict[str, Any] = {}
        own = catalog.tools[tool]
        for parameter in own.parameters:
            if parameter.required:
                value = self._value(parameter.name, property_of(own, parameter.name))
                if value is None:
                    return None
                arguments[parameter.name] = value
        phrases = [
            f"{' '.join(tokens(name))} {said(value, quoted=bool(self.rng.random() < self.quoted))}"
            for name, value in arguments.items()
        ]
        return (f"{text}, with {' and '.join(phrases)}." if phrases else f"{text}."), arguments

    def evolve(self, text: str, arguments: Mapping[str, Any]) -> str | None:
        """One of the rewrites around the instruction."""
        return self.rewrites[int(self.rng.integers(len(self.rewrites)))].format(_safe(text))

    def _value(self, name: str, stated: Mapping[str, Any]) -> Any:
        kind = kind_of(stated)
        listed = stated.get("enum")
        if isinstance(listed, list) and listed:
            return listed[int(self.rng.integers(len(listed)))]
        if "default" in stated and stated["default"] is not None:
            return stated["default"]
        words = set(tokens(name))
        meant = next((hint for hint, known in HINTS.items() if hint != "number" and words & set(known)), "quoted")
        known = self.values.get(meant if kind == "string" else kind)
        return known[int(self.rng.integers(len(known)))] if known else None


def said(value: Any, *, quoted: bool = True) -> str:
    """A value as an instruction says it.

    Args:
        quoted: False leaves the marks out where the value's form shows where it ends: addresses, paths, dates, names.
    """
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return value if not quoted and stands_alone(value) else f'"{value}"'


def _safe(text: str) -> str:
    """Text of strangers must not act as a template in a later rewrite: it holds no braces."""
    return text.replace("{", "(").replace("}", ")")


def synthesise(
    catalog: ToolCatalog, tools: Sequence[int], writer: Writer, *, number: int, depth: int
) -> tuple[list[Sample], dict[str, int]]:
    """Instructions of every stage, and how many each stage gave or lost.

    The first instruction of a call, its filled form and its rewrites share a group. Only texts that hold the arguments
    are samples: the first instructions name no values, so they are kept where the tool needs none.

    Args:
        number: first instructions per tool.
        depth: rewrites.
    """
    counts = dict.fromkeys(("first", "filled", "evolved", "not filled", "not evolved"), 0)
    found: list[Sample] = []
    for tool in tools:
        server = catalog.tools[tool].server
        for place, text in enumerate(writer.first(catalog, tool, number)):
            counts["first"] += 1
            group = f"{key(catalog, tool)}:{place}"
            filled = writer.fill(catalog, tool, text)
            if filled is None:
                counts["not filled"] += 1
                continue
            text, arguments = filled
            counts["filled"] += 1
            found.append(Sample(f"{group}:filled", text, tool, server, arguments, group))
            for step in range(1, depth + 1):
                evolved = writer.evolve(text, arguments)
                if evolved is None:
                    counts["not evolved"] += 1
                    break
                text = evolved
                counts["evolved"] += 1
                found.append(Sample(f"{group}:evolved{step}", text, tool, server, arguments, group))
    return found, counts
