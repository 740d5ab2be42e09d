"""Analyses: one question, one function that computes its tables, one yaml with its settings.

An analysis is registered by the decorator `analysis` in the package of its group; ``study analyse GROUP/NAME`` runs it.
Its tables are written to ``results/DATASET/FOLDER`` with one record, ``NAME.json``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd
from omegaconf import DictConfig
from tqdm import tqdm

from study.base import paths
from study.base.errors import StudyError, UnavailableError, require_file
from study.base.files import read_csv, write_csv, write_json, write_parquet
from study.base.settings import read_settings
from study.data import dataset as datasets
from study.data import splits
from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation.records import record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LOG = logging.getLogger(__name__)

Tables = Mapping[str, pd.DataFrame]
Compute = Callable[["Context"], Tables]
Settings = TypeVar("Settings", bound="DataclassInstance")
# Group -> the folder of its tables below results/DATASET.
GROUPS = {"audit": "audit", "robustness": "robustness", "usefulness": "usefulness"}
GROUPS |= {"ablation": "ablation", "embedding": "embedding", "sensitivity": "sweeps", "cost": "tables"}
OTHERS = {"report": "tables", "judged": "judged/tables"}  # folders of tables that other commands make


@dataclass(frozen=True)
class Analysis:
    """A registered question.

    Attributes:
        group: one of `GROUPS`; with `name` it is what ``study analyse`` calls the analysis.
        compute: takes a `Context` and returns the tables by their names; its docstring's first line is the question.
        slow: runs only where it is named, since it trains or asks for longer than a few minutes.
        packed: names of tables that are written as ``.csv.xz``.
    """

    group: str
    name: str
    compute: Compute
    slow: bool = False
    packed: tuple[str, ...] = ()

    @property
    def question(self) -> str:
        """The first line of the function's docstring."""
        return (self.compute.__doc__ or "").strip().splitlines()[0]


ANALYSES: dict[str, Analysis] = {}  # "GROUP/NAME" -> analysis


def analysis(
    group: str, *, name: str = "", slow: bool = False, packed: tuple[str, ...] = ()
) -> Callable[[Compute], Compute]:
    """Register the decorated function as an `Analysis` under its own name, or under `name`."""

    def register(compute: Compute) -> Compute:
        entry = Analysis(group, name or compute.__name__, compute, slow, packed)
        ANALYSES[f"{group}/{entry.name}"] = entry
        return compute

    return register


def all_analyses() -> dict[str, Analysis]:
    """Every analysis by "GROUP/NAME"; imports the modules below `study.analysis`."""
    for module in pkgutil.walk_packages([str(Path(__file__).parent)], "study.analysis."):
        import_module(module.name)
    return dict(sorted(ANALYSES.items(), key=lambda item: list(GROUPS).index(item[1].group)))


def select_analyses(names: Iterable[str]) -> list[Analysis]:
    """The analyses that "GROUP" (all but the slow ones) or "GROUP/NAME" name; without any name, all but the slow ones.

    Raises StudyError: an unknown name.
    """
    every, chosen = all_analyses(), list[Analysis]()
    for name in names or GROUPS:
        if name not in every and name not in GROUPS:
            raise StudyError(f"unknown analysis {name!r}", fix=f"one of: {', '.join([*GROUPS, *every])}")
        chosen += [every[name]] if name in every else [a for a in every.values() if a.group == name and not a.slow]
    return list(dict.fromkeys(chosen))


@dataclass(frozen=True)
class Fits:
    """The rows of finished fits: ``<path>``, and a file per fit in the cache that is not in it yet. `keys` are the
    columns that together name a fit; all that decides a fit is in them."""

    path: Path
    cache: Path
    keys: tuple[str, ...]

    def add(self, rows: pd.DataFrame) -> None:
        """Keep the rows of one fit."""
        key = repr(tuple(rows[name].iloc[0] for name in self.keys))
        write_parquet(self.cache / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.parquet", rows)

    def load(self) -> pd.DataFrame:
        """The rows of every finished fit; without any, an empty table of the columns `keys`."""
        parts, fix = [], "remove the file and run again"
        for path in filter(Path.exists, (self.path, *sorted(self.cache.glob("*.parquet")))):
            try:
                parts.append(pd.read_parquet(path))
            except (OSError, ValueError) as error:
                raise StudyError("not readable as Parquet", file=path, fix=fix) from error
            if not set(self.keys) <= set(parts[-1]):
                raise StudyError("not a table of fits", file=path, fix=fix)
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(self.keys))

    def read_keys(self) -> set[tuple[Any, ...]]:
        """The keys of every finished fit."""
        return set(self.load()[list(self.keys)].itertuples(index=False, name=None))

    def complete(self, keys: Sequence[tuple[Any, ...]], fit: Callable[[tuple[Any, ...]], pd.DataFrame]) -> pd.DataFrame:
        """Make the rows of these fits that are missing and return the table of `save`; a stop costs one fit."""
        finished = self.read_keys()
        for key in tqdm([key for key in keys if key not in finished], desc=self.path.stem, unit="fit", disable=None):
            self.add(fit(key).assign(**dict(zip(self.keys, key, strict=True))))
        return self.save(keys)

    def save(self, keys: Iterable[tuple[Any, ...]]) -> pd.DataFrame:
        """Write the table with the fits of these keys, in their order, and empty the cache; returns the table."""
        groups = dict(list(self.load().groupby(list(self.keys), sort=False)))
        table = pd.concat([groups[key] for key in keys if key in groups], ignore_index=True)
        write_parquet(self.path, table)
        for path in self.cache.glob("*.parquet"):
            path.unlink()
        return table


