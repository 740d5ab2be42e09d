"""What a sweep varies and how: ``conf/sweep/<name>.yaml``, checked."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import Any

from omegaconf import OmegaConf

from study import paths
from study.config.compose import plain
from study.errors import StudyError
from study.evaluation.metrics import PAPER_METRICS

KINDS = ("scores", "grid", "search")
PARTS = ("valid", "test")


@dataclass(frozen=True)
class Sweep:
    """One sweep; the keys are explained in ``conf/sweep/fusion_weight.yaml``."""

    name: str
    title: str
    place: str
    paper_best: float | None
    system: str
    kind: str
    objective: str
    parts: list[str]
    seeds: list[int]
    space: dict[str, dict[str, Any]]
    simplex: list[str]
    enqueue: list[dict[str, Any]]
    trials: int
    attempts: int
    keep_fits: bool
    sampler_seed: int

    def __post_init__(self) -> None:
        for key, wrong, fix in (
            ("kind", self.kind not in KINDS, f"one of: {', '.join(KINDS)}"),
            # Checked before the first trial: a misspelt measure would fail after hours, or choose by nothing.
            ("objective", self.objective not in PAPER_METRICS, f"one of: {', '.join(PAPER_METRICS)}"),
            (
                "parts",
                not self.parts or not set(self.parts) <= set(PARTS) or "valid" not in self.parts,
                "valid, or valid and test: values are chosen on valid",
            ),
            ("seeds", not self.seeds or len(set(self.seeds)) < len(self.seeds), "distinct whole numbers"),
            ("space", not self.space, "at least one parameter"),
            ("trials", self.kind == "search" and self.trials < 1, "at least one trial"),
            ("attempts", self.attempts < 1, "at least one attempt"),
            ("simplex", not set(self.simplex) <= set(self.space), "parameters of `space` alone"),
            (
                "enqueue",
                any(set(point) != set(self.space) for point in self.enqueue),
                "a value for every parameter of `space`",
            ),
        ):
            if wrong:
                raise StudyError("not a valid sweep", file=self.file(self.name), column=key, fix=fix)
        if self.kind != "search" and any("choices" not in domain for domain in self.space.values()):
            raise StudyError(
                "a grid needs the values of every parameter",
                file=self.file(self.name),
                column="space",
                fix="give choices: [...]",
            )

    @staticmethod
    def file(name: str) -> Any:
        """Where the sweep is written down."""
        return paths.conf() / "sweep" / f"{name}.yaml"

    def points(self) -> list[dict[str, Any]]:
        """Every combination of values of a grid, with its seed under ``seed``, in the order of the file."""
        names = list(self.space)
        values = itertools.product(*(self.space[name]["choices"] for name in names))
        return [
            dict(zip(names, combination, strict=True)) | {"seed": seed} for combination in values for seed in self.seeds
        ]

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        """The settings that a trial's raw values stand for: weights of the simplex divided by their sum."""
        total = sum(float(values[name]) for name in self.simplex)
        shares = {name: values[name] / total if total > 0 else 1 / len(self.simplex) for name in self.simplex}
        return values | shares


def names() -> list[str]:
    """The sweeps of ``conf/sweep``."""
    return sorted(path.stem for path in (paths.conf() / "sweep").glob("*.yaml"))


def load(name: str) -> Sweep:
    """Read one sweep.

    Raises:
        StudyError: an unknown sweep, an unknown or missing key, or a wrong value.
    """
    if name not in names():
        raise StudyError(f"unknown sweep {name!r}", file=paths.conf() / "sweep", fix=f"one of: {', '.join(names())}")
    settings = plain(OmegaConf.load(Sweep.file(name)))
    wanted = {field.name for field in fields(Sweep)}
    for key in sorted(wanted ^ settings.keys()):
        problem = "an unknown key" if key in settings else "a missing key"
        raise StudyError(problem, file=Sweep.file(name), column=key, fix=f"the keys are: {', '.join(sorted(wanted))}")
    return Sweep(**settings)
