"""RecBole's models behind the bridge: what they learn, what cannot leak, how they resume; files, refusals, settings."""

import json
import logging
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from omegaconf import OmegaConf

from baselines import recbole_bridge
from baselines.ease import Ease
from baselines.neighbours import ItemKNN
from baselines.recbole_bridge import LOG_FILE, RecBole, count_known
from study.base.errors import StudyError
from study.config import compose
from study.config.changes import changed
from study.data.splits import make
from tests.baselines import recbole_toys, toys
from tests.baselines.recbole_toys import EVERY_MODEL, TRANSFERS, folder_of, interruptible, said, toy
from tests.baselines.toys import copy_dataset, fit, recall10, relabelled, with_other_answers, without_training

BATCH = Path(__file__).with_name("recbole_batch.py")
# Name, protocol, how far the quality may move when servers are relabelled.
ASKED = [*((name, "warm", 0.05) for name in EVERY_MODEL), *((name, "cold", 0.1) for name in TRANSFERS)]
UNKNOWN = [("bpr", {"learning_rat": "0.5"}, "learning_rate"), ("neumf", {"mlp_hidden_sizes": "[8]"}, "mlp_hidden_size")]
UNKNOWN += [("simplex", {"train_neg_sample_args": {"sample_nums": 50}}, "sample_num")]
# A setting of another model, and a model within another system.
UNKNOWN += [("bpr", {"n_layers": "3"}, "one of"), ("ngcf_transfer", {"learning_rat": "0.5"}, "learning_rate")]


