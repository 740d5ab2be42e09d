"""The overall results on hand-made values: quality, gaps to the paper, length of training, tuning, their figures."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from study.analysis.overall import compute_cost, quality, table3_gaps, tuning
from study.analysis.overall.convergence import convergence
from study.analysis.overall.quality import KEPT, catalogue_coverage
from study.analysis.report import paper
from study.analysis.report.results import Results
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_csv, write_json, write_text
from tests.rows import put_row


def results_of(dataset: str, protocols: list[str], names: Iterable[str], **given: Any) -> Results:
    """Results of some systems whose titles are their names in capitals; what is not given is empty."""
    fields: dict[str, Any] = {"titles": {name: name.upper() for name in names}, "families": {}, "applies": {}}
    fields |= {name: pd.DataFrame() for name in ("metrics", "overall", "significance", "comparisons")}
    fields |= {"costs": pd.DataFrame(columns=["protocol", "system", "seeds", "rising", "parameters"])}
    return Results(dataset, dataset.title(), protocols, **(fields | given))


def means(rows: Iterable[tuple[str, str, str, float]]) -> dict[str, pd.DataFrame]:
    """The tables `metrics` and `overall` of one seed from (protocol, system, metric@10, value)."""
    cells = [(protocol, system, metric, 10, value) for protocol, system, metric, value in rows]
    table = pd.DataFrame(cells, columns=["protocol", "system", "metric", "k", "value"])
    return {"metrics": table, "overall": table.rename(columns={"value": "mean"})}


def test_figures_draw_means_intervals_shares_and_titles_as_they_are_and_unmeasurable_times_at_the_resolution():
    rows = [("best", "Best $x_{", "t2mrec", 0.5, 0.02, 0.45, 0.55), ("oracle", "$$", "oracle", 0.4, np.nan, 0.3, 0.5)]
    rows += [("floor", "Floor & <b>", "new", 0.1, 0.0, 0.05, 0.2)]
    summary = pd.DataFrame(rows, columns=["system", "title", "family", "mean", "sd", "ci_low", "ci_high"])
    figure = quality.overall({"ndcg@10": summary, "recall@10": summary.iloc[::-1]}, "caption")
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == summary["title"].tolist()
    assert not any(label.get_parse_math() for label in left.get_yticklabels())
    drawn = [segment.tolist() for lines in left.collections for segment in lines.get_segments()]
    # Interval and deviation; of one seed there is no deviation.
    for segment in ([[0.45, 0], [0.55, 0]], [[0.48, 0], [0.52, 0]], [[0.3, 1], [0.5, 1]]):
        assert segment in drawn
    for panel in (left, right):  # the second metric keeps the order of the first
        assert {line.get_xdata()[0]: line.get_ydata()[0] for line in panel.get_lines()} == {0.5: 0, 0.4: 1, 0.1: 2}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["T2MRec", "reads the answers", "other"]
    # A task without a value is none of the zeros.
    values = {"A": pd.Series([0, 0, 0.5, 1.0]), "B": pd.Series([0.0, np.nan, 0, 0])}
    figure = quality.per_task_distribution(values, {"A": "lexical", "B": "trivial"}, "ndcg@10", "caption")
    assert [text.get_text() for text in figure.axes[0].texts][:2] == ["50%", "100%"]
    columns = ["system", "reference", "metric", "n", "wins", "ties", "losses", "diff"]
    rows = [("a", "t", "ndcg@10", 10, 1, 2, 7, -0.2), ("b", "t", "ndcg@10", 10, 6, 0, 4, 0.1)]
    panel = quality.win_tie_loss(pd.DataFrame(rows, columns=columns), {}, "caption").axes[0]
    assert [[bar.get_width() for bar in container] for container in panel.containers] == [[10, 60], [20, 0], [70, 40]]
    rows = pd.DataFrame({"title": ["A", "B"], "quality": [0.2, 0.4], "seconds_fit": [0.0, 2.0], "seeds": 3})
    figure = compute_cost.cost_quality(rows.assign(milliseconds_per_task=[0.0, 5.0], rising=[2, 1]), "caption")
    fit, rank = ({line.get_label(): float(line.get_xdata()[0]) for line in axes.get_lines()} for axes in figure.axes)
    assert fit == rank | {"B": 2.0} == {"A †": pytest.approx(0.001), "B": 2.0}


def test_mean_ranks_by_hand_with_a_tie_and_a_task_without_a_value():
    values = {"A": [0.9, 0.5, 0.2, 1], "B": [0.1, 0.5, 0.8, np.nan], "C": [0.0, 0.0, 0.0, 0]}
    table = quality.mean_ranks({name: pd.Series(row) for name, row in values.items()})
    assert dict(zip(table["title"], table["rank"], strict=True)) == pytest.approx({"A": 1.5, "B": 1.5, "C": 3})
    assert table.attrs["tasks"] == 3


# Demšar 2006, Table 5a: q at 0.05 by the number of classifiers.
@pytest.mark.parametrize(("k", "quantile"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_difference_is_the_published_one_and_drawn_to_each_side(k, quantile):
    table = quality.mean_ranks({str(i): pd.Series(np.arange(30.0) + i) for i in range(k)})
    assert table.attrs["critical_difference"] == pytest.approx(quantile * np.sqrt(k * (k + 1) / (6 * 30)), abs=1e-3)
    figure = quality.critical_difference(table, {str(i): "trivial" for i in range(k)}, "ndcg@10", "Caption.")
    bars = np.array([ends[:, 0] for lines in figure.axes[0].collections for ends in lines.get_segments()])
    assert bars.mean(axis=1) == pytest.approx(range(1, k + 1))
    assert np.ptp(bars, axis=1) == pytest.approx([table.attrs["critical_difference"]] * k)


def test_different_servers_are_counted_over_all_lists_averaged_over_seeds(new_root):
    """Top tens for three tasks, whose ids have gaps, and two seeds: ten servers from the given places on."""
    lists = pd.MultiIndex.from_product([(1, 2), (7, 30, 41), range(KEPT)], names=["seed", "task_id", "rank"])
    lists = lists.to_frame(index=False)
    for system, first in {"various": [0, 5, 100, 0, 0, 0], "one_list": [20] * 6, "chance": [40] * 6}.items():
        frame = lists.assign(server_id=101 + np.repeat(first, KEPT) + lists["rank"], rank=lists["rank"] + 1)
        put_row("synthetic", "cold", system, top10=frame)
    families = {"various": "graph", "one_list": "published", "chance": "trivial"}
    tables = means(("cold", name, "ndcg", value) for name, value in zip(families, (0.5, 0.2, 0.1), strict=True))
    covered = results_of("synthetic", ["cold", "warm"], families, families=families, **tables)
    ids, popularity = pd.Series(np.arange(101, 301)), np.zeros(200, dtype=np.int64)
    popularity[20:30] = 1  # each server of `one_list` has one interaction of ten
    table = catalogue_coverage(covered, "cold", ids, popularity).set_index("system")
    # Of `various` seed 1 has the places 0 to 14 and 100 to 109, seed 2 has 0 to 9.
    assert table["servers"].to_dict() == {"various": 17.5, "one_list": pytest.approx(10), "chance": pytest.approx(10)}
    assert table["coverage"].tolist() == pytest.approx([17.5 / 200, 0.05, 0.05])
    assert table["quality"].tolist() == [0.5, 0.2, 0.1]
    # One is added to every count: 2 of 210.
    assert table.loc["one_list", ["gini", "novelty"]].tolist() == pytest.approx([0.95, -np.log2(2 / 210)])
    assert catalogue_coverage(covered, "warm", ids, popularity).empty  # where the hits of lists alone are kept


# NDCG@10 by protocol and system. The paper prints 0.3358 for LightGCN, 0.4346 for MSBPR, 0.4568 for NeuMF, 0.0927 for
# GDSRec and 0.0063 for OpenP5.
PRINTED = {
    "warm": {"lightgcn": 0.54, "lightgcn_tuned": 0.30, "msbpr": 0.10, "msbpr_leaky": 0.60, "t2mrec": 0.33}
    | {"gdsrec": 0.27, "gdsrec_tuned": 0.35, "openp5": 0.07, "openp5_number": 0.01},
    "loo": {"lightgcn": 0.20},
    "cold": {"lightgcn_transfer": 0.24, "gdsrec": 0.03, "gdsrec_friends": 0.09},
    "loo99": {"openp5": 0.01},
}
# Where a test speaks of it; the paper prints 0.6454 for GDSRec and 0.6489 for MSBPR.
RECALL = PRINTED | {"warm": PRINTED["warm"] | {"gdsrec": 0.39, "gdsrec_tuned": 0.47, "msbpr": 0.2}}


@pytest.fixture
def gaps(monkeypatch):
    ran = {name for values in PRINTED.values() for name in values}
    above = {name: [name.partition("_")[0]] for name in ran - {"lightgcn_transfer"} if "_" in name}
    monkeypatch.setattr("study.analysis.report.results.parents", lambda name: above.get(name, []))
    monkeypatch.setattr(Results, "systems", lambda self, protocol: list(PRINTED[protocol]))
    tables = {"ndcg@10": PRINTED, "recall@10": RECALL}
    monkeypatch.setattr(Results, "value", lambda self, protocol, name, metric: tables[metric][protocol][name])
    names = sorted(ran | set(paper.load()["system"]) - {""})
    families = dict.fromkeys(names, "published") | {"lightgcn_transfer": "hybrid", "msbpr_leaky": "oracle"}
    families["gdsrec_friends"] = "extension"
    # LightGCN's and GDSRec's own runs count, a variant of OpenP5 does not.
    rising = [("warm", "lightgcn"), ("loo", "lightgcn"), ("warm", "gdsrec_tuned"), ("warm", "openp5_number")]
    costs = pd.DataFrame(rising, columns=["protocol", "system"]).assign(seeds=3, rising=2)
    about = {"families": families, "applies": {key: ["warm"] for key in names}, "costs": costs}
    return table3_gaps.table3_gaps(results_of("task2mcp", [*PRINTED], names, **about), paper.load())


def test_every_baseline_of_the_paper_has_its_attempts_the_nearest_first(gaps):
    assert len(gaps["printed"].unique()) == 11
    rows = gaps[gaps["printed"] == "LightGCN"]
    assert rows["title"].tolist() == ["LIGHTGCN_TUNED", "LIGHTGCN_TRANSFER", "LIGHTGCN", "LIGHTGCN"]
    assert rows["kind"].tolist() == ["tuned", "extension", "own settings", "own settings"]
    assert rows["protocol"].tolist() == ["warm", "cold", "loo", "warm"]
    assert rows["gap"].tolist() == pytest.approx([0.30 - 0.3358, 0.24 - 0.3358, 0.20 - 0.3358, 0.54 - 0.3358])
    # A method with a fault is called that, and a row without a run has no number.
    assert gaps.loc[gaps["printed"] == "MSBPR", "kind"].tolist() == ["reference bug", "own settings"]
    (row,) = gaps[gaps["printed"] == "NeuMF"].to_dict("records")
    assert [row[name] for name in ("paper", "kind", "protocol")] == [0.4568, "own settings", ""]
    assert pd.isna([row["ours"], row["gap"]]).all()
    panel = table3_gaps.table3_gaps_figure(gaps, "caption").axes[0]
    marked = [label.get_text() for label in panel.get_yticklabels() if "†" in label.get_text()]
    assert marked == ["LightGCN †", "GDSRec †"]


def test_the_method_itself_decides_what_is_near_under_every_full_ranking(gaps):
    near = table3_gaps.nearness(gaps, ["loo99"]).set_index(["printed", "protocol"])
    # Neither the friends alone, nor the task number alone, nor a sampled ranking, nor the transfer says anything here.
    sides = {("LightGCN", "warm"): "on both sides of", ("LightGCN", "loo"): "below", ("MSBPR", "warm"): "below"}
    sides |= {("GDSRec", "warm"): "above", ("GDSRec", "cold"): "below", ("OpenP5", "warm"): "above"}
    assert near["side"].to_dict() == sides
    assert near.index[~near["far"]].tolist() == [("LightGCN", "warm")]
    assert near.loc[("LightGCN", "warm"), "gap"] == pytest.approx(-0.0358)
    assert near.index[near["crossed"]].tolist() == [("GDSRec", "warm")]


TRAINED = {"item_knn": 0.6, "ngcf": 0.5, "ngcf_tuned": 0.45, "bpr": 0.56, "neumf": 0.4}
TRAINED |= {"simplex": 0.5, "simplex_tuned": 0.58, "ease": 0.3, "neumf_long": 0.55}
# System -> seeds, epochs, best epoch and rising of runs.csv; the others look for no best epoch.
EPOCHS = {"ngcf": (3, 180.0, 150.0, 2), "ngcf_tuned": (1, 120.0, 70.0, 0), "bpr": (1, 200.0, 200.0, 1)}
EPOCHS |= {"neumf": (2, 150.0, 95.0, 0), "simplex": (1, 200.0, 200.0, 1), "simplex_tuned": (1, 200.0, 200.0, 1)}


def test_best_epochs_and_gaps_by_hand_and_the_best_run_of_the_same_method_faults_aside(monkeypatch):
    rows = [("warm", name, metric, value) for name, value in TRAINED.items() for metric in ("recall", "ndcg")]
    costs = pd.DataFrame([("warm", name, *EPOCHS.get(name, (1, None, None, None))) for name in TRAINED])
    costs = costs.set_axis(["protocol", "system", "seeds", "epochs", "best_epoch", "rising"], axis=1)
    results = results_of("synthetic", ["warm"], TRAINED, costs=costs, **means(rows))
    table = convergence(results, "warm").set_index("system")
    # Best first; the others have no best epoch.
    assert list(table.index) == ["simplex_tuned", "bpr", "ngcf", "simplex", "ngcf_tuned", "neumf"]
    assert table.loc["ngcf", ["title", "seeds", "epochs", "best_epoch", "rising"]].tolist() == ["NGCF", 3, 180, 150, 2]
    assert table.loc[["bpr", "ngcf"], "gap"].tolist() == pytest.approx([-0.04, -0.1])
    assert table.loc[["simplex", "simplex_tuned"], "other_values"].tolist() == pytest.approx([0.08, -0.08])
    assert table.loc["neumf", "more_epochs"] == pytest.approx(0.15)
    assert table.loc["bpr", ["other_values", "more_epochs", "better_gap"]].isna().all()
    # Rows with a fault are left out, and without item neighbours there is no gap.
    families = {"ngcf": "reference_bug", "bpr": "oracle", "neumf": "graph"}
    found = convergence(replace(results, families=families), "warm")
    assert sorted(found["system"]) == ["neumf", "ngcf_tuned", "simplex", "simplex_tuned"]
    alone = replace(results, metrics=results.metrics[results.metrics["system"] != "item_knn"])
    assert convergence(alone, "warm")["gap"].isna().all()
    # SimpleX is a variant of NGCF here, and its tuned twin first one with a fault.
    above = {"ngcf_tuned": ["ngcf"], "simplex": ["ngcf"], "simplex_tuned": ["simplex", "ngcf"]}
    monkeypatch.setattr("study.analysis.report.results.parents", lambda name: above.get(name, []))
    applies = replace(results, applies={name: ["warm"] for name in TRAINED})
    faulty = convergence(replace(applies, families={"simplex_tuned": "reference_bug"}), "warm").set_index("system")
    assert faulty["better"].to_dict() == dict.fromkeys(("bpr", "neumf", "ngcf", "simplex"), "") | {"ngcf_tuned": "NGCF"}
    found = convergence(applies, "warm").set_index("system")
    assert set(found.index[found["better"] == "SIMPLEX_TUNED"]) == {"ngcf", "simplex", "ngcf_tuned"}
    assert found.loc["ngcf", "better_gap"] == pytest.approx(-0.02)


def search(name, best, trials, config):
    """A finished search: its folder."""
    folder = paths.results("toy") / "tuned" / name
    write_text(folder / "best.yaml", yaml.safe_dump(best))
    write_json(folder / "record.json", {"git": {}, "versions": {}, "hardware": {}, "config": config})
    write_csv(folder / "trials.csv", trials)
    return folder


def baseline(*, model=None, **changed):
    """`study tune` of neumf_tuned: two trials, the system's own values first."""
    space = {"settings.rate": {"low": 0.0005, "high": 0.02, "log": True, "type": "float"}}
    space |= {"settings.layers": {"choices": [[64], [64, 64]]}, "settings.all": {"choices": [5, None]}}
    values = {"settings.rate": 0.0123456, "settings.layers": [64], "settings.all": 5}
    best = {"system": "neumf_tuned", "protocol": "warm", "objective": "valid/ndcg@10", "value": 0.5, "trials": 2}
    trials = [(0, 0.4, 600.0, 0.001, "[64, 64]", None), (1, 0.5, 634.0, 0.0123456, "[64]", 5)]
    trials = pd.DataFrame(trials, columns=["trial", "valid/ndcg@10", "seconds", *space])
    system = {"search": space, "model": model or {"epochs": 100, "settings": {"rate": 0.001}}} | changed
    config = {"system": system, "tuning": {"scale": 0.25}}
    return search("neumf_tuned", best | {"seconds": 1234.0, "values": values}, trials, config)


