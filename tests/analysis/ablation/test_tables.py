"""Table 4 from runs with planted effects, the structural facts by hand, and claims that follow the tables."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from statsmodels.stats.multitest import multipletests

from study.analysis.ablation import figures as ablation_figures
from study.analysis.ablation import tables as ablation
from study.analysis.report.runs import measured
from study.data import dataset as datasets
from study.evaluation.metrics import PAPER_METRICS

TASKS, SEEDS = 120, (1, 2)
EFFECTS = {"t2mrec": 0.0, "t2mrec_wo_cl": -0.2, "t2mrec_wo_two_tower": -0.1, "t2mrec_wo_structure": 0.0}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Runs of four variants under `cold`, and of one without its reference under `warm`."""
    monkeypatch.setattr("study.paths.results", lambda dataset: tmp_path / dataset)
    rng = np.random.default_rng(0)
    base = rng.uniform(0.3, 0.6, TASKS)
    for name, effect in EFFECTS.items():
        frames = []
        for seed in SEEDS:
            frame = pd.DataFrame({"task_id": np.arange(TASKS), "seed": seed})
            for metric in PAPER_METRICS:
                frame[metric] = base + effect + rng.normal(0, 0.02, TASKS)
            frames.append(frame)
        folder = tmp_path / "task2mcp" / "per_task" / "cold"
        folder.mkdir(parents=True, exist_ok=True)
        pd.concat(frames).to_csv(folder / f"{name}.csv.xz", index=False)
    lonely = tmp_path / "task2mcp" / "per_task" / "warm"
    lonely.mkdir()
    pd.concat(frames).to_csv(lonely / "t2mrec_wo_cl.csv.xz", index=False)
    return tmp_path


def test_the_reference_is_the_first_variant_and_tuned_systems_are_none():
    names = list(ablation.variants())
    assert names[0] == "t2mrec"
    assert set(EFFECTS) <= set(names)
    assert "t2mrec_tuned" not in names


def test_runs_without_their_reference_are_left_out(results):
    assert {protocol: set(frames) for protocol, frames in ablation.runs("task2mcp").items()} == {"cold": set(EFFECTS)}


def test_printed_values_and_effects_are_the_papers():
    cells = ablation.printed()
    assert cells.loc[("t2mrec", "ndcg@10"), "paper"] == 0.6574
    assert np.isnan(cells.loc[("t2mrec", "ndcg@10"), "paper_effect"])
    assert cells.loc[("t2mrec_wo_cl", "ndcg@10"), "paper_effect"] == pytest.approx(0.4413 - 0.6633)
    assert cells.loc[("t2mrec_llm", "ndcg@10"), "paper_effect"] == pytest.approx(0.6633 - 0.6574)


def test_planted_effects_are_found_and_their_absence_too(results):
    table = ablation.table4("task2mcp").set_index(["system", "metric"])
    ran = table[table["seeds"] > 0]
    assert len(ran) == len(EFFECTS) * len(PAPER_METRICS)
    for system, effect in EFFECTS.items():
        row = table.loc[(system, "ndcg@10")]
        assert row["seeds"] == 2
        if system == "t2mrec":
            assert np.isnan(row["difference"])
            continue
        assert row["difference"] == pytest.approx(effect, abs=0.01)
        assert row["ci_low"] < row["difference"] < row["ci_high"]
        assert row["family"] == 6  # three variants, two primary metrics
        assert (row["wilcoxon_p_holm"] < 0.001) == (effect < 0)
        assert (row["randomisation_p_holm"] < 0.01) == (effect < 0)
    assert np.isnan(table.loc[("t2mrec_wo_cl", "recall@5"), "wilcoxon_p_holm"])  # not in the declared family
    cl = table.loc[("t2mrec_wo_cl", "recall@10")]
    assert cl["off"] == pytest.approx(cl["ours"] - 0.4568)


def test_variants_without_a_run_have_a_row_that_says_so(results):
    table = ablation.table4("task2mcp").set_index(["system", "metric"])
    missing = table[table["seeds"] == 0]
    assert set(missing.index.get_level_values("system")) == {
        "t2mrec_hard_negatives",
        "t2mrec_llm",
        "t2mrec_one_direction",
        "t2mrec_shared_tower",
        "t2mrec_wo_expansion",
        "t2mrec_wo_lexical",
    }
    full = table.loc[("t2mrec_llm", "ndcg@10")]
    assert full["paper"] == 0.6633
    assert full["paper_effect"] == pytest.approx(0.0059)
    assert full[["ours", "difference", "off", "wilcoxon_p_holm"]].isna().all()
    assert "t2mrec_listwise" not in table.index  # neither of the family nor the paper's, so only shown where it ran


def test_a_variant_belongs_where_its_file_says():
    assert "t2mrec_llm" in ablation.wanted("cold_grouped")
    assert "t2mrec_llm" not in ablation.wanted("warm")
    assert "t2mrec_wo_cl" in ablation.wanted("warm")
    assert not {"t2mrec", "t2mrec_tuned", "t2mrec_best"} & set(ablation.wanted("cold"))


