"""The rows of the study: per-task values, top ten and record of each system under each protocol, in long files.

``results/<dataset>/rows/<folder>/<protocol>`` holds the rows of the systems of one folder of ``conf/system`` in three
files, which nothing else reads or writes. A finished row is first kept whole below ``.cache/rows``, then merged into
them under a lock. Whoever comes next completes an interrupted merge, so a row is the earlier one or the new one.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from study.base import paths
from study.base.errors import StudyError
from study.base.files import ABANDONED, read_text, replacing, write_text
from study.base.registry import folder_of
from study.evaluation import per_task
from study.evaluation.records import parse_record

LOG = logging.getLogger(__name__)

KINDS = {"per_task": "per_task.parquet", "top10": "top10.parquet", "records": "records.jsonl"}
KEYS = {"per_task": ["system", "seed", "task_id"], "top10": ["system", "seed", "task_id", "rank"]}
TYPES = {"task_id": "int32", "seed": "int16", "rank": "int8", "server_id": "int32"}
FIX = "take the file from git, or remove it and run the systems again"
# Of the top tens of these protocols only the relevant servers are kept, with their ranks, a tenth of the size. Every
# metric of relevance follows from them. The judged collection and the audit read those of `cold`.
HITS_ONLY = ("cold_grouped", "warm", "loo", "loo99")
# Rows of a group of parquet: small enough that one system is read without the others, large enough to be packed well.
GROUP = 1 << 16


class Row(NamedTuple):
    """What one system has under one protocol.

    `per_task`: task_id, seed, one column per metric and cutoff, by seed and task. `top10`: task_id, seed, rank (from
    1), server_id, by seed, task and rank. `record`: settings, seeds, versions, machine.
    """

    per_task: pd.DataFrame
    top10: pd.DataFrame
    record: dict[str, Any]


def rows_folder(dataset: str) -> Path:
    """Where the rows of a data set lie."""
    return paths.results(dataset) / "rows"


def long_files(dataset: str, kind: str, protocol: str = "*") -> list[Path]:
    """The long files of a kind, of one protocol or of all, once every finished row is merged into them."""
    if _parts(dataset):
        with _merging(dataset):
            pass
    return sorted(rows_folder(dataset).glob(f"*/{protocol}/{KINDS[kind]}"))


def read_records(
    dataset: str, protocol: str = "*", systems: list[str] | None = None
) -> dict[tuple[str, str], dict[str, Any]]:
    """(protocol, system) -> record of every row that has all its parts, of one protocol or of all, in order. `systems`:
    of these alone. Raises StudyError: a file cannot be read."""
    records = dict[tuple[str, str], dict[str, Any]]()
    for path in long_files(dataset, "records", protocol):
        name = path.parent.name
        hits, tops = (_systems(file, *_state(file)) for file in (path.with_name(KINDS[kind]) for kind in KEYS))
        # Where hits alone are kept, there is no top ten of a system without any.
        whole = {system for system, hit in hits.items() if system in tops or (name in HITS_ONLY and not hit)}
        records |= {
            (name, system): record for system, record in _load(path, systems).itertuples(index=False) if system in whole
        }
    return dict(sorted(records.items()))


def _state(path: Path) -> tuple[int, ...]:
    """What another file, or a change of it, has otherwise; nothing where there is no file."""
    if not path.exists():
        return ()
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


@lru_cache(maxsize=256)
def _systems(path: Path, *state: int) -> dict[str, bool]:
    """The systems of which a long table holds rows; of per-task values, whether any says that there was a hit."""
    if not state:
        return {}
    table = _load(path, columns=r"system|hit_rate@\d+")
    hits = table.filter(like="hit_rate@").any(axis=1).groupby(table["system"].astype(str)).any()
    return {str(system): bool(hit) for system, hit in hits.items()}


def list_rows(dataset: str, protocol: str = "*") -> list[tuple[str, str]]:
    """(protocol, system) of every row that has all its parts, of one protocol or of all, in order."""
    return list(read_records(dataset, protocol))


def find_record(dataset: str, protocol: str, system: str) -> dict[str, Any] | None:
    """The record of a row that has all its parts; None without one."""
    return read_records(dataset, protocol, [system]).get((protocol, system))


def read_record(dataset: str, protocol: str, system: str) -> dict[str, Any]:
    """The record of a row that has all its parts. Raises StudyError: there is none, or it cannot be read."""
    if (record := find_record(dataset, protocol, system)) is None:
        fix = f"run: study run system={system} protocol={protocol} dataset={dataset}"
        file = _long_file(dataset, "records", protocol, system)
        raise StudyError(f"there is no row of {system} under {protocol}", file=file, fix=fix)
    return record


def read_row(dataset: str, protocol: str, system: str) -> Row:
    """The row of a system under a protocol. Raises StudyError: there is none, or it cannot be read."""
    record, one = read_record(dataset, protocol, system), [system]
    no_hit = pd.DataFrame(columns=list(TYPES)).astype(TYPES)
    values = read_per_task(dataset, protocol, one)[system]
    return Row(values, read_top10(dataset, protocol, one).get(system, no_hit), record)


def read_per_task(dataset: str, protocol: str, systems: Iterable[str] | None = None) -> dict[str, pd.DataFrame]:
    """The per-task values (`Row`) of all systems that ran under a protocol, or of those of `systems` that did, in the
    order given. Raises StudyError: a file cannot be read, or holds no per-task values."""
    return {
        # A metric that only other systems of the same file have is a column without a value.
        system: per_task.check(frame.dropna(axis=1, how="all").astype(dict.fromkeys(per_task.KEYS, "int64")), path)
        for system, (path, frame) in _read_tables(dataset, "per_task", protocol, systems).items()
    }


def read_top10(dataset: str, protocol: str, systems: Iterable[str] | None = None) -> dict[str, pd.DataFrame]:
    """The top tens (`Row`), as `read_per_task`; a system without any hit under a protocol of `HITS_ONLY` has none."""
    return {system: frame for system, (_, frame) in _read_tables(dataset, "top10", protocol, systems).items()}


def _read_tables(
    dataset: str, kind: str, protocol: str, systems: Iterable[str] | None
) -> dict[str, tuple[Path, pd.DataFrame]]:
    """System -> file and table of each row under a protocol, or of those of `systems`, in the order given."""
    names = None if systems is None else list(systems)
    tables = {
        str(system): (path, frame.drop(columns="system").reset_index(drop=True))
        for path in (long_files(dataset, kind, protocol) if names != [] else [])
        for system, frame in _load(path, names).groupby("system", observed=True, sort=False)
    }
    return {name: tables[name] for name in names or sorted(tables) if name in tables}


def write_rows(dataset: str, rows: Mapping[tuple[str, str], Row]) -> None:
    """Write rows, (protocol, system) -> row, in place of earlier ones; per-task values with six significant digits, as
    all tables have them.

    Raises StudyError: a fault of the disk, or a long file is damaged; what is finished is kept then, and merged by the
    next command.
    """
    written = []
    for (protocol, system), row in rows.items():
        (folder := _waiting_folder(dataset) / protocol).mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{system}.", dir=folder))
        values = row.per_task.set_index(list(per_task.KEYS)).map(lambda value: float(f"{value:.6g}")).reset_index()
        for name, table in zip(
            KINDS.values(), (values, row.top10, pd.DataFrame({"record": [row.record]})), strict=True
        ):
            _write(part / name, table.assign(system=system))
        written.append((part, folder / system))
    with _merging(dataset):  # no earlier part of a row is in the way then
        for part, finished in written:
            part.rename(finished)
        _merge(dataset)


def remove_row(dataset: str, protocol: str, system: str) -> None:
    """Remove a row, if it is there."""
    with _merging(dataset):
        for path in rows_folder(dataset).glob(f"*/{protocol}/*"):
            _update(path, [system], [])


@contextmanager
def lock_row(dataset: str, protocol: str, system: str) -> Iterator[bool]:
    """Hold the lock of a row, which one process at a time makes. Yields: whether it was waited for."""
    file = paths.cache() / "locks" / dataset / protocol / f"{system}.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    lock, waited = FileLock(file), False
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waited = True
        LOG.warning("%s under %s is being made by another process; waiting for it", system, protocol)
        lock.acquire()
    try:
        yield waited
    finally:
        lock.release()


def _long_file(dataset: str, kind: str, protocol: str, system: str) -> Path:
    return rows_folder(dataset) / folder_of(system) / protocol / KINDS[kind]


def _waiting_folder(dataset: str) -> Path:
    """Where finished rows wait to be merged, as <protocol>/<system>; hidden folders are being written or removed."""
    return paths.cache() / "rows" / dataset


def _parts(dataset: str) -> list[Path]:
    return sorted(_waiting_folder(dataset).glob("*/[!.]*"))


@contextmanager
def _merging(dataset: str) -> Iterator[None]:
    """Hold the lock of a data set's long files, with nothing left to merge."""
    (file := _waiting_folder(dataset) / "lock").parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file):
        _merge(dataset)
        yield


