"""Tables for people: cells, order, and characters that mean something to Markdown and LaTeX."""

import numpy as np
import pandas as pd
import pytest

from study.analysis import tables
from study.errors import StudyError


def overall(*rows):
    return pd.DataFrame(rows, columns=["system", "protocol", "metric", "k", "mean", "sd"])


def test_cell_leaves_out_the_deviation_of_a_single_seed():
    assert tables.cell(0.12345, 0.00105) == "0.1235 ± 0.0010"
    assert tables.cell(0.5, float("nan")) == tables.cell(0.5, None) == "0.5000"


def test_comparison_keeps_one_protocol_and_puts_the_best_first():
    rows = overall(
        ("a", "cold", "ndcg", 10, 0.1, 0.01),
        ("b", "cold", "ndcg", 10, 0.2, np.nan),
        ("c", "warm", "ndcg", 10, 0.9, 0.1),
    )
    table = tables.comparison(rows, "cold", {"a": "System A"}, ("ndcg@10",))
    assert table.to_numpy().tolist() == [["b", "0.2000"], ["System A", "0.1000 ± 0.0100"]]


def test_markdown_escapes_bars_and_keeps_the_shape():
    text = tables.markdown(pd.DataFrame({"system": ["a|b"], "value": [1]}))
    assert text.splitlines() == ["| system | value |", "| --- | ---: |", "| a\\|b | 1 |"]


def test_latex_escapes_what_latex_reads():
    text = tables.latex(pd.DataFrame({"system": ["a_b & 5 %"], "value": ["1 ± 2"]}), "caption")
    assert "a\\_b \\& 5 \\%" in text
    assert "1 $\\pm$ 2" in text
    assert "\\toprule" in text


def test_a_missing_table_names_the_command(tmp_path):
    with pytest.raises(StudyError, match="study report dataset=toy"):
        tables.read(tmp_path / "toy" / "tables" / "overall.csv")


def test_write_all_writes_both_forms(tmp_path):
    parts = {"cold": pd.DataFrame({"system": ["a"], "ndcg@10": ["0.5"]})}
    tables.write_all(tmp_path, "overall", parts, {"cold": "New tasks"})
    assert (tmp_path / "overall.md").read_text().startswith("### New tasks\n\n| system |")
    assert "\\caption{New tasks}" in (tmp_path / "overall.tex").read_text()


def test_a_system_that_was_not_run_has_words_and_no_number():
    overall = pd.DataFrame({
        "system": "a", "protocol": "cold", "metric": ["recall", "ndcg"], "k": 10, "mean": [0.5, 0.25],
        "sd": [0.1, 0.1], "n_seeds": 2,
    })  # fmt: skip
    table = tables.comparison(overall, "cold", {"b": "Model B"}, ("recall@10", "ndcg@10"), not_run=["b"])
    assert table.to_numpy().tolist() == [["a", "0.5000 ± 0.1000", "0.2500 ± 0.1000"], ["Model B", "not run", "not run"]]
