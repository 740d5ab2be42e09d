"""The committed tables on what `field_dense` is worth, against the judgements and runs that they come from."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.framework import load_settings
from study.analysis.usefulness import calibration, choosing, curves, other_requests, pareto
from study.base import paths
from study.evaluation.records import read_record
from study.judging import store

DATASET = "task2mcp"
FOLDER = paths.results(DATASET) / "usefulness"
SETTINGS = [calibration.Calibration, choosing.Choice, choosing.Steps, curves.Curves]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_records_are_whole(path):
    assert read_record(path)["dataset"] == DATASET


def test_first_answers_are_those_that_were_judged():
    asked = pd.read_csv(FOLDER / "confidence.csv")
    run = store.read_runs(DATASET)["field_dense"]
    first = run[run["rank"] == 1].set_index("task_id")["server_id"]
    assert (first[asked["task_id"]].to_numpy() == asked["server_id"]).all()
    judged = store.final(DATASET).set_index(store.PAIR)["final"]
    assert [judged[pair] for pair in asked[store.PAIR].itertuples(index=False, name=None)] == asked["grade"].tolist()
    topics = store.read_table(DATASET, "topics").set_index("task_id")["part"]
    assert (topics[asked["task_id"]].to_numpy() == asked["part"]).all()
    assert len(asked) == topics.isin(["valid", "test"]).sum()


def test_the_choice_was_made_on_validation_topics():
    asked, chosen = pd.read_csv(FOLDER / "confidence.csv"), pd.read_csv(FOLDER / "calibration_choice.csv")
    assert chosen["brier"].is_monotonic_increasing
    settings = load_settings(calibration.Calibration)
    useful = asked.query("part == 'valid'")["grade"] >= 1
    share, n = useful.mean(), len(useful)
    # Without a signal, leaving one out moves the promise away from it, so the score is a little above the variance.
    expected = share * (1 - share) * (n / (n - 1)) ** 2
    assert chosen.set_index("signal").loc["none", "brier"] == pytest.approx(expected, rel=1e-5)
    assert set(chosen["signal"]) - {"none"} == set(settings.signals)


def test_fronts_follow_from_the_costs():
    table = pd.read_csv(FOLDER / "pareto.csv")
    for quality in pareto.QUALITIES:
        for cost in pareto.COSTS:
            front = pareto.non_dominated(table[quality].to_numpy(np.float64), table[cost].to_numpy(np.float64))
            assert (front == table[f"front_{quality}_{cost}"]).all()
            assert front.any()


@pytest.mark.parametrize("kind", [*SETTINGS, pareto.Latency, other_requests.Transfer])
def test_committed_settings_are_read(kind):
    assert load_settings(kind)


def test_rank_fusion_of_the_named_systems_is_asked():
    found = other_requests.build_systems(
        other_requests.Transfer(["bm25"], ["tfidf", "bm25"], "bm25", "ndcg@10", seed=0)
    )
    assert list(found) == ["bm25", "fusion"]
    assert list(found["fusion"].members) == ["tfidf", "bm25"]
