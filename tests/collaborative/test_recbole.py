"""RecBole behind the bridge: what goes in, what comes out, what cannot leak, and what happens when it is killed."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from baseline_toys import N_SERVERS, block_dataset, build, copy_dataset, recall10, top10, with_other_answers

from baselines.ease import Ease
from baselines.knn_transfer import KnnTransfer
from baselines.neighbours import ItemKNN
from baselines.recbole_bridge import RecBole, bridge
from baselines.recbole_bridge.bridge import LOG_FILE, count_known
from study import config
from study.data.splits import make
from study.errors import StudyError

MODELS = ("neumf", "ngcf", "lightgcn", "bpr", "multivae", "simplex")
BATCH = Path(__file__).with_name("recbole_batch.py")
# A toy of 240 pairs makes one step per epoch, so the steps are large. With more of them the layered models learn by
# heart which servers of the block were not in training.
EPOCHS = {"bpr": 60}


def toy(name, epochs=None, patience=None):
    epochs = epochs or EPOCHS.get(name, 20)
    settings = {"settings.learning_rate": 0.02, "epochs": epochs, "evaluate_every": 4}
    return build(name, **settings, patience="null" if patience is None else patience)


def interruptible():
    """A training with a checkpoint after every epoch."""
    return replace(build("lightgcn", epochs=40, evaluate_every=1, patience=40), checkpoint_seconds=0)


def folder_of(system, data, split, workdir, seed=1):
    folder = workdir / "recbole"
    system._write_job(folder, data, split, seed)
    return folder


def start(*arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(BATCH), *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def blocks():
    data = block_dataset()
    return data, make(data, "warm")


@pytest.fixture(scope="module")
def fitted(blocks, tmp_path_factory):
    """Every model, fitted in several ways by one process: (model, way) -> system."""
    data, split = blocks
    root = tmp_path_factory.mktemp("recbole")
    cold_copies, copies = copy_dataset()
    other_test = with_other_answers(data, split, ("test",))
    other_both = with_other_answers(data, split, ("valid", "test"))
    wanted = {}
    for name in MODELS:
        wanted[name, "plain"] = (toy(name), data, split, 1)
        wanted[name, "again"] = (toy(name), data, split, 1)
        wanted[name, "other valid and test"] = (toy(name), *other_both, 1)
        wanted[name, "stops early"] = (toy(name, epochs=8, patience=1), data, split, 1)
        wanted[name, "stops early, other test"] = (toy(name, epochs=8, patience=1), *other_test, 1)
        wanted[name, "other seed"] = (toy(name, epochs=2), data, split, 2)
    for name in ("neumf", "ngcf", "lightgcn"):
        wanted[name, "cold"] = (toy(name, epochs=10), cold_copies, copies, 1)
    wanted["lightgcn", "undisturbed"] = (interruptible(), data, split, 1)
    wanted["ItemKNN", "theirs"] = (RecBole("ItemKNN", {"k": 1000, "shrink": 0.7}), data, split, 1)
    wanted["EASE", "theirs"] = (RecBole("EASE", {"reg_weight": 10.0}), data, split, 1)
    folders = {}
    for number, (key, (system, *inputs, seed)) in enumerate(wanted.items()):
        folders[key] = root / str(number)
        folder_of(system, *inputs, folders[key], seed)
    # Some servers without training interactions, as in the real split.
    gaps = replace(split, train=sp.csr_matrix(split.train.multiply(np.arange(N_SERVERS) > 2)))
    checked = [folder_of(toy(name), data, gaps, root / name) for name in ("lightgcn", "ngcf", "neumf", "bpr")]
    differences = start(*(folder / "recbole" for folder in folders.values()), "--check", *checked)
    for key, (system, *inputs, seed) in wanted.items():
        system.fit(*inputs, seed=seed, workdir=folders[key])  # finds its training complete
    return {key: system for key, (system, *_) in wanted.items()} | {"differences": differences}


def said(system, split, part="test"):
    return system.score(split.tasks(part))


@pytest.mark.parametrize("name", MODELS)
def test_blocks_are_told_apart(name, fitted, blocks):
    data, split = blocks
    system = fitted[name, "plain"]
    own = (top10(system, data, split)[:, :5] >= N_SERVERS // 2) == (split.tasks("test") >= data.n_tasks // 2)[:, None]
    assert own.mean() >= 0.95
    assert recall10(top10(system, data, split), split).mean() >= 0.95


@pytest.mark.parametrize("name", MODELS)
def test_scores_cover_the_catalogue_and_seeds_decide(name, fitted, blocks):
    data, split = blocks
    scores = said(fitted[name, "plain"], split)
    assert scores.shape == (len(split.tasks("test")), data.n_servers)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(said(fitted[name, "again"], split), scores)
    assert (said(fitted[name, "other seed"], split) != scores).any()
    assert fitted[name, "plain"].parameters() > data.n_servers


@pytest.mark.parametrize("name", MODELS)
def test_held_out_labels_change_no_score(name, fitted, blocks):
    _, split = blocks
    assert not fitted[name, "plain"].uses_validation
    np.testing.assert_array_equal(said(fitted[name, "other valid and test"], split), said(fitted[name, "plain"], split))
    assert fitted[name, "stops early"].uses_validation
    np.testing.assert_array_equal(
        said(fitted[name, "stops early, other test"], split), said(fitted[name, "stops early"], split)
    )
    assert fitted[name, "stops early"].facts["validation_ndcg"] > 0


@pytest.mark.parametrize("name", ["neumf", "ngcf", "lightgcn"])
def test_new_tasks_are_not_ranked_by_untrained_embeddings(name, fitted):
    _, copies = copy_dataset()
    assert np.isneginf(said(fitted[name, "cold"], copies)).all()
    assert np.isfinite(said(fitted[name, "cold"], copies, "train")).all()


@pytest.mark.parametrize("name", ["neumf", "ngcf", "lightgcn"])
def test_a_copy_gets_the_scores_of_its_training_task(name, fitted, tmp_path):
    data, copies = copy_dataset()
    base = fitted[name, "cold"]
    system = KnnTransfer(base, k=[1], power=[1.0])
    system.content.fit(data, copies, seed=1, workdir=tmp_path)
    system.known, system.order, system.chosen = copies.tasks("train"), np.arange(20), (1, 1.0)
    np.testing.assert_allclose(said(system, copies), said(base, copies, "train"), rtol=1e-4, atol=1e-6)


def test_models_without_vectors_say_that_they_cannot_transfer(fitted):
    with pytest.raises(StudyError, match="MultiVAE has no task vectors"):
        _ = fitted["multivae", "plain"].representations


def test_our_closed_forms_equal_theirs(fitted, blocks, tmp_path):
    data, split = blocks
    for ours, theirs in ((ItemKNN(shrink=0.7), "ItemKNN"), (Ease(10.0), "EASE")):
        ours.fit(data, split, seed=1, workdir=tmp_path)
        np.testing.assert_allclose(said(ours, split), said(fitted[theirs, "theirs"], split), rtol=1e-3, atol=1e-4)


def test_our_short_cuts_equal_recboles_own_code(fitted):
    told = fitted["differences"]
    assert sorted(told) == ["bpr", "lightgcn", "neumf", "ngcf"]
    for difference in told.values():
        assert difference["scores"] < 1e-5 < difference["spread"]
    assert told["lightgcn"]["adjacency"] < 1e-6
    assert told["ngcf"]["adjacency"] < 1e-6


def test_files_name_all_tasks_and_servers_but_only_training_pairs(blocks, tmp_path):
    data, split = blocks
    folder = folder_of(toy("bpr"), data, split, tmp_path)
    pairs = [line.split("\t") for line in (folder / "data" / "data.train.inter").read_text().splitlines()[1:]]
    assert sorted((int(task), int(server)) for task, server in pairs) == sorted(
        zip(*split.train.nonzero(), strict=True)
    )
    assert (folder / "data" / "data.user").read_text().splitlines()[1:] == [str(row) for row in range(data.n_tasks)]
    assert (folder / "data" / "data.item").read_text().splitlines()[1:] == [str(row) for row in range(data.n_servers)]
    assert not (folder / "valid.npz").exists()
    assert (folder_of(toy("bpr", patience=1), data, split, tmp_path / "early") / "valid.npz").exists()


def test_warm_and_cold_are_counted_and_said(caplog, monkeypatch, blocks, tmp_path):
    data, split = blocks
    train = split.train.tolil()
    train[3], train[:, 7] = 0, 0
    train = sp.csr_matrix(train)
    train.eliminate_zeros()
    assert count_known(train) == {"warm_tasks": 39, "cold_tasks": 1, "warm_servers": 29, "cold_servers": 1}
    monkeypatch.setattr(RecBole, "_train", lambda *_: pytest.skip("reached training"))
    with caplog.at_level(logging.INFO), pytest.raises(pytest.skip.Exception):
        RecBole("BPR").fit(data, replace(split, train=train), seed=1, workdir=tmp_path)
    assert "39 warm tasks, 1 cold tasks, 29 warm servers, 1 cold servers" in caplog.text


def test_stopping_on_validation_needs_trained_validation_tasks(tmp_path):
    data = block_dataset()
    with pytest.raises(StudyError, match="no validation task has training interactions"):
        RecBole("BPR", patience=3).fit(data, make(data, "cold"), seed=1, workdir=tmp_path)


def test_a_killed_training_is_reported_and_resumes_to_the_same_scores(fitted, blocks, tmp_path, monkeypatch):
    data, split = blocks
    started = []

    def run(command, **settings):
        settings.pop("check")
        started.append(subprocess.Popen(command, **settings))
        return subprocess.CompletedProcess(command, started[-1].wait())

    monkeypatch.setattr(bridge.subprocess, "run", run)

    caught, killed = [], interruptible()

    def fit():
        try:
            killed.fit(data, split, seed=1, workdir=tmp_path / "killed")
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=fit)
    thread.start()
    deadline = time.monotonic() + 60
    while (
        thread.is_alive() and not (tmp_path / "killed/recbole/checkpoint.pt").exists() and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    assert thread.is_alive()
    started[0].kill()
    thread.join()
    assert [type(error) for error in caught] == [StudyError]
    assert "RecBole's LightGCN stopped with exit code -9" in str(caught[0])
    assert str(tmp_path / "killed/recbole" / LOG_FILE) in str(caught[0])
    assert not (tmp_path / "killed/recbole/facts.json").exists()

    resumed, undisturbed = interruptible(), fitted["lightgcn", "undisturbed"]
    resumed.fit(data, split, seed=1, workdir=tmp_path / "killed")
    assert "goes on after epoch" in (tmp_path / "killed/recbole" / LOG_FILE).read_text()
    np.testing.assert_array_equal(said(resumed, split), said(undisturbed, split))
    assert without_seconds(resumed) == without_seconds(undisturbed)
    resumed.fit(data, split, seed=1, workdir=tmp_path / "killed")
    assert len(started) == 2  # complete: nothing is trained again


def without_seconds(system):
    return {name: value for name, value in system.facts.items() if name != "seconds_trained"}


def test_leave_one_out_with_and_without_sampled_negatives_is_one_training(tmp_path, monkeypatch):
    data = block_dataset()
    loo, sampled = make(data, "loo"), make(data, "loo99", negatives=5)
    system, again, other = (replace(build("lightgcn", epochs=2), patience=None) for _ in range(3))
    monkeypatch.setattr(bridge.paths, "cache", lambda: tmp_path)
    system.fit(data, loo, seed=1, workdir=tmp_path / "loo")
    assert system.report()["epochs"] == 2
    assert system.report()["seconds_trained"] > 0
    monkeypatch.setattr(bridge.subprocess, "run", None)
    again.fit(data, sampled, seed=1, workdir=tmp_path / "loo99")
    np.testing.assert_array_equal(said(again, sampled), said(system, loo))
    assert again.report() == system.report()
    with pytest.raises(TypeError, match="NoneType"):  # another seed is another training
        other.fit(data, sampled, seed=2, workdir=tmp_path / "other")


def test_an_error_in_recbole_names_the_model_and_the_log(blocks, tmp_path):
    data, split = blocks
    with pytest.raises(StudyError, match=r"NoSuchModel.*No module named 'recbole.*nosuchmodel") as caught:
        RecBole("NoSuchModel", epochs=1).fit(data, split, seed=1, workdir=tmp_path)
    assert caught.value.file == tmp_path / "recbole" / LOG_FILE


@pytest.mark.parametrize("name", [*MODELS, *(f"{name}_tuned" for name in MODELS)])
def test_search_spaces_name_settings_that_exist(name):
    system = config.plain(config.load([f"system={name}"]))["system"]
    for key in system["search"]:
        part, _, setting = key.partition(".")
        assert part == "settings"
        assert setting in system["model"]["settings"]


@pytest.mark.parametrize("name", ["item_knn", "ease", "neumf", "ngcf", "lightgcn"])
def test_a_transferred_system_is_the_system_itself_but_for_its_stopping_rule(name):
    own, base = (
        config.plain(config.load([f"system={each}"]))["system"]["model"] for each in (f"{name}_transfer", name)
    )
    for model in (own["base"], base):
        model.pop("epochs", None)
        model.pop("patience", None)
    assert own["base"] == base
