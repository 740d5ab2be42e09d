"""The tables of the audit, ``results/DATASET/{audit,robustness}``, and the rows of the paper that it examines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from study import paths
from study.errors import StudyError
from study.evaluation.records import record
from study.files import write_csv, write_json, write_parquet

# Tables that are kept packed.
PACKED = ("copying", "protocol_cells", "protocol_distances")


def folder(dataset: str, stage: str = "audit") -> Path:
    """Where a stage of the audit, `audit` or `robustness`, keeps the tables of a data set."""
    return paths.results(dataset) / stage


def write_tables(
    dataset: str, tables: Mapping[str, pd.DataFrame], name: str, settings: Any, stage: str = "audit", **about: Any
) -> list[Path]:
    """Write the tables of a part and its record, ``<name>.json``; returns the paths of the tables."""
    written = [folder(dataset, stage) / f"{table}.csv{'.xz' if table in PACKED else ''}" for table in tables]
    for path, table in zip(written, tables.values(), strict=True):
        write_csv(path, table)
    write_json(folder(dataset, stage) / f"{name}.json", record(dataset=dataset, settings=asdict(settings), **about))
    return written


class AuditTables(dict[str, pd.DataFrame]):
    """The tables of an audit by name; one that has not been made is a `StudyError` that says how to make it."""

    def __init__(self, dataset: str) -> None:
        found = [path for stage in ("audit", "robustness") for path in folder(dataset, stage).glob("*.csv*")]
        super().__init__({path.name.partition(".")[0]: pd.read_csv(path, comment="#") for path in sorted(found)})
        self.dataset = dataset

    def __missing__(self, name: str) -> pd.DataFrame:
        fix = f"run: study audit run dataset={self.dataset}"
        raise StudyError("the table has not been made", file=folder(self.dataset) / f"{name}.csv", fix=fix)


@dataclass(frozen=True)
class Fits:
    """The rows of finished fits: ``results/<dataset>/<stage>/<name>.parquet``, before that a file per fit in the cache.

    `keys` are the columns that together name a fit; all that decides a fit is in them.
    """

    dataset: str
    stage: str
    name: str
    keys: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The table."""
        return folder(self.dataset, self.stage) / f"{self.name}.parquet"

    @property
    def cache(self) -> Path:
        """The folder of the fits that are not yet in the table."""
        return paths.cache() / "audit" / self.dataset / self.name

    def add(self, rows: pd.DataFrame) -> None:
        """Keep the rows of one fit."""
        key = repr(tuple(rows[name].iloc[0] for name in self.keys))
        write_parquet(self.cache / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.parquet", rows)

    def known(self) -> pd.DataFrame:
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

    def finished(self) -> set[tuple[Any, ...]]:
        """The keys of every finished fit."""
        return set(self.known()[list(self.keys)].drop_duplicates().itertuples(index=False, name=None))

    def save(self, wanted: Iterable[tuple[Any, ...]]) -> pd.DataFrame:
        """Write the table with the fits of these keys, in their order, and empty the cache; returns the table."""
        groups = dict(list(self.known().groupby(list(self.keys), sort=False)))
        table = pd.concat([groups[key] for key in wanted if key in groups], ignore_index=True)
        write_parquet(self.path, table)
        for path in self.cache.glob("*.parquet"):
            path.unlink()
        return table


def kept_tops(dataset: str, protocol: str, systems: Iterable[str]) -> dict[str, pd.DataFrame]:
    """The kept top tens of each of the systems that ran under a protocol: task_id, seed, rank, server_id."""
    found = {name: paths.results(dataset) / "top10" / protocol / f"{name}.parquet" for name in systems}
    return {name: pd.read_parquet(path) for name, path in found.items() if path.exists()}


def wilson(count: int, n: int) -> tuple[float, float, float]:
    """A share with its 95 % interval (Wilson)."""
    interval = stats.binomtest(count, n).proportion_ci(method="wilson")
    return count / n, interval.low, interval.high
