"""Every measured number in the README and the findings, and every marked one of other documents, stands in a table."""

import re
from pathlib import Path

import pandas as pd
import pytest
from typer.core import TyperGroup as Group
from typer.main import get_command

from study.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("README.md", "docs/findings.md", "docs/claims.md", "docs/data-card.md", "docs/best.md", "docs/deviations.md")
DOCUMENTS = {name: (ROOT / name).read_text() for name in NAMES}
README, FINDINGS, *_ = DOCUMENTS.values()
TEXT = "".join(DOCUMENTS.values())
# 0.167<!--task2mcp cold t2mrec ndcg@10--> : the invisible note says which cell of overall.csv the number is.
SCORE = re.compile(r"([0-9.]+)<!--(\w+) (\w+) (\w+) (\w+)@(\d+)-->")
# 68<!--task2mcp training seconds--> : a cell of efficiency.csv.
SPEED = re.compile(r"([0-9.]+)<!--(\w+) (training|evaluation|recommendation) (\w+)-->")
# 3.8<!--task2mcp judged label_precision useful--> : the overall share in a table of the judged collection, in per cent,
# or the rank correlation on the test topics.
JUDGED = re.compile(r"(-?[0-9.]+)<!--(\w+) judged (\w+) (\w+)-->")
# 46.6<!--task2mcp/audit/leakage.csv share in %; protocol=cold; kind=any_twin--> : of a file below results/, a column of
# the one row that meets the conditions (=, !=, <, >), `rows` (how many do) or `different(column)` (of how many values).
CELL = re.compile(r"(-?[0-9.,]*[0-9])<!--([\w/]+\.csv(?:\.xz)?) ([^;>]+)((?:; [^;]+?)*)-->")
CONDITION = re.compile(r"([\w ]+?)(!=|=|<|>)(.*)")
NOTE = re.compile(r"<!--.*?-->")
CODE = re.compile(r"```bash\n.*?```|`[^`\n]+`", re.DOTALL)


def rounded_like(text: str, value: float) -> str:
    digits = len(text.partition(".")[2])
    return f"{value:.{digits}f}"


def rows_of(table: pd.DataFrame, conditions: str) -> pd.DataFrame:
    """The rows, all of text, that meet conditions written as `; column=value`."""
    for condition in filter(None, conditions.split("; ")):
        found = CONDITION.fullmatch(condition)
        assert found, condition
        column, sign, wanted = found.groups()
        if sign in "<>":
            numbers = pd.to_numeric(table[column])
            table = table[numbers < float(wanted) if sign == "<" else numbers > float(wanted)]
        else:
            table = table[(table[column] == wanted) == (sign == "=")]
    return table


def value_of(table: pd.DataFrame, what: str, conditions: str) -> float:
    measure, _, unit = what.partition(" in ")
    assert unit in ("", "%")
    rows = rows_of(table, conditions)
    if measure == "rows":
        return len(rows)
    if measure.startswith("different("):
        return rows[measure.removeprefix("different(").removesuffix(")")].nunique()
    assert len(rows) == 1, f"{len(rows)} rows meet {conditions}"
    return float(rows[measure].item()) * (100 if unit else 1)


@pytest.mark.parametrize("found", SCORE.findall(TEXT), ids=lambda found: " ".join(found))
def test_scores_are_those_of_the_tables(found: tuple[str, ...]) -> None:
    text, dataset, protocol, system, metric, k = found
    table = pd.read_csv(ROOT / "results" / dataset / "tables" / "overall.csv")
    wanted = {"protocol": protocol, "system": system, "metric": metric, "k": int(k)}
    cell = table[(table[list(wanted)] == pd.Series(wanted)).all(axis=1)]
    assert len(cell) == 1
    assert rounded_like(text, cell["mean"].item()) == text


