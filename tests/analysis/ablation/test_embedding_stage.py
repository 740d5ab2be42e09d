"""Figure 6 end to end on a tiny study: a model is trained and saved, the stage runs, and its tables are recomputed."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from study import paths
from study.analysis.ablation import embedding_stage
from study.analysis.ablation.embedding import PANELS, released
from study.config.compose import load
from study.evaluation.records import read_record
from study.evaluation.separation import listed, mean_separation, separation
from study.pipeline import data as stages
from study.pipeline.export import export
from study.recommend.saved import folder_of
from study.recommend.t2mrec import Recommender
from study.runner.inputs import load_inputs

ROOT = Path(__file__).resolve().parents[3]
TINY = [
    "dataset=synthetic",
    "profile=smoke",
    "dataset.generator.n_servers=60",
    "dataset.generator.n_tasks=80",
    "system=t2mrec",
    "system.model.training.epochs=30",
]
DEPTH = 3


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A root with a saved model, and the tables of the stage without the authors' points."""
    root = tmp_path_factory.mktemp("study")
    shutil.copytree(ROOT / "conf", root / "conf")
    settings = OmegaConf.load(root / "conf" / "analysis" / "embedding.yaml")
    settings.depth, settings.projection.iterations, settings.projection.perplexity = DEPTH, 250, 5.0
    OmegaConf.save(settings, root / "conf" / "analysis" / "embedding.yaml")
    for folder in ("src", "baselines"):
        (root / folder).symlink_to(ROOT / folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(root))
        config = load(TINY)
        for stage in (stages.fetch, stages.prepare, stages.split):
            stage(config)
        export(config)
        embedding_stage.compute(config)
        yield config


@pytest.fixture(scope="module")
def inputs(study):
    data, split = load_inputs(study.dataset.name, study.protocol.name)
    model = Recommender.load(folder_of("synthetic", "t2mrec"))
    return data, split, embedding_stage.spaces(model, data)


def read(name):
    return pd.read_csv(paths.results("synthetic") / "embedding" / name)


def test_pairs_are_all_labels_with_the_distances_of_the_saved_model(inputs):
    data, split, found = inputs
    pairs = read("pairs.csv.xz")
    rows = pd.Index(data.tasks["id"]).get_indexer(pairs["task_id"])
    columns = pd.Index(data.servers["id"]).get_indexer(pairs["server_id"])
    for part in ("train", "test"):
        own = pairs["part"] == part
        assert set(zip(rows[own], columns[own], strict=True)) == set(zip(*split.part(part).nonzero(), strict=True))
        assert own.sum() == split.part(part).nnz
    lexical = [space.toarray() for space in found.input]
    for name, (tasks, servers) in {"input": lexical, "embedded": found.embedded}.items():
        expected = 1 - (tasks @ servers.T)[rows, columns]
        np.testing.assert_allclose(pairs[name], expected, atol=1e-3)
    expected = [
        ((lexical[0][row] > 0) & (lexical[1][column] > 0)).sum() for row, column in zip(rows, columns, strict=True)
    ]
    assert pairs["shared"].tolist() == expected
    # Terms in common and a distance below one are the same thing, as all TF-IDF weights are positive.
    np.testing.assert_array_equal(pairs["shared"] == 0, pairs["input"] == 1)


def test_training_brought_matched_pairs_closer_than_others(study):
    groups = read("groups.csv")
    whole = groups[groups["level"] == "all"].set_index("part")
    assert whole["n"].to_dict() == {"test": 16, "train": 48}
    assert whole.loc["train", "embedded"] < whole.loc["train", "input"] - 0.1
    assert whole.loc["train", ["beyond_p_holm", "beyond_randomisation_p_holm"]].max() < 0.01
    pairs = read("pairs.csv.xz")
    by_hand = pairs.groupby(["part", "task_id"])[["embedded", "embedded_other"]].mean().groupby("part").mean()
    np.testing.assert_allclose(whole.loc[["test", "train"], "embedded"], by_hand["embedded"], atol=1e-4)


