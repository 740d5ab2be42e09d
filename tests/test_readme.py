"""Every measured number in the README stands in a committed table."""

import re
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
# 0.167<!--task2mcp cold t2mrec ndcg@10--> : the invisible note says which cell of overall.csv the number is.
SCORE = re.compile(r"([0-9.]+)<!--(\w+) (\w+) (\w+) (\w+)@(\d+)-->")
# 68<!--task2mcp training seconds--> : a cell of efficiency.csv.
SPEED = re.compile(r"([0-9.]+)<!--(\w+) (training|evaluation|recommendation) (\w+)-->")


# 3.8<!--task2mcp judged label_precision useful--> : the overall share in a table of the judged collection, in per cent,
# or the rank correlation on the test topics.
JUDGED = re.compile(r"(-?[0-9.]+)<!--(\w+) judged (\w+) (\w+)-->")


def rounded_like(text: str, value: float) -> str:
    digits = len(text.partition(".")[2])
    return f"{value:.{digits}f}"


@pytest.mark.parametrize("found", SCORE.findall(README), ids=lambda found: " ".join(found))
def test_scores_are_those_of_the_tables(found: tuple[str, ...]) -> None:
    text, dataset, protocol, system, metric, k = found
    table = pd.read_csv(ROOT / "results" / dataset / "tables" / "overall.csv")
    wanted = {"protocol": protocol, "system": system, "metric": metric, "k": int(k)}
    cell = table[(table[list(wanted)] == pd.Series(wanted)).all(axis=1)]
    assert len(cell) == 1
    assert rounded_like(text, cell["mean"].item()) == text


@pytest.mark.parametrize("found", SPEED.findall(README), ids=lambda found: " ".join(found))
def test_speeds_are_those_of_the_bench(found: tuple[str, ...]) -> None:
    text, dataset, part, measure = found
    table = pd.read_csv(ROOT / "results" / dataset / "tables" / "efficiency.csv")
    assert rounded_like(text, table[(table["part"] == part) & (table["measure"] == measure)]["value"].item()) == text


@pytest.mark.parametrize("found", JUDGED.findall(README), ids=lambda found: " ".join(found))
def test_judged_numbers_are_those_of_the_collection(found: tuple[str, ...]) -> None:
    text, dataset, name, column = found
    table = pd.read_csv(ROOT / "results" / dataset / "judged" / "tables" / f"{name}.csv")
    if name == "label_precision":
        value = 100 * table[table["scope"] == "all"][column].item()
    else:
        value = table[table["part"] == "test"][column].item()
    assert rounded_like(text, value) == text


def test_there_are_numbers_to_check() -> None:
    assert len(SCORE.findall(README)) >= 6
    assert len(SPEED.findall(README)) >= 3


def test_every_file_that_the_readme_names_exists() -> None:
    named = re.findall(r"\]\(([\w./-]+)\)", README)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
