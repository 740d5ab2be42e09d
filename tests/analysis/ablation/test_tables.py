"""Table 4 from runs with planted effects, the structural facts by hand, and verdicts that follow the tables."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.multitest import multipletests

from study.analysis.ablation import figures
from study.analysis.ablation import tables as ablation
from study.analysis.report.runs import overall_means, read_statistics
from study.data import dataset as datasets
from study.evaluation.metrics import PAPER_METRICS
from study.runner.row_store import list_rows, read_row, read_top10
from tests.rows import put_row

TASKS, SEEDS = 120, (1, 2)
ANSWERED = [name for protocol, name in list_rows("task2mcp", "cold") if name.startswith("t2mrec_llm_local")]
EFFECTS = {"t2mrec": 0.0, "t2mrec_wo_cl": -0.2, "t2mrec_wo_two_tower": -0.1, "t2mrec_wo_structure": 0.0}
NOT_RUN = ["hard_negatives", "in_batch_set", "llm", "one_direction", "program_languages", "shared_tower"]
NOT_RUN += ["wo_cl_program", "wo_expansion", "wo_lexical"]
VERDICTS = [
    ("t2mrec_wo_cl", -0.1, (0.01, 0.01), "holds"),
    ("t2mrec_wo_cl", -0.1, (0.2, 0.2), "does not hold"),
]
# The declared test, randomisation, decides alone.
VERDICTS += [("t2mrec_wo_cl", -0.1, (0.01, 0.2), "does not hold"), ("t2mrec_wo_cl", -0.1, (0.2, 0.01), "holds")]
# One metric alone does not decide, and a change must not go the other way.
VERDICTS += [("t2mrec_wo_cl", -0.1, ([0.01, 0.3], [0.01, 0.3]), "does not hold")]
VERDICTS += [("t2mrec_wo_cl", 0.1, (0.01, 0.01), "does not hold")]
VERDICTS += [("t2mrec_llm", 0.1, (0.01, 0.01), "holds"), ("t2mrec_llm", -0.1, (0.01, 0.01), "does not hold")]
# No direction is expected.
VERDICTS += [("t2mrec_shared_tower", -0.1, (0.01, 0.01), "holds")]
VERDICTS += [("t2mrec_shared_tower", 0.1, (0.2, 0.01), "holds")]
VERDICTS += [("t2mrec_one_direction", 0.0, (0.01, 0.01), "does not hold")]
DISTANCES = [(1e-5, 1e-4, "holds"), (0.01, 1e-4, "holds"), (1e-5, 0.01, "does not hold")]


@pytest.fixture
def results(new_results):
    """Runs of four variants under `cold`, and of one without its reference under `warm`."""
    rng = np.random.default_rng(0)
    base = np.tile(rng.uniform(0.3, 0.6, TASKS), len(SEEDS))
    keys = pd.DataFrame({"task_id": np.tile(range(TASKS), len(SEEDS)), "seed": np.repeat(SEEDS, TASKS)})
    for name, effect in EFFECTS.items():
        values = {metric: base + effect + rng.normal(0, 0.02, len(base)) for metric in PAPER_METRICS}
        put_row("task2mcp", "cold", name, keys.assign(**values))
    put_row("task2mcp", "warm", "t2mrec_wo_cl", keys.assign(**values))
    return new_results


def test_variants_and_runs_that_belong_into_the_table(results):
    names = list(ablation.titles())
    assert names[0] == "t2mrec"
    assert set(EFFECTS) <= set(names)
    assert "t2mrec_tuned" not in names
    assert {protocol: set(frames) for protocol, frames in ablation.runs("task2mcp").items()} == {"cold": set(EFFECTS)}
    # A variant belongs where its file says.
    assert "t2mrec_llm" in ablation.wanted("cold_grouped")
    assert "t2mrec_llm" not in ablation.wanted("warm")
    assert "t2mrec_wo_cl" in ablation.wanted("warm")
    assert not {"t2mrec", "t2mrec_tuned", "t2mrec_field_dense"} & set(ablation.wanted("cold"))


def test_planted_effects_are_found_and_their_absence_too_and_what_was_not_run_is_said(results):
    table = ablation.table4("task2mcp")
    rows = table.set_index(["system", "metric"])
    assert (rows["seeds"] > 0).sum() == len(EFFECTS) * len(PAPER_METRICS)
    assert np.isnan(rows.loc[("t2mrec", "ndcg@10"), "diff"])
    for system, effect in list(EFFECTS.items())[1:]:
        row = rows.loc[(system, "ndcg@10")]
        assert row["seeds"] == 2
        assert row["diff"] == pytest.approx(effect, abs=0.01)
        assert row["diff_ci_low"] < row["diff"] < row["diff_ci_high"]
        assert row["family"] == 24  # twelve declared variants, run or not, two primary metrics
        assert (row["wilcoxon_p_holm"] < 0.001) == (effect < 0)
        assert (row["randomisation_p_holm"] < 0.01) == (effect < 0)
    assert np.isnan(rows.loc[("t2mrec_wo_cl", "recall@5"), "wilcoxon_p_holm"])  # not in the declared family
    cl = rows.loc[("t2mrec_wo_cl", "recall@10")]
    assert cl[["gap", "paper_effect"]].tolist() == pytest.approx([cl["ours"] - 0.4568, 0.4568 - 0.6702])
    assert rows.loc[("t2mrec", "ndcg@10"), ["paper", "paper_effect"]].tolist() == pytest.approx(
        [0.6574, np.nan], nan_ok=True
    )
    verdicts = ablation.part_verdicts(table).set_index("system")
    ran = verdicts.loc[[name for name in EFFECTS if name in verdicts.index], "verdict"]
    assert ran.tolist() == ["holds", "holds", "does not hold"]
    assert verdicts.loc["t2mrec_wo_cl", "expected"] == "lower"
    # Variants without a run have a row that says so.
    missing = rows.index[rows["seeds"] == 0].get_level_values("system")
    assert set(missing) == {f"t2mrec_{name}" for name in NOT_RUN}
    full = rows.loc[("t2mrec_llm", "ndcg@10")]
    assert full[["paper", "paper_effect"]].tolist() == pytest.approx([0.6633, 0.0059])
    assert full[["ours", "diff", "gap", "wilcoxon_p_holm"]].isna().all()
    assert "t2mrec_listwise" not in rows.index  # neither of the family nor the paper's, so only shown where it ran
    # Of a variant that stands in no declared family there is no verdict.
    declared = [f"t2mrec_{name}" for name in NOT_RUN if name != "in_batch_set"]
    assert set(verdicts.loc[declared, "verdict"]) == {"not run"}
    assert "t2mrec_in_batch_set" not in verdicts.index
    assert verdicts.loc["t2mrec_llm", "paper_effect"] == pytest.approx(0.0059)
    # The figure draws every variant.
    rows = table[table["system"] != "t2mrec"]
    figure = figures.effects(rows, ("recall@10", "ndcg@10"), "caption")
    assert len(figure.axes) == 2
    assert len(figure.axes[0].get_yticklabels()) == 3 + len(NOT_RUN)
    assert [text.get_text() for text in figure.axes[0].texts] == ["not run"] * len(NOT_RUN)
    (crosses,) = (line for line in figure.axes[1].lines if line.get_marker() == "x")
    assert np.isfinite(crosses.get_xdata()).sum() == 4  # the paper's, with and without a run of ours
    assert "Cross" in figure.get_supxlabel()
    elsewhere = figures.effects(rows.assign(paper_effect=np.nan), ("ndcg@10",), "caption")
    assert "Cross" not in elsewhere.get_supxlabel()


def test_a_new_variant_changes_no_p_value_of_another(results, monkeypatch):
    names = {"id": range(TASKS), "category_clean": ["a", "b"] * 60, "subcategory_clean": ["a", "b", "c"] * 40}
    before = ablation.table4("task2mcp"), ablation.by_group("task2mcp", pd.DataFrame(names))
    known = ablation.titles()
    monkeypatch.setattr(ablation, "titles", lambda: {**known, "t2mrec_own": "own"})
    put_row("task2mcp", "cold", "t2mrec_own", read_row("task2mcp", "cold", "t2mrec_wo_cl").per_task)
    after = ablation.table4("task2mcp"), ablation.by_group("task2mcp", pd.DataFrame(names))
    for old, new in zip(before, after, strict=True):
        own = new["system"] == "t2mrec_own"
        assert own.any()
        assert new.loc[own, ["wilcoxon_p_holm", "randomisation_p_holm"]].isna().all(axis=None)
        pd.testing.assert_frame_equal(new[~own].reset_index(drop=True), old)


def test_a_re_ranking_model_is_compared_with_the_same_trainings_and_its_discarded_answers_are_counted(results):
    assert ablation.reranked("task2mcp").empty
    base = read_row("task2mcp", "cold", "t2mrec").per_task
    first = base[base["seed"] == 1]
    better = first.assign(**{metric: first[metric] + 0.01 for metric in PAPER_METRICS})
    lists = pd.DataFrame({"task_id": [1, 1, 2, 2], "seed": 1, "rank": [1, 2, 1, 2], "server_id": [5, 6, 7, 8]})
    counts = {"answered": 100, "fallbacks": {"repeat": 12, "too_many_substitutions": 8}}
    seeds = [{"seed": 1, "report": counts}]
    put_row("task2mcp", "cold", "t2mrec_same_training", first, lists)
    put_row("task2mcp", "cold", "t2mrec_llm_local", better, lists.assign(server_id=[5, 6, 8, 7]), {"seeds": seeds})
    found = ablation.reranked("task2mcp").set_index("metric")
    assert list(found.index) == ["recall@10", "ndcg@10"]
    assert found["diff"].tolist() == pytest.approx([0.01, 0.01])
    assert found["without"]["ndcg@10"] == pytest.approx(first["ndcg@10"].mean())
    assert (found["randomisation_p"] < 0.01).all()
    told = found[["changed", "answered", "fallback_repeat", "fallback_too_many_substitutions"]].to_numpy()
    assert told.tolist() == [[1, 100, 12, 8]] * 2


@pytest.mark.parametrize("name", ANSWERED)
def test_committed_re_ranked_lists_come_from_the_pools_of_the_same_training(name):
    """At most two servers of each ten are others: with other pools, as of another processor, most would be."""
    tops = read_top10("task2mcp", "cold", (name, ablation.SAME)).values()
    lists = [top.groupby("task_id")["server_id"].agg(set) for top in tops]
    assert min(len(one & other) for one, other in zip(*lists, strict=True)) >= 8


def test_the_papers_values_stand_under_its_own_protocol_alone(results):
    for name in ("t2mrec", "t2mrec_wo_cl", "t2mrec_wo_two_tower"):
        put_row("task2mcp", "warm", name, read_row("task2mcp", "cold", name).per_task)
    table = ablation.table4("task2mcp")
    assert table.loc[table["protocol"] == "cold", "paper"].notna().any()
    warm = table[table["protocol"] == "warm"]
    assert warm["seeds"].max() == 2
    assert warm[["paper", "gap", "paper_effect"]].isna().all(axis=None)
    verdicts = ablation.part_verdicts(table).set_index(["protocol", "system"])
    assert verdicts.loc[("warm", "t2mrec_wo_cl"), "verdict"] == "holds"
    assert ("warm", "t2mrec_llm") not in verdicts.index
    assert verdicts.loc["warm", "paper_effect"].isna().all()


def test_f1_is_that_of_the_means(results):
    frame = ablation.runs("task2mcp")["cold"]["t2mrec"]
    found = overall_means({"t2mrec": frame}).loc[("t2mrec", "f1_of_means@10")]
    means = frame.groupby("seed")[["precision@10", "recall@10"]].mean()
    expected = 2 * means.prod(axis=1) / means.sum(axis=1)
    assert found["mean"] == pytest.approx(expected.mean())
    assert found["sd"] == pytest.approx(expected.std())
    assert found["ci_low"] < found["mean"] < found["ci_high"]


def test_groups_are_compared_within_themselves(results):
    row = np.arange(TASKS)
    names = {"id": row, "category_clean": np.where(row < 60, "a", "b"), "subcategory_clean": row % 3}
    found = ablation.by_group("task2mcp", pd.DataFrame(names))
    assert len(found) == 3 * (2 + 3)
    assert set(found.loc[found["level"] == "category", "n"]) == {60}
    lost = found[found["system"] == "t2mrec_wo_cl"]
    assert (lost["diff"] < -0.15).all()
    assert (lost["wilcoxon_p_holm"] < 0.001).all()
    assert (lost["randomisation_p_holm"] < 0.05).all()
    unchanged = found[found["system"] == "t2mrec_wo_structure"]
    assert (unchanged["randomisation_p_holm"] > 0.05).all()
    for _, own in found.groupby("level"):
        missing = np.ones(12 * own["group"].nunique() - len(own))  # of twelve declared variants three ran
        corrected = multipletests([*own["randomisation_p"], *missing], method="holm")[1][: len(own)]
        np.testing.assert_allclose(own["randomisation_p_holm"], corrected)
    outside = found[found["level"] == "category"].copy()
    last = outside["system"].iloc[-1]
    outside.loc[outside["system"] == last, ["wilcoxon_p_holm", "randomisation_p_holm"]] = np.nan
    drawn = figures.by_group(outside, ablation.titles(), "ndcg@10", "caption").axes[0].texts
    assert len(drawn) == len(outside)
    row = [text for text in drawn if text.get_position()[1] == outside["system"].nunique() - 0.5]
    assert {text.get_fontweight() for text in row} == {"normal"}
    figure = figures.by_group(found[found["level"] == "category"], ablation.titles(), "ndcg@10", "caption")
    assert len(figure.axes[0].texts) == 3 * 2


def test_structure_facts_by_hand():
    """Pairs (task 1, server 1): category and language; (1, 2): theme; (2, 1): language; (2, 2): Shell for Bash."""
    empty = dict.fromkeys(("tools", "url", "author", "license"), "")
    servers = pd.DataFrame({"id": [1, 2], "language": ["Python", "Go, Shell"], "system": ["", "windows"]})
    servers = servers.assign(name="s", description="d", category=["x", "y"], subcategory="u", stars_count=0, **empty)
    tasks = pd.DataFrame({"id": [1, 2], "category": ["x", "z"], "theme": ["windows tools", "maps"]})
    tasks = tasks.assign(name="t", description="d", language=["Python", "Python, Bash"], subcategory="v")
    labels = pd.DataFrame({"task_id": [1, 2], "server_id": [1, 2], "position": [1, 1]})
    facts = ablation.structure_facts(datasets.build("toy", servers, tasks, labels)).set_index("measure")["value"]
    wanted = {"tasks": 2, "servers": 2, "pairs": 4, "shared_category_names": 1, "shared_subcategory_names": 0}
    wanted |= {"servers_stating_a_system": 1, "pairs_category": 1, "pairs_language": 3, "pairs_theme": 1}
    wanted |= {"pairs_language_by_program": 2, "pairs_other_language": 1, "tasks_other_language": 1}
    assert facts.to_dict() == wanted | {"pairs_beyond_language": 2, "share_language_alone": 0.5}


@pytest.mark.mirror
def test_on_the_release_the_structural_score_is_the_language_check(task2mcp):
    facts = ablation.structure_facts(task2mcp.data).set_index("measure")["value"]
    assert facts["shared_category_names"] == facts["pairs_category"] == 0
    assert facts["servers_stating_a_system"] == 34
    assert facts["share_language_alone"] > 0.9999
    # Bash, which ours calls Shell.
    assert facts[["pairs_other_language", "tasks_other_language"]].tolist() == [164_084, 254]


@pytest.mark.parametrize(("system", "difference", "p_values", "expected"), VERDICTS)
def test_a_verdict_needs_the_declared_test_on_both_metrics_and_the_direction(system, difference, p_values, expected):
    table = pd.DataFrame({"metric": ["recall@10", "ndcg@10"], "system": system, "title": system})
    table = table.assign(protocol="cold", seeds=2, diff=difference, rank_biserial=-difference, paper_effect=np.nan)
    table = table.assign(**dict(zip(ablation.TESTS, p_values, strict=True)))
    assert ablation.part_verdicts(table)["verdict"].tolist() == [expected]


def test_another_declared_test_decides_by_its_own_side_and_p(monkeypatch):
    monkeypatch.setattr(ablation, "read_statistics", lambda: replace(read_statistics(), test="wilcoxon"))
    table = pd.DataFrame({"metric": ["recall@10", "ndcg@10"], "system": "t2mrec_wo_cl", "title": ""})
    table = table.assign(protocol="cold", seeds=2, diff=0.1, rank_biserial=-0.1, paper_effect=np.nan)
    table = table.assign(wilcoxon_p_holm=0.01, randomisation_p_holm=0.2)
    assert ablation.part_verdicts(table)["verdict"].tolist() == ["holds"]


@pytest.mark.parametrize(("largest", "randomisation", "expected"), DISTANCES)
def test_distance_verdicts_need_the_declared_test_in_every_category(largest, randomisation, expected):
    groups = pd.DataFrame({"level": ["all", "category", "category"] * 2, "part": ["train"] * 3 + ["test"] * 3})
    groups = groups.assign(p_holm=[0.0, 0.0, largest] * 2, randomisation_p_holm=randomisation)
    groups = groups.assign(beyond_p_holm=groups["p_holm"], beyond_randomisation_p_holm=randomisation)
    verdicts = ablation.distance_verdicts(groups)
    assert verdicts["verdict"].tolist() == [expected] * 4
    assert verdicts["categories"].tolist() == [2] * 4


def test_a_model_in_two_sweeps_counts_once():
    def swept(recalls, aucs, seeds):
        return pd.DataFrame({"training.x": 1.0, "seed": seeds, "part": "test", "auc": aucs, "recall": recalls})

    sweeps = {
        "temperature": swept([0.1, 0.2], [0.8, 0.9], [1, 2]),
        "fusion_weight": swept([0.1, 0.1, 0.1], [0.8, 0.8, 0.7], [1, 3, 1]),
    }
    # Equal measures under another seed are another model, and so is one that differs in one measure.
    assert ablation.trained_models(sweeps)["recall"].tolist() == [0.2, 0.1, 0.1, 0.1]
    assert len(ablation.trained_models({})) == 0
