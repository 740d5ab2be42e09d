"""Sweeps as they are shown: curves and choices by hand, importances with a planted cause, verdicts and their tests."""

from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from study.analysis.sensitivity import sweeps as sensitivity
from study.base.errors import StudyError
from study.base.files import write_csv, write_json
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.records import record
from study.search.sweep import Sweep, load_sweep
from tests.rows import put_row
from tests.tiny_study import REPOSITORY


def grid(name: str, quality, noise: float = 0.0) -> tuple[Sweep, pd.DataFrame]:
    """Trials of a grid whose every measure is quality(value) plus noise per seed."""
    sweep, rng = load_sweep(name), np.random.default_rng(0)
    table = pd.DataFrame(sweep.points()).rename_axis("trial").reset_index()
    values = quality(table[sensitivity.parameter(sweep)])
    names = [f"{part}/{metric}" for part in sweep.parts for metric in PAPER_METRICS]
    return sweep, table.assign(**{name: values + rng.normal(0, noise, len(table)) for name in names})


def drawn(rng: np.random.Generator, domain: dict, n: int) -> np.ndarray:
    """Values of one entry of a search space."""
    if "choices" in domain:
        return rng.choice(domain["choices"], n)
    if domain["type"] == "int":
        return rng.integers(domain["low"], domain["high"] + 1, n)
    if domain.get("log"):
        return np.exp(rng.uniform(np.log(domain["low"]), np.log(domain["high"]), n))
    return rng.uniform(domain["low"], domain["high"], n)


def search(n: int = 40) -> tuple[Sweep, pd.DataFrame]:
    """Trials of the joint search in which the learning rate alone decides."""
    sweep, rng = load_sweep("joint"), np.random.default_rng(1)
    table = pd.DataFrame({name: drawn(rng, domain, n) for name, domain in sweep.space.items()})
    quality = 0.2 - 0.05 * (np.log10(table["training.learning_rate"]) + 3) ** 2
    return sweep, table.assign(trial=range(n), seed=1, **{f"valid/{metric}": quality for metric in PAPER_METRICS})


def test_curve_by_hand_and_values_that_are_no_numbers_keep_the_order_of_the_sweep():
    sweep = load_sweep("temperature")
    names = [f"{part}/{metric}" for part in sweep.parts for metric in PAPER_METRICS]
    table = pd.DataFrame({"training.temperature": [0.14, 0.07, 0.07], "seed": [1, 1, 2]})
    points = sensitivity.curve(sweep, table.assign(**{name: [0.5, 0.1, 0.3] for name in names}))
    assert len(points) == 2 * 8 * 2
    own = points[(points["part"] == "test") & (points["metric"] == "ndcg@10")]
    assert own["value"].tolist() == [0.07, 0.14]
    assert own["mean"].tolist() == pytest.approx([0.2, 0.5])
    assert own["sd"].tolist() == pytest.approx([np.sqrt(0.02), np.nan], nan_ok=True)
    assert own["seeds"].tolist() == [2, 1]
    sweep = replace(sweep, space={"x": {"choices": ["b", "a", "c"]}}, paper_best=None, seeds=[1])
    table = pd.DataFrame({"x": ["b", "a", "c"], "seed": 1, "trial": range(3)})
    table = table.assign(**{name: [0.1, 0.3, 0.2] for name in names})
    assert sensitivity.curve(sweep, table)["value"].iloc[:3].tolist() == ["b", "a", "c"]
    panel = sensitivity.sweep_curves(sweep, table, "caption").axes[4]
    assert [text.get_text() for text in panel.get_xticklabels()] == ["b", "a", "c"]
    assert sensitivity.optimum(sweep, table)["best"] == "a"


def test_the_optimum_is_chosen_on_validation_whatever_the_test_tasks_say():
    sweep, table = grid("temperature", lambda tau: 0.2 - 0.05 * np.log10(tau / 0.14) ** 2)
    table["test/ndcg@10"] = 1 - table["training.temperature"]
    found = sensitivity.optimum(sweep, table)
    assert (found["best"], found["paper"], found["flat"]) == (0.14, 0.07, [0.14])
    panel = sensitivity.sweep_curves(sweep, table, "caption").axes[0]
    assert [line.get_xdata()[0] for line in panel.lines if line.get_markersize() == 8] == [0.14, 0.14]
    # Values within the spread of the best are named.
    found = sensitivity.optimum(*grid("fusion_weight", lambda weight: 0.2 * weight, noise=0.01))
    assert found["best"] in found["flat"]
    assert 0.0 not in found["flat"]


