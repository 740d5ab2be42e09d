"""Agreement of a task's parts: AUC against scikit-learn, planted agreement and independence, the read sample."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import roc_auc_score

from study import paths
from study.analysis.audit import tasks as audited
from study.analysis.audit.figures_labels import plot_task_quality
from study.analysis.audit.settings import TaskQuality, read
from study.config import compose as config
from study.errors import StudyError
from tests.analysis.toys import toy

SETTINGS = read(TaskQuality)
WORDS = [f"word{row}" for row in range(50)]
sides = arrays(np.float64, st.integers(2, 12), elements=st.integers(0, 5).map(float))


def vectors(texts):
    """Unit vectors that are equal for equal first words, in place of the encoder."""
    rng = np.random.default_rng(0)
    table = {word: rng.normal(size=24) for word in [*WORDS, ""]}
    found = np.array([table[text.split(" ")[0]] for text in texts], dtype=np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def tasks_of(n=300, seed=0):
    """Description agrees with the name in all tasks but the first 100; the theme never does."""
    rng = np.random.default_rng(seed)
    names, other = rng.choice(WORDS, n), rng.choice(WORDS, n)
    description = np.where(np.arange(n) < 100, other, names)
    tasks = {"name": names, "description": description, "theme": rng.choice(WORDS, n)}
    return toy(tasks | {"subcategory": np.array(WORDS)[np.arange(n) % 3]}, [[0]] * n, 3)


@pytest.fixture(autouse=True)
def _quick_encoder(monkeypatch):
    monkeypatch.setattr(audited, "encode", vectors)


@given(sides, sides)
def test_auc_is_scikit_learns(own, shuffled):
    truth = np.r_[np.ones(len(own)), np.zeros(len(shuffled))]
    assert audited.auc(own, shuffled) == pytest.approx(roc_auc_score(truth, np.r_[own, shuffled]))


def test_the_error_of_the_auc_is_its_spread_over_samples():
    rng = np.random.default_rng(0)
    drawn = [(rng.normal(0.7, 1, 60), rng.normal(0, 1, 90)) for _ in range(400)]
    spread = np.std([audited.auc(*pair) for pair in drawn], ddof=1)
    said = np.mean([audited.auc_error(*pair) for pair in drawn])
    assert said == pytest.approx(spread, rel=0.12)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 50))
def test_partners_are_of_the_group_and_never_oneself(groups, seed):
    groups = np.array(groups)
    partner = audited.derangements(groups, np.random.default_rng(seed))
    alone = np.bincount(groups)[groups] == 1
    np.testing.assert_array_equal(partner < 0, alone)
    own = np.flatnonzero(~alone)
    np.testing.assert_array_equal(groups[partner[own]], groups[own])
    assert (partner[own] != own).all()
    assert len(set(partner[own])) == len(own)


def test_planted_agreement_and_independence_are_told_apart():
    data = tasks_of()
    table = audited.quality_table(data, replace(SETTINGS, boundary=100))
    rows = table[table["shuffled_in"] == "all tasks"].set_index(["block", "left", "right"])
    independent, agreeing = (rows.loc[(block, "name", "description")] for block in ("up to task 100", "after task 100"))
    assert independent["auc_ci_low"] < 0.5 < independent["auc_ci_high"]
    assert independent["below_ci_low"] < 0.5 < independent["below_ci_high"]
    assert agreeing["auc"] > 0.97
    assert agreeing["below"] == 0
    theme = rows.loc[("all", "name", "theme")]
    assert theme["auc_ci_low"] < 0.5 < theme["auc_ci_high"]
    # Agreement of a pair that only shares its subcategory vanishes within it.
    words = data.tasks["subcategory"]
    same = replace(data, tasks=data.tasks.assign(name=words, description=words))
    table = audited.quality_table(same, replace(SETTINGS, pairs=[["name", "description"]], boundary=None))
    by_scope = table.set_index("shuffled_in")["auc"]
    assert by_scope["all tasks"] > 0.8
    assert by_scope["within subcategory"] == pytest.approx(0.5)
    # Too few tasks are an error.
    one = vectors(["word1"])
    with pytest.raises(StudyError, match="too few"):
        audited.agreement(one, one, np.zeros(1, dtype=np.int64), 2, 0.5, 0)


def sample_file(path, data, settings, code=None):
    """A file in which the reader saw exactly which descriptions were exchanged."""
    ids = data.tasks["id"].to_numpy()[audited.sample_rows(data.n_tasks, settings.sample, settings.seed)]
    lines = [f"{number},{code or ('contradictory' if number <= 100 else 'coherent')}" for number in ids]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("# who read it\ntask_id,code\n" + "\n".join(lines) + "\n")
    return path


def test_reading_and_similarity_agree_on_what_was_planted_and_other_tasks_or_codes_are_refused(tmp_path):
    data, settings = tasks_of(), replace(SETTINGS, boundary=None, sample=90)
    codes = audited.read_sample(sample_file(tmp_path / "read.csv", data, settings), data, settings)
    table = audited.reading_table(codes, data, settings).set_index("code")
    assert table["tasks"].sum() == 90
    assert table.loc["partly", "tasks"] == 0
    assert table.loc["coherent", "auc"] > 0.95
    assert table.loc["coherent", "similarity_place"] > 0.97 > table.loc["contradictory", "place_ci_high"]
    assert (table["ci_low"] <= table["share"]).all()
    with pytest.raises(StudyError, match="sampled tasks"):
        audited.read_sample(tmp_path / "read.csv", data, replace(settings, seed=settings.seed + 1))
    with pytest.raises(StudyError, match="unknown code"):
        audited.read_sample(sample_file(tmp_path / "bad.csv", data, settings, "fine"), data, settings)


def test_the_stage_joins_the_reading_where_there_is_one(new_results, monkeypatch):
    data = tasks_of()
    monkeypatch.setattr(audited, "load", lambda name: data)
    settings = config.load(["dataset=synthetic"])
    assert [path.stem for path in audited.compute_quality(settings)] == ["task_quality"]
    sample_file(new_results / "audit" / "task_quality_read.csv", data, SETTINGS)
    tables = {path.stem: pd.read_csv(path) for path in audited.compute_quality(settings)}
    assert set(tables) == {"task_quality", "task_quality_reading"}
    assert (tables["task_quality_reading"].groupby("block")["share"].sum() - 1).abs().max() < 1e-5
    plot_task_quality(tables).canvas.draw()
    plot_task_quality({"task_quality": tables["task_quality"]}).canvas.draw()


def test_the_sample_is_the_seeds_and_that_of_the_committed_reading():
    """No task stands in it twice, every task has a code that the rubric knows, and no text stands in the file."""
    rows = audited.sample_rows(500, 100, 3).tolist()
    assert len(set(rows)) == 100
    assert rows == sorted(rows) == audited.sample_rows(500, 100, 3).tolist()
    assert rows != audited.sample_rows(500, 100, 4).tolist()
    path = paths.root() / "results" / "task2mcp" / "audit" / "task_quality_read.csv"
    frame = pd.read_csv(path, comment="#")
    wanted = np.arange(1, 4802)[audited.sample_rows(4801, SETTINGS.sample, SETTINGS.seed)]
    assert frame["task_id"].tolist() == wanted.tolist()
    assert set(frame["code"]) <= set(audited.CODES)
    assert list(frame.columns) == ["task_id", "code"]
