"""Function calls and the paper's three measures of them: Tool, Param and AST (appendix C.2).

The measures are nested here: Param needs the right tool, AST needs Param. The paper's are not everywhere (its Table 4
has Param above Tool), so its Param may count parameters of wrong tools.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Letters that the Berkeley leaderboard leaves out of account when it compares texts (Patil et al. 2025).
IGNORED = re.compile(r"[ ,./\-_*^]")
MAX_DEPTH = 20


@dataclass(frozen=True)
class Call:
    """A call of the tool in row `tool` of the catalogue."""

    tool: int
    arguments: Mapping[str, Any] = field(default_factory=dict)


def measures(predicted: Call | None, tool: int, arguments: Mapping[str, Any]) -> dict[str, float]:
    """Tool, Param and AST of one call, each 0 or 1; no call at all is wrong.

    Tool: the right tool. Param: and exactly the right parameter names, nested ones too, in any order. AST: and equal
    values, see `same_value`.
    """
    right = predicted is not None and predicted.tool == tool
    named = right and predicted is not None and names(predicted.arguments) == names(arguments)
    whole = named and predicted is not None and same_value(dict(predicted.arguments), dict(arguments))
    return {"tool": float(right), "param": float(named), "ast": float(whole)}


def names(value: Any, depth: int = 0) -> Any:
    """The names of nested parameters without their values."""
    if isinstance(value, Mapping) and depth < MAX_DEPTH:
        return {str(name): names(inner, depth + 1) for name, inner in value.items()}
    return None


def same_value(one: Any, other: Any, depth: int = 0) -> bool:
    """Equality as the Berkeley leaderboard checks it.

    Texts are compared without case, spaces and ``, . / - _ * ^``, and with one kind of quotation mark; a whole number
    equals the same decimal number; a truth value equals only itself; lists keep their order.
    """
    if depth > MAX_DEPTH:
        return False
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, str) and isinstance(other, str):
        return plain(one) == plain(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same_value(a, b, depth + 1) for a, b in zip(one, other, strict=True))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_value(one[name], other[name], depth + 1) for name in one)
    return False


def plain(text: str) -> str:
    """A text as it is compared."""
    return IGNORED.sub("", text).lower().replace("'", '"')
