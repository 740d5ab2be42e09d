"""Groups of settings of T2MRec, each value checked, and those that an answer needs (paper, eq. 17-22)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from study.base.errors import StudyError

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@cache
def _hints(group: type) -> dict[str, TypeAdapter[Any]]:
    return {key: TypeAdapter(hint) for key, hint in get_type_hints(group, include_extras=True).items()}


class Group:
    """A group of settings, whose values must fit their hints."""

    def __post_init__(self) -> None:
        group: Any = type(self)  # a class is hashable, whatever mypy says
        for key, hint in _hints(group).items():
            try:
                hint.validate_python(getattr(self, key), strict=True)
            except ValidationError as error:
                self.require(False, key, error.errors()[0]["msg"].replace("Input should", "which should"))

    def require(self, holds: bool, key: str, condition: str) -> None:
        """Raise `StudyError` unless a condition on one of the settings holds."""
        if not holds:
            raise StudyError(
                f"{getattr(self, key)!r} is no value for this setting",
                column=f"system.model.{type(self).__name__.lower()}.{key}",
                fix=f"give another value, {condition}; conf/system/paper/t2mrec.yaml explains every key",
            )


@dataclass(frozen=True)
class Scoring(Group):
    """Structure, fusion and expansion (eq. 17-22). Without expansion the fused score alone ranks.

    The weights w_cat, w_lan, w_the of eq. 17 ("equal weights") sum to 1, so that s_str stays between 0 and 1 and
    alpha_sem alone says how much structure counts.
    """

    semantic_weight: Share = 0.9
    category: Share = 1 / 3
    language: Share = 1 / 3
    theme: Share = 1 / 3
    languages: Literal["study", "program"] = "study"
    expansion: bool = True
    anchors: Natural = 5
    pool: Count = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isclose(sum(self.structure_weights), 1, abs_tol=1e-6):
            raise StudyError(
                f"the structural weights w_cat, w_lan, w_the sum to {sum(self.structure_weights):g}, not to 1",
                column="system.model.scoring.{category,language,theme}",
                fix="divide each of the three by their sum",
            )
        self.require(self.pool >= self.anchors, "pool", f"at least the {self.anchors} of scoring.anchors")

    @property
    def structure_weights(self) -> tuple[float, float, float]:
        """(w_cat, w_lan, w_the)."""
        return self.category, self.language, self.theme