def test_a_study_rebuilt_from_the_table_holds_the_same_trials():
    sweep, table = search()
    # Rounding in the file takes no value out of its range.
    table.loc[0, "training.learning_rate"] = 0.0100001
    table["towers.hidden"] = table["towers.hidden"].astype(float)
    table.loc[1, "towers.hidden"] = 127.9999
    study = sensitivity.rebuilt(sweep, table)
    assert len(study.trials) == len(table)
    assert study.best_value == pytest.approx(table["valid/ndcg@10"].max())
    best = table.loc[table["valid/ndcg@10"].idxmax()]
    assert study.best_params["towers.hidden"] == best["towers.hidden"]
    assert isinstance(study.best_params["scoring.anchors"], int)
    assert study.trials[0].params["training.learning_rate"] == 0.01
    assert study.trials[1].params["towers.hidden"] == 128
    with pytest.raises(StudyError, match="12 parameters"):
        sensitivity.parameter(sweep)


def test_the_planted_cause_is_the_most_important():
    sweep, table = search()
    shares = sensitivity.importance(sweep, table, repeats=3)
    assert shares["parameter"].iloc[0] == "training.learning_rate"
    assert shares["mean"].iloc[0] > 0.6
    assert shares["mean"].sum() == pytest.approx(1)
    pd.testing.assert_frame_equal(shares, sensitivity.importance(sweep, table, repeats=3))
    labels = sensitivity.importances(sweep, shares, "caption").axes[0].get_yticklabels()
    assert {"category (raw weight)", "theme (raw weight)", "learning rate"} <= {text.get_text() for text in labels}


def test_the_papers_settings_are_found_among_the_trials_whatever_their_number():
    sweep, table = search(8)
    assert sensitivity.paper_trial(sweep, table) is None
    for name, value in sweep.enqueue[0].items():  # as after a restart: the third row, with a number of its own
        table[name] = table[name].astype(float)
        table.loc[2, name] = float(f"{value:.6g}")
    table["trial"] = [0, 1, 9, 3, 4, 5, 6, 7]
    assert sensitivity.paper_trial(sweep, table)["trial"] == 9
    _, best, star = sensitivity.history(sweep, table, "caption").axes[0].lines
    assert (np.diff(best.get_ydata()) >= 0).all()
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([9], [table.loc[2, "valid/ndcg@10"]])
    table.loc[2, "towers.layers"] = 4
    assert sensitivity.paper_trial(sweep, table) is None


def test_slices_have_whole_ticks_for_whole_settings_and_show_the_papers_values():
    sweep, table = search(30)
    figure = sensitivity.slices(sweep, table, "caption")
    figure.canvas.draw()
    panels = {panel.get_xlabel(): panel for panel in figure.axes}
    for name, domain in sweep.space.items():
        panel = panels[sensitivity.label(sweep, name)]
        low, high = panel.get_xlim()
        ticks = [tick for tick in panel.get_xticks() if low <= tick <= high]
        assert 2 <= len(ticks) <= 6, name
        assert domain.get("type") != "int" or all(tick == round(tick) for tick in ticks), name
        assert ticks == domain.get("choices", ticks)
        assert panel.lines[0].get_xdata()[0] == sweep.enqueue[0][name]


def test_the_sweeps_of_a_data_set_are_the_papers_ones_own_and_none_without_a_file(new_root, caplog):
    (new_root / "conf").symlink_to(REPOSITORY / "conf")
    assert sensitivity.sweeps("synthetic") == {}
    assert sensitivity.trials("synthetic", "joint") is None
    own = asdict(replace(load_sweep("temperature"), name="mine", space={"x": {"choices": [1, 2]}}))
    made = {"temperature": {"sweep": "temperature"}, "mine": {"sweep": "mine", "settings": own}}
    made |= {"gone": {"sweep": "gone"}, "bpr_tuned": {"system": "bpr_tuned"}}
    for name, parts in made.items():
        folder = new_root / "results" / "synthetic" / "sweeps" / name
        write_json(folder / "record.json", record(**parts))
        write_csv(folder / "trials.csv", pd.DataFrame({"trial": [0]}))
    found = sensitivity.sweeps("synthetic")
    assert list(found) == ["temperature", "mine"]
    assert found["mine"][0].space == {"x": {"choices": [1, 2]}}
    assert "sweeps/gone is left of a sweep" in caplog.text


def tasks(means: dict[int, float], effect=0.0, n: int = 200, seed: int = 0) -> pd.DataFrame:
    """A per-task table with noise around the mean of every seed; `effect` is added to all."""
    rng, noise = np.random.default_rng(seed), np.random.default_rng(1).normal(0, 0.05, n)
    values = {own: 0.5 + mean + noise + rng.normal(0, 0.01, n) + effect for own, mean in means.items()}
    parts = [pd.DataFrame({"task_id": range(n), "seed": own, "ndcg@10": value}) for own, value in values.items()]
    return pd.concat(parts, ignore_index=True)


