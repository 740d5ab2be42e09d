"""What a sweep varies and how: ``conf/sweep/<name>.yaml``, checked; and the choice that is made from its trials."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from study import paths
from study.config.reader import build_settings, read_yaml
from study.config.registry import NAME
from study.config.registry import choices as choices_of
from study.errors import StudyError, require_one_of
from study.evaluation.metrics import PAPER_METRICS
from study.search.trials import distributions, label, values_of

KINDS = ("scores", "grid", "search")
PARTS = ("valid", "test")


@dataclass(frozen=True)
class Sweep:
    """One sweep; the keys are explained in ``conf/sweep/fusion_weight.yaml``."""

    name: str
    title: str
    system: str
    space: dict[str, dict[str, Any]]
    place: str = "not in the paper"
    paper_best: float | None = None
    kind: str = "grid"
    protocol: str = "cold"
    objective: str = "ndcg@10"
    parts: list[str] = field(default_factory=lambda: list(PARTS))
    seeds: list[int] = field(default_factory=lambda: [1])
    simplex: list[str] = field(default_factory=list)
    enqueue: list[dict[str, Any]] = field(default_factory=list)
    trials: int = 0
    attempts: int = 3
    keep_fits: bool = True
    sampler_seed: int = 1

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
        distributions(self.space, "space", file=self.file(self.name))

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
        values = itertools.product(*(map(label, domain["choices"]) for domain in self.space.values()), self.seeds)
        return [dict(zip([*self.space, "seed"], combination, strict=True)) for combination in values]

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        """The settings that a trial's raw values stand for: weights of the simplex divided by their sum."""
        total = sum(float(values[name]) for name in self.simplex)
        shares = {name: values[name] / total if total > 0 else 1 / len(self.simplex) for name in self.simplex}
        return values | shares


def load_sweep(name: str) -> Sweep:
    """Read one sweep. Raises StudyError: an unknown sweep, an unknown or missing key, or a wrong value."""
    require_one_of(name, "sweep", sweep_names(), file=paths.conf() / "sweep")
    return build_settings(Sweep, read_yaml(Sweep.file(name)), Sweep.file(name))


def sweep_names() -> list[str]:
    """The sweeps of ``conf/sweep``."""
    return sorted(path.stem for path in (paths.conf() / "sweep").glob("*.yaml"))


def renamed(
    sweep: Sweep, name: str | None, *, values: str | None = None, trials: int | None = None, protocol: str | None = None
) -> Sweep:
    """A sweep with other values (as ``0.1,0.2``), another number of trials or another protocol, for once.

    Raises StudyError: it has no name of its own, one that is taken, or the change does not apply to the sweep.
    """
    changes: dict[str, Any] = {}
    if values is not None:
        if len(sweep.space) != 1:
            problem = f"{sweep.name} varies {len(sweep.space)} parameters"
            raise StudyError(problem, column="--values", fix="write a sweep of one in conf/sweep")
        choices = yaml.safe_load(f"[{values}]")
        changes |= {"space": {next(iter(sweep.space)): {"choices": choices}}, "enqueue": [], "simplex": []}
        changes |= {"kind": "grid"} if sweep.kind == "search" else {}
    if trials is not None:
        if sweep.kind != "search":
            raise StudyError(f"{sweep.name} has a trial for every value", column="--trials", fix="--values")
        changes["trials"] = trials
    if protocol is not None and protocol != sweep.protocol:
        changes["protocol"] = protocol
    if name is None:
        if changes:
            fix = f"add --name {sweep.name}_own"
            raise StudyError(f"this would replace the results of the sweep {sweep.name}", fix=fix)
        return sweep
    if not NAME.fullmatch(name) or name in {*sweep_names(), *choices_of("system")}:
        raise StudyError(f"{name!r:.80} is no name for a sweep of your own", column="--name", fix="give another one")
    return replace(sweep, name=name, **changes)


def best_point(sweep: Sweep, trials: pd.DataFrame) -> dict[str, Any]:
    """The values with the best mean over seeds of the objective on validation, as the table writes them; the earlier
    one of equals. `trials`: trials.csv."""
    objective, names = f"valid/{sweep.objective}", list(sweep.space)
    best = trials.groupby(names, sort=False, dropna=False)[objective].mean().idxmax()
    values = best if isinstance(best, tuple) else (best,)
    plainly = (value.item() if hasattr(value, "item") else value for value in values)  # numpy's numbers as yaml's
    return {name: None if pd.isna(value) else value for name, value in zip(names, plainly, strict=True)}


def chosen(sweep: Sweep, trials: pd.DataFrame) -> dict[str, Any]:
    """The settings of `best_point`, and their mean."""
    means = trials.groupby(list(sweep.space), sort=False, dropna=False)[f"valid/{sweep.objective}"].mean()
    values = values_of(best_point(sweep, trials), sweep.space)
    return {"value": round(float(means.max()), 6), "values": sweep.settle(values)}