def test_a_search_has_its_space_budget_and_the_median_of_its_trials(conf_root):
    folder = baseline()
    best = {"system": "t2mrec", "sweep": "temperature", "protocol": "cold", "objective": "valid/ndcg@10", "value": 0.3}
    best |= {"trials": 4, "seconds": 9, "values": {"training.temperature": 0.14}}
    trials = pd.DataFrame({"training.temperature": [0.07, 0.14], "valid/ndcg@10": [0.1, 0.3]})
    model = {"training": {"temperature": 0.07, "epochs": 200}}
    search("temperature", best, trials, {"system": {"search": {}, "model": model}, "tuning": {}})
    table = tuning.tuned("toy")
    rows, shown = table.set_index("sweep"), tuning.printed(table).set_index("system")
    found = rows.loc["neumf_tuned"]
    assert found["space"] == "rate 0.0005 to 0.02 (log); layers [64], [64, 64]; all 5, null"
    assert found["chosen"] == "rate 0.01235; layers [64]; all 5"
    facts = ["kind", "title", "protocol", "trials", "seconds", "epochs", "best"]
    assert found[facts].tolist() == ["tuning", "NeuMF (tuned)", "warm", 2, 1234, "25%", 0.5]
    columns = ["trials", "epochs per trial", "seconds", "best NDCG@10"]
    assert shown.loc["NeuMF (tuned)", columns].tolist() == ["2", "25%", "1,234", "0.5000"]
    # A sweep trains whole runs; systems with a space and no run are there, tuned ones before sweeps.
    assert rows.loc["temperature", ["kind", "trials", "epochs"]].tolist() == ["sweep", 4, "100%"]
    assert rows.loc["temperature", "chosen"] == "training.temperature 0.14"
    assert table["kind"].unique().tolist() == list(tuning.KINDS)
    assert shown.loc["EASE (tuned)", ["trials", "seconds", "median seconds of a trial"]].tolist() == ["not run", "", ""]
    assert "training.temperature 0.01 to 0.5 (log)" in shown.loc["T2MRec (joint search)", "search space"]
    # One slow trial moves the sum and not the median.
    trials = pd.read_csv(folder / "trials.csv")
    slow = pd.concat([trials, trials.tail(1).assign(seconds=40_000.0)])
    write_csv(folder / "trials.csv", slow)
    assert tuning.tuned("toy").set_index("sweep").loc["neumf_tuned", "per_trial"] == 634.0
    # Rungs are counted; a closed form has no epochs.
    folder = baseline(rungs=[0.25, 1.0])
    write_csv(folder / "trials.csv", pd.concat([trials.assign(share=share) for share in (0.25, 1.0)]))
    assert tuning.tuned("toy").set_index("sweep").loc["neumf_tuned", "epochs"] == "2 x 25%; 2 x 100%"
    baseline(model={"settings": {"rate": 0.002}})
    assert pd.isna(tuning.tuned("toy").set_index("sweep").loc["neumf_tuned", "epochs"])