def test_verdicts_rest_on_the_declared_test_over_the_family_of_settings():
    seeds = {1: 0.0, 2: 0.01, 3: -0.01}
    same, better, level = tasks(seeds), tasks(seeds, effect=0.02, seed=5), tasks(seeds, seed=6)
    families = {
        "fusion_weight": (load_sweep("fusion_weight"), 0.7, {0.9: same, 0.7: better}),
        "temperature": (load_sweep("temperature"), 0.14, {0.07: same, 0.14: level}),
        "learning_rate": (load_sweep("learning_rate"), 0.001, {0.001: same}),
    }
    table = sensitivity.against_paper(families).set_index("sweep")
    assert table["verdict"].tolist() == ["does not hold", "not contradicted", "holds"]
    assert (table[["family", "seeds"]] == 3).all(axis=None)
    row = table.loc["fusion_weight"]
    difference = better.groupby("task_id")["ndcg@10"].mean() - same.groupby("task_id")["ndcg@10"].mean()
    assert row["diff"] == pytest.approx(difference.mean())
    assert row["diff_ci_low"] < row["diff"] < row["diff_ci_high"]
    expected = stats.wilcoxon(difference.round(5), method="asymptotic").pvalue
    # The smallest of three.
    assert row[["wilcoxon_p", "wilcoxon_p_holm"]].tolist() == pytest.approx([expected, 3 * expected], rel=1e-6)
    assert table.loc["learning_rate", ["wilcoxon_p", "randomisation_p"]].tolist() == [1, 1]
    # The other way round the paper's value is the better one.
    families["fusion_weight"] = (load_sweep("fusion_weight"), 0.7, {0.9: better, 0.7: same})
    turned = sensitivity.against_paper(families).set_index("sweep").loc["fusion_weight"]
    assert (turned["verdict"], turned["diff"]) == ("holds", pytest.approx(-row["diff"]))


# The declared test, randomisation, decides alone, and on the side of the mean difference.
@pytest.mark.parametrize(
    ("wilcoxon", "randomisation", "difference", "ranks", "word"),
    [
        (0.01, 0.01, 0.02, 0.1, "does not hold"),
        (0.01, 0.01, -0.02, -0.1, "holds"),
        (0.01, 0.05, 0.02, 0.1, "not contradicted"),
        (0.01, 0.06, 0.02, 0.1, "not contradicted"),
        (0.06, 0.01, 0.02, 0.1, "does not hold"),
        (0.01, 0.01, 0.02, -0.1, "does not hold"),
    ],
)
def test_verdict_by_hand(wilcoxon, randomisation, difference, ranks, word):
    row = {"chosen": 0.7, "paper": 0.9, "diff": difference, "rank_biserial": ranks}
    assert sensitivity.verdict(row | {"wilcoxon_p_holm": wilcoxon, "randomisation_p_holm": randomisation}) == word


def test_without_tables_of_single_tasks_nothing_is_tested(new_results):
    sweep = load_sweep("temperature")
    assert sensitivity.by_value("synthetic", sweep) == {}
    assert sensitivity.against_paper({"temperature": (sweep, 0.14, {})}).empty
    assert sensitivity.against_paper({"temperature": (sweep, 0.14, {0.14: tasks({1: 0})})}).empty
    path = new_results / "sweeps" / "temperature" / "per_task.csv.xz"
    frames = {0.07: tasks({1: 0.0, 2: 0.1}, n=5), 0.14: tasks({1: 0.2, 2: 0.0}, n=5)}
    write_csv(path, pd.concat([frame.assign(**{"training.temperature": value}) for value, frame in frames.items()]))
    found = sensitivity.by_value("synthetic", sweep)
    for value, frame in frames.items():
        pd.testing.assert_frame_equal(found[value], frame, check_exact=False, atol=1e-5)
    write_csv(path, frames[0.07])
    with pytest.raises(StudyError, match="lacks the setting"):
        sensitivity.by_value("synthetic", sweep)


def test_the_tuned_row_is_tested_on_the_primary_measures_alone(new_results):
    rng, n = np.random.default_rng(0), 100

    def put(name, seeds, shift):
        keys = pd.DataFrame({"seed": np.repeat(seeds, n), "task_id": np.tile(np.arange(n), len(seeds))})
        values = {metric: np.clip(rng.normal(0.3 + shift, 0.05, len(keys)), 0, 1) for metric in PAPER_METRICS}
        put_row("synthetic", "cold", name, keys.assign(**values))

    put("t2mrec_joint", [1, 2, 3], 0.05)
    assert sensitivity.tuned_table("synthetic", "t2mrec_joint", "t2mrec").empty
    put("t2mrec", [1, 2, 3, 4, 5], 0.0)
    table = sensitivity.tuned_table("synthetic", "t2mrec_joint", "t2mrec").set_index("metric")
    assert list(table.index) == list(PAPER_METRICS)
    assert (set(table["seeds"]), set(table["untuned_seeds"])) == ({3}, {5})
    assert table.index[table["wilcoxon_p_holm"].notna()].tolist() == ["recall@10", "ndcg@10"]
    assert (table["randomisation_p_holm"].dropna() < 0.01).all()
    assert table.loc["ndcg@10", "diff"] == pytest.approx(0.05, abs=0.02)
