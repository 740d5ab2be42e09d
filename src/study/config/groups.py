"""The keys of the configuration, their types and ranges, as Hydra's structured configs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from study.config.registry import NAME, require_choice, suggestion
from study.errors import StudyError

# Kinds of systems: how each is drawn and named stands in study.analysis.report.plots; `baseline` is drawn as "other".
FAMILIES = {
    "baseline",
    "t2mrec",
    "ablation",
    "supervision",
    "lexical",
    "dense",
    "neighbour",
    "linear",
    "collaborative",
    "graph",
    "hybrid",
    "published",
    "extension",
    "reference_bug",
    "trivial",
    "oracle",
}
LARGEST_SEED = 2**15 - 1  # kept runs store seeds in 16 bits


def _require(holds: bool, key: str, value: object, wanted: str, example: str) -> None:
    if not holds:
        raise StudyError(f"{value!r:.80} is not {wanted}", column=key, fix=f"write for example {key}={example}")


def _require_name(group: str, name: str) -> None:
    wanted = "a name: lower-case letters, digits and underscores only"
    _require(bool(NAME.fullmatch(name)), f"{group}.name", name, wanted, "my_variant")


def _require_seeds(key: str, seeds: Any) -> None:
    _require(isinstance(seeds, list) and seeds != [], key, seeds, "a list of at least one seed", "[1,2,3]")
    for seed in seeds:
        sound = isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed <= LARGEST_SEED
        _require(sound, key, seed, f"a seed, a whole number from 0 to {LARGEST_SEED}", "[1,2,3]")
    _require(len(set(seeds)) == len(seeds), key, seeds, "a list without a seed named twice", "[1,2,3]")


def _require_protocols(group: str, names: list[str]) -> None:
    for name in names:
        try:
            require_choice("protocol", name)
        except StudyError as error:
            raise StudyError(error.reason, column=f"{group}.protocols", fix=error.fix) from error


@dataclass
class Dataset:
    """``conf/dataset``."""

    name: str = MISSING
    title: str = MISSING  # how tables and figures print it
    licence: str = MISSING  # of the data
    labels: str | None = MISSING  # label file that the study uses
    source: list[Any] = MISSING  # where the files come from
    generator: dict[str, Any] | None = MISSING  # arguments of study.data.synthetic.generate
    protocols: list[str] = field(default_factory=list)  # that the pipeline runs on it
    scale: float = 1.0  # factor on every number of epochs written {scaled: N}
    leave_out: list[str] = field(default_factory=list)  # families, names or patterns that `run --all` leaves out

    def __post_init__(self) -> None:
        _require_name("dataset", self.name)
        _require(self.scale > 0, "dataset.scale", self.scale, "above 0", "1.0")
        _require_protocols("dataset", self.protocols)
        named = self.labels is not None or not self.protocols
        _require(named, "dataset.labels", self.labels, "a label file, which the protocols need", "mcp_task.csv")


@dataclass
class Protocol:
    """``conf/protocol``."""

    name: str = MISSING
    title: str = MISSING  # how tables and figures print it
    seed: int = MISSING  # of the split; the systems' seeds are another matter
    similarity: float | None = None  # cold_grouped: cosine from which two tasks are near copies
    negatives: int | None = None  # loo99: sampled servers per test task, none of them on the task's list

    def __post_init__(self) -> None:
        _require_name("protocol", self.name)


@dataclass
class System:
    """A system of ``conf/system``, without the keys `of` and `variants` of its file."""

    name: str = MISSING
    title: str = MISSING  # how tables and figures print it
    protocols: list[str] = MISSING  # where it applies; elsewhere tables say "not applicable"
    model: dict[str, Any] = MISSING  # the class, `_target_`, and its arguments
    family: str = "baseline"  # kind of system, by which tables and figures group
    reference: str | None = None  # where the method comes from
    # A list, the name of one of the profile's (seeds, method_seeds), or such by protocol: {cold: ..., other: ...}.
    seeds: Any = "seeds"
    trains: bool = False  # long enough to train seeds side by side, each in a process of its own
    subprocess: bool = False  # fit starts a program of its own, as RecBole's models do
    tuned: str | None = None  # protocol on whose validation part `study tune` chose values of `search`
    # Shares of a run's epochs that trials of `study tune` train; the best third goes on to the next.
    rungs: list[float] = field(default_factory=lambda: [0.33])
    # {setting below `model`: {choices: [...]}} or {setting: {low:, high:, log:, type: float | int}}
    search: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_name("system", self.name)
        known = self.family in FAMILIES
        if not known:
            fix = suggestion(self.family, FAMILIES)
            raise StudyError(f"unknown family {self.family!r:.80}", column="system.family", fix=fix)
        _require_protocols("system", self.protocols)
        if not isinstance(self.seeds, str | dict):
            _require_seeds("system.seeds", self.seeds)
        rising = self.rungs != [] and sorted(set(self.rungs)) == self.rungs and self.rungs[0] > 0
        _require(rising, "system.rungs", self.rungs, "a list of rising numbers above 0", "[0.11,0.33,1.0]")
        if not isinstance(self.model.get("_target_"), str):
            fix = "write below model: _target_: package.module.Class"
            raise StudyError("names no class", column="system.model._target_", fix=fix)


@dataclass
class Profile:
    """``conf/profile``."""

    name: str = MISSING
    scale: float = MISSING  # factor on every number of epochs written {scaled: N}
    method_seeds: list[int] = MISSING  # seeds of the method under study and its ablations
    seeds: list[int] = MISSING  # seeds of every other system
    workers: int = MISSING  # seeds trained at the same time, each in a process of its own
    threads: int = MISSING  # per process; part of the result, as sums are taken in another order

    def __post_init__(self) -> None:
        _require_name("profile", self.name)
        _require(self.scale > 0, "profile.scale", self.scale, "above 0", "1.0")
        _require_seeds("profile.seeds", self.seeds)
        _require_seeds("profile.method_seeds", self.method_seeds)
        _require(self.workers >= 1, "profile.workers", self.workers, "at least 1", "1")
        _require(self.threads >= 1, "profile.threads", self.threads, "at least 1", "1")


@dataclass
class Tuning:
    """How `study tune` searches."""

    trials: int = MISSING  # the same number for every system
    startup: int = MISSING  # trials before the sampler (TPE) learns: the first has the values of the system's yaml
    seed: int = MISSING  # of the sampler

    def __post_init__(self) -> None:
        _require(self.trials >= 1, "tuning.trials", self.trials, "at least 1", "12")
        _require(self.startup >= 1, "tuning.startup", self.startup, "at least 1", "5")


@dataclass
class Study:
    """``conf/config.yaml``."""

    dataset: Dataset = MISSING
    protocol: Protocol = MISSING
    system: System = MISSING
    profile: Profile = MISSING
    tuning: Tuning = MISSING
    run_depth: int = MISSING
    trainer: str = MISSING
    logger: str = MISSING

    def __post_init__(self) -> None:
        _require(self.run_depth >= 10, "run_depth", self.run_depth, "at least 10", "10")


ConfigStore.instance().store(name="study", node=Study)
