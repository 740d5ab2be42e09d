"""Tuned rows beside untuned ones, on hand-made values per task."""

import pandas as pd
import pytest

from study.analysis.overall import tuning_effect
from study.analysis.report.results import Results

# System -> NDCG@10 of four tasks.
VALUES = {
    "ngcf": [0.5, 0.6, 0.7, 0.8],
    "ngcf_tuned": [0.4, 0.5, 0.6, 0.7],  # worse on every task
    "ease": [0.1, 0.2, 0.3, 0.4],
    "ease_tuned": [0.3, 0.4, 0.5, 0.6],  # better on every task
    "bpr": [0.1, 0.2, 0.3, 0.4],
    "bpr_tuned": [0.2, 0.1, 0.4, 0.3],  # neither
    "lonely_tuned": [0.9, 0.9, 0.9, 0.9],  # nothing to compare with
}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    ran = {"warm": list(VALUES), "loo": ["bpr", "bpr_tuned"]}
    monkeypatch.setattr(Results, "systems", lambda self, protocol: ran[protocol])
    monkeypatch.setattr(Results, "per_task", lambda self, protocol, name: pd.DataFrame({"ndcg@10": VALUES[name]}))
    nothing = pd.DataFrame()
    titles = {name: name.upper() for name in VALUES} | {"ngcf": "$x_{"}
    return Results("synthetic", "Synthetic", ["warm", "loo"], titles, {}, {}, [], nothing, nothing, nothing, nothing)


def test_differences_by_hand_the_largest_first(results):
    table = tuning_effect.effects(results)
    assert list(zip(table["protocol"], table["system"], strict=True)) == [
        ("warm", "ease"),
        ("warm", "bpr"),
        ("warm", "ngcf"),
        ("loo", "bpr"),
    ]
    assert table["difference"].tolist() == pytest.approx([0.2, 0, -0.1, 0])
    assert table.loc[0, ["own", "tuned", "ci_low", "ci_high"]].tolist() == pytest.approx([0.25, 0.45, 0.2, 0.2])
    assert (table.loc[1, "ci_low"], table.loc[1, "ci_high"]) == pytest.approx((-0.1, 0.1))


def test_only_what_tasks_tell_apart_is_called_worse(results):
    (said,) = tuning_effect.losses(tuning_effect.effects(results))
    assert said == "warm: worse after tuning: $x_{ (-0.100 [-0.100, -0.100])."


def test_the_figure_shows_both_values_of_every_row(results):
    table = tuning_effect.effects(results)
    warm, loo = tuning_effect.dumbbells(table, "caption").axes
    own, tuned = warm.collections[1:]
    assert own.get_offsets()[:, 0].tolist() == pytest.approx([0.25, 0.25, 0.65])
    assert own.get_offsets()[:, 1].tolist() == tuned.get_offsets()[:, 1].tolist() == [2, 1, 0]
    assert tuned.get_offsets()[:, 0].tolist() == pytest.approx([0.45, 0.25, 0.55])
    assert [label.get_text() for label in warm.get_yticklabels()] == ["EASE", "BPR", "$x_{"]
    assert loo.get_title(loc="left") == "loo"


def test_the_caption_says_what_markers_and_colours_mean(results):
    said = " ".join(tuning_effect.dumbbells(tuning_effect.effects(results), "Data.").get_supxlabel().split())
    assert said.startswith("Data. Open: the system at its own settings. Filled: tuned")
    assert all(word in said for word in ("Green: better", "red: worse", "95 % bootstrap interval", "grey"))


def test_without_tuned_rows_there_is_nothing_to_show(results, monkeypatch):
    monkeypatch.setattr(Results, "systems", lambda self, protocol: ["ngcf", "lonely_tuned"])
    table = tuning_effect.effects(results)
    assert table.empty
    assert tuning_effect.losses(table) == []
