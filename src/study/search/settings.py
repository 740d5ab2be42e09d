"""What a sweep varies and how: ``conf/sweep/<name>.yaml``, checked; and the choice that is made from its trials."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from study import paths
from study.config.reader import read_settings
from study.errors import StudyError, require_one_of
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
        listed = all("choices" in domain for domain in self.space.values())
        complete = all(set(point) == set(self.space) for point in self.enqueue)
        # Checked before the first trial: a misspelt measure would fail after hours, or choose by nothing.
        for key, right, fix in (
            ("kind", self.kind in KINDS, f"one of: {', '.join(KINDS)}"),
            ("objective", self.objective in PAPER_METRICS, f"one of: {', '.join(PAPER_METRICS)}"),
            ("parts", "valid" in self.parts and set(self.parts) <= set(PARTS), "valid, or valid and test"),
            ("seeds", self.seeds and len(set(self.seeds)) == len(self.seeds), "distinct whole numbers"),
            ("space", self.space, "at least one parameter"),
            ("space", self.kind == "search" or listed, "a grid needs choices: [...] for every parameter"),
            ("trials", self.kind != "search" or self.trials > 0, "at least one trial"),
            ("attempts", self.attempts > 0, "at least one attempt"),
            ("simplex", set(self.simplex) <= set(self.space), "parameters of `space` alone"),
            ("enqueue", complete, "a value for every parameter of `space`"),
        ):
            if not right:
                raise StudyError("not a valid sweep", file=self.file(self.name), column=key, fix=fix)

    @staticmethod
    def file(name: str) -> Path:
        """Where the sweep is written down."""
        return paths.conf() / "sweep" / f"{name}.yaml"

    def points(self) -> list[dict[str, Any]]:
        """The fixed values of every trial, its ``seed`` among them: every combination of a grid, in the order of the
        file; what a search tries first, then empty ones."""
        if self.kind == "search":
            first = [point | {"seed": self.seeds[0]} for point in self.enqueue]
            return [*first, *({} for _ in range(self.trials - len(first)))]
        values = itertools.product(*(domain["choices"] for domain in self.space.values()), self.seeds)
        return [dict(zip([*self.space, "seed"], combination, strict=True)) for combination in values]

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        """The settings that a trial's raw values stand for: weights of the simplex divided by their sum."""
        total = sum(float(values[name]) for name in self.simplex)
        shares = {name: values[name] / total if total > 0 else 1 / len(self.simplex) for name in self.simplex}
        return values | shares


def load_sweep(name: str) -> Sweep:
    """Read one sweep. Raises StudyError: an unknown sweep, an unknown or missing key, or a wrong value."""
    folder = paths.conf() / "sweep"
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    require_one_of(name, "sweep", names, file=folder)
    return read_settings(Sweep, Sweep.file(name))


def chosen(sweep: Sweep, trials: pd.DataFrame) -> dict[str, Any]:
    """The settings with the best mean over seeds of the objective on validation; the earlier one of equals. `trials`:
    trials.csv."""
    means = trials.groupby(list(sweep.space), sort=False)[f"valid/{sweep.objective}"].mean()
    best = means.idxmax()
    values = best if isinstance(best, tuple) else (best,)
    plain = (value.item() if hasattr(value, "item") else value for value in values)  # numpy's numbers as yaml's
    raw = dict(zip(sweep.space, plain, strict=True))
    return {"value": round(float(means.max()), 6), "values": sweep.settle(raw)}
