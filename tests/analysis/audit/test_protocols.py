"""The grid of protocols on synthetic data, and the inference: it finds the protocol that was planted."""

import dataclasses
import shutil

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from study.analysis.audit import protocols, rq1
from study.analysis.audit.protocols import Definition, Protocols, Variant
from study.analysis.audit.verdicts import Verdicts
from study.analysis.framework import load_settings, run_analyses
from study.base import paths
from study.config.compose import build_system, load
from study.data import dataset, splits
from study.evaluation import metrics, runs
from study.runner.identity import BY_PROFILE, CLASSES
from tests.analysis.toys import change, small_study

SIZE = ["dataset=synthetic", "dataset.generator.n_servers=100", "dataset.generator.n_tasks=120"]
BASE = {"labels": "released", "prefix": None, "split": "cold", "training": "train", "negatives": None}
VARIANTS = {"task_split": {}, "task_split_50": {"negatives": 50}, "exposed": {"training": "everything"}}
VARIANTS |= {"interactions": {"split": "warm"}, "leave_one_out": {"split": "loo"}, "longer": {"labels": "longer"}}
VARIANTS |= {"leave_one_out_50": {"split": "loo", "negatives": 50}, "first_3": {"prefix": 3}}
GRID = {name: {"title": name} | BASE | changes for name, changes in VARIANTS.items()}
FILE = "audit/protocols.yaml"
CELLS = list(metrics.PAPER_METRICS)
OF_HISTORY = [(name, "item_knn") for name in ("exposed", "interactions", "leave_one_out", "leave_one_out_50")]
OF_TEXT = [(name, "tfidf") for name in ("task_split_50", "interactions", "longer", "first_3")]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Synthetic data, split, and the whole grid run once."""
    changes = {FILE: {"protocols": GRID, "systems": ["tfidf", "item_knn"], "draws": 200}}
    with small_study(tmp_path_factory.mktemp("grid"), SIZE, changes):
        list(run_analyses(["audit/protocols"], load(SIZE)))
        yield dataset.load("synthetic")


@pytest.fixture(scope="module")
def measured(data):
    return protocols.cells("synthetic", load_settings(Protocols))


@pytest.fixture
def own_copy(data, tmp_path, monkeypatch):
    """A copy whose files a test may change."""
    shutil.copytree(paths.root(), tmp_path / "copy", symlinks=True)
    monkeypatch.setenv("T2M_ROOT", str(tmp_path / "copy"))


def cell_of(protocol, system):
    table = protocols.protocol_fits("synthetic").load()
    return table[(table["protocol"] == protocol) & (table["system"] == system)].reset_index(drop=True)


def inferred(values, system, measured):
    """The nearest protocols of a printed row, of its own system and of others."""
    row = pd.DataFrame([dict(zip(CELLS, values, strict=True)) | {"table": "p", "row": "planted", "own": system}])
    settings = load_settings(Protocols), load_settings(Verdicts)
    return rq1.infer(row, measured, *settings).set_index("question")


@pytest.mark.parametrize(("name", "system"), OF_HISTORY + OF_TEXT)
def test_a_planted_protocol_is_found(data, measured, name, system):
    """From the row, four digits, that a paper would print for a run of its own; the grid ran with another seed."""
    grid = load_settings(Protocols)
    chosen = next(item for item in grid.variants if item.name == name)
    labelled = protocols.replace_lists(data, chosen.labels, chosen.prefix)
    split = protocols.make(labelled, chosen, seed=grid.split_seed)
    model = build_system(load([*SIZE, f"system={system}"]).system)
    printed = runs.run_seed(model, labelled, split, seed=7, workdir=paths.cache()).per_task[CELLS].mean().round(4)
    table = inferred(printed, system, measured)
    best = table.loc["own system"]
    assert best[["variant", "system", "gives"]].tolist() == [name, system, True]
    assert best["definition"] in ("as defined", "F1 of the means")
    assert best["distance"] < 0.005
    assert table.loc["other systems", "distance"] > 2 * best["distance"] + 0.001


@pytest.mark.parametrize(
    ("name", "system", "told"), [("leave_one_out_50", "item_knn", False), ("task_split_50", "tfidf", True)]
)
def test_a_planted_metric_definition_is_found(measured, name, system, told):
    """Hit rate as recall and NDCG over what was found; with one server held out per task hit rate is recall."""
    definitions, title = load_settings(Protocols).metric_definitions, "hit rate as recall, NDCG over what was found"
    planted = next(one for one in measured if (one.variant, one.system) == (name, system))
    row = protocols.printed_form(planted.mean, definitions[title]).round(4)
    best = inferred(row, system, measured).loc["own system"]
    assert best[["variant", "system", "gives"]].tolist() == [name, system, True]
    assert best["distance"] < 1e-4
    assert not told or best["definition"] == title
    # A row that no protocol gives is not given.
    table = inferred([0.5] * 8, "", measured)
    assert table.index.tolist() == ["other systems"]
    assert not table["gives"].any()


def test_cells_are_what_the_evaluator_gives(data):
    split = splits.load(paths.splits("synthetic") / "warm.parquet", data)
    model = build_system(load([*SIZE, "system=item_knn"]).system)
    expected = runs.run_seed(model, data, split, seed=1, workdir=paths.cache()).per_task
    cell = cell_of("interactions", "item_knn").set_index("measure")
    for name in (*CELLS, "hit_rate@10"):
        assert cell.loc[name, "mean"] == pytest.approx(expected[name].mean(), abs=1e-8)
    deviation = expected["ndcg@10"].std() / np.sqrt(len(expected))
    assert np.sqrt(cell.loc["ndcg@10", "covariance ndcg@10"]) == pytest.approx(deviation, rel=1e-4)
    assert (cell["tasks"] == len(expected)).all()
    # A system that needs a history of every test task has no cells elsewhere.
    known = protocols.protocol_fits("synthetic").load().query("system == 'item_knn'")
    assert set(known["protocol"]) == {name for name, _ in OF_HISTORY}


def test_exposed_training_holds_the_answers_candidates_no_other_listed_server_and_labels_can_be_cut_or_longer(data):
    def variant(**changes):
        return Variant(name="v", title="v", **(BASE | changes))

    made = protocols.make(data, variant(training="everything"), seed=42)
    apart = protocols.make(data, variant(), seed=42)
    assert (made.test != apart.test).nnz == 0
    assert made.train.multiply(made.test).nnz == made.test.nnz
    assert apart.train.multiply(apart.test).nnz == 0
    assert made.known("test").nnz == 0
    made = protocols.make(data, variant(split="warm", negatives=20), seed=42)
    tasks = made.tasks("test")
    assert made.candidates.shape == (len(tasks), 20 + np.diff(made.test.indptr).max())
    for task, row in zip(tasks, made.candidates, strict=True):
        asked = set(made.test.indices[made.test.indptr[task] : made.test.indptr[task + 1]])
        assert len(set(row)) == len(row)
        assert set(row) & set(data.lists[task]) == asked
    assert protocols.applicable(variant(negatives=20), ["cold"], data)
    assert not protocols.applicable(variant(negatives=500), ["cold"], data)
    cut, longer = protocols.replace_lists(data, "released", 3), protocols.replace_lists(data, "longer", None)
    assert all((short == full[:3]).all() for short, full in zip(cut.lists, data.lists, strict=True))
    assert cut.relevance.sum() == sum(len(row) for row in cut.lists)
    assert sum(map(len, longer.lists)) > sum(map(len, data.lists))
    table = pd.read_csv(paths.results("synthetic") / "audit" / "protocol_cells.csv.xz")
    assert ((table["ci_low"] <= table["value"] + 1e-6) & (table["value"] <= table["ci_high"] + 1e-6)).all()


def test_measures_by_hand():
    # Relevant: servers 0, 1, 2. Ranked: 0 first, 1 at place 6, 2 at place 11, which only the pool of 12 holds.
    ranked = np.array([[0, 10, 11, 12, 13, 1, 14, 15, 16, 17, 2, 18]])
    relevant = sp.csr_matrix(np.r_[np.ones(3), np.zeros(20)][None].astype(np.float32))
    row = protocols.measures(ranked, relevant).iloc[0]
    discount = 1 / np.log2(np.arange(2, 12))
    assert row["recall@5"] == pytest.approx(1 / 3)
    assert row["recall_capped@10"] == pytest.approx(2 / 3)
    assert row["ndcg_found@5"] == pytest.approx(1.0)
    assert row["ndcg_found@10"] == pytest.approx((discount[0] + discount[5]) / discount[:2].sum())
    assert row["best_recall@10"] == row["best_ndcg@10"] == pytest.approx(1.0)
    assert row["best_precision@5"] == pytest.approx(0.6)


def test_metric_definitions_by_hand():
    names = [f"{name}@{k}" for name in ("recall", "hit_rate", "precision", "f1", "ndcg", "ndcg_found") for k in (5, 10)]
    means = pd.Series([0.1, 0.2, 0.5, 0.6, 0.3, 0.2, 0.11, 0.12, 0.4, 0.45, 0.7, 0.8], names)
    plain = protocols.printed_form(means, Definition("recall", "f1", "ndcg"))
    assert plain.tolist() == [0.1, 0.2, 0.3, 0.2, 0.11, 0.12, 0.4, 0.45]
    other = protocols.printed_form(means, Definition("hit_rate", "of_means", "ndcg_found"))
    assert other == pytest.approx([0.5, 0.6, 0.3, 0.2, 0.375, 0.3, 0.7, 0.8])
    assert protocols.distance(plain, plain + 0.1) == pytest.approx(0.1)


def test_a_stopped_grid_goes_on_and_ends_with_the_same_values(own_copy, monkeypatch):
    """Of the fits some stand in the table, one in the cache, and two are missing; nothing is run twice."""
    fits, folder = protocols.protocol_fits("synthetic"), paths.results("synthetic") / "audit"
    before = {path.name: path.read_bytes() for path in folder.glob("*.csv*")}
    table = fits.load()
    missing = table["system"].eq("item_knn") & table["protocol"].eq("interactions")
    missing |= table["system"].eq("tfidf") & table["protocol"].eq("first_3")
    cached = table["system"].eq("tfidf") & table["protocol"].eq("longer")
    assert missing.sum() == cached.sum() * 2
    table[~missing & ~cached].to_parquet(fits.path)
    fits.add(table[cached])
    calls, once = [], protocols.build_system
    monkeypatch.setattr(protocols, "build_system", lambda system: (calls.append(1), once(system))[1])
    for _ in range(2):
        list(run_analyses(["audit/protocols"], load(SIZE)))
        assert len(calls) == 2
        assert {path.name: path.read_bytes() for path in folder.glob("*.csv*")} == before
    # Another setting is another cell; a class that was renamed since and a size that was written by profile are not.
    kept = fits.load()
    now = load([*SIZE, "system=tfidf"]).system.model
    places = int(now.max_features)
    earlier = {f'"{now._target_}"': '"old.Name"'}
    earlier[f'"max_features":{places}'] = f'"max_features":{{"_target_":"{BY_PROFILE}","profile":"a","a":{places}}}'
    for new, old in earlier.items():
        assert kept["settings"].str.contains(new, regex=False).any()
        kept["settings"] = kept["settings"].str.replace(new, old, regex=False)
    kept.to_parquet(fits.path)
    monkeypatch.setitem(CLASSES, "old.Name", now._target_)
    list(run_analyses(["audit/protocols"], load(SIZE)))
    assert len(calls) == 2
    pd.testing.assert_frame_equal(fits.load(), kept)
    change(FILE, protocols=GRID | {"first_3": GRID["first_3"] | {"prefix": 2}})
    list(run_analyses(["audit/protocols"], load(SIZE)))
    assert len(calls) == 3


def test_the_root_of_a_covariance_depends_on_no_basis_of_eigenvectors():
    """Two measures are the same here, as recall and capped recall often are, so the matrix is singular."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 4))
    covariance = np.cov(np.column_stack([values, values[:, 0]]).T)
    root = protocols.symmetric_root(covariance)
    np.testing.assert_allclose(root @ root, covariance, atol=1e-12)
    order = rng.permutation(5)
    turned = protocols.symmetric_root(covariance[np.ix_(order, order)])
    np.testing.assert_allclose(turned, root[np.ix_(order, order)], atol=1e-7)
    np.testing.assert_allclose(root, root.T, atol=1e-12)


def test_more_seeds_do_not_narrow_the_interval_over_tasks(own_copy):
    grid = load_settings(Protocols)
    alone = protocols.cells("synthetic", grid)[0]
    fits = protocols.protocol_fits("synthetic")
    fits.add(cell_of(alone.variant, alone.system).assign(seed=2))
    both = protocols.cells("synthetic", dataclasses.replace(grid, seeds=[1, 2]))[0]
    assert (alone.seeds, both.seeds) == (1, 2)
    assert both.draws.std().to_numpy() == pytest.approx(alone.draws.std().to_numpy())
