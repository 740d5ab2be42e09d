"""RecBole's models behind the bridge, all fitted by one process: what they learn, what cannot leak, how they resume."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from baselines import recbole_bridge
from baselines.ease import Ease
from baselines.neighbours import ItemKNN
from baselines.recbole_bridge import LOG_FILE, RecBole
from study.data.splits import make
from study.errors import StudyError
from tests.baselines.recbole_toys import (
    EVERY_MODEL,
    RECBOLE,
    SYSTEMS,
    TRANSFERS,
    folder_of,
    interruptible,
    said,
    toy,
    toy_planted,
)
from tests.baselines.toys import (
    N_SERVERS,
    N_TASKS,
    bare,
    copy_dataset,
    fit,
    group_copies,
    own_block,
    recall10,
    relabelled,
    top10,
    with_other_answers,
    without_training,
)

N_GAPS = 3
BATCH = Path(__file__).with_name("recbole_batch.py")
# Name, protocol, how far the quality may move when servers are relabelled.
ASKED = [*((name, "warm", 0.05) for name in EVERY_MODEL), *((name, "cold", 0.1) for name in TRANSFERS)]


def start(*arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(BATCH), *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# Small graphs for the untrained models: the model, its settings, the training interactions. No task lists the last
# server, since RecBole takes no task that lists all.
GRAPHS = {
    "pairs": ("NGCF", {"embedding_size": 2, "hidden_size_list": [2]}, [[1, 1, 0], [0, 1, 0]]),
    "square": ("LightGCN", {"n_layers": 1}, [[1] * 3 + [0]] * 3),
    "wide": ("LightGCN", {"n_layers": 1}, [[1] * 8 + [0]] * 2),
    "no_layer": ("LightGCN", {"n_layers": 0, "reg_weight": 0.0}, np.ones((3, 8)) - np.eye(3, 8)),
}
FIFTY = np.random.default_rng(0).permuted(np.tile(np.arange(12) < 5, (10, 1)), axis=1)


@pytest.fixture(scope="module")
def fitted(blocks, planted, tmp_path_factory):
    """Every model, fitted in several ways by one process: (model, way) -> system."""
    data, split = blocks
    root = tmp_path_factory.mktemp("recbole")
    cold = make(data, "cold")
    # Some servers without training interactions, as in the real split.
    gaps = without_training(split, np.arange(N_GAPS))
    other_test = with_other_answers(data, split, ("test",))
    other_both = with_other_answers(data, split, ("valid", "test"))
    wanted = {}
    for name in EVERY_MODEL:
        wanted[name, "plain"] = (toy(name), data, split, 1)
        wanted[name, "other valid and test"] = (toy(name), *other_both, 1)
        wanted[name, "stops early"] = (toy(name, epochs=8, patience=1), data, split, 1)
        wanted[name, "stops early, other test"] = (toy(name, epochs=8, patience=1), *other_test, 1)
        wanted[name, "other seed"] = (toy(name, epochs=2), data, split, 2)
        wanted[name, "relabelled"] = (toy(name), *relabelled(data, split)[:2], 1)
        wanted[name, "planted"] = (toy_planted(name), planted, make(planted, "warm"), 1)
    for name in TRANSFERS:
        wanted[name, "plain"] = (toy(name), data, cold, 1)
        wanted[name, "other test"] = (toy(name), *with_other_answers(data, cold, ("test",)), 1)
        wanted[name, "relabelled"] = (toy(name), *relabelled(data, cold)[:2], 1)
        wanted[name, "copies"] = (toy(name), *group_copies(), 1)
        wanted[name, "one neighbour"] = (replace(toy(name, epochs=10), k=[1], power=[1.0]), *copy_dataset(), 1)
        wanted[name, "planted"] = (toy_planted(name), planted, make(planted, "cold"), 1)
    wanted["lightgcn", "gaps"] = (toy("lightgcn"), data, gaps, 1)
    wanted["ngcf", "one layer"] = (toy("ngcf", epochs=1, hidden_size_list="[64]"), data, split, 1)
    overfit = {"dropout_prob": 0.0, "learning_rate": 0.02, "train_neg_sample_args": {"sample_num": 4}}
    wanted["neumf", "fifty pairs"] = (RecBole("NeuMF", overfit, epochs=150, evaluate_every=150), *bare(FIFTY), 1)
    wanted["lightgcn", "undisturbed"] = (interruptible(), data, split, 1)
    wanted["ItemKNN", "theirs"] = (RecBole("ItemKNN", {"k": 1000, "shrink": 0.7}), data, split, 1)
    wanted["EASE", "theirs"] = (RecBole("EASE", {"reg_weight": 10.0}), data, split, 1)
    folders = {}
    for number, (key, (system, *inputs, seed)) in enumerate(wanted.items()):
        folders[key] = root / str(number)
        folder_of(system, *inputs, folders[key], seed)
    checked = [folder_of(toy(name), data, gaps, root / name) for name in ("lightgcn", "ngcf", "neumf", "bpr")]
    graphs = [
        folder_of(RecBole(model, settings), *bare(train), root / name)
        for name, (model, settings, train) in GRAPHS.items()
    ]
    told = start(*(folder / "recbole" for folder in folders.values()), "--check", *checked, "--inspect", *graphs)
    for key, (system, *inputs, seed) in wanted.items():
        system.fit(*inputs, seed=seed, workdir=folders[key])  # finds its training complete
    return {key: system for key, (system, *_) in wanted.items()} | told


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_blocks_are_told_apart_and_seeds_decide(name, fitted, blocks):
    data, split = blocks
    system = fitted[name, "plain"]
    scores = said(system, split)
    assert scores.shape == (len(split.tasks("test")), data.n_servers)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all()
    # Chance leaves about a third: most servers of the own half are known and left out.
    assert own_block(top10(system, data, split)[:, :5], data, split) >= 0.95
    assert recall10(system, data, split).mean() >= 0.9
    assert (said(fitted[name, "other seed"], split) != scores).any()
    assert system.parameters() > data.n_servers


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_held_out_labels_change_no_score(name, fitted, blocks):
    """Also that the same seed gives the same scores: what is trained on is the same."""
    plain, other, early, early_other = (
        fitted[name, way] for way in ("plain", "other valid and test", "stops early", "stops early, other test")
    )
    assert not plain.uses_validation
    np.testing.assert_array_equal(said(other, blocks[1]), said(plain, blocks[1]))
    assert early.uses_validation
    np.testing.assert_array_equal(said(early_other, blocks[1]), said(early, blocks[1]))
    assert early.facts["validation_ndcg"] > 0


# Transfer to new tasks


@pytest.mark.parametrize("name", TRANSFERS)
def test_a_copy_gets_the_scores_of_its_training_task_and_not_those_of_its_untrained_embedding(name, fitted):
    _, copies = copy_dataset()
    system = fitted[name, "one neighbour"]
    assert np.isneginf(said(system.base, copies)).all()
    assert np.isfinite(said(system.base, copies, "train")).all()
    np.testing.assert_allclose(said(system, copies), said(system, copies, "train"), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TRANSFERS)
def test_transfer_finds_copies_tells_blocks_apart_and_reads_no_test_label(name, fitted, cold_blocks):
    assert recall10(fitted[name, "copies"], *group_copies()).mean() == 1
    system, split = fitted[name, "plain"], cold_blocks[1]
    assert own_block(top10(system, *cold_blocks), *cold_blocks) >= 0.95
    assert system.uses_validation
    np.testing.assert_array_equal(said(fitted[name, "other test"], split), said(system, split))


# Models and transfers alike


@pytest.mark.parametrize(("name", "protocol", "tolerance"), ASKED)
def test_relabelled_servers_leave_the_quality_which_is_five_times_the_floor(
    name, protocol, tolerance, fitted, blocks, planted, floor
):
    toys = blocks[0], make(blocks[0], protocol)
    moved = relabelled(*toys)[:2]
    plain, other = (recall10(fitted[name, way], *each).mean() for way, each in (("plain", toys), ("relabelled", moved)))
    assert other == pytest.approx(plain, abs=tolerance)
    assert recall10(fitted[name, "planted"], planted, make(planted, protocol)).mean() > floor[protocol]


# The models themselves


def test_neumf_learns_fifty_pairs_by_heart(fitted):
    assert FIFTY.sum() == 50
    chance = 1 / (1 + np.exp(-fitted["neumf", "fifty pairs"].score(np.arange(10)).astype(float)))
    assert -np.log(np.where(FIFTY, chance, 1 - chance)).mean() < 0.02


def test_ngcf_by_hand(fitted):
    # Task 0 lists servers 0 and 1, task 1 server 1: the edges weigh 1/sqrt(2), 1/2 and 1/sqrt(2).
    told, r = fitted["inspected"]["pairs"], np.sqrt(0.5)
    embeddings = np.array([[1, 0], [0, 1], [1, 1], [2, 0]])
    passed = np.array([[r + 1, r], [2 * r, 0], [r, 0], [1 / 2, r]])
    np.testing.assert_array_equal(told["embeddings"][:4], embeddings)
    np.testing.assert_allclose(told["linear"][:4], passed + embeddings, rtol=1e-6)
    # W_1 = I and W_2 = -2 I; the first entry is negative, and LeakyReLU leaves a fifth of it.
    before = [[r + 2 - 2 * (r + 1), r], [2 * r, 1], [r + 1 - 2 * r, 1], [1 / 2 + 2 - 2, r]]
    after = np.array([[-r / 5, r], *before[1:]])
    after /= np.linalg.norm(after, axis=1, keepdims=True)
    np.testing.assert_allclose(told["learned"][:4], np.hstack([embeddings, after]), atol=1e-6)


@pytest.mark.parametrize(("name", "n_tasks", "factor"), [("square", 3, 1.0), ("wide", 2, 2.0)])
def test_lightgcn_on_a_complete_graph_takes_means(name, n_tasks, factor, fitted):
    told = {key: np.array(fitted["inspected"][name][key]) for key in ("embeddings", "learned")}
    passed = 2 * told["learned"] - told["embeddings"]  # one layer, averaged with the embeddings
    tasks, servers = told["embeddings"][:n_tasks], told["embeddings"][n_tasks:-1]
    np.testing.assert_allclose(passed[:n_tasks], np.tile(factor * servers.mean(axis=0), (n_tasks, 1)), atol=1e-6)
    np.testing.assert_allclose(passed[n_tasks:-1], np.tile(tasks.mean(axis=0) / factor, (len(servers), 1)), atol=1e-6)


def test_lightgcn_without_layers_is_bpr_mf(fitted):
    told = fitted["inspected"]["no_layer"]
    assert told["learned"] == told["embeddings"]
    ours, bpr = told["losses"]
    assert ours == pytest.approx(bpr, rel=1e-6)


def test_servers_without_training_interactions_sink(fitted, blocks):
    _, split = blocks
    scores = said(fitted["lightgcn", "gaps"], split)
    second = split.tasks("test") >= N_TASKS // 2
    own = np.where(second[:, None], scores[:, N_SERVERS // 2 :], scores[:, : N_SERVERS // 2])
    listed = np.where(second, own.min(axis=1), own[:, N_GAPS:].min(axis=1))
    assert (scores[:, :N_GAPS].max(axis=1) < listed).mean() >= 0.95


def test_depth_may_be_written_as_text(fitted):
    per_layer = 2 * (64 * 64 + 64)
    assert fitted["ngcf", "one layer"].parameters() == fitted["ngcf", "plain"].parameters() - 2 * per_layer


def test_every_system_in_a_subprocess_is_tested_here():
    assert {"bpr", "lightgcn", "multivae", "neumf", "ngcf", "simplex"} <= set(EVERY_MODEL)
    assert {"neumf_transfer", "ngcf_transfer", "lightgcn_transfer"} <= set(TRANSFERS)
    models = {name: own.model.get("base", own.model)._target_ for name, own in SYSTEMS.items()}
    assert models == dict.fromkeys(SYSTEMS, RECBOLE)  # another program's systems need tests of their own


def test_models_without_vectors_say_that_they_cannot_transfer(fitted):
    with pytest.raises(StudyError, match="MultiVAE has no task vectors"):
        _ = fitted["multivae", "plain"].representations


def test_our_closed_forms_equal_theirs(fitted, blocks):
    for ours, theirs in ((ItemKNN(shrink=0.7), "ItemKNN"), (Ease(10.0), "EASE")):
        expected = said(fitted[theirs, "theirs"], blocks[1])
        np.testing.assert_allclose(said(fit(ours, *blocks), blocks[1]), expected, rtol=1e-3, atol=1e-4)


def test_our_short_cuts_equal_recboles_own_code(fitted):
    told = fitted["differences"]
    assert sorted(told) == ["bpr", "lightgcn", "neumf", "ngcf"]
    for difference in told.values():
        assert difference["scores"] < 1e-5 < difference["spread"]
    assert told["lightgcn"]["adjacency"] < 1e-6
    assert told["ngcf"]["adjacency"] < 1e-6


def test_a_killed_training_is_reported_and_resumes_to_the_same_scores(fitted, blocks, tmp_path, monkeypatch):
    data, split = blocks
    started = []

    def run(command, **settings):
        settings.pop("check")
        started.append(subprocess.Popen(command, **settings))
        return subprocess.CompletedProcess(command, started[-1].wait())

    monkeypatch.setattr(recbole_bridge.subprocess, "run", run)

    caught, killed, checkpoint = [], interruptible(), tmp_path / "killed/recbole/checkpoint.pt"

    def train():
        try:
            fit(killed, data, split, tmp_path / "killed")
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    deadline = time.monotonic() + 60
    while thread.is_alive() and not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert thread.is_alive()
    started[0].kill()
    thread.join()
    assert [type(error) for error in caught] == [StudyError]
    assert "RecBole's LightGCN stopped with exit code -9" in str(caught[0])
    assert str(tmp_path / "killed/recbole" / LOG_FILE) in str(caught[0])
    assert not (tmp_path / "killed/recbole/facts.json").exists()

    resumed, undisturbed = interruptible(), fitted["lightgcn", "undisturbed"]
    fit(resumed, data, split, tmp_path / "killed")
    assert "goes on after epoch" in (tmp_path / "killed/recbole" / LOG_FILE).read_text()
    np.testing.assert_array_equal(said(resumed, split), said(undisturbed, split))
    facts = [{**system.facts, "seconds_trained": 0} for system in (resumed, undisturbed)]
    assert facts[0] == facts[1]
    fit(resumed, data, split, tmp_path / "killed")
    assert len(started) == 2  # complete: nothing is trained again
