"""Calibration, dominance, steps and times of requests on hand-computed cases and planted truths."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from study.analysis.usefulness import calibration as c
from study.analysis.usefulness import choosing, pareto
from study.base.errors import StudyError

SETTINGS = c.Calibration("field_dense", ["score", "noise"], list(c.METHODS), target=0.8, bins=5, resamples=500, seed=0)
COORDINATE = st.one_of(st.just(np.nan), st.integers(0, 5))


def planted(n, *, slope=2.0, seed=0):
    """A signal and outcomes whose chance is expit(slope * signal)."""
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=n)
    return signal, rng.random(n) < expit(slope * signal)


def asked(n=200, *, slope=2.0, seed=0):
    """Rows of `confidence`, half of them of validation topics."""
    signal, useful = planted(n, slope=slope, seed=seed)
    noise = np.random.default_rng(seed + 1).normal(size=n)
    table = {"task_id": np.arange(n), "server_id": 1, "part": np.where(np.arange(n) < n // 2, "valid", "test")}
    return pd.DataFrame(table | {"grade": useful.astype(int), "score": signal, "noise": noise})


def measured(frame):
    return c.calibration_tables(frame, SETTINGS)["calibration"].set_index(["part", "measure"])


@pytest.mark.parametrize("method", c.METHODS)
def test_a_planted_chance_is_recovered(method):
    signal, useful = planted(20_000)
    found = c.METHODS[method](signal, useful)(np.linspace(-2, 2, 9))
    assert np.abs(found - expit(2 * np.linspace(-2, 2, 9))).max() < 0.06
    assert (np.diff(found) >= 0).all()


def test_a_logistic_map_never_promises_all_or_nothing_and_left_out_never_sees_its_own_outcome():
    signal = np.array([0.0, 1.0, 2.0, 3.0])
    found = c.logistic(signal, signal >= 2)(signal)
    assert 0.05 < found[0] < found[-1] < 0.95
    signal, useful = planted(30)
    before = c.left_out("logistic", signal, useful)
    useful[7] = not useful[7]
    after = c.left_out("logistic", signal, useful)
    assert after[7] == before[7]
    assert (np.delete(after, 7) != np.delete(before, 7)).all()


def test_calibration_error_by_hand_and_equal_chances_share_a_bin():
    chance = np.array([0.1, 0.1, 0.9, 0.9])
    useful = np.array([False, True, True, True])
    place = c.bins(chance, 2)
    assert place.tolist() == [0, 0, 1, 1]
    # Bins: promised 0.1, half useful; promised 0.9, all useful.
    assert c.calibration_error(chance, useful.astype(float), place) == pytest.approx(0.5 * 0.4 + 0.5 * 0.1)
    place = c.bins(np.repeat([0.1, 0.2, 0.6], [2, 9, 4]), 5)
    assert [len(set(part)) for part in np.split(place, [2, 11])] == [1, 1, 1]
    assert len(set(place)) > 1
    signal, useful = planted(103)
    table = c.reliability(expit(2 * signal), useful, 5)
    assert table["requests"].sum() == 103
    assert table["requests"].between(20, 21).all()
    assert (table["useful"] * table["requests"]).sum() == pytest.approx(useful.sum())
    assert ((table["ci_low"] <= table["useful"]) & (table["useful"] <= table["ci_high"])).all()


def numbers(chance, useful, resamples=300):
    settings = replace(SETTINGS, resamples=resamples)
    return c.measures(chance, useful, useful, 0.0, settings).set_index("measure")


def test_a_true_chance_passes_and_a_false_one_is_noticed():
    signal, useful = planted(2_000)
    true, false = (numbers(expit(2 * signal - shift), useful) for shift in (0, 1.5))
    limit = "calibration_error_if_calibrated", "ci_high"
    assert true.loc["calibration_error", "value"] < true.loc[limit]
    assert false.loc["calibration_error", "ci_low"] > false.loc[limit]
    low, value, high = true.loc["calibration_error", ["ci_low", "value", "ci_high"]]
    assert low <= value <= high


def test_risk_coverage_by_hand_and_with_ties():
    chance, useful = np.array([0.2, 0.9, 0.5]), np.array([False, True, False])
    table = c.risk_coverage(chance, useful)
    assert table["chance"].tolist() == [0.9, 0.5, 0.2]
    assert table["risk"].tolist() == pytest.approx([0, 1 / 2, 2 / 3])
    found = numbers(chance, useful)["value"]
    assert found["area"] == pytest.approx((0 + 1 / 2 + 2 / 3) / 3) == found["area_least"]
    assert found["area_gain"] == pytest.approx(2 / 3 - found["area"])
    # All chances equal, ordered at random and not by place: the risk is about the overall one at every coverage.
    useful = np.repeat([True, False], 500)
    assert numbers(np.full(1000, 0.5), useful, 50).loc["area_gain", "value"] == pytest.approx(0, abs=0.05)


@given(st.lists(st.booleans(), min_size=2, max_size=30), st.integers(0, 5))
@settings(max_examples=50)
def test_the_area_lies_between_the_best_order_and_its_reverse(outcomes, seed):
    useful = np.array(outcomes)
    chance = np.random.default_rng(seed).random(len(useful))
    found = numbers(chance, useful, 20)["value"]
    assert found["area_least"] - 1e-12 <= found["area"] <= c.risks(np.sort(useful)).mean() + 1e-12


def test_threshold_by_hand():
    chance, useful = np.array([0.9, 0.8, 0.8, 0.3]), np.array([True, True, False, True])
    assert c.threshold(chance, useful, 1.0) == 0.9
    assert c.threshold(chance, useful, 0.6) == 0.3  # three of four
    assert c.threshold(chance[:3], useful[:3], 0.6) == 0.8
    assert c.threshold(chance, np.zeros(4, bool), 0.5) == np.inf


def test_signals_by_hand():
    best = np.array([[3.0, 2.5, 1.0]], dtype=np.float32)
    servers = np.eye(3, dtype=np.float32)
    found = c.signals(np.array([[2, 0, 1]]), best, np.array([[0, 0.6, 0.8]], np.float32), servers).iloc[0]
    assert found.to_dict() == pytest.approx({"score": 3, "margin": 0.5, "lead": 2, "cosine": 0.8})


def test_the_informative_signal_is_chosen_and_abstaining_pays_and_one_without_information_gains_nothing():
    chosen = c.calibration_tables(asked(), SETTINGS)["calibration_choice"]
    assert chosen.iloc[0]["signal"] == "score"
    assert "none" in set(chosen["signal"])
    table = measured(asked())
    found = table["value"]
    assert found["test", "brier"] < found["test", "brier_without_signal"]
    assert found["test", "useful_if_answered"] > found["test", "useful"] > found["test", "useful_if_not_answered"]
    assert found["valid", "useful_if_answered"] >= SETTINGS.target
    assert table.loc[("test", "area_gain"), "ci_low"] > 0
    gain = measured(asked(400, slope=0.0)).loc[("test", "area_gain")]
    assert gain["ci_low"] < 0 < gain["ci_high"]


def test_test_topics_decide_nothing_and_validation_topics_that_are_all_alike_are_refused():
    frame = asked()
    other = frame.copy()
    other.loc[other["part"] == "test", "grade"] = 1 - other["grade"]
    first, second = (c.calibration_tables(rows, SETTINGS) for rows in (frame, other))
    pd.testing.assert_frame_equal(first["calibration_choice"], second["calibration_choice"])
    pd.testing.assert_frame_equal(*(table["calibration"].query("part == 'valid'") for table in (first, second)))
    risks = [table["risk_coverage"].query("part == 'test'")["chance"].sort_values() for table in (first, second)]
    assert risks[0].tolist() == risks[1].tolist()
    frame.loc[frame["part"] == "valid", "grade"] = 1
    with pytest.raises(StudyError, match="do not tell useful from useless"):
        c.calibration_tables(frame, SETTINGS)


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


def test_latency_quantiles_warm_up_and_waiting_which_is_elapsed_but_not_processor_time():
    seconds = np.array([[0.001, 0.002, 0.009], [0.001, 0.001, 0.003]]).T
    assert pareto.quantiles(seconds) == pytest.approx({"milliseconds": 2, "p5": 1.1, "p95": 8.3, "cpu": 1})
    calls = []
    elapsed, processor = pareto.timed(lambda request: calls.append(request) or time.sleep(0.02), [4, 5, 6], 2).T
    assert calls == [4, 5, 4, 5, 6]
    assert (elapsed >= 0.02).all()
    assert np.median(processor) < 0.015


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


WAY = {"start": 0.0, "half": 0.25, "end": 0.5}


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
    with pytest.raises(StudyError, match="of d are not judged"):
        choosing.one_at_a_time(values, ["a", "d"], ["ndcg@10"], seed=0)


def test_the_way_from_floor_to_goal():
    values = {"start": judged_values(0), "half": judged_values(0.1, seed=0), "end": judged_values(0.2)}
    found = choosing.closed(values, "half", start="start", end="end", metric="ndcg@10", seed=0, resamples=200)
    assert found == pytest.approx({"closed": 0.5, "closed_ci_low": 0.5, "closed_ci_high": 0.5})
    # Draws in which the end is where the start is tell nothing of the way: here those of the second topic alone.
    two = {name: judged_values(0).iloc[:2].assign(**{"ndcg@10": [way, 0.0]}) for name, way in WAY.items()}
    assert choosing.closed(two, "half", start="start", end="end", metric="ndcg@10", seed=0, resamples=50) == found
    settings = choosing.Supervision("start", "end", ["half", "absent"], "ndcg@10")
    table = choosing.supervision({"test": values}, settings, seed=0)
    assert table["system"].tolist() == ["end", "half", "start"]
    assert table["diff"].tolist()[:2] == pytest.approx([0.2, 0.1])
    with pytest.raises(StudyError, match="of end are not judged"):
        choosing.supervision({"test": {"start": values["start"]}}, settings, seed=0)
