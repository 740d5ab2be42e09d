"""Table 4 from runs with planted effects, and the structural facts by hand."""

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.multitest import multipletests

from study.analysis.ablation import tables as ablation
from study.data import dataset as datasets
from study.evaluation.metrics import PAPER_METRICS
from study.runner.row_store import read_row
from tests.rows import put_row

TASKS, SEEDS = 120, (1, 2)
EFFECTS = {"t2mrec": 0.0, "t2mrec_wo_cl": -0.2, "t2mrec_wo_two_tower": -0.1, "t2mrec_wo_structure": 0.0}
NOT_RUN = ["hard_negatives", "in_batch_set", "llm", "one_direction", "program_languages", "shared_tower"]
NOT_RUN = {f"t2mrec_{name}" for name in (*NOT_RUN, "wo_cl_program", "wo_expansion", "wo_lexical")}
GROUPS = pd.DataFrame({"id": range(TASKS), "category_clean": np.repeat(["a", "b"], 60)})
GROUPS["subcategory_clean"] = GROUPS["id"] % 3


@pytest.fixture
def results(conf_root):
    """Runs of four variants under `cold`, and of one without its reference under `warm`."""
    rng = np.random.default_rng(0)
    base = np.tile(rng.uniform(0.3, 0.6, TASKS), len(SEEDS))
    keys = pd.DataFrame({"task_id": np.tile(range(TASKS), len(SEEDS)), "seed": np.repeat(SEEDS, TASKS)})
    for name, effect in EFFECTS.items():
        values = {metric: base + effect + rng.normal(0, 0.02, len(base)) for metric in PAPER_METRICS}
        put_row("task2mcp", "cold", name, keys.assign(**values))
    put_row("task2mcp", "warm", "t2mrec_wo_cl", keys.assign(**values))


def test_a_variant_belongs_where_its_reference_ran_and_its_file_says(results):
    assert next(iter(ablation.variants())) == "t2mrec"
    assert {protocol: set(frames) for protocol, frames in ablation.runs("task2mcp").items()} == {"cold": set(EFFECTS)}
    assert "t2mrec_llm" in set(ablation.list_expected("cold_grouped")) - set(ablation.list_expected("warm"))
    assert not {"t2mrec", "t2mrec_tuned", "t2mrec_field_dense"} & set(ablation.list_expected("cold"))


def test_planted_effects_are_found_and_their_absence_too_and_what_was_not_run_is_said(results):
    table = ablation.table4("task2mcp")
    rows = table.set_index(["system", "metric"])
    assert np.isnan(rows.loc[("t2mrec", "ndcg@10"), "diff"])
    for system, effect in list(EFFECTS.items())[1:]:
        row = rows.loc[(system, "ndcg@10")]
        assert (row["seeds"], row["diff"]) == (2, pytest.approx(effect, abs=0.01))
        assert row["diff_ci_low"] < row["diff"] < row["diff_ci_high"]
        assert row["family"] == 24  # twelve declared variants, run or not, two primary metrics
        assert (row["wilcoxon_p_holm"] < 0.001) == (row["randomisation_p_holm"] < 0.01) == (effect < 0)
    assert np.isnan(rows.loc[("t2mrec_wo_cl", "recall@5"), "wilcoxon_p_holm"])  # not in the declared family
    cl, base = rows.loc[("t2mrec_wo_cl", "recall@10")], rows.loc[("t2mrec", "ndcg@10")]
    assert cl[["gap", "paper_effect"]].tolist() == pytest.approx([cl["ours"] - 0.4568, 0.4568 - 0.6702])
    assert base[["paper", "paper_effect"]].tolist() == pytest.approx([0.6574, np.nan], nan_ok=True)
    # Variants without a run have a row that says so.
    assert set(rows.index[rows["seeds"] == 0].get_level_values("system")) == NOT_RUN
    full = rows.loc[("t2mrec_llm", "ndcg@10")]
    assert full[["paper", "paper_effect"]].tolist() == pytest.approx([0.6633, 0.0059])
    assert full[["ours", "diff", "gap", "wilcoxon_p_holm"]].isna().all()
    # Elsewhere than under the paper's own protocol stands none of its values.
    for name in ("t2mrec", "t2mrec_wo_cl"):
        put_row("task2mcp", "warm", name, read_row("task2mcp", "cold", name).per_task)
    table = ablation.table4("task2mcp")
    warm = table[table["protocol"] == "warm"]
    assert warm["seeds"].max() == 2
    assert warm[["paper", "gap", "paper_effect"]].isna().all(axis=None)


