"""Distances before and after: by hand, by planted truths, on the authors' points, and end to end on a tiny study."""

import shutil

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import yaml
from scipy import stats
from statsmodels.stats.multitest import multipletests

from study.advisor.saved.saved import folder_of
from study.advisor.saved.t2mrec import Recommender
from study.analysis.ablation import embedding
from study.analysis.ablation.embedding import PANELS, difference_table, group_tests, released, sample_mismatched
from study.analysis.framework import run_analyses
from study.base import paths
from study.base.errors import StudyError, UnavailableError
from study.base.files import write_json
from study.config.compose import load
from study.evaluation.records import read_record
from study.evaluation.separation import listed, mean_separation, separation
from study.runner.inputs import load_inputs
from tests.analysis.toys import small_study
from tests.tiny_study import REPOSITORY, SIZE

RELEVANT = sp.csr_matrix(np.array([[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 0]], np.float32))
TINY = [*SIZE, "profile=smoke", "system=t2mrec", "system.model.training.epochs=30"]
FILE, DEPTH = "analysis/embedding.yaml", 3
IDS = np.array([7, 3, 9, 1])  # pairs in the authors' file are in the order of ids, rows are not


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
def test_cosine_distance_by_hand_dense_and_sparse(kind):
    tasks = kind(np.array([[1, 0], [0.6, 0.8]], np.float32))
    servers = kind(np.array([[1, 0], [0, 1], [-1, 0]], np.float32))
    found = embedding.cosine_distance(tasks, servers, np.array([0, 0, 1, 1]), np.array([0, 2, 1, 0]))
    assert found == pytest.approx([0, 2, 0.2, 0.4])


def test_mismatched_servers_are_listed_by_others_and_never_by_the_task():
    relevant = sp.csr_matrix((np.random.default_rng(0).random((40, 60)) < 0.1).astype(np.float32))
    part = np.arange(0, 40, 2)  # the servers of the other half may not be drawn
    rows = np.repeat(part, 5)
    drawn = sample_mismatched(relevant, rows, seed=1)
    assert set(drawn) <= set(relevant[part].indices)
    assert not np.asarray(relevant[rows, drawn]).any()
    np.testing.assert_array_equal(drawn, sample_mismatched(relevant, rows, seed=1))
    assert (drawn != sample_mismatched(relevant, rows, seed=2)).any()
    with pytest.raises(ValueError, match="every server"):
        sample_mismatched(sp.csr_matrix(np.ones((1, 3), np.float32)), np.array([0]), seed=0)


