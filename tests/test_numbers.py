"""Every marked number of README, docs and notebooks is the cell of a table that docs/numbers.yaml names.

`0.167<!--#cold_t2mrec-->` is a number with its mark. The entry of a key has `file` (below results/; `*` for the rows of
several), `where` (column -> value; a text that begins with !=, < or > compares) and one of `column` (of the one row
that is left), `sum: column` (over all rows that are left), `count: true` (how many) and `different: column` (how many
values it has there). `times` multiplies the cell or the sum. KEY_low and KEY_high without an entry are the ends of the
interval of KEY: its column with `_ci_low` or `_ci_high` behind it.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"([+-]?[0-9][0-9.,]*)?<!--#(\w+)-->")
KEYS: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docs" / "numbers.yaml").read_text())


def text_of(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text()
    return "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")


PATHS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "notebooks").glob("*.ipynb"))]
TEXTS = {str(path.relative_to(ROOT)): text_of(path) for path in PATHS}
MARKED = sorted({(name, *found) for name, text in TEXTS.items() for found in MARK.findall(text)})


def own(key: str) -> str:
    """The key of the entry that a key stands for: itself, or that of which it is an end."""
    return key if key in KEYS else re.sub("_(low|high)$", "", key)


@cache
def table(file: str) -> pd.DataFrame:
    paths = sorted((ROOT / "results").glob(file))
    return pd.concat([pd.read_csv(path, dtype=str, keep_default_na=False) for path in paths])


@cache
def value_of(key: str) -> float:
    """The number that a key of docs/numbers.yaml stands for."""
    entry = KEYS[own(key)]
    if key not in KEYS:
        entry = entry | {"column": f"{entry['column']}_ci_{key.rpartition('_')[2]}"}
    rows = table(entry["file"])
    for column, wanted in entry.get("where", {}).items():
        sign, value = re.fullmatch(r"(!=|<|>|)(.*)", str(wanted), re.DOTALL).groups()  # type: ignore[union-attr]
        if sign in ("<", ">"):
            numbers = pd.to_numeric(rows[column])
            rows = rows[numbers < float(value) if sign == "<" else numbers > float(value)]
        else:
            rows = rows[(rows[column] == value) == (sign == "")]
    if entry.get("count"):
        return len(rows)
    if "different" in entry:
        return int(rows[entry["different"]].nunique())
    if "sum" in entry:
        return float(pd.to_numeric(rows[entry["sum"]]).sum()) * entry.get("times", 1)
    assert len(rows) == 1, f"{len(rows)} rows are left"
    return float(rows[entry["column"]].item()) * entry.get("times", 1)


def matches(typed: str, value: float) -> bool:
    """Whether a typed number is the value, rounded to the digits typed."""
    plain = typed.replace(",", "")
    return abs(float(plain) - value) <= 0.5 * 10.0 ** -len(plain.partition(".")[2]) + 1e-9


@pytest.mark.parametrize(("name", "typed", "key"), MARKED)
def test_typed_number_is_the_cell(name: str, typed: str, key: str) -> None:
    assert typed, "no number stands before the mark"
    assert matches(typed, value_of(key)), f"{name} says {typed}, the table {value_of(key)}"


def test_every_mark_has_a_key_and_every_key_is_used() -> None:
    marks = sum(text.count("<!--") for text in TEXTS.values())
    assert marks == sum(len(MARK.findall(text)) for text in TEXTS.values())
    assert {own(key) for _, _, key in MARKED} == set(KEYS)
    assert {key for name, _, key in MARKED if name == "README.md"}


def test_a_changed_number_fails() -> None:
    for _, typed, key in MARKED:
        last = max(i for i, sign in enumerate(typed) if sign.isdigit())
        changed = typed[:last] + str((int(typed[last]) + 5) % 10) + typed[last + 1 :]
        assert not matches(changed, value_of(key))