def settings_file(kind: type) -> Path:
    """The yaml of a class of settings: `study.analysis.audit.leakage.Leakage` has
    ``conf/audit/leakage.yaml``."""
    name = re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    return paths.conf() / kind.__module__.split(".")[2] / f"{name}.yaml"


def load_settings(kind: type[Settings]) -> Settings:
    """The settings of a class. Raises StudyError: a wrong key or value; names the file."""
    return read_settings(kind, settings_file(kind))


@dataclass(frozen=True)
class Context:
    """What an analysis may read: the composed configuration, the prepared data, splits, its settings.

    Attributes:
        facts: what the analysis adds to its record.
    """

    analysis: Analysis
    config: DictConfig
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return str(self.config.dataset.name)

    @property
    def folder(self) -> Path:
        """Where the tables are written."""
        return paths.results(self.dataset) / GROUPS[self.analysis.group]

    @cached_property
    def data(self) -> Dataset:
        """The prepared data set. Raises StudyError: it is not there."""
        return datasets.load(self.dataset)

    def split(self, protocol: str) -> Split:
        """The split of a protocol. Raises StudyError: it is not there."""
        path = paths.splits(self.dataset) / f"{protocol}.parquet"
        fix = f"run: study split dataset={self.dataset}"
        return splits.load(require_file(path, fix, "the split is missing"), self.data)

    def settings(self, kind: type[Settings]) -> Settings:
        """The settings of a class, which then stand in the record."""
        values = load_settings(kind)
        self.facts.setdefault("settings", {})[settings_file(kind).stem] = asdict(values)
        return values


def kept_fits(dataset: str, group: str, name: str, keys: tuple[str, ...]) -> Fits:
    """The kept fits of a group, ``results/DATASET/FOLDER/<name>.parquet``."""
    cache = paths.cache() / "analysis" / dataset / group / name
    return Fits(paths.results(dataset) / GROUPS[group] / f"{name}.parquet", cache, keys)


def run_analyses(names: Sequence[str], config: DictConfig) -> Iterator[Path]:
    """Run the selected analyses and yield the paths of their tables. An analysis of a group that lacks an input which
    cannot be made here (weights, replies) keeps its tables and is logged; one that is named raises."""
    for chosen in select_analyses(names):
        try:
            yield from run_analysis(chosen, config)
        except UnavailableError as error:
            if f"{chosen.group}/{chosen.name}" in names:
                raise
            LOG.warning("%s/%s keeps its tables: %s", chosen.group, chosen.name, error.reason)


def run_analysis(chosen: Analysis, config: DictConfig) -> list[Path]:
    """Compute the tables of an analysis and write them with a record; returns the paths of the tables. Where the tables
    and what else the record tells come out as they are there already, the record stays as it is."""
    context = Context(chosen, config)
    tables = {
        context.folder / f"{name}.csv{'.xz' if name in chosen.packed else ''}": table
        for name, table in chosen.compute(context).items()
    }
    before = [path.read_bytes() if path.exists() else None for path in tables]
    for path, table in tables.items():
        write_csv(path, table)
    file, about = context.folder / f"{chosen.name}.json", {"dataset": context.dataset}
    about |= {"analysis": f"{chosen.group}/{chosen.name}", **context.facts}
    there = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    same = {key: there.get(key) for key in about} == json.loads(json.dumps(about))
    if tables and (not same or before != [path.read_bytes() for path in tables]):
        write_json(file, record(**about))
    return list(tables)


def read_group_table(dataset: str, group: str, name: str) -> pd.DataFrame:
    """A table of a group of `GROUPS` or `OTHERS`. Raises StudyError: it has not been made; names the command."""
    folder = paths.results(dataset) / (GROUPS | OTHERS)[group]
    files = {path.name.partition(".")[0]: path for path in sorted(folder.glob("*.csv*"))}
    if name not in files:
        commands = {"report": f"study report dataset={dataset}", "judged": f"study judge evaluate --dataset {dataset}"}
        fix = f"run: {commands.get(group, f'study analyse {group} dataset={dataset}')}"
        raise StudyError("the table has not been made", file=folder / f"{name}.csv", fix=fix)
    return read_csv(files[name], fix="take it from git, or make it again")