def _merge(dataset: str) -> None:
    """Merge the finished rows into their long files. To do it twice changes nothing, so an interrupted merge is done
    again; a finished row leaves the cache once it stands in all files."""
    parts = _parts(dataset)
    for protocol, kind in product(sorted({part.parent.name for part in parts}), KINDS):
        group = [part for part in parts if part.parent.name == protocol]
        target = {part: _long_file(dataset, kind, protocol, part.name) for part in group}
        # Another file holds a row of these names if the yaml has moved to another folder.
        for path in sorted({*target.values(), *rows_folder(dataset).glob(f"*/{protocol}/{KINDS[kind]}")}):
            _update(path, [part.name for part in group], [part for part in group if target[part] == path])
    for part in parts:  # each ceases to exist at once, whenever its removal stops
        part.rename(Path(tempfile.mkdtemp(prefix=".merged.", dir=part.parent)) / part.name)
    for hidden in _waiting_folder(dataset).glob("*/.*"):  # a killed writer's folder is nobody's after a while
        if hidden.name.startswith(".merged.") or hidden.stat().st_mtime < time.time() - ABANDONED:
            shutil.rmtree(hidden, ignore_errors=True)


def _update(path: Path, names: list[str], parts: list[Path]) -> None:
    """Replace the rows of `names` in a long file by those of `parts`; a file that holds none then is removed."""
    before = [_load(path)] if path.exists() else []
    others = [table[~table["system"].isin(names)] for table in before]
    after = [*others, *(_load(part / path.name) for part in parts)]
    if not sum(map(len, after)):
        path.unlink(missing_ok=True)
    elif parts or len(others[0]) < len(before[0]):
        _write(path, pd.concat(after))


