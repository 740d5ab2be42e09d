"""From the published files to checked, cleaned tables. Nothing is dropped or changed without being counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pandas as pd

from study import files, paths
from study.data import normalise, raw_files
from study.data.dataset import SERVER_FIELDS, TASK_FIELDS

SERVERS_FILE, TASKS_FILE, LABELS_FILE, ALL_LABELS_FILE = (
    "mcp_raw.json",
    "task_raw.json",
    "mcp_task.csv",
    "mcp_task_all.csv",
)
CLEANING_COLUMNS = ["rule", "table", "column", "rows", "values", "action", "note"]
CHANGED, ADDED, REPORTED = "changed", "column added", "reported only"

_unify = partial(normalise.unify, key=normalise.spelling_key)
# table -> new column -> (released column, how its variants are brought together)
NORMALISED: dict[str, dict[str, tuple[str, Callable[[list[str]], list[str]]]]] = {
    "servers": {
        "category_clean": ("category", _unify),
        "subcategory_clean": ("subcategory", _unify),
        "license_clean": ("license", lambda values: [normalise.licence_key(value) for value in values]),
        "language_tokens": ("language", normalise.unify_tokens),
        "system_tokens": ("system", normalise.unify_tokens),
    },
    "tasks": {
        "category_clean": ("category", _unify),
        "subcategory_clean": ("subcategory", _unify),
        "theme_clean": ("theme", partial(normalise.unify, key=partial(normalise.spelling_key, plural=False))),
        "language_tokens": ("language", normalise.unify_tokens),
    },
}


class Cleaning:
    """The count of every rule that was applied."""

    def __init__(self) -> None:
        """Begin without lines."""
        self.rows: list[tuple[str, str, str, int, int, str, str]] = []

    def count(self, rule: str, table: str, column: str, rows: int, values: int, action: str, note: str = "") -> None:
        """Add one line; a rule that met nothing is a line too."""
        self.rows.append((rule, table, column, int(rows), int(values), action, note))

    def table(self) -> pd.DataFrame:
        """All lines, columns `CLEANING_COLUMNS`."""
        return pd.DataFrame(self.rows, columns=CLEANING_COLUMNS)


def prepare(
    name: str,
    raw: Path | None = None,
    prepared: Path | None = None,
    tables: Path | None = None,
    *,
    labels: str = LABELS_FILE,
) -> pd.DataFrame:
    """Check and clean the raw files of data set `name`; write servers, tasks and labels (parquet) and cleaning.csv.

    The released text that enters x_m and x_t stays exactly as it is, apart from null, which becomes the empty text;
    unified spellings go into further columns. Rows keep the order of the files. Earlier outputs are replaced only
    when every new table is good.

    `raw`: folder with ``mcp_raw.json``, ``task_raw.json`` and the label files.
    `prepared`: folder for ``servers``, ``tasks``, ``labels`` and (where the raw file exists) ``labels_all.parquet``.
    `tables`: folder for ``cleaning.csv``.
    `labels`: the label file that the study uses.
    Returns: the cleaning table.
    Raises StudyError: anything wrong in a raw file, with file, row, column and what to do.
    """
    raw, prepared, tables = raw or paths.raw(name), prepared or paths.prepared(name), tables or paths.tables(name)
    cleaning = Cleaning()
    servers = clean_table(raw / SERVERS_FILE, "servers", cleaning)
    tasks = clean_table(raw / TASKS_FILE, "tasks", cleaning)
    frames = {"servers": servers, "tasks": tasks}
    frames["labels"] = clean_labels(raw / labels, "labels", servers, tasks, cleaning)
    if (raw / ALL_LABELS_FILE).is_file():
        frames["labels_all"] = clean_labels(raw / ALL_LABELS_FILE, "labels_all", servers, tasks, cleaning)
    kinds = {
        "servers": raw_files.SERVERS,
        "tasks": raw_files.TASKS,
        "labels": raw_files.LABELS,
        "labels_all": raw_files.LABELS,
    }
    for part, frame in frames.items():
        raw_files.validate(kinds[part], frame, prepared / f"{part}.parquet")
    counted = cleaning.table()
    with ExitStack() as stack:
        for part, frame in frames.items():
            files.write_parquet(stack.enter_context(files.replacing(prepared / f"{part}.parquet")), frame)
        files.write_csv(stack.enter_context(files.replacing(tables / "cleaning.csv")), counted)
    if "labels_all" not in frames:
        (prepared / "labels_all.parquet").unlink(missing_ok=True)
    return counted


def clean_table(path: Path, table: str, cleaning: Cleaning) -> pd.DataFrame:
    """The server or task table: nulls as empty text, unified spellings in further columns, defects counted."""
    schema = raw_files.RAW_SERVERS if table == "servers" else raw_files.RAW_TASKS
    frame, unknown = raw_files.read_table(path, schema, None if table == "servers" else "task_raw")
    numbers = ["id", *(column for column in raw_files.SERVER_NUMBERS if table == "servers")]
    texts = [column for column in frame.columns if column not in numbers]
    for column in unknown:
        cleaning.count("unknown column left out", table, column, len(frame), len(frame), CHANGED)
    for column in texts:
        empty = int(frame[column].isna().sum())
        if table == "servers" and column in raw_files.SERVER_NULLABLE:
            cleaning.count("null becomes empty text", table, column, empty, empty, CHANGED)
    clean = frame.assign(
        **{column: frame[column].astype("int64") for column in numbers},
        **{column: frame[column].where(frame[column].notna(), "").astype("str") for column in texts},
    )
    _count_spaces(clean, table, texts, cleaning)
    for new, (column, unify) in NORMALISED[table].items():
        clean[new] = pd.Series(unify(clean[column].tolist()), index=clean.index, dtype="str")
        _count_variants(clean, table, column, new, cleaning)
    if table == "servers":
        clean["is_official"] = clean["official"].eq("official")
        cleaning.count("text becomes true or false", table, "is_official", len(clean), len(clean), ADDED)
    for column in ("name", "url", "description", "web_url"):
        if column in clean:
            _count_repeats(clean, table, column, cleaning)
    return clean


def _count_spaces(frame: pd.DataFrame, table: str, texts: list[str], cleaning: Cleaning) -> None:
    fields = set(SERVER_FIELDS if table == "servers" else TASK_FIELDS)
    for column in texts:
        found = int((frame[column] != frame[column].str.strip()).sum())
        note = "part of the text that systems read" if column in fields else ""
        cleaning.count("outer white space", table, column, found, found, REPORTED, note)


def _count_variants(frame: pd.DataFrame, table: str, column: str, new: str, cleaning: Cleaning) -> None:
    filled = frame[frame[column] != ""]
    before = int(filled[column].nunique())
    listed = new.endswith("tokens")
    after = normalise.distinct(filled[new], listed=listed)
    note = f"{before} different released texts, {after} different {'entries' if listed else 'texts'} after"
    changed = int((filled[column] != filled[new]).sum())
    cleaning.count("spelling variants unified", table, new, changed, before, ADDED, note)


def _count_repeats(frame: pd.DataFrame, table: str, column: str, cleaning: Cleaning) -> None:
    filled = frame.loc[frame[column] != "", column]
    rows, surplus = int(filled.duplicated(keep=False).sum()), int(filled.duplicated().sum())
    note = "rows: share their text with another; values: rows beyond the first of each text"
    cleaning.count("repeated text", table, column, rows, surplus, REPORTED, note)


def clean_labels(
    path: Path, table: str, servers: pd.DataFrame, tasks: pd.DataFrame, cleaning: Cleaning
) -> pd.DataFrame:
    """The label lists in long form, without id 0 and repeats, with the position that each id had in the file. Returns:
    columns task_id, server_id, position (from 1)."""
    lists, places = raw_files.read_lists(path)
    raw_files.check_references(lists, places, tasks["id"], servers["id"], path)
    zeros = [row.count(0) for row in lists.values()]
    repeats = [len(row) - len(set(row)) for row in lists.values()]
    of_zero = sum(max(0, count - 1) for count in zeros)
    cleaning.count("id 0 (no server has it) left out", table, "server_id", sum(map(bool, zeros)), sum(zeros), CHANGED)
    note = f"{of_zero} of these values are id 0, which the rule before has already left out"
    found = sum(map(bool, repeats)), sum(repeats)
    cleaning.count("repeated id in one list left out", table, "server_id", *found, CHANGED, note)
    keys = Counter(tuple(sorted(set(row) - {0})) for row in lists.values())
    shared = [count for count in keys.values() if count > 1]
    found, note = (sum(shared), sum(shared) - len(shared)), "values: lists beyond the first of each set"
    cleaning.count("same set of servers as another task", table, "server_id", *found, REPORTED, note)
    long = [
        (task, server, position)
        for task, row in lists.items()
        for position, server in enumerate(row, start=1)
        if server and row.index(server) == position - 1
    ]
    return pd.DataFrame(long, columns=["task_id", "server_id", "position"]).astype("int64")