def test_the_papers_values_stand_under_its_own_protocol_alone(results):
    runs = results / "task2mcp" / "per_task"
    for name in ("t2mrec", "t2mrec_wo_cl", "t2mrec_wo_two_tower"):
        (runs / "warm" / f"{name}.csv.xz").write_bytes((runs / "cold" / f"{name}.csv.xz").read_bytes())
    table = ablation.table4("task2mcp")
    columns = ["paper", "off", "paper_effect"]
    assert table.loc[table["protocol"] == "cold", "paper"].notna().any()
    warm = table[table["protocol"] == "warm"]
    assert warm["seeds"].max() == 2
    assert warm[columns].isna().all(axis=None)
    verdicts = ablation.part_verdicts(table).set_index(["protocol", "system"])
    assert verdicts.loc[("warm", "t2mrec_wo_cl"), "verdict"] == "holds"
    assert ("warm", "t2mrec_llm") not in verdicts.index
    assert verdicts.loc["warm", "paper_effect"].isna().all()


def test_f1_is_that_of_the_means(results):
    frame = ablation.runs("task2mcp")["cold"]["t2mrec"]
    found = measured(frame, "f1@10")
    expected = []
    for _, part in frame.groupby("seed"):
        precision, recall = part["precision@10"].mean(), part["recall@10"].mean()
        expected.append(2 * precision * recall / (precision + recall))
    assert found["ours"] == pytest.approx(np.mean(expected))
    assert found["sd"] == pytest.approx(np.std(expected, ddof=1))
    assert found["low"] < found["ours"] < found["high"]


def test_groups_are_compared_within_themselves(results):
    names = pd.DataFrame(
        {
            "id": np.arange(TASKS),
            "category_clean": np.where(np.arange(TASKS) < 60, "a", "b"),
            "subcategory_clean": np.arange(TASKS) % 3,
        }
    )
    found = ablation.by_group("task2mcp", names)
    assert len(found) == 3 * (2 + 3)
    assert set(found.loc[found["level"] == "category", "n"]) == {60}
    lost = found[found["system"] == "t2mrec_wo_cl"]
    assert (lost["difference"] < -0.15).all()
    assert (lost["wilcoxon_p_holm"] < 0.001).all()
    assert (lost["randomisation_p_holm"] < 0.05).all()
    unchanged = found[found["system"] == "t2mrec_wo_structure"]
    assert (unchanged["randomisation_p_holm"] > 0.05).all()
    for level in ("category", "subcategory"):
        own = found[found["level"] == level]
        corrected = multipletests(own["randomisation_p"], method="holm")[1]
        np.testing.assert_allclose(own["randomisation_p_holm"], corrected)


def structured():
    """Two tasks and two servers whose structural features are known."""
    empty = dict.fromkeys(("tools", "url", "author", "license"), "")
    servers = pd.DataFrame({"id": [1, 2], "language": ["Python", "Go"], "system": ["", "windows"]})
    servers = servers.assign(name="s", description="d", category=["x", "y"], subcategory="u", stars_count=0, **empty)
    tasks = pd.DataFrame({"id": [1, 2], "category": ["x", "z"], "theme": ["windows tools", "maps"]})
    tasks = tasks.assign(name="t", description="d", language="Python", subcategory="v")
    labels = pd.DataFrame({"task_id": [1, 2], "server_id": [1, 2], "position": [1, 1]})
    return datasets.build("toy", servers, tasks, labels)


def test_structure_facts_by_hand():
    facts = ablation.structure_facts(structured()).set_index("measure")["value"]
    # Pairs (task 1, server 1): category and language; (1, 2): theme; (2, 1): language; (2, 2): none.
    assert facts.to_dict() == {
        "tasks": 2,
        "servers": 2,
        "pairs": 4,
        "shared_category_names": 1,
        "shared_subcategory_names": 0,
        "servers_stating_a_system": 1,
        "pairs_category": 1,
        "pairs_language": 2,
        "pairs_theme": 1,
        "pairs_beyond_language": 2,
        "share_language_alone": 0.5,
    }


@pytest.mark.mirror
def test_on_the_release_the_structural_score_is_the_language_check(request):
    task2mcp = request.getfixturevalue("task2mcp")
    data = getattr(task2mcp, "data", task2mcp)
    facts = ablation.structure_facts(data).set_index("measure")["value"]
    assert facts["shared_category_names"] == facts["pairs_category"] == 0
    assert facts["servers_stating_a_system"] == 34
    assert facts["share_language_alone"] > 0.9999


def test_verdicts_hold_where_an_effect_was_planted_and_only_there(results):
    verdicts = ablation.part_verdicts(ablation.table4("task2mcp")).set_index("system")
    assert set(verdicts.loc[["t2mrec_wo_cl", "t2mrec_wo_two_tower"], "verdict"]) == {"holds"}
    assert verdicts.loc["t2mrec_wo_structure", "verdict"] == "does not hold"
    assert set(verdicts.loc[["t2mrec_wo_expansion", "t2mrec_llm"], "verdict"]) == {"not run"}
    assert verdicts.loc["t2mrec_llm", "paper_effect"] == pytest.approx(0.0059)
    assert verdicts.loc["t2mrec_wo_cl", "expected"] == "lower"


