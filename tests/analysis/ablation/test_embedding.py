"""Distances before and after: by hand, by planted truths, and on points as the authors released theirs."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from matplotlib.figure import Figure
from scipy import stats
from statsmodels.stats.multitest import multipletests

from study.analysis.ablation import figures
from study.analysis.ablation.embedding import (
    Points,
    cosine_distance,
    difference_table,
    group_tests,
    mismatched,
    per_task,
    project,
    released,
    summary,
)
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation.separation import listed, mean_separation, part_separation, separation

RELEVANT = sp.csr_matrix(np.array([[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 0]], np.float32))


def test_cosine_distance_by_hand_dense_and_sparse():
    tasks = np.array([[1, 0], [0.6, 0.8]], np.float32)
    servers = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
    rows, columns = np.array([0, 0, 1, 1]), np.array([0, 2, 1, 0])
    expected = [0, 2, 0.2, 0.4]
    assert cosine_distance(tasks, servers, rows, columns) == pytest.approx(expected)
    sparse = cosine_distance(sp.csr_matrix(tasks), sp.csr_matrix(servers), rows, columns)
    assert sparse == pytest.approx(expected)
    assert sparse.shape == (4,)


def test_mismatched_servers_are_listed_by_others_and_never_by_the_task():
    relevant = sp.csr_matrix((np.random.default_rng(0).random((40, 60)) < 0.1).astype(np.float32))
    part = np.arange(0, 40, 2)  # the servers of the other half may not be drawn
    rows = np.repeat(part, 5)
    drawn = mismatched(relevant, rows, seed=1)
    pool = set(relevant[part].indices)
    assert set(drawn) <= pool
    assert not np.asarray(relevant[rows, drawn]).any()
    np.testing.assert_array_equal(drawn, mismatched(relevant, rows, seed=1))
    assert (drawn != mismatched(relevant, rows, seed=2)).any()


def test_a_task_that_lists_everything_has_no_mismatched_server():
    with pytest.raises(ValueError, match="every server"):
        mismatched(sp.csr_matrix(np.ones((1, 3), np.float32)), np.array([0]), seed=0)


def planted(rng, closer, n=60):
    """Pairs of n tasks, five each: matched pairs come closer by `closer`, all pairs by 0.3."""
    rows = []
    for part in ("train", "test"):
        for task in range(n):
            base = 0.9 + rng.normal(0, 0.01, 5)
            noise = rng.normal(0, 0.05, (2, 5))
            rows.append(
                pd.DataFrame(
                    {
                        "part": part,
                        "task_id": task,
                        "input": base,
                        "embedded": base - 0.3 - closer + noise[0],
                        "input_other": base,
                        "embedded_other": base - 0.3 + noise[1],
                    }
                )
            )
    groups = pd.DataFrame({"task_id": range(n), "category": np.repeat(["a", "b"], n // 2), "subcategory": "c"})
    return per_task(pd.concat(rows)), groups


def test_all_pairs_coming_closer_is_told_from_matched_pairs_coming_closer():
    rng = np.random.default_rng(0)
    with_effect = group_tests(*planted(rng, 0.2), seed=0)
    without = group_tests(*planted(rng, 0.0), seed=0)
    assert list(with_effect["level"]) == ["all"] * 2 + ["category"] * 4 + ["subcategory"] * 2
    # The paper's test is significant in both; what matched pairs have beyond others only where it was planted.
    assert (with_effect["p_holm"] < 1e-3).all()
    assert (without["p_holm"] < 1e-3).all()
    assert (with_effect["beyond_p_holm"] < 1e-3).all()
    assert (without["beyond_p_holm"] > 0.01).all()
    assert (with_effect[["randomisation_p_holm", "beyond_randomisation_p_holm"]] < 1e-3).all(axis=None)
    assert (without["randomisation_p_holm"] < 1e-3).all()
    assert (without["beyond_randomisation_p_holm"] > 0.01).all()
    whole = with_effect.iloc[0]
    assert whole["reduction"] == pytest.approx(0.5, abs=0.02)
    assert whole["reduction_other"] == pytest.approx(0.3, abs=0.02)
    assert whole["low"] < whole["reduction"] < whole["high"]
    assert whole["effect"] == 1
    assert whole["n"] == 60


def test_tests_are_scipys_and_the_correction_is_over_the_level():
    tasks, groups = planted(np.random.default_rng(3), 0.01)
    found = group_tests(tasks, groups, seed=0)
    categories = found[found["level"] == "category"]
    for row in categories.to_dict("records"):
        members = groups.loc[groups["category"] == row["group"], "task_id"]
        own = tasks[(tasks["part"] == row["part"]) & tasks["task_id"].isin(members)]
        difference = (own["input"] - own["embedded"]) - (own["input_other"] - own["embedded_other"])
        expected = stats.wilcoxon(difference, alternative="greater", method="asymptotic").pvalue
        assert row["beyond_p"] == pytest.approx(expected)
    np.testing.assert_allclose(categories["beyond_p_holm"], multipletests(categories["beyond_p"], method="holm")[1])


def test_separation_by_hand():
    distance = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.1, 0.9]])
    related = np.array([[True, False, True, False], [True, False, False, False]])
    found = separation(distance, related, depth=2)
    # First task: listed .1 .3, others .2 .4: median .2 over .3; nearer in 3 of 4 comparisons; one of two in the top 2.
    assert found.loc[0].to_dict() == pytest.approx({"matched": 0.2, "ratio": 0.2 / 0.3, "auc": 0.75, "recall": 0.5})
    # Second: listed .5, others .5 .1 .9: a tie counts half; nearest two are the third and the first.
    assert found.loc[1].to_dict() == pytest.approx({"matched": 0.5, "ratio": 1.0, "auc": 0.5, "recall": 1.0})
    means = summary(found, seed=0)
    assert means["n"] == 2
    assert means["recall"] == pytest.approx(0.75)
    assert means["recall_low"] <= means["recall"] <= means["recall_high"]


def test_one_function_measures_every_model_alike():
    # Servers 0, 1 and 2 are listed by a test task; server 3 is nearest to both and no candidate.
    none, test = sp.csr_matrix((3, 4)), sp.csr_matrix(np.array([[1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]], np.float32))
    split = Split("cold", none, none, test, cold=True)
    tasks = np.array([[1, 0], [0, 1], [1, 0]], np.float32)
    servers = np.array([[0.8, 0.6], [0.6, 0.8], [0.6, -0.8], [0.7071, 0.7071]], np.float32)
    # Task 0 lists 0 and 2 (distances .2 and .4), another: 1 (.4); task 1 lists 1 (.2) and 2 (1.8), another: 0 (.4).
    means = mean_separation(tasks, servers, split, "test", depth=1)
    assert means["recall"] == pytest.approx(0.5)
    assert means["auc"] == pytest.approx((0.75 + 0.5) / 2)
    assert means["matched"] == pytest.approx((0.3 + 1.0) / 2)
    assert mean_separation(sp.csr_matrix(tasks), sp.csr_matrix(servers), split, depth=1) == pytest.approx(means)
    assert len(part_separation(tasks, servers, split, "test", depth=1)) == 2


def test_differences_are_paired_and_one_sided():
    rng = np.random.default_rng(0)
    theirs = pd.DataFrame({"recall": rng.uniform(0.4, 0.6, 80), "auc": rng.uniform(0.4, 0.6, 80)})
    near = theirs - np.array([0.05, 0.0]) + rng.normal(0, 0.02, (80, 2))
    near.loc[:9, "recall"] = theirs.loc[:9, "recall"]  # ties
    far = theirs + np.array([0.05, 0.0])
    table = difference_table(theirs, {True: near, False: far}, seed=0).set_index(["plane", "measure"])
    up, down, level = table.loc[(True, "recall")], table.loc[(False, "recall")], table.loc[(False, "auc")]
    exact = theirs["recall"] - near["recall"]
    assert up["difference"] == pytest.approx(exact.mean())
    assert up["equal"] == pytest.approx(10 / 80)
    assert up["higher"] == pytest.approx((exact > 1e-5).mean())
    assert up["ci_low"] < up["difference"] < up["ci_high"]
    assert up["wilcoxon_p"] == pytest.approx(
        stats.wilcoxon(exact.round(5), alternative="greater", method="asymptotic").pvalue
    )
    assert up["randomisation_p_holm"] == pytest.approx(4 / 10_001)
    assert down["lower"] == 1
    assert min(down["wilcoxon_p"], down["randomisation_p"]) > 0.99  # lower is no evidence for higher
    assert level[["difference", "equal", "wilcoxon_p", "randomisation_p"]].tolist() == [0, 1, 1, 1]


def test_separation_is_free_of_scale_and_even_for_noise():
    rng = np.random.default_rng(0)
    distance, related = rng.random((200, 50)), rng.random((200, 50)) < 0.2
    related[:, 0], related[:, 1] = True, False
    found = separation(distance, related, depth=10)
    assert found["auc"].mean() == pytest.approx(0.5, abs=0.02)
    scaled = separation(7 * distance, related, depth=10)
    pd.testing.assert_frame_equal(found[["ratio", "auc", "recall"]], scaled[["ratio", "auc", "recall"]])


# --- the authors' points ---

IDS = np.array([7, 3, 9, 1])  # the file's pairs are in the order of ids, rows are not


def write_points(path, shift=0.0):
    """Tasks 0 and 1 with their servers by id; server i lies at (10 id, 0)."""
    rows = []
    for panel in ("Input Space", "Learned Shared Space"):
        for task, ids in ((0, [7, 9]), (1, [3, 9])):
            for server in ids:
                rows += [(panel, task, task, "task"), (panel, 10 * server + shift * task, 0, "matched_mcp")]
    pd.DataFrame(rows, columns=["panel", "x", "y", "kind"]).to_csv(path, index=False)
    return path


def test_released_points_are_attached_to_tasks_and_servers(tmp_path):
    found = released(write_points(tmp_path / "p.csv"), RELEVANT, np.array([0, 1]), IDS)
    assert set(found) == {"input", "embedded"}
    points = found["embedded"]
    assert points.tasks.tolist() == [[0, 0], [1, 1]]
    assert points.servers[:, 0].tolist() == [70, 30, 90]  # by row: servers 0, 1, 2
    assert points.agreement == 1
    servers, related = listed(RELEVANT, np.array([0, 1]))
    assert servers.tolist() == [0, 1, 2]
    assert points.distance()[related].tolist() == pytest.approx([70, 90, np.hypot(29, 1), np.hypot(89, 1)])


def test_servers_that_lie_in_two_places_lower_the_agreement(tmp_path):
    found = released(write_points(tmp_path / "p.csv", shift=5.0), RELEVANT, np.array([0, 1]), IDS)
    assert found["input"].agreement == 0.5  # server 9 lies between its two places, 7 and 3 have one each


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda frame: frame.iloc[:-2], "3 pairs"),
        (lambda frame: frame.rename(columns={"x": "u"}), "columns"),
        (lambda frame: frame.assign(panel="Elsewhere"), "panels"),
        (lambda frame: frame.assign(x=frame["x"].where(frame.index != 2, 5.0)), "runs of task points"),
        (lambda frame: frame.assign(kind="task"), "pairs"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, change, reason):
    path = write_points(tmp_path / "p.csv")
    change(pd.read_csv(path)).to_csv(path, index=False)
    with pytest.raises(StudyError, match=reason):
        released(path, RELEVANT, np.array([0, 1]), IDS)


def test_missing_points_are_a_clear_error(tmp_path):
    with pytest.raises(StudyError, match="missing"):
        released(tmp_path / "none.csv", RELEVANT, np.array([0, 1]), IDS)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
def test_a_projection_keeps_groups_together_and_repeats_itself(kind):
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1], 30)
    vectors = kind((np.eye(20)[group] * 5 + rng.normal(0, 0.1, (60, 20))).astype(np.float32))
    options = {"perplexity": 10.0, "components": 5, "iterations": 300, "seed": 0}
    points = project(vectors, **options)
    np.testing.assert_array_equal(points, project(vectors, **options))
    middle = [points[group == side].mean(axis=0) for side in (0, 1)]
    inside = np.mean([np.linalg.norm(points[group == side] - middle[side], axis=1).mean() for side in (0, 1)])
    assert np.linalg.norm(middle[0] - middle[1]) > 2 * inside


def test_a_caption_says_why_violins_are_flat():
    pairs = pd.DataFrame({"input": [0.95, 1.0, 1.0, 1.0], "shared": [3, 0, 1, 2]})
    text = figures.flatness(pairs)
    assert "violins are flat: 25% of the pairs have no term in common and the median pair has 2." in text
    assert "violins are wide" in figures.flatness(pairs.assign(input=[0.1, 0.4, 0.7, 1.0]))


def test_figures_draw_every_group_panel_and_row():
    rng = np.random.default_rng(0)
    tasks, groups = planted(rng, 0.1)
    tests = group_tests(tasks, groups, seed=0)
    pairs = tasks.merge(groups, on="task_id").assign(shared=0)
    figure = figures.violins(pairs, tests[tests["level"] == "category"], "category", "caption")
    assert isinstance(figure, Figure)
    top = figure.axes[0]
    assert sum("p<.001" in text.get_text() for text in top.texts) == 2
    points = Points(rng.random((3, 2)), rng.random((4, 2)))
    figure = figures.point_panels({"a": (points, RELEVANT.toarray() > 0)}, "caption")
    assert len(figure.axes[0].collections[0].get_segments()) == RELEVANT.nnz
    row = {"source": "authors", "space": "embedded", "plane": True, "part": "test"}
    table = pd.DataFrame([row | summary(separation(points.distance(), RELEVANT.toarray() > 0, depth=2), seed=0)])
    figure = figures.separation_dots(table, "caption")
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert labels == ["authors, after, 2-D, test tasks"]
    assert figures.corrected(0.0123) == "p=0.012"