@pytest.mark.parametrize("found", SPEED.findall(TEXT), ids=lambda found: " ".join(found))
def test_speeds_are_those_of_the_bench(found: tuple[str, ...]) -> None:
    text, dataset, part, measure = found
    table = pd.read_csv(ROOT / "results" / dataset / "tables" / "efficiency.csv")
    assert rounded_like(text, table[(table["part"] == part) & (table["measure"] == measure)]["value"].item()) == text


@pytest.mark.parametrize("found", JUDGED.findall(TEXT), ids=lambda found: " ".join(found))
def test_judged_numbers_are_those_of_the_collection(found: tuple[str, ...]) -> None:
    text, dataset, name, column = found
    table = pd.read_csv(ROOT / "results" / dataset / "judged" / "tables" / f"{name}.csv")
    if name == "label_precision":
        value = 100 * table[table["scope"] == "all"][column].item()
    else:
        value = table[table["part"] == "test"][column].item()
    assert rounded_like(text, value) == text


@pytest.mark.parametrize("found", CELL.findall(TEXT), ids=lambda found: " ".join(found))
def test_cells_are_those_of_the_tables(found: tuple[str, ...]) -> None:
    text, file, what, conditions = found
    table = pd.read_csv(ROOT / "results" / file, dtype=str, keep_default_na=False)
    assert rounded_like(text.replace(",", ""), value_of(table, what, conditions)) == text.replace(",", "")


def test_every_note_is_read() -> None:
    for text in DOCUMENTS.values():
        assert len(NOTE.findall(text)) == sum(len(form.findall(text)) for form in (SCORE, SPEED, JUDGED, CELL))


def test_there_are_numbers_to_check() -> None:
    assert len(SCORE.findall(README)) >= 6
    assert len(SPEED.findall(TEXT)) >= 3
    for finding in FINDINGS.split("\n## ")[1:]:
        assert len(NOTE.findall(finding)) >= 6


def test_a_wrong_number_is_noticed() -> None:
    table = pd.DataFrame({"name": ["a", "b", "b"], "n": ["1", "20", "3"], "share": ["0.123", "0.5", ""]})
    assert value_of(table, "share in %", "; name=a") == pytest.approx(12.3)
    assert rounded_like("12.4", value_of(table, "share in %", "; name=a")) != "12.4"
    assert value_of(table, "rows", "; name!=a; n<10") == 1
    assert value_of(table, "different(name)", "; share!=") == 2
    with pytest.raises(AssertionError, match="2 rows"):
        value_of(table, "n", "; name=b")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_file_that_a_document_names_exists(name: str) -> None:
    named = re.findall(r"\]\(([\w./-]+)\)", DOCUMENTS[name])
    assert named
    assert [path for path in named if not ((ROOT / name).parent / path).exists()] == []


def test_figures_are_made_by_notebooks() -> None:
    """A picture of a document is one that a notebook saves; names may be put together there (f"audit_{name}")."""
    sources = "".join(path.read_text() for path in (ROOT / "notebooks").glob("*.ipynb"))
    saved = [
        re.sub(r"\\\{[^}]*\\\}", r"\\w+", re.escape(name))
        for name in re.findall(r'save_figure\(\w[^"]*\\"([^"\\]+)\\"', sources)
    ]
    shown = re.findall(r"!\[[^]]*\]\(([\w./-]+)\)", TEXT)
    assert len(shown) >= 6
    assert [path for path in shown if not any(re.fullmatch(name, Path(path).stem) for name in saved)] == []


def test_commands_that_documents_name_exist() -> None:
    commands = get_command(app)
    assert isinstance(commands, Group)
    named = re.findall(r"(?m)(?:^|`)study ([a-z]+)(?: ([a-z][a-z-]*)\b)?", "\n".join(CODE.findall(NOTE.sub("", TEXT))))
    assert len(named) >= 20
    for name, second in named:
        assert name in commands.commands, name
        command = commands.commands[name]
        # What follows an overview's name is a command of it; elsewhere it is an argument, such as `dataset=task2mcp`.
        if isinstance(command, Group) and second:
            assert second in command.commands, f"{name} {second}"