@pytest.mark.parametrize("name", ["best.yaml", "record.json", "trials.csv"])
def test_half_a_search_is_named(conf_root, name):
    (baseline() / name).unlink()
    with pytest.raises(StudyError, match="neumf_tuned"):
        tuning.tuned("toy")


def test_differences_by_tuning_by_hand_the_largest_first(monkeypatch):
    """Tuned, NGCF is worse on every task, EASE better on every task, BPR neither."""
    values = {"ngcf": [0.5, 0.6, 0.7, 0.8], "ngcf_tuned": [0.4, 0.5, 0.6, 0.7], "ease": [0.1, 0.2, 0.3, 0.4]}
    values |= {"ease_tuned": [0.3, 0.4, 0.5, 0.6], "bpr": [0.1, 0.2, 0.3, 0.4], "bpr_tuned": [0.2, 0.1, 0.4, 0.3]}
    ran = {"warm": [*values, "lonely_tuned"], "loo": ["bpr", "bpr_tuned"]}
    monkeypatch.setattr(Results, "systems", lambda self, protocol: ran[protocol])
    monkeypatch.setattr(Results, "per_task", lambda self, protocol, name: pd.DataFrame({"ndcg@10": values[name]}))
    costs = pd.DataFrame([("warm", "bpr_tuned", 3, 2), ("warm", "ease_tuned", 3, 1)])
    costs = costs.set_axis(["protocol", "system", "seeds", "rising"], axis=1)
    table = tuning.effects(results_of("synthetic", ["warm", "loo"], values, costs=costs))
    rows = [("warm", "ease"), ("warm", "bpr"), ("warm", "ngcf"), ("loo", "bpr")]
    assert list(zip(table["protocol"], table["system"], strict=True)) == rows
    assert table["diff"].tolist() == pytest.approx([0.2, 0, -0.1, 0])
    ends = ["diff_ci_low", "diff_ci_high"]
    assert table.loc[0, ["own", "tuned", *ends]].tolist() == pytest.approx([0.25, 0.45, 0.2, 0.2])
    assert table.loc[1, ends].tolist() == pytest.approx([-0.1, 0.1])
    panel = tuning.effects_figure(table, "caption").axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["EASE", "BPR †", "NGCF"]
