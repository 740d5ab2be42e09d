"""The committed execution of the overall notebook is not older than the tables that it prints."""

import re

import nbformat
import pandas as pd
import pytest

from study.analysis.report.results import Results
from study.base import paths

HEAD = ["title", "quality", "seconds_fit"]


@pytest.fixture(scope="module")
def printed():
    """Protocol -> title -> NDCG@10 and seconds of training, as section 9 prints them."""
    path = paths.results("task2mcp") / "notebooks" / "02_rq1_overall.ipynb"
    found = {}
    outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]
    for text in (output.get("data", {}).get("text/markdown", "") for output in outputs):
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
        protocol = re.search(r"Protocol: (\w+) ", text)
        if protocol and lines and lines[0][:3] == HEAD:
            found[protocol[1]] = {row[0]: (float(row[1]), float(row[2])) for row in lines[2:]}
    return found


def test_every_protocol_and_every_row_is_printed_as_the_tables_have_it(printed):
    results = Results.load("task2mcp")
    assert list(printed) == results.protocols
    for protocol, rows in printed.items():
        table = results.cost_table(protocol)
        assert list(rows) == table["title"].tolist()
        expected = pd.DataFrame({"quality": table["quality"], "seconds": table["seconds_fit"]}).round(4)
        assert list(rows.values()) == list(expected.itertuples(index=False, name=None))


def test_no_committed_execution_printed_a_warning():  # it names a temporary file, so two executions would differ
    for path in sorted((paths.results("task2mcp") / "notebooks").glob("*.ipynb")):
        outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]
        assert [output.text for output in outputs if output.get("name") == "stderr"] == [], path.stem
