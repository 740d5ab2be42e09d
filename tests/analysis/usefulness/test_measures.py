"""Dominance, times of requests, and one idea at a time, on hand-computed cases and planted truths; what a step of
`label_ranker` replaces, and going on after a stop."""

import itertools
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.analysis import framework
from study.analysis.framework import load_settings, run_analyses
from study.analysis.usefulness import choosing, label_steps, pareto
from study.base import paths
from study.config.compose import load

STEPS = {"words": {"trees": 0, "ridges": [{"text": 1.0}]}, "all": {}}
SETTINGS = label_steps.LabelSteps(protocol="cold", system="label_ranker", seed=3, steps=STEPS)
COORDINATE = st.one_of(st.just(np.nan), st.integers(0, 5))


@given(st.lists(st.tuples(COORDINATE, COORDINATE), min_size=1, max_size=12))
@settings(max_examples=60)
def test_dominance_agrees_with_its_definition_and_leaves_out_what_is_unknown(points):
    quality, cost = (np.array(side, dtype=float) for side in zip(*points, strict=True))
    expected = [
        not np.isnan([own_q, own_k]).any()
        and not any(q >= own_q and k <= own_k and (q, k) != (own_q, own_k) for q, k in points)
        for own_q, own_k in points
    ]
    assert pareto.non_dominated(quality, cost).tolist() == expected


def test_latencies_by_hand_and_waiting_which_is_elapsed_but_not_processor_time(monkeypatch):
    calls = []
    found = pareto.time_requests(lambda request: calls.append(request) or time.sleep(0.02), [4, 5, 6], 2)
    assert calls == [4, 5, 4, 5, 6]
    assert found["p5"] >= 20 > 15 > found["cpu"]
    elapsed = itertools.accumulate([0, 0.001, 5, 0.002, 5, 0.009])  # the clock at the start and the end of each
    processor = itertools.accumulate([0, 0.001, 5, 0.001, 5, 0.003])
    monkeypatch.setattr(pareto.time, "perf_counter", lambda: next(elapsed))
    monkeypatch.setattr(pareto.time, "process_time", lambda: next(processor))
    found = pareto.time_requests(lambda request: None, [4, 5, 6], 0)
    assert found == pytest.approx({"milliseconds": 2, "p5": 1.1, "p95": 8.3, "cpu": 1})


def test_a_saved_model_is_asked_as_people_ask_it(monkeypatch):
    asked = []

    parts = {"language": "Go", "category": "a", "theme": "b", "subcategory": "c"}
    data = SimpleNamespace(name="toy", tasks=pd.DataFrame([parts]), task_texts=lambda names: [" / ".join(names)])

    def load_saved_model(dataset, system):
        asked.append((dataset, system))
        return SimpleNamespace(recommend=lambda text, **rest: asked.append((text, rest)))

    monkeypatch.setattr(pareto.saved, "load_saved_model", load_saved_model)
    pareto.answering_saved("field_dense", data)(0)
    assert asked == [("toy", "field_dense"), ("name / description", parts | {"k": 10})]


def judged_values(shift, n=40, seed=0):
    rng = np.random.default_rng(seed)
    values = np.clip(0.3 + 0.2 * rng.random(n) + shift, 0, 1)
    return pd.DataFrame({"task_id": np.arange(n), "seed": 1, "ndcg@10": values, "unjudged@10": 0.0})


def test_steps_measure_each_idea_against_the_one_before():
    values = {"a": judged_values(0), "b": judged_values(0.1), "c": judged_values(0.1)}
    table = choosing.one_at_a_time(values, ["a", "b", "c"], ["ndcg@10"], seed=0)
    assert table["before"].tolist()[1:] == ["a", "b"]
    assert table["diff"].tolist()[1:] == pytest.approx([0.1, 0])
    assert table.loc[1, "diff_ci_low"] > 0
    assert table.loc[1, ["wins", "losses"]].tolist() == [40, 0]
    assert table.loc[2, "p_holm"] == 1
    assert table.loc[1, "p_holm"] == pytest.approx(2 * table.loc[1, "p"])


def test_the_way_from_floor_to_goal():
    values = {"start": judged_values(0), "half": judged_values(0.1), "end": judged_values(0.2)}
    settings = choosing.Supervision("start", "end", ["half", "absent"], "ndcg@10")
    table = choosing.supervision({"test": values}, settings, seed=0)
    assert table["system"].tolist() == ["end", "half", "start"]
    assert table["diff"].tolist()[:2] == pytest.approx([0.2, 0.1])
    closed = ["closed", "closed_ci_low", "closed_ci_high"]
    assert table.loc[1, closed].tolist() == pytest.approx([0.5] * 3)
    # Draws in which the end is where the start is tell nothing of the way: here those of the second topic alone.
    found = choosing.compute_closed_share(pd.Series([0.25, 0.0]), pd.Series([0.5, 0.0]), seed=0)
    assert [found[name] for name in closed] == [0.5] * 3


def test_steps_are_paired_by_task():
    start = np.random.default_rng(0).uniform(0.2, 0.5, 60)
    first = pd.DataFrame({"task_id": range(60), "ndcg@10": start, "recall@10": start})
    same = first.assign(**{"ndcg@10": start + 0.1})
    # Rows in another order are the same tasks.
    parts = {"first": first, "better": same.sample(frac=1, random_state=1), "same": same}
    values = pd.concat([frame.assign(title=title) for title, frame in parts.items()])
    table = label_steps.label_step_table(values, seed=0).set_index(["metric", "title"])
    better = table.loc[("ndcg@10", "better")]
    assert better["diff"] == pytest.approx(0.1)
    assert better["diff_ci_low"] == pytest.approx(0.1)  # the same gain for every task: no spread
    assert better["p_holm"] < 0.01
    assert table.loc[("ndcg@10", "same"), "p_holm"] == 1
    assert np.isnan(table.loc[("ndcg@10", "first"), "diff"])
    assert table.loc[("recall@10", "better"), "diff"] == 0


def test_a_step_replaces_whole_values_and_a_stopped_analysis_goes_on_and_a_kept_fit_needs_no_cache(
    monkeypatch, tmp_path
):
    models = []

    def fitted(config, seed):
        models.append(config.system.model)
        if len(models) == 2:
            raise KeyboardInterrupt
        return pd.DataFrame({"task_id": [1, 2], "ndcg@10": [0.5, 0.1 * seed], "recall@10": 0.0})

    monkeypatch.setattr(paths, "cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(paths, "results", lambda dataset: tmp_path)
    monkeypatch.setattr(framework, "load_settings", lambda kind: SETTINGS)
    monkeypatch.setattr(label_steps, "fit_step", fitted)
    monkeypatch.setattr(label_steps, "row_key", lambda config: str(config.system.model.trees))
    config, whole = load(["dataset=synthetic"]), load(["system=label_ranker"]).system.model
    with pytest.raises(KeyboardInterrupt):
        list(run_analyses(["usefulness/label_steps"], config))
    for _ in range(2):
        (path,) = run_analyses(["usefulness/label_steps"], config)
        assert (models[0].trees, models[0].ridges) == (0, [{"text": 1.0}])  # a list is replaced, not laid over
        assert models[0].regularisation == whole.regularisation
        assert models[1:] == [whole, whole]
        assert not list(tmp_path.glob("cache/**/*.parquet"))
    assert pd.read_csv(path)["mean"].notna().all()


def test_the_steps_of_the_study_end_with_its_system():
    steps = load_settings(label_steps.LabelSteps).steps
    assert list(steps.values())[-1] == {}
    assert all(one != other for one, other in itertools.pairwise(steps.values()))