def planted(seed, closer, n=60):
    """Pairs of n tasks, five each: matched pairs come closer by `closer`, all pairs by 0.3."""
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame({"part": np.repeat(["train", "test"], 5 * n), "task_id": np.tile(np.repeat(range(n), 5), 2)})
    base = 0.9 + rng.normal(0, 0.01, len(rows))
    mine, other = rng.normal(0, 0.05, (2, len(rows)))
    rows = rows.assign(input=base, embedded=base - 0.3 - closer + mine)
    groups = pd.DataFrame({"task_id": range(n), "category": np.repeat(["a", "b"], n // 2), "subcategory": "c"})
    return embedding.per_task(rows.assign(input_other=base, embedded_other=base - 0.3 + other)), groups


def test_all_pairs_coming_closer_is_told_from_matched_pairs_coming_closer_by_the_tests_of_scipy():
    with_effect, without = group_tests(*planted(0, 0.2), seed=0), group_tests(*planted(1, 0.0), seed=0)
    assert list(with_effect["level"]) == ["all"] * 2 + ["category"] * 4 + ["subcategory"] * 2
    # The paper's test is significant in both; what matched pairs have beyond others only where it was planted.
    for test in ("p_holm", "randomisation_p_holm"):
        assert (with_effect[[test, f"beyond_{test}"]] < 1e-3).all(axis=None)
        assert (without[test] < 1e-3).all()
        assert (without[f"beyond_{test}"] > 0.01).all()
    whole = with_effect.iloc[0]
    assert whole[["reduction", "reduction_other"]].tolist() == pytest.approx([0.5, 0.3], abs=0.02)
    assert whole["ci_low"] < whole["reduction"] < whole["ci_high"]
    assert whole[["effect", "n"]].tolist() == [1, 60]
    # The tests are scipy's, and the correction is over the level.
    tasks, groups = planted(3, 0.01)
    found = group_tests(tasks, groups, seed=0).query("level == 'category'")
    own = tasks[(tasks["part"] == "train") & tasks["task_id"].isin(groups.loc[groups["category"] == "a", "task_id"])]
    beyond = (own["input"] - own["embedded"]) - (own["input_other"] - own["embedded_other"])
    row = found.query("part == 'train' and group == 'a'").iloc[0]
    assert row["beyond_p"] == pytest.approx(stats.wilcoxon(beyond, alternative="greater", method="exact").pvalue)
    np.testing.assert_allclose(found["beyond_p_holm"], multipletests(found["beyond_p"], method="holm")[1])


def test_means_stand_within_their_intervals_and_differences_are_paired_and_one_sided():
    means = embedding.summary(pd.DataFrame({"recall": [0.5, 1.0]}), seed=0)
    assert (means["n"], means["recall"]) == (2, pytest.approx(0.75))
    assert means["recall_ci_low"] <= means["recall"] <= means["recall_ci_high"]
    rng = np.random.default_rng(0)
    theirs = pd.DataFrame({"recall": rng.uniform(0.4, 0.6, 80), "auc": rng.uniform(0.4, 0.6, 80)})
    near = theirs - np.array([0.05, 0.0]) + rng.normal(0, 0.02, (80, 2))
    near.loc[:9, "recall"] = theirs.loc[:9, "recall"]  # ties
    far = theirs + np.array([0.05, 0.0])
    table = difference_table(theirs, {True: near, False: far}, seed=0).set_index(["plane", "measure"])
    up, down, level = table.loc[(True, "recall")], table.loc[(False, "recall")], table.loc[(False, "auc")]
    exact = theirs["recall"] - near["recall"]
    shares = [exact.mean(), 10 / 80, (exact > 1e-5).mean()]
    assert up[["diff", "equal", "higher"]].tolist() == pytest.approx(shares)
    assert up["diff_ci_low"] < up["diff"] < up["diff_ci_high"]
    expected = stats.wilcoxon(exact.round(5), alternative="greater", method="asymptotic").pvalue
    assert up[["wilcoxon_p", "randomisation_p_holm"]].tolist() == pytest.approx([expected, 4 / 10_001])
    assert down["lower"] == 1
    assert min(down["wilcoxon_p"], down["randomisation_p"]) > 0.99  # lower is no evidence for higher
    assert level[["diff", "equal", "wilcoxon_p", "randomisation_p"]].tolist() == [0, 1, 1, 1]


def write_points(path, tasks, pairs):
    """A file as the authors released theirs, from the places of tasks and (task, place of its server)."""
    places = [one for task, place in pairs for one in ((*tasks[task], "task"), (*place, "matched_mcp"))]
    rows = [(panel, *place) for panel in PANELS for place in places]
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=["panel", "x", "y", "kind"]).to_csv(path, index=False)


def two_tasks(path, shift=0.0):
    """Tasks 0 and 1 with their servers by id; server i lies at (10 id, 0), for task 1 shifted."""
    pairs = [(task, (10 * server + shift * task, 0)) for task, server in ((0, 7), (0, 9), (1, 3), (1, 9))]
    write_points(path, [(0, 0), (1, 1)], pairs)


def test_released_points_are_attached_to_tasks_and_servers(tmp_path):
    two_tasks(tmp_path / "p.csv")
    found = released(tmp_path / "p.csv", RELEVANT, np.array([0, 1]), IDS)
    assert set(found) == {"input", "embedded"}
    points = found["embedded"]
    assert points.tasks.tolist() == [[0, 0], [1, 1]]
    assert points.servers[:, 0].tolist() == [70, 30, 90]  # by row: servers 0, 1, 2
    assert points.agreement == 1
    servers, related = listed(RELEVANT, np.array([0, 1]))
    assert servers.tolist() == [0, 1, 2]
    assert points.distance()[related].tolist() == pytest.approx([70, 90, np.hypot(29, 1), np.hypot(89, 1)])
    two_tasks(tmp_path / "p.csv", shift=5.0)
    found = released(tmp_path / "p.csv", RELEVANT, np.array([0, 1]), IDS)
    assert found["input"].agreement == 0.5  # server 9 lies between its two places, 7 and 3 have one each


DAMAGES = [("3 pairs", lambda frame: frame.iloc[:-2]), ("pairs", lambda frame: frame.assign(kind="task"))]
DAMAGES += [("columns", lambda frame: frame.rename(columns={"x": "u"}))]
DAMAGES += [("panels", lambda frame: frame.assign(panel="Elsewhere"))]
DAMAGES += [("runs of task points", lambda frame: frame.assign(x=frame["x"].where(frame.index != 2, 5.0)))]


@pytest.mark.parametrize(("reason", "change"), DAMAGES)
def test_a_file_of_another_form_is_refused(tmp_path, change, reason):
    path = tmp_path / "p.csv"
    two_tasks(path)
    change(pd.read_csv(path)).to_csv(path, index=False)
    with pytest.raises(StudyError, match=reason):
        released(path, RELEVANT, np.array([0, 1]), IDS)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A root with a saved model, and the tables of the stage without the authors' points."""
    projection = yaml.safe_load((REPOSITORY / "conf" / FILE).read_text())["projection"]
    changes = {FILE: {"depth": DEPTH, "projection": projection | {"iterations": 250, "perplexity": 5.0}}}
    with small_study(tmp_path_factory.mktemp("study"), TINY, changes):
        assert len(list(run_analyses(["embedding"], load(TINY)))) == 5
        yield load(TINY)


@pytest.fixture(scope="module")
def inputs(study):
    data, split = load_inputs(study.dataset.name, study.protocol.name)
    return data, split, embedding.spaces(Recommender.load(folder_of("synthetic", "t2mrec")), data)


@pytest.fixture(scope="module", autouse=True)
def first(study):
    """The tables before a test makes them again."""
    return {name: read(name) for name in ("pairs.csv.xz", "groups.csv", "separation.csv")}


def read(name):
    return pd.read_csv(paths.results("synthetic") / "embedding" / name)


def test_pairs_are_all_labels_with_the_distances_of_the_saved_model(inputs, first):
    data, split, found = inputs
    pairs = first["pairs.csv.xz"]
    rows = pd.Index(data.tasks["id"]).get_indexer(pairs["task_id"])
    columns = pd.Index(data.servers["id"]).get_indexer(pairs["server_id"])
    for part in ("train", "test"):
        own = pairs["part"] == part
        assert set(zip(rows[own], columns[own], strict=True)) == set(zip(*split.part(part).nonzero(), strict=True))
        assert own.sum() == split.part(part).nnz
    lexical = [space.toarray() for space in found["input"]]
    for name, (tasks, servers) in {"input": lexical, "embedded": found["embedded"]}.items():
        np.testing.assert_allclose(pairs[name], 1 - (tasks @ servers.T)[rows, columns], atol=1e-3)
    assert pairs["shared"].tolist() == ((lexical[0][rows] > 0) & (lexical[1][columns] > 0)).sum(axis=1).tolist()
    groups = first["groups.csv"]
    whole = groups[groups["level"] == "all"].set_index("part")
    assert whole["n"].to_dict() == {"test": 16, "train": 48}
    assert whole.loc["train", "embedded"] < whole.loc["train", "input"] - 0.1
    assert whole.loc["train", ["beyond_p_holm", "beyond_randomisation_p_holm"]].max() < 0.01
    by_hand = pairs.groupby(["part", "task_id"])["embedded"].mean().groupby("part").mean()
    np.testing.assert_allclose(whole.loc[["test", "train"], "embedded"], by_hand, atol=1e-4)


def test_separation_of_the_space_is_what_other_models_are_measured_by(inputs, first):
    _, split, found = inputs
    table = first["separation.csv"].set_index(["source", "space", "plane", "part"])
    assert set(table.index.get_level_values("source")) == {"ours"}
    means = mean_separation(*found["embedded"], split, "test", depth=DEPTH)
    row = table.loc[("ours", "embedded", False, "test")]
    assert row[list(means)].tolist() == pytest.approx(list(means.values()), rel=1e-4)
    # By hand: the first test task among the servers that any test task lists.
    tasks = split.tasks("test")
    servers, related = listed(split.test, tasks)
    distance = 1 - found["embedded"][0][tasks] @ found["embedded"][1][servers].T
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :DEPTH]
    recall = np.take_along_axis(related, nearest, axis=1).sum(axis=1) / related.sum(axis=1)
    assert means["recall"] == pytest.approx(recall.mean())
    sparse = mean_separation(*found["input"], split, "test", depth=DEPTH)
    assert table.loc[("ours", "input", False, "test"), "auc"] == pytest.approx(sparse["auc"], rel=1e-4)


def test_the_authors_points_are_set_against_ours_task_by_task_and_kept_where_the_model_is_gone(study, inputs):
    """Every server lies near the middle of the test tasks that list it."""
    data, split, found = inputs
    path, tasks, rng = paths.raw("synthetic") / embedding.RELEASED, split.tasks("test"), np.random.default_rng(0)
    servers, related = listed(split.test, tasks)
    at = rng.normal(0, 10, (len(tasks), 2))
    middle = related.T @ at / related.sum(axis=0)[:, None] + rng.normal(0, 0.1, (len(servers), 2))
    order = np.argsort(data.servers["id"].to_numpy()[servers])
    write_points(path, at, [(task, middle[place]) for task, row in enumerate(related) for place in order[row[order]]])
    drawn = paths.results("synthetic") / "embedding" / "points.csv.xz"
    first = drawn.read_bytes()
    list(run_analyses(["embedding"], study))
    assert drawn.read_bytes() == first
    points = released(path, split.test, tasks, data.servers["id"].to_numpy())["embedded"]
    theirs = separation(points.distance(), related, depth=DEPTH)
    ours = separation(1 - found["embedded"][0][tasks] @ found["embedded"][1][servers].T, related, depth=DEPTH)
    table = read("difference.csv").set_index(["plane", "measure"])
    for measure in ("recall", "auc"):
        row, exact = table.loc[(False, measure)], (theirs[measure] - ours[measure]).to_numpy()
        expected = [exact.mean(), len(tasks), (exact > 1e-5).mean(), (exact < -1e-5).mean()]
        assert row[["diff", "n", "higher", "lower"]].tolist() == pytest.approx(expected, abs=1e-5)
    compared = read("separation.csv")
    assert compared.loc[compared["source"] == "authors", "agreement"].tolist() == [1, 1]
    # Tables of the same training stay where its model is gone; another training makes others.
    saved, record = folder_of("synthetic", "t2mrec"), drawn.with_name("distances.json")
    about = read_record(record)
    assert (about["protocol"], about["settings"]["depth"], len(about["model"])) == ("cold", DEPTH, 64)
    shutil.rmtree(saved)
    assert not list(run_analyses(["embedding"], study))
    with pytest.raises(UnavailableError, match="study export"):
        list(run_analyses(["embedding/distances"], study))
    longer = load([*TINY[:-1], "system.model.training.epochs=31"])
    assert list(run_analyses(["embedding"], longer))
    assert (saved / "model.safetensors").exists()
    write_json(record, read_record(record) | {"model": "of another processor"})
    assert not list(run_analyses(["embedding"], longer))