def test_a_new_variant_changes_no_p_value_of_another(results, monkeypatch):
    before = ablation.table4("task2mcp"), ablation.by_group("task2mcp", GROUPS)
    known = ablation.variants()
    monkeypatch.setattr(ablation, "variants", lambda: {**known, "t2mrec_own": known["t2mrec"]})
    put_row("task2mcp", "cold", "t2mrec_own", read_row("task2mcp", "cold", "t2mrec_wo_cl").per_task)
    after = ablation.table4("task2mcp"), ablation.by_group("task2mcp", GROUPS)
    for old, new in zip(before, after, strict=True):
        own = new["system"] == "t2mrec_own"
        assert own.any()
        assert new.loc[own, ["wilcoxon_p_holm", "randomisation_p_holm"]].isna().all(axis=None)
        pd.testing.assert_frame_equal(new[~own].reset_index(drop=True), old)


def test_a_re_ranking_model_is_compared_with_the_same_trainings_and_its_discarded_answers_are_counted(results):
    assert ablation.compare_reranked("task2mcp").empty
    first = read_row("task2mcp", "cold", "t2mrec").per_task.query("seed == 1")
    better = first.assign(**{metric: first[metric] + 0.01 for metric in PAPER_METRICS})
    lists = pd.DataFrame({"task_id": [1, 1, 2, 2], "seed": 1, "rank": [1, 2, 1, 2], "server_id": [5, 6, 7, 8]})
    counts = {"answered": 100, "fallbacks": {"repeat": 12, "too_many_substitutions": 8}}
    told = {"seeds": [{"seed": 1, "report": counts}]}
    put_row("task2mcp", "cold", "t2mrec_same_training", first, lists)
    put_row("task2mcp", "cold", "t2mrec_llm_local", better, lists.assign(server_id=[5, 6, 8, 7]), told)
    found = ablation.compare_reranked("task2mcp").set_index("metric")
    assert list(found.index) == ["recall@10", "ndcg@10"]
    assert found["diff"].tolist() == pytest.approx([0.01, 0.01])
    assert found["without"]["ndcg@10"] == pytest.approx(first["ndcg@10"].mean())
    assert (found["randomisation_p"] < 0.01).all()
    columns = ["changed", "answered", "fallback_repeat", "fallback_too_many_substitutions"]
    assert found[columns].to_numpy().tolist() == [[1, 100, 12, 8]] * 2


def test_groups_are_compared_within_themselves(results):
    found = ablation.by_group("task2mcp", GROUPS)
    assert len(found) == 3 * (2 + 3)
    assert set(found.loc[found["level"] == "category", "n"]) == {60}
    lost, unchanged = (found[found["system"] == f"t2mrec_wo_{name}"] for name in ("cl", "structure"))
    assert (lost["diff"] < -0.15).all()
    assert (lost["wilcoxon_p_holm"] < 0.001).all()
    assert (lost["randomisation_p_holm"] < 0.05).all()
    assert (unchanged["randomisation_p_holm"] > 0.05).all()
    for _, own in found.groupby("level"):
        missing = np.ones(12 * own["group"].nunique() - len(own))  # of twelve declared variants three ran
        corrected = multipletests([*own["randomisation_p"], *missing], method="holm")[1][: len(own)]
        np.testing.assert_allclose(own["randomisation_p_holm"], corrected)


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