def rows_of(system, difference, *p_values):
    """Both rows of the declared family of one variant under `cold`."""
    row = {"protocol": "cold", "system": system, "title": system, "seeds": 2, "difference": difference}
    row |= {"paper_effect": np.nan} | dict(zip(ablation.TESTS, p_values, strict=True))
    return pd.DataFrame([row | {"metric": metric} for metric in ("recall@10", "ndcg@10")])


@pytest.mark.parametrize(
    ("system", "difference", "wilcoxon_p", "randomisation_p", "expected"),
    [
        ("t2mrec_wo_cl", -0.1, 0.01, 0.01, "holds"),
        ("t2mrec_wo_cl", -0.1, 0.01, 0.2, "tests disagree"),
        ("t2mrec_wo_cl", -0.1, 0.2, 0.01, "tests disagree"),
        ("t2mrec_wo_cl", -0.1, 0.2, 0.2, "does not hold"),
        ("t2mrec_wo_cl", 0.1, 0.01, 0.01, "does not hold"),  # it changes, but the other way
        ("t2mrec_llm", 0.1, 0.01, 0.01, "holds"),
        ("t2mrec_llm", -0.1, 0.01, 0.01, "does not hold"),
        ("t2mrec_shared_tower", -0.1, 0.01, 0.01, "holds"),  # no direction is expected
        ("t2mrec_shared_tower", 0.1, 0.2, 0.01, "tests disagree"),
        ("t2mrec_one_direction", 0.0, 0.01, 0.01, "does not hold"),
    ],
)
def test_a_verdict_needs_both_tests_and_the_direction(system, difference, wilcoxon_p, randomisation_p, expected):
    table = rows_of(system, difference, wilcoxon_p, randomisation_p)
    assert ablation.part_verdicts(table)["verdict"].tolist() == [expected]


def test_one_metric_alone_does_not_decide():
    table = rows_of("t2mrec_wo_cl", -0.1, 0.01, 0.01)
    table.loc[1, ablation.TESTS] = 0.3
    assert ablation.part_verdicts(table)["verdict"].tolist() == ["does not hold"]


@pytest.mark.parametrize(
    ("largest", "randomisation", "expected"),
    [(1e-5, 1e-4, "holds"), (0.01, 0.01, "does not hold"), (1e-5, 0.01, "tests disagree")],
)
def test_distance_verdicts_need_both_tests_in_every_category(largest, randomisation, expected):
    columns = ["part", "level", "group", "p_holm", "beyond_p_holm"]
    groups = pd.DataFrame(
        [
            (part, level, group, p, p)
            for part in ("train", "test")
            for level, group, p in (("all", "all", 0.0), ("category", "a", 0.0), ("category", "b", largest))
        ],
        columns=columns,
    ).assign(randomisation_p_holm=randomisation, beyond_randomisation_p_holm=randomisation)
    verdicts = ablation.distance_verdicts(groups)
    assert verdicts["verdict"].tolist() == [expected] * 4
    assert verdicts["categories"].tolist() == [2] * 4


def swept(recalls, aucs, seeds):
    """A separation.csv of a sweep."""
    return pd.DataFrame({"training.x": 1.0, "seed": seeds, "part": "test", "auc": aucs, "recall": recalls})


def test_a_model_in_two_sweeps_counts_once():
    sweeps = {
        "temperature": swept([0.1, 0.2], [0.8, 0.9], [1, 2]),
        "fusion_weight": swept([0.1, 0.1, 0.1], [0.8, 0.8, 0.7], [1, 3, 1]),
    }
    # Equal measures under another seed are another model, and so is one that differs in one measure.
    assert ablation.trained_models(sweeps)["recall"].tolist() == [0.2, 0.1, 0.1, 0.1]
    assert len(ablation.trained_models({})) == 0


def test_figures_draw_every_variant(results):
    table = ablation.table4("task2mcp")
    rows = table[table["system"] != "t2mrec"]
    figure = ablation_figures.effects(rows, ("recall@10", "ndcg@10"), "caption")
    assert len(figure.axes) == 2
    assert len(figure.axes[0].get_yticklabels()) == 9  # three that ran, six that did not
    assert [text.get_text() for text in figure.axes[0].texts] == ["not run"] * 6
    crosses = [line for line in figure.axes[1].lines if line.get_marker() == "x"]
    assert len(crosses) == 4  # the paper's, with and without a run of ours
    assert "Cross" in figure.get_supxlabel()
    elsewhere = ablation_figures.effects(rows.assign(paper_effect=np.nan), ("ndcg@10",), "caption")
    assert "Cross" not in elsewhere.get_supxlabel()
    names = pd.DataFrame({"id": np.arange(TASKS), "category_clean": "a", "subcategory_clean": "b"})
    found = ablation.by_group("task2mcp", names)
    found = found[found["level"] == "category"]
    figure = ablation_figures.by_group(found, ablation.variants(), "ndcg@10", "caption")
    assert isinstance(figure, Figure)
    assert len(figure.axes[0].texts) == 3
