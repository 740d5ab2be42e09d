"""Table 4 from runs with planted effects, the structural facts by hand, and claims that follow the tables."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from study.analysis import ablation, ablation_claims, ablation_figures
from study.analysis.tables import PAPER_METRICS
from study.data import dataset as datasets

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
        pd.concat(frames).to_csv(folder / f"{name}.csv.gz", index=False)
    lonely = tmp_path / "task2mcp" / "per_task" / "warm"
    lonely.mkdir()
    pd.concat(frames).to_csv(lonely / "t2mrec_wo_cl.csv.gz", index=False)
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
    assert len(table) == len(EFFECTS) * len(PAPER_METRICS)
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


def test_f1_is_that_of_the_means(results):
    frame = ablation.runs("task2mcp")["cold"]["t2mrec"]
    found = ablation.measured(frame, "f1@10")
    expected = []
    for _, part in frame.groupby("seed"):
        precision, recall = part["precision@10"].mean(), part["recall@10"].mean()
        expected.append(2 * precision * recall / (precision + recall))
    assert found["ours"] == pytest.approx(np.mean(expected))
    assert found["sd"] == pytest.approx(np.std(expected, ddof=1))
    assert found["low"] < found["ours"] < found["high"]


def test_groups_are_compared_within_themselves(results):
    names = pd.DataFrame({
        "id": np.arange(TASKS), "category_clean": np.where(np.arange(TASKS) < 60, "a", "b"),
        "subcategory_clean": np.arange(TASKS) % 3,
    })  # fmt: skip
    found = ablation.by_group("task2mcp", names)
    assert len(found) == 3 * (2 + 3)
    assert set(found.loc[found["level"] == "category", "n"]) == {60}
    lost = found[found["system"] == "t2mrec_wo_cl"]
    assert (lost["difference"] < -0.15).all()
    assert (lost["wilcoxon_p_holm"] < 0.001).all()


def structured(categories=("x", "y"), systems=("", "windows")):
    """Two tasks and two servers whose structural features are known."""
    servers = pd.DataFrame({
        "id": [1, 2], "name": "s", "description": "d", "language": ["Python", "Go"], "system": list(systems),
        "tools": "", "category": list(categories), "subcategory": "u", "url": "", "author": "", "license": "",
        "stars_count": 0,
    })  # fmt: skip
    tasks = pd.DataFrame({
        "id": [1, 2], "name": "t", "description": "d", "language": ["Python", "Python"], "category": ["x", "z"],
        "subcategory": "v", "theme": ["windows tools", "maps"],
    })  # fmt: skip
    labels = pd.DataFrame({"task_id": [1, 2], "server_id": [1, 2], "position": [1, 1]})
    return datasets.build("toy", servers, tasks, labels)


def test_structure_facts_by_hand():
    facts = ablation.structure_facts(structured()).set_index("measure")["value"]
    # Pairs (task 1, server 1): category and language; (1, 2): theme; (2, 1): language; (2, 2): none.
    assert facts.to_dict() == {
        "tasks": 2, "servers": 2, "pairs": 4, "shared_category_names": 1, "shared_subcategory_names": 0,
        "servers_stating_a_system": 1, "pairs_category": 1, "pairs_language": 2, "pairs_theme": 1,
        "pairs_beyond_language": 2, "share_language_alone": 0.5,
    }  # fmt: skip


def test_statements_follow_the_facts():
    alone = ablation_claims.structure_statements(ablation.structure_facts(structured(("a", "b"), ("", ""))))
    assert "is zero for every pair" in alone[0]
    assert "so that is what the structural score is" in alone[2]
    mixed = ablation_claims.structure_statements(ablation.structure_facts(structured()))
    assert "differs from zero for 1 pairs" in mixed[0]
    assert "1 of 2 servers state a system" in mixed[1]
    assert "so that is what" not in mixed[2]


@pytest.mark.mirror
def test_on_the_release_the_structural_score_is_the_language_check(request):
    task2mcp = request.getfixturevalue("task2mcp")
    data = getattr(task2mcp, "data", task2mcp)
    facts = ablation.structure_facts(data).set_index("measure")["value"]
    assert facts["shared_category_names"] == facts["pairs_category"] == 0
    assert facts["servers_stating_a_system"] == 34
    assert facts["share_language_alone"] > 0.9999


def test_claims_hold_where_an_effect_was_planted_and_only_there(results):
    claims = ablation_claims.part_claims(ablation.table4("task2mcp"), "cold")
    verdicts = {claim["claim"]: claim["verdict"] for claim in claims}
    assert verdicts["removing contrastive learning lowers quality"] == "holds"
    assert verdicts["removing the two towers lowers quality"] == "holds"
    assert verdicts["removing the structural score lowers quality"] == "does not hold"
    assert verdicts["removing the expansion lowers quality"] == "no runs to test it"
    assert verdicts["the parts rank in importance as in Table 4"] == "holds"


def test_a_missing_stage_gives_empty_tables(results):
    assert ablation_claims.tables("task2mcp", "ablation") == {}


def test_separation_is_put_into_words_only_with_the_authors_points():
    def row(source, part, recall):
        values = {f"{name}{end}": recall for name in ("ratio", "recall") for end in ("", "_low", "_high")}
        return {"source": source, "space": "embedded", "plane": True, "part": part} | values

    ours = [row("ours", "test", 0.1), row("ours", "train", 0.7)]
    assert ablation_claims.separation_statement(pd.DataFrame(ours)) == ""
    assert "like our training tasks" in ablation_claims.separation_statement(
        pd.DataFrame([*ours, row("authors", "test", 0.65)])
    )
    assert "like our test tasks" in ablation_claims.separation_statement(
        pd.DataFrame([*ours, row("authors", "test", 0.2)])
    )


def test_figures_draw_every_variant(results):
    table = ablation.table4("task2mcp")
    rows = table[table["system"] != "t2mrec"]
    figure = ablation_figures.effects(rows, ("recall@10", "ndcg@10"), "caption")
    assert len(figure.axes) == 2
    assert len(figure.axes[0].get_yticklabels()) == 3
    names = pd.DataFrame({"id": np.arange(TASKS), "category_clean": "a", "subcategory_clean": "b"})
    found = ablation.by_group("task2mcp", names)
    found = found[found["level"] == "category"]
    figure = ablation_figures.by_group(found, ablation.variants(), "ndcg@10", "caption")
    assert isinstance(figure, Figure)
    assert len(figure.axes[0].texts) == 3