@pytest.fixture(scope="module")
def fitted(blocks, planted, tmp_path_factory):
    """Every model, fitted in several ways by one process: (model, way) -> system."""
    data, split = blocks
    root = tmp_path_factory.mktemp("recbole")
    cold = make(data, "cold")
    gaps = without_training(split, np.arange(3))  # as some servers of the real split are
    wanted = {}
    for name in EVERY_MODEL:
        wanted[name, "plain"] = (toy(name), data, split, 1)
        wanted[name, "other valid and test"] = (toy(name), *with_other_answers(data, split, ("valid", "test")), 1)
        early = partial(toy, name, epochs=8, patience=1)
        wanted[name, "stops early"] = (early(), data, split, 1)
        wanted[name, "stops early, other test"] = (early(), *with_other_answers(data, split, ("test",)), 1)
        wanted[name, "other seed"] = (toy(name, epochs=2), data, split, 2)
        wanted[name, "relabelled"] = (toy(name), *relabelled(data, split)[:2], 1)
        wanted[name, "planted"] = (recbole_toys.toy_planted(name), planted, make(planted, "warm"), 1)
    for name in TRANSFERS:
        wanted[name, "plain"] = (toy(name), data, cold, 1)
        wanted[name, "other test"] = (toy(name), *with_other_answers(data, cold, ("test",)), 1)
        wanted[name, "relabelled"] = (toy(name), *relabelled(data, cold)[:2], 1)
        wanted[name, "copies"] = (toy(name), *toys.group_copies(), 1)
        wanted[name, "one neighbour"] = (replace(toy(name, epochs=10), k=[1], power=[1.0]), *copy_dataset(), 1)
        wanted[name, "planted"] = (recbole_toys.toy_planted(name), planted, make(planted, "cold"), 1)
    wanted["ngcf", "one layer"] = (toy("ngcf", epochs=1, hidden_size_list="[64]"), data, split, 1)
    wanted["lightgcn", "undisturbed"] = (interruptible(), data, split, 1)
    wanted["ItemKNN", "theirs"] = (RecBole("ItemKNN", {"k": 1000, "shrink": 0.7}), data, split, 1)
    wanted["EASE", "theirs"] = (RecBole("EASE", {"reg_weight": 10.0}), data, split, 1)
    folders = {}
    for number, (key, (system, *inputs, seed)) in enumerate(wanted.items()):
        folders[key] = root / str(number)
        folder_of(system, *inputs, folders[key], seed)
    checked = [folder_of(toy(name), data, gaps, root / name) for name in ("lightgcn", "ngcf", "neumf", "bpr")]
    arguments = *(folder / "recbole" for folder in folders.values()), "--check", *checked
    done = subprocess.run([sys.executable, "-W", "ignore", BATCH, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    differences = json.loads(done.stdout.splitlines()[-1])
    for key, (system, *inputs, seed) in wanted.items():
        system.fit(*inputs, seed=seed, workdir=folders[key])  # finds its training complete
    return {key: system for key, (system, *_) in wanted.items()} | {"differences": differences}


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_blocks_are_told_apart_and_seeds_decide(name, fitted, blocks):
    data, split = blocks
    system = fitted[name, "plain"]
    scores = said(system, split)
    assert scores.shape == (len(split.tasks("test")), data.n_servers)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all()
    # Chance leaves about a third: most servers of the own half are known and left out.
    assert toys.own_block(toys.top10(system, data, split)[:, :5], data, split) >= 0.95, recbole_toys.fix("BLOCKS", name)
    assert recall10(system, data, split).mean() >= 0.9, recbole_toys.fix("BLOCKS", name)
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


@pytest.mark.parametrize("name", TRANSFERS)
def test_transfer_finds_copies_tells_blocks_apart_and_reads_no_test_label(name, fitted, cold_blocks):
    """A copy gets the scores of its training task and not those of its untrained embedding."""
    copies, near = copy_dataset()[1], fitted[name, "one neighbour"]
    assert np.isneginf(said(near.base, copies)).all()
    assert np.isfinite(said(near.base, copies, "train")).all()
    np.testing.assert_allclose(said(near, copies), said(near, copies, "train"), rtol=1e-4, atol=1e-6)
    assert recall10(fitted[name, "copies"], *toys.group_copies()).mean() == 1
    system, split = fitted[name, "plain"], cold_blocks[1]
    assert toys.own_block(toys.top10(system, *cold_blocks), *cold_blocks) >= 0.95, recbole_toys.fix("BLOCKS", name)
    assert system.uses_validation
    np.testing.assert_array_equal(said(fitted[name, "other test"], split), said(system, split))


@pytest.mark.parametrize(("name", "protocol", "tolerance"), ASKED)
def test_relabelled_servers_leave_the_quality_which_is_five_times_the_floor(
    name, protocol, tolerance, fitted, blocks, planted, floor
):
    toys = blocks[0], make(blocks[0], protocol)
    moved = relabelled(*toys)[:2]
    plain, other = (recall10(fitted[name, way], *each).mean() for way, each in (("plain", toys), ("relabelled", moved)))
    assert other == pytest.approx(plain, abs=tolerance)
    found = recall10(fitted[name, "planted"], planted, make(planted, protocol)).mean()
    assert found > floor[protocol], recbole_toys.fix("PLANTED", name)


def test_depth_may_be_written_as_text(fitted):
    deep, flat = (fitted["ngcf", way].parameters() for way in ("plain", "one layer"))
    assert flat == deep - 2 * 2 * (64 * 64 + 64)


def test_every_system_in_a_subprocess_is_tested_here():
    assert {"bpr", "lightgcn", "multivae", "neumf", "ngcf", "simplex"} <= set(EVERY_MODEL)
    assert {"neumf_transfer", "ngcf_transfer", "lightgcn_transfer"} <= set(TRANSFERS)
    models = {name: own.model.get("base", own.model)._target_ for name, own in recbole_toys.SYSTEMS.items()}
    assert set(models.values()) == {recbole_toys.RECBOLE}  # another program's systems need tests of their own


def test_models_without_vectors_say_that_they_cannot_transfer(fitted):
    with pytest.raises(StudyError, match="MultiVAE has no task vectors"):
        _ = fitted["multivae", "plain"].representations


def test_our_closed_forms_and_short_cuts_equal_recboles_own_code(fitted, blocks):
    for ours, theirs in ((ItemKNN(shrink=0.7), "ItemKNN"), (Ease(10.0), "EASE")):
        expected = said(fitted[theirs, "theirs"], blocks[1])
        np.testing.assert_allclose(said(fit(ours, *blocks), blocks[1]), expected, rtol=1e-3, atol=1e-4)
    told = fitted["differences"]
    assert sorted(told) == ["bpr", "lightgcn", "neumf", "ngcf"]
    for difference in told.values():
        assert difference["scores"] < 1e-5 < difference["spread"]
    assert max(told[name]["adjacency"] for name in ("lightgcn", "ngcf")) < 1e-6


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
    deadline = time.monotonic() + 600  # a busy machine takes long to import RecBole
    while thread.is_alive() and not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert thread.is_alive()
    assert checkpoint.exists()
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


def test_files_name_all_tasks_and_servers_but_only_training_pairs(blocks, tmp_path):
    data, split = blocks
    folder = folder_of(toy("bpr"), data, split, tmp_path)
    pairs = np.loadtxt(folder / "data" / "data.train.inter", dtype=int, skiprows=1)
    assert sorted(map(tuple, pairs)) == sorted(zip(*split.train.nonzero(), strict=True))
    for kind, n in (("user", data.n_tasks), ("item", data.n_servers)):
        assert (folder / "data" / f"data.{kind}").read_text().splitlines()[1:] == [str(row) for row in range(n)]
    assert not (folder / "valid.npz").exists()
    assert (folder_of(toy("bpr", patience=1), data, split, tmp_path / "early") / "valid.npz").exists()


def test_warm_and_cold_are_counted_and_said(caplog, monkeypatch, blocks, tmp_path):
    data, split = blocks
    train = without_training(split, np.array([7])).train.tolil()
    train[3] = 0
    train = sp.csr_matrix(train)
    assert count_known(train) == {"warm_tasks": 39, "cold_tasks": 1, "warm_servers": 29, "cold_servers": 1}
    monkeypatch.setattr(RecBole, "_train", lambda *_: pytest.skip("reached training"))
    with caplog.at_level(logging.INFO), pytest.raises(pytest.skip.Exception):
        fit(RecBole("BPR"), data, replace(split, train=train), tmp_path)
    assert "39 warm tasks, 1 cold tasks, 29 warm servers, 1 cold servers" in caplog.text


def test_stopping_on_validation_needs_trained_validation_tasks(cold_blocks, tmp_path):
    with pytest.raises(StudyError, match="no validation task has training interactions"):
        fit(RecBole("BPR", patience=3), *cold_blocks, tmp_path)


def test_leave_one_out_with_and_without_sampled_negatives_is_one_training(blocks, tmp_path, monkeypatch):
    data = blocks[0]
    loo, sampled = make(data, "loo"), make(data, "loo99", negatives=5)
    system, again, other = (replace(toys.build("lightgcn", epochs=2), patience=None) for _ in range(3))
    monkeypatch.setattr(recbole_bridge.paths, "cache", lambda: tmp_path)
    system.fit(data, loo, seed=1, workdir=tmp_path / "loo")
    assert system.report()["epochs"] == 2
    assert system.report()["seconds_trained"] > 0
    monkeypatch.setattr(recbole_bridge.subprocess, "run", None)
    again.fit(data, sampled, seed=1, workdir=tmp_path / "loo99")
    np.testing.assert_array_equal(said(again, sampled), said(system, loo))
    assert again.report() == system.report()
    with pytest.raises(TypeError, match="NoneType"):  # another seed is another training
        other.fit(data, sampled, seed=2, workdir=tmp_path / "other")
    monkeypatch.setattr(recbole_bridge, "version", lambda package: "0")
    with pytest.raises(TypeError, match="NoneType"):  # so is one by another RecBole
        again.fit(data, sampled, seed=1, workdir=tmp_path / "later")


def test_an_error_in_recbole_names_the_model_and_the_log(blocks, tmp_path):
    data, split = blocks
    with pytest.raises(StudyError, match=r"NoSuchModel.*No module named 'recbole.*nosuchmodel") as caught:
        RecBole("NoSuchModel", epochs=1).fit(data, split, seed=1, workdir=tmp_path)
    assert caught.value.file == tmp_path / "recbole" / LOG_FILE


def test_a_model_with_a_training_loop_of_its_own_is_refused(blocks, tmp_path):
    with pytest.raises(StudyError, match="NCL has a training loop of its own"):
        fit(RecBole("NCL", epochs=2, settings={"num_clusters": 2}), *blocks, tmp_path)


@pytest.mark.parametrize("name", [*recbole_toys.MODELS, *(f"{name}_tuned" for name in recbole_toys.MODELS)])
def test_search_spaces_name_settings_that_exist(name):
    system = toys.settings(name)
    for key in system.search:
        assert key.startswith("settings.")
        assert OmegaConf.select(system.model, key, default="absent") != "absent", key


@pytest.mark.parametrize("name", ["item_knn", "ease", "ials", "neumf", "ngcf", "lightgcn"])
def test_a_transferred_system_is_the_system_itself_but_for_its_stopping_rule(name):
    configs = (compose.load([f"system={each}"]) for each in (f"{name}_transfer", name))
    own, base = (compose.plain(config)["system"]["model"] for config in configs)
    assert {**own["base"], "patience": None} == {**base, "patience": None}


@pytest.mark.parametrize(("system", "setting", "nearest"), UNKNOWN)
def test_a_key_that_recbole_does_not_know_is_named_with_the_nearest(system, setting, nearest):
    place, config = "base.settings" if system.endswith("_transfer") else "settings", compose.load([f"system={system}"])
    own = {**OmegaConf.select(config, f"system.model.{place}"), **setting}
    config = changed(config, {f"system.model.{place}": own}, merge=False)
    with pytest.raises(StudyError, match="RecBole's") as caught:
        compose.build_system(config.system)
    assert caught.value.column.split(".settings.")[1].startswith(*setting)
    assert caught.value.column.startswith(f"model.{place}")
    assert nearest in caught.value.fix
