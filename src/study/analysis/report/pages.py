"""Pages of prose with numbers from tables: the templates of docs/src, rendered into the Markdown that people read.

In a template, ``{{ cell("cold/t2mrec/ndcg@10") }}`` is a mean of the overall table of Task2MCP, and ``ci`` in the place
of ``cell`` adds its interval; ``judged_test/t2mrec/ndcg@10`` is a mean on judged topics (also judged_valid and
judged_fresh). Any other cell has a name in docs/src/numbers.yaml: `file` (below results/; `*` for the rows of several),
`where` (column -> value; a text that begins with !=, < or > compares) and one of `column` (of the one row that is
left), `sum: column` (over all that are left), `count: true` (how many) and `different: column` (how many values there).
`times` multiplies. NAME_low and NAME_high, where not named themselves, are the ends of NAME's interval.
``rows(file, column=value)`` gives the rows of a table, for a table of the page that repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import yaml

from study.base import paths
from study.base.errors import StudyError

DATASET = "task2mcp"  # of a path without a data set
PATH = re.compile(r"(?:(?P<dataset>\w+):)?(?P<protocol>\w+)/(?P<system>\w+)/(?P<metric>\w+)@(?P<k>\d+)")


class Numbers:
    """The cells that pages name."""

    def __init__(self) -> None:
        self.file = paths.root() / "docs" / "src" / "numbers.yaml"
        self.entries: dict[str, dict[str, Any]] = yaml.safe_load(self.file.read_text(encoding="utf-8"))
        self.table: Callable[[str], pd.DataFrame] = cache(_table)

    def entry(self, name: str) -> dict[str, Any]:
        """What is said of a cell. Raises StudyError: the name has no entry."""
        if match := PATH.fullmatch(name):
            dataset, protocol, system, metric, k = match.groups()
            if protocol.startswith("judged_"):
                where = {"part": protocol.removeprefix("judged_"), "system": system, "metric": f"{metric}@{k}"}
                return {"file": f"{DATASET}/judged/tables/scores.csv", "where": where, "column": "mean"}
            where = {"protocol": protocol, "system": system, "metric": metric, "k": k}
            return {"file": f"{dataset or DATASET}/tables/overall.csv", "where": where, "column": "mean"}
        whole, _, end = name.rpartition("_")
        if name not in self.entries and whole in self.entries and end in ("low", "high"):
            return self.entries[whole] | {"column": f"{self.entries[whole]['column']}_ci_{end}"}
        if name not in self.entries:
            raise StudyError("no such number", file=self.file, column=name, fix="write its entry")
        return self.entries[name]

    def value(self, name: str, **others: Any) -> float:
        """The number. Raises StudyError: more or fewer than one row are left."""
        entry = self.entry(name) | others
        rows = self.table(entry["file"])
        for column, condition in entry.get("where", {}).items():
            sign, text = str(condition)[:1], str(condition)
            if sign in "<>":
                numbers = pd.to_numeric(rows[column]) - float(text[1:])
                rows = rows[numbers < 0 if sign == "<" else numbers > 0]
            else:
                rows = rows[rows[column] != text[2:] if text.startswith("!=") else rows[column] == text]
        if entry.get("count"):
            return float(len(rows))
        if "different" in entry:
            return float(rows[entry["different"]].nunique())
        times = float(entry.get("times", 1))
        if "sum" in entry:
            return float(pd.to_numeric(rows[entry["sum"]]).sum()) * times
        if len(rows) != 1:
            fix = f"mend its entry in {self.file}"
            raise StudyError(f"{len(rows)} rows are left of {entry['file']}", column=name, fix=fix)
        return float(rows[entry["column"]].item()) * times

    def rows(self, file: str, **where: str) -> list[dict[str, str]]:
        """The rows of a table below results/ that have these values, each by its columns, as texts."""
        table = self.table(file)
        rows = table[(table[list(where)] == pd.Series(where)).all(axis=1)].to_dict("records")
        return [{str(column): text for column, text in row.items()} for row in rows]

    def cell(self, name: str, digits: int | None = None, *, sign: bool = False) -> str:
        """A number as text: three digits behind the point, none of a whole number, unless `digits` says so."""
        value = self.value(name)
        digits = digits if digits is not None else 0 if value.is_integer() else 3
        return _text(value, digits, sign=sign)

    def ci(self, name: str, digits: int = 3, *, sign: bool = False) -> str:
        """A number with its interval: 0.167 [0.153, 0.182]."""
        if PATH.fullmatch(name):
            low, high = (self.value(name, column=f"ci_{end}") for end in ("low", "high"))
        else:
            low, high = (self.value(f"{name}_{end}") for end in ("low", "high"))
        ends = (_text(end, digits, sign=sign) for end in (low, high))
        return f"{self.cell(name, digits, sign=sign)} [{', '.join(ends)}]"


def _text(value: float, digits: int, *, sign: bool) -> str:
    """A rounded number, with a sign where one is asked for and it is not zero."""
    return f"{value:{'+' if sign and round(value, digits) else ''}z,.{digits}f}"


def _table(file: str) -> pd.DataFrame:
    """Tables below results/, one under another, with texts as they stand there."""
    results = paths.root() / "results"
    tables = [pd.read_csv(path, dtype=str, keep_default_na=False) for path in sorted(results.glob(file))]
    if not tables:
        raise StudyError("a page names a table that is not there", file=results / file, fix="dvc repro")
    return pd.concat(tables)


def render() -> dict[Path, str]:
    """Every page with its text. Raises StudyError: a template is broken, or names a number that is not there."""
    folder, numbers = paths.root() / "docs" / "src", Numbers()
    loader = jinja2.FileSystemLoader(folder)
    options: Any = {"undefined": jinja2.StrictUndefined, "keep_trailing_newline": True, "trim_blocks": True}
    environment = jinja2.Environment(loader=loader, **options)  # noqa: S701  # Markdown, of our own tables
    environment.globals.update(cell=numbers.cell, ci=numbers.ci, value=numbers.value, rows=numbers.rows)
    pages = {}
    for path in sorted(folder.glob("*.md.j2")):
        target = paths.root() / ("" if path.stem == "README.md" else "docs") / path.stem
        try:
            pages[target] = environment.get_template(path.name).render()
        except jinja2.TemplateError as error:
            line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise StudyError(f"{line}{error.message}", file=path, fix="mend the template") from error
    return pages


def stale(pages: dict[Path, str]) -> list[Path]:
    """The pages whose file says something else."""
    return [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