def _write(path: Path, frame: pd.DataFrame) -> None:
    """Write rows of a long file in order of their keys, tables in the smallest types that hold them; the bytes depend
    on the contents alone."""
    if path.stem == "records":
        records = frame.sort_values("system")["record"]
        write_text(path, "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records))
        return
    frame = frame.assign(system=frame["system"].astype(str)).sort_values(KEYS[path.stem], ignore_index=True)
    encodings = None
    if path.stem == "top10":
        frame = frame[["system", *TYPES]]
        encodings = {"task_id": "DELTA_BINARY_PACKED", "server_id": "BYTE_STREAM_SPLIT"}
    types = {name: small for name, small in TYPES.items() if name in frame} | {"system": "category"}
    table = pa.Table.from_pandas(frame.astype(types), preserve_index=False).replace_schema_metadata(None)
    plain = [name for name in frame.columns if name not in (encodings or ())]
    how: dict[str, Any] = {"compression": "zstd", "compression_level": 12, "column_encoding": encodings}
    with replacing(path) as temporary:
        pq.write_table(table, temporary, row_group_size=GROUP, use_dictionary=plain, **how)


def _load(path: Path, systems: list[str] | None = None, columns: str = ".*") -> pd.DataFrame:
    """A long table, or the rows of some systems and the columns that fit a pattern; of records, columns system and
    record. Raises StudyError: it cannot be read, or lacks a column."""
    if path.stem == "records":
        *lines, end = read_text(path, fix=FIX).split("\n")
        if end or not lines:
            raise StudyError("the file is cut short", file=path, fix=FIX)
        chosen = (
            parse_record(line, path, f"line {number}")
            for number, line in enumerate(lines, 1)
            if systems is None or any(json.dumps(system) in line for system in systems)
        )
        records = {record["system"]: record for record in chosen if systems is None or record["system"] in systems}
        return pd.DataFrame({"system": [*records], "record": [*records.values()]})
    try:
        filters = None if systems is None else [("system", "in", systems)]
        names = [name for name in pq.read_schema(path).names if re.fullmatch(columns, name)]
        frame: pd.DataFrame = pq.read_table(path, columns=names, filters=filters).to_pandas()
    except (OSError, ValueError, KeyError) as error:  # those of pyarrow are subclasses
        raise StudyError(f"not readable as Parquet: {error}", file=path, fix=FIX) from error
    for column in KEYS[path.stem]:
        if re.fullmatch(columns, column) and column not in frame:
            raise StudyError("a column is missing", file=path, column=column, fix=FIX)
    return frame