def test_separation_of_the_space_is_what_other_models_are_measured_by(inputs):
    _, split, found = inputs
    table = read("separation.csv").set_index(["source", "space", "plane", "part"])
    assert set(table.index.get_level_values("source")) == {"ours"}
    assert len(table) == 8
    means = mean_separation(*found.embedded, split, "test", depth=DEPTH)
    row = table.loc[("ours", "embedded", False, "test")]
    for measure, value in means.items():
        assert row[measure] == pytest.approx(value, rel=1e-4)
    # By hand: the first test task among the servers that any test task lists.
    tasks = split.tasks("test")
    servers, related = listed(split.test, tasks)
    distance = 1 - found.embedded[0][tasks] @ found.embedded[1][servers].T
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :DEPTH]
    recall = np.take_along_axis(related, nearest, axis=1).sum(axis=1) / related.sum(axis=1)
    assert means["recall"] == pytest.approx(recall.mean())
    sparse = mean_separation(*found.input, split, "test", depth=DEPTH)
    assert table.loc[("ours", "input", False, "test"), "auc"] == pytest.approx(sparse["auc"], rel=1e-4)
    assert len(read("difference.csv")) == 0  # no points of the authors


def write_points(path, split, data, *, noise):
    """Points as the authors released theirs: every server lies at the middle of the test tasks that list it."""
    rng = np.random.default_rng(0)
    tasks = split.tasks("test")
    servers, related = listed(split.test, tasks)
    at = rng.normal(0, 10, (len(tasks), 2))
    middle = related.T @ at / related.sum(axis=0)[:, None] + rng.normal(0, noise, (len(servers), 2))
    order = np.argsort(data.servers["id"].to_numpy()[servers])
    rows = []
    for panel in PANELS:
        for task, row in enumerate(related):
            for place in order[row[order]]:
                rows += [(panel, *at[task], "task"), (panel, *middle[place], "matched_mcp")]
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=["panel", "x", "y", "kind"]).to_csv(path, index=False)


def test_the_authors_points_are_set_against_ours_task_by_task(study, inputs):
    data, split, found = inputs
    path = paths.raw("synthetic") / embedding_stage.RELEASED
    first = (paths.results("synthetic") / "embedding" / "points.csv.xz").read_bytes()
    write_points(path, split, data, noise=0.1)
    try:
        embedding_stage.compute(study)
    finally:
        path.unlink()
    assert (paths.results("synthetic") / "embedding" / "points.csv.xz").read_bytes() == first  # kept projections
    tasks = split.tasks("test")
    write_points(path, split, data, noise=0.1)
    points = released(path, split.test, tasks, data.servers["id"].to_numpy())["embedded"]
    path.unlink()
    servers, related = listed(split.test, tasks)
    theirs = separation(points.distance(), related, depth=DEPTH)
    ours = separation(1 - found.embedded[0][tasks] @ found.embedded[1][servers].T, related, depth=DEPTH)
    table = read("difference.csv").set_index(["plane", "measure"])
    assert len(table) == 4
    for measure in ("recall", "auc"):
        row, exact = table.loc[(False, measure)], (theirs[measure] - ours[measure]).to_numpy()
        assert row["difference"] == pytest.approx(exact.mean(), abs=1e-5)
        assert row["n"] == len(tasks)
        assert row["higher"] == pytest.approx((exact > 1e-5).mean(), abs=1e-5)
        assert row["lower"] == pytest.approx((exact < -1e-5).mean(), abs=1e-5)
        assert row["ci_low"] <= row["difference"] <= row["ci_high"]
    compared = read("separation.csv")
    assert compared.loc[compared["source"] == "authors", "agreement"].tolist() == [1, 1]


def test_the_record_names_model_split_and_settings(study):
    record = read_record(paths.results("synthetic") / "embedding" / "record.json")
    assert record["protocol"] == "cold"
    assert record["settings"]["depth"] == DEPTH
    assert len(record["model"]) == 64
