"""Sweeps as they are shown: curves and choices by hand, importances with a planted cause, figures that draw."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from study.analysis import sensitivity, sensitivity_figures
from study.analysis.tables import PAPER_METRICS
from study.errors import StudyError
from study.sweeps.settings import Sweep, load


def grid(name: str, quality, noise: float = 0.0) -> tuple[Sweep, pd.DataFrame]:
    """Trials of a grid whose every measure is quality(value) plus noise per seed."""
    sweep, rng = load(name), np.random.default_rng(0)
    table = pd.DataFrame(sweep.points()).rename_axis("trial").reset_index()
    column = sensitivity.parameter(sweep)
    for part in sweep.parts:
        for metric in PAPER_METRICS:
            table[f"{part}/{metric}"] = quality(table[column]) + rng.normal(0, noise, len(table))
    return sweep, table


def search(n: int = 40) -> tuple[Sweep, pd.DataFrame]:
    """Trials of the joint search in which the learning rate alone decides."""
    sweep, rng = load("joint"), np.random.default_rng(1)
    rows = []
    for number in range(n):
        row = {"trial": number, "seed": 1}
        for name, domain in sweep.space.items():
            if "choices" in domain:
                row[name] = rng.choice(domain["choices"])
            elif domain["type"] == "int":
                row[name] = rng.integers(domain["low"], domain["high"] + 1)
            elif domain.get("log"):
                row[name] = np.exp(rng.uniform(np.log(domain["low"]), np.log(domain["high"])))
            else:
                row[name] = rng.uniform(domain["low"], domain["high"])
        rows.append(row)
    table = pd.DataFrame(rows)
    for metric in PAPER_METRICS:
        table[f"valid/{metric}"] = 0.2 - 0.05 * (np.log10(table["training.learning_rate"]) + 3) ** 2
    return sweep, table


def test_curve_by_hand():
    sweep = load("temperature")
    table = pd.DataFrame({"training.temperature": [0.14, 0.07, 0.07], "seed": [1, 1, 2]})
    for part in sweep.parts:
        for metric in PAPER_METRICS:
            table[f"{part}/{metric}"] = [0.5, 0.1, 0.3]
    points = sensitivity.curve(sweep, table)
    assert len(points) == 2 * 8 * 2
    own = points[(points["part"] == "test") & (points["metric"] == "ndcg@10")]
    assert own["value"].tolist() == [0.07, 0.14]
    assert own["mean"].tolist() == pytest.approx([0.2, 0.5])
    assert own["sd"].iloc[0] == pytest.approx(np.sqrt(0.02))
    assert np.isnan(own["sd"].iloc[1])
    assert own["seeds"].tolist() == [2, 1]


def test_the_optimum_is_chosen_on_validation_whatever_the_test_tasks_say():
    sweep, table = grid("temperature", lambda tau: 0.2 - 0.05 * np.log10(tau / 0.14) ** 2)
    table["test/ndcg@10"] = 1 - table["training.temperature"]
    found = sensitivity.optimum(sweep, table)
    assert (found["best"], found["paper"], found["flat"]) == (0.14, 0.07, [0.14])
    assert found["gain_valid"] == pytest.approx(0.05 * np.log10(2) ** 2)
    assert found["gain_test"] == pytest.approx(-0.07)
    assert found["gain_test_low"] == pytest.approx(found["gain_test_high"])


def test_values_within_the_spread_of_the_best_are_named():
    sweep, table = grid("fusion_weight", lambda weight: 0.2 * weight, noise=0.01)
    found = sensitivity.optimum(sweep, table)
    assert found["best"] in found["flat"]
    assert 0.0 not in found["flat"]


def test_a_search_has_no_single_parameter():
    with pytest.raises(StudyError, match="12 parameters"):
        sensitivity.parameter(load("joint"))


def test_a_study_rebuilt_from_the_table_holds_the_same_trials():
    sweep, table = search()
    study = sensitivity.rebuilt(sweep, table)
    assert len(study.trials) == len(table)
    assert study.best_value == pytest.approx(table["valid/ndcg@10"].max())
    best = table.loc[table["valid/ndcg@10"].idxmax()]
    assert study.best_params["towers.hidden"] == best["towers.hidden"]
    assert isinstance(study.best_params["scoring.anchors"], int)


def test_rounding_in_the_file_takes_no_value_out_of_its_range():
    sweep, table = search(4)
    table.loc[0, "training.learning_rate"] = 0.0100001
    table["towers.hidden"] = table["towers.hidden"].astype(float)
    table.loc[1, "towers.hidden"] = 127.9999
    study = sensitivity.rebuilt(sweep, table)
    assert study.trials[0].params["training.learning_rate"] == 0.01
    assert study.trials[1].params["towers.hidden"] == 128


def test_the_planted_cause_is_the_most_important():
    sweep, table = search()
    shares = sensitivity.importance(sweep, table, repeats=3)
    assert shares["parameter"].iloc[0] == "training.learning_rate"
    assert shares["mean"].iloc[0] > 0.6
    assert shares["mean"].sum() == pytest.approx(1)
    assert (shares["low"] <= shares["mean"]).all()
    pd.testing.assert_frame_equal(shares, sensitivity.importance(sweep, table, repeats=3))


def test_sweep_curves_draw_eight_measures_for_both_parts():
    sweep, table = grid("temperature", lambda tau: 0.2 - 0.05 * np.log10(tau / 0.07) ** 2, noise=0.002)
    figure = sensitivity_figures.sweep_curves(sweep, table, "caption")
    assert len(figure.axes) == 8
    for panel in figure.axes:
        drawn = [line for line in panel.lines if len(line.get_xdata()) == 7]
        assert len(drawn) == 2
        assert panel.get_xscale() == "log"
    assert sensitivity_figures.sweep_curves(*grid("fusion_weight", lambda w: w), "c").axes[0].get_xscale() == "linear"


def test_figures_of_the_search_draw_every_trial_and_setting():
    sweep, table = search(20)
    shares = sensitivity.importance(sweep, table, repeats=2)
    history = sensitivity_figures.history(sweep, table, "caption").axes[0]
    assert len(history.lines[0].get_ydata()) == 20
    assert (np.diff(history.lines[1].get_ydata()) >= 0).all()
    assert len(sensitivity_figures.importances(shares, "caption").axes[0].patches) == 12
    assert len(sensitivity_figures.slices(sweep, table, "caption").axes) == 12
    pairs = [("training.learning_rate", "towers.hidden"), ("training.temperature", "towers.layers")]
    assert isinstance(sensitivity_figures.contour(sweep, table, pairs, "caption"), Figure)
    few = sensitivity_figures.contour(sweep, table.iloc[:2], pairs, "caption")  # too few for a surface: dots alone
    assert len(few.axes) == 2


def test_sweeps_that_have_not_run_are_absent(tmp_path, monkeypatch):
    monkeypatch.setattr("study.paths.results", lambda dataset: tmp_path / dataset)
    assert sensitivity.sweeps("synthetic") == {}
    assert sensitivity.trials("synthetic", "joint") is None
    sweep, table = grid("learning_rate", lambda rate: rate)
    (tmp_path / "synthetic" / "sweeps" / "learning_rate").mkdir(parents=True)
    table.to_csv(tmp_path / "synthetic" / "sweeps" / "learning_rate" / "trials.csv", index=False)
    found = sensitivity.sweeps("synthetic")
    assert list(found) == ["learning_rate"]
    assert found["learning_rate"][0] == sweep
