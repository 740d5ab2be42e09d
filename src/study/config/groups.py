"""The keys of the configuration, their types and ranges, as Hydra's structured configs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING
from pydantic import AfterValidator, Field

from study.base.registry import NAME, choices, suggestion

ORACLE = "oracle"  # the family whose systems read the answers
# Kinds of systems: how each is drawn and named stands in study.analysis.report.plots; `baseline` is drawn as "other".
FAMILIES = {
    *("baseline", "t2mrec", "ablation", "supervision", "lexical", "dense", "neighbour", "linear", "collaborative"),
    *("graph", "hybrid", "published", "extension", "reference_bug", "trivial", ORACLE),
}
LARGEST_SEED = 2**15 - 1  # kept runs store seeds in 16 bits


def _one_of(name: str, options: Collection[str]) -> str:
    if name not in options:
        raise ValueError(f"unknown; {suggestion(name, options)}")
    return name


def _class(model: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(model.get("_target_"), str):
        raise ValueError("names no class; write below it _target_: package.module.Class")
    return model


def _seeds(seeds: Any) -> Any:
    sound = isinstance(seeds, list) and all(type(seed) is int and 0 <= seed <= LARGEST_SEED for seed in seeds)
    if not isinstance(seeds, str | dict) and (not sound or not seeds or len(set(seeds)) < len(seeds)):
        raise ValueError(f"no list of seeds, distinct whole numbers from 0 to {LARGEST_SEED}; write [1,2,3]")
    return seeds


def _require_rising(shares: list[float]) -> list[float]:
    if not shares or sorted(set(shares)) != shares:
        raise ValueError("no rising numbers; write [0.11,0.33,1.0]")
    return shares


Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Protocols = list[Annotated[str, AfterValidator(lambda name: _one_of(name, choices("protocol")))]]
Family = Annotated[str, AfterValidator(lambda name: _one_of(name, FAMILIES))]
Seeds = Annotated[list[int], AfterValidator(_seeds)]


@dataclass
class Dataset:
    """``conf/dataset``."""

    name: Name = MISSING
    title: str = MISSING  # how tables and figures print it
    licence: str = MISSING  # of the data
    labels: str | None = MISSING  # label file that the study uses
    source: list[Any] = MISSING  # where the files come from
    generator: dict[str, Any] | None = MISSING  # arguments of study.data.synthetic.generate
    protocols: Protocols = field(default_factory=list)  # that the pipeline runs on it
    scale: Positive = 1.0  # factor on every number of epochs written {scaled: N}
    leave_out: list[str] = field(default_factory=list)  # families, names or patterns that `run --all` leaves out


@dataclass
class Protocol:
    """``conf/protocol``."""

    name: Name = MISSING
    title: str = MISSING  # how tables and figures print it
    seed: int = MISSING  # of the split; the systems' seeds are another matter
    similarity: float | None = None  # cold_grouped: cosine from which two tasks are near copies
    negatives: int | None = None  # loo99: sampled servers per test task, none of them on the task's list


@dataclass
class System:
    """A system of ``conf/system``, without the keys `of` and `variants` of its file."""

    name: Name = MISSING
    title: str = MISSING  # how tables and figures print it
    protocols: Protocols = MISSING  # where it applies; elsewhere tables say "not applicable"
    model: Annotated[dict[str, Any], AfterValidator(_class)] = MISSING  # the class, `_target_`, and its arguments
    family: Family = "baseline"  # by which tables and figures group
    reference: str | None = None  # where the method comes from
    # A list, the name of one of the profile's (seeds, method_seeds), or such by protocol: {cold: ..., other: ...}.
    seeds: Annotated[Any, AfterValidator(_seeds)] = "seeds"
    trains: bool = False  # long enough to train seeds side by side, each in a process of its own
    subprocess: bool = False  # fit starts a program of its own, as RecBole's models do
    tuned: str | None = None  # protocol on whose validation part `study tune` chose values of `search`
    # Shares of a run's epochs that trials of `study tune` train; the best third goes on to the next.
    rungs: Annotated[list[Positive], AfterValidator(_require_rising)] = field(default_factory=lambda: [0.33])
    # {setting below `model`: {choices: [...]}} or {setting: {low:, high:, log:, type: float | int}}
    search: dict[str, Any] = field(default_factory=dict)


@dataclass
class Profile:
    """``conf/profile``."""

    name: Name = MISSING
    scale: Positive = MISSING  # factor on every number of epochs written {scaled: N}
    method_seeds: Seeds = MISSING  # seeds of the method under study and its ablations
    seeds: Seeds = MISSING  # seeds of every other system
    workers: Count = MISSING  # seeds trained at the same time, each in a process of its own
    threads: Count = MISSING  # per process; part of the result, as sums are taken in another order


@dataclass
class Tuning:
    """How `study tune` searches."""

    trials: Count = MISSING  # the same number for every system
    startup: Count = MISSING  # trials before the sampler (TPE) learns: the first has the values of the system's yaml
    seed: int = MISSING  # of the sampler


@dataclass
class Study:
    """``conf/config.yaml``."""

    dataset: Dataset = field(default_factory=Dataset)
    protocol: Protocol = field(default_factory=Protocol)
    system: System = field(default_factory=System)
    profile: Profile = field(default_factory=Profile)
    tuning: Tuning = field(default_factory=Tuning)
    trainer: dict[str, Any] = MISSING  # Lightning's Trainer: `trainer=gpu`, see study.runner.devices
    logger: dict[str, Any] = MISSING  # one of Lightning's loggers: `logger=tensorboard`, see study.runner.loggers
    run_depth: Annotated[int, Field(ge=10)] = MISSING


ConfigStore.instance().store(name="study", node=Study)
