"""Attempts at the paper's baselines, on hand-made values."""

import pandas as pd
import pytest

from study.analysis import attempts, paper
from study.analysis.results import Results

# (protocol, system) -> NDCG@10. The paper prints 0.3358 for LightGCN, 0.4346 for MSBPR, 0.4568 for NeuMF.
VALUES = {
    ("warm", "lightgcn"): 0.54,
    ("loo", "lightgcn"): 0.20,
    ("warm", "lightgcn_tuned"): 0.30,
    ("cold", "lightgcn_transfer"): 0.24,
    ("warm", "msbpr"): 0.10,
    ("warm", "msbpr_leaky"): 0.60,
    ("warm", "t2mrec"): 0.33,
}
ABOVE = {"lightgcn_tuned": ["lightgcn"], "msbpr_leaky": ["msbpr"]}
FAMILIES = {"lightgcn_transfer": "hybrid", "msbpr_leaky": "ceiling"}


@pytest.fixture
def table(monkeypatch):
    names = {name for _, name in VALUES} | set(paper.load()["system"]) - {""}
    monkeypatch.setattr(
        Results, "systems", lambda self, protocol: [name for place, name in VALUES if place == protocol]
    )
    monkeypatch.setattr(Results, "value", lambda self, protocol, name, metric: VALUES[protocol, name])
    nothing = pd.DataFrame()
    titles = {name: name.upper() for name in names}
    families = {name: FAMILIES.get(name, "published") for name in names}
    results = Results(
        "task2mcp", "Task2MCP", ["cold", "warm", "loo"], titles, families, {name: ["warm"] for name in sorted(names)},
        [], nothing, nothing, nothing, nothing,
    )  # fmt: skip
    return attempts.attempts(results, paper.load(), builds_on=lambda name: ABOVE.get(name, []))


def test_every_baseline_of_the_paper_has_its_attempts_the_nearest_first(table):
    assert list(dict.fromkeys(table["printed"])) == [
        "NeuMF", "MSBPR", "ReCAFR", "NGCF", "LightGCN", "GDSRec", "CVH-REC", "TiGER", "OpenP5", "LC-Rec", "MPT-Rec",
    ]  # fmt: skip
    rows = table[table["printed"] == "LightGCN"]
    assert rows["title"].tolist() == ["LIGHTGCN_TUNED", "LIGHTGCN_TRANSFER", "LIGHTGCN", "LIGHTGCN"]
    assert rows["kind"].tolist() == ["tuned", "extension", "own settings", "own settings"]
    assert rows["protocol"].tolist() == ["warm", "cold", "loo", "warm"]
    assert rows["gap"].tolist() == pytest.approx([0.30 - 0.3358, 0.24 - 0.3358, 0.20 - 0.3358, 0.54 - 0.3358])


def test_a_method_with_a_fault_is_called_that(table):
    assert table.loc[table["printed"] == "MSBPR", "kind"].tolist() == ["fault", "own settings"]


def test_a_row_without_a_run_has_no_number(table):
    (row,) = table[table["printed"] == "NeuMF"].to_dict("records")
    assert row["paper"] == 0.4568
    assert (row["kind"], row["protocol"]) == ("own settings", "")
    assert pd.isna(row["ours"])
    assert pd.isna(row["gap"])


def test_only_what_is_far_is_told_with_what_was_tried(table):
    said = attempts.said(table)
    assert not any(sentence.startswith("LightGCN") for sentence in said)  # 0.036 off
    assert "NeuMF: the paper prints 0.457; ours has not run." in said
    (far,) = (sentence for sentence in said if sentence.startswith("MSBPR"))
    assert far == (
        "MSBPR: the paper prints 0.435; tried: own settings (warm); fault (warm); nearest: MSBPR_LEAKY under warm, "
        "0.600 (+0.165)."
    )


def test_the_figure_has_the_papers_bar_and_every_attempt(table):
    panel = attempts.attempts_figure(table, "caption").axes[0]
    bars = [collection.get_segments()[0][0] for collection in panel.collections if len(collection.get_segments()) == 1]
    assert bars[4].tolist() == pytest.approx([0.3358, 6 - 0.42])  # LightGCN, the fifth of eleven
    drawn = sorted(float(line.get_xdata()[0]) for line in panel.lines)
    assert drawn == sorted(value for (_, name), value in VALUES.items() if name != "t2mrec")


def test_a_protocol_without_a_colour_of_its_own_is_told_and_drawn_after_the_others(table):
    other = table.assign(protocol=table["protocol"].replace("cold", "by_month"))
    labels = [text.get_text() for text in attempts.attempts_figure(other, "caption").legends[0].get_texts()]
    assert labels[:3] == ["warm", "loo", "by_month"]
    (said,) = (line for line in attempts.said(other.assign(gap=1.0)) if line.startswith("LightGCN"))
    assert "extension (by_month)" in said
