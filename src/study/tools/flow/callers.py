"""How a system fills the arguments of the tool that it chose.

required: the required parameters, each with the first piece of the text that fits (a floor, nothing is learned).
copied: the nearest exemplar's arguments word for word; without an exemplar of the tool as `required`.
borrowed: the nearest exemplar's parameters, their values copied from the instruction by the trained copier; without an
    exemplar as `trained`.
trained: parameters and values by the trained copier.
"""

from __future__ import annotations

from typing import Any

from study.data.dataset import FloatArray
from study.errors import StudyError
from study.tools.flow.calls import Call
from study.tools.flow.selector import Exemplars
from study.tools.flow.slot_filler import Copier

KINDS = ("required", "copied", "borrowed", "trained")


def call(kind: str, text: str, tool: int, copier: Copier, exemplars: Exemplars, similarity: FloatArray) -> Call:
    """The call of `tool` for an instruction.

    Args:
        similarity: of the instruction to every exemplar, shape (n,).
    """
    if kind not in KINDS:
        raise StudyError(f"unknown way to fill arguments {kind!r}", fix=f"one of: {', '.join(KINDS)}")
    near = exemplars.nearest_of(similarity, tool) if kind in ("copied", "borrowed") else None
    if kind == "copied" and near is not None:
        return Call(tool, near.arguments)
    if kind in ("required", "copied"):
        return Call(tool, required(text, tool, copier))
    return Call(tool, copier.fill(text, tool, None if near is None else list(near.arguments)))


def required(text: str, tool: int, copier: Copier) -> dict[str, Any]:
    """Required parameters with the first value that fits each; the empty text where none does."""
    return {
        parameter.name: listed[0].value if listed else ""
        for parameter, _, listed in copier.listed(text, tool)
        if parameter.required
    }
