"""RecBole's models behind the bridge: what they learn, what cannot leak, how they resume; files, refusals, settings."""

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from baselines import recbole_bridge
from baselines.ease import Ease
from baselines.neighbours import ItemKNN
from baselines.recbole_bridge import LOG_FILE, RecBole
from study.base.errors import StudyError
from study.base.registry import OWN, folder_of, system_file
from study.config import compose
from study.config.changes import change_settings
from study.data.splits import make
from tests.baselines.toys import build, fit, recall10, relabelled, with_other_answers
from tests.baselines.toys import without_training as without

BATCH = Path(__file__).with_name("recbole_batch.py")
SYSTEMS = {name: compose.checked_system(name) for name in compose.choices("system") if folder_of(name) != OWN}
SYSTEMS = {name: own for name, own in SYSTEMS.items() if own.subprocess}
TRANSFERS = [name for name, own in SYSTEMS.items() if "base" in own.model]
MODELS = [name for name in SYSTEMS if system_file(name).stem == name]
# Passes, batch size and learning rate for 800 servers.
PLANTED = {"neumf": (12, 1024, 0.005), "ngcf": (15, 512, 0.02), "lightgcn": (30, 512, 0.02), "bpr": (30, 512, 0.02)}
PLANTED |= {"multivae": (15, 64, 0.002), "simplex": (4, 12800, 0.02)}
UNKNOWN = [("bpr", {"learning_rat": "0.5"}, "learning_rate"), ("neumf", {"mlp_hidden_sizes": "[8]"}, "mlp_hidden_size")]
UNKNOWN += [("simplex", {"train_neg_sample_args": {"sample_nums": 50}}, "sample_num")]
# A setting of another model, and a model within another system.
UNKNOWN += [("bpr", {"n_layers": "3"}, "one of"), ("ngcf_transfer", {"learning_rat": "0.5"}, "learning_rate")]
configured = cache(build)  # composing takes longer than training


def toy(name, epochs=20, patience=None, evaluate_every=4, learning_rate=0.02, **own):
    """The configured system for all epochs, with steps that are large: 240 pairs make one an epoch."""
    system = configured(name)
    base = getattr(system, "base", system)
    more = {"settings": {**base.settings, "learning_rate": learning_rate, **own}}
    base = replace(base, epochs=epochs, evaluate_every=evaluate_every, patience=patience, **more)
    return base if isinstance(system, RecBole) else replace(system, base=base, content=replace(system.content))


def interruptible():
    """A training with a checkpoint after every epoch."""
    return replace(build("lightgcn", epochs=40, evaluate_every=1, patience=40), checkpoint_seconds=0)


def folder_of_job(system, data, split, workdir, seed=1):
    folder = workdir / "recbole"
    getattr(system, "base", system)._write_job(folder, data, split, seed)
    return folder


def said(system, split, part="test"):
    return system.score(split.tasks(part))


@pytest.fixture(scope="module")
def fitted(blocks, cold_blocks, planted, tmp_path_factory):
    """Systems fitted in several ways by one process: (system, way) -> system; and what it found out besides."""
    data, split = blocks
    root = tmp_path_factory.mktemp("recbole")
    wanted = {}
    for name in (*MODELS, *TRANSFERS):
        epochs, batch, rate = PLANTED[name.removesuffix("_transfer")]
        system = toy(name, epochs=epochs, train_batch_size=batch, learning_rate=rate)
        wanted[name, "planted"] = system, planted, make(planted, "cold" if name in TRANSFERS else "warm")
    for way, each in {
        "plain": blocks,
        "other valid and test": with_other_answers(*blocks, ("valid", "test")),
        "relabelled": relabelled(*blocks)[:2],
    }.items():
        wanted["lightgcn", way] = (toy("lightgcn"), *each)
    for way, each in {"stops": blocks, "stops, other test": with_other_answers(*blocks, ("test",))}.items():
        wanted["lightgcn", way] = (toy("lightgcn", epochs=8, patience=1), *each)
    wanted["lightgcn", "undisturbed"] = (interruptible(), *blocks)
    wanted["lightgcn", "loo"] = (toy("lightgcn", epochs=2), data, make(data, "loo"))
    wanted["ItemKNN", "theirs"] = (RecBole("ItemKNN", {"k": 1000, "shrink": 0.7}), *blocks)
    wanted["EASE", "theirs"] = (RecBole("EASE", {"reg_weight": 10.0}), *blocks)
    folders = {key: root / str(number) for number, key in enumerate(wanted)}
    for key, folder in folders.items():
        folder_of_job(*wanted[key], folder)
    gaps = without(split, np.arange(3))  # as some servers of the real split are
    checked = [folder_of_job(toy(name), data, gaps, root / name) for name in ("lightgcn", "ngcf", "neumf", "bpr")]
    refused = folder_of_job(RecBole("NCL", epochs=2, settings={"num_clusters": 2}), *blocks, root / "NCL")
    arguments = *(folder / "recbole" for folder in folders.values()), "--check", *checked, "--refused", refused
    done = subprocess.run([sys.executable, "-W", "ignore", BATCH, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for key, (system, *inputs) in wanted.items():
        system.fit(*inputs, seed=1, workdir=folders[key])  # finds its training complete
    found = {key: system for key, (system, *_) in wanted.items()}
    return found | {"folders": folders, "told": json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, *TRANSFERS])
def test_a_model_is_five_times_the_floor(name, fitted, planted, floor):
    protocol = "cold" if name in TRANSFERS else "warm"
    system, split = fitted[name, "planted"], make(planted, protocol)
    assert recall10(system, planted, split).mean() > floor[protocol]
    assert said(system, split).dtype == np.float32
    assert getattr(system, "base", system).parameters() > planted.n_servers
    assert system.uses_validation == (protocol == "cold")
    if protocol == "cold":  # the copy of its base knows no new task, whose embedding is untrained
        assert np.isneginf(said(system.base, split)).all()


@pytest.mark.slow
def test_held_out_labels_change_no_score_nor_does_the_order_of_servers_change_the_quality(fitted, blocks):
    """Also that the same seed gives the same scores: what is trained on is the same."""
    for one, other in (("plain", "other valid and test"), ("stops", "stops, other test")):
        first, second = (fitted["lightgcn", way] for way in (one, other))
        assert first.uses_validation == (one == "stops")
        np.testing.assert_array_equal(said(first, blocks[1]), said(second, blocks[1]))
    assert fitted["lightgcn", "stops"].facts["validation_ndcg"] > 0
    quality = recall10(fitted["lightgcn", "plain"], *blocks).mean()
    assert quality >= 0.9
    moved = recall10(fitted["lightgcn", "relabelled"], *relabelled(*blocks)[:2]).mean()
    assert moved == pytest.approx(quality, abs=0.05)


@pytest.mark.slow
def test_our_closed_forms_and_short_cuts_equal_recboles_own_code(fitted, blocks):
    for ours, theirs in ((ItemKNN(shrink=0.7), "ItemKNN"), (Ease(10.0), "EASE")):
        expected = said(fitted[theirs, "theirs"], blocks[1])
        np.testing.assert_allclose(said(fit(ours, *blocks), blocks[1]), expected, rtol=1e-3, atol=1e-4)
    told = fitted["told"]
    for name in ("bpr", "lightgcn", "neumf", "ngcf"):
        assert told[name]["scores"] < 1e-5 < told[name]["spread"]
    assert "NCL has a training loop of its own" in told["refused"]
    with pytest.raises(StudyError, match="MultiVAE has no task vectors"):
        _ = fitted["multivae", "planted"].representations


@pytest.mark.slow
def test_a_killed_training_is_reported_and_resumes_to_the_same_scores(fitted, blocks, tmp_path, monkeypatch):
    data, split = blocks
    started, caught, killed = [], [], interruptible()
    folder = tmp_path / "killed/recbole"

    def run(command, check, **options):
        started.append(subprocess.Popen(command, **options))
        return subprocess.CompletedProcess(command, started[-1].wait())

    def train():
        try:
            fit(killed, data, split, tmp_path / "killed")
        except StudyError as error:
            caught.append(error)

    monkeypatch.setattr(recbole_bridge.subprocess, "run", run)
    thread = threading.Thread(target=train)
    thread.start()
    deadline = time.monotonic() + 600  # a busy machine takes long to import RecBole
    while thread.is_alive() and not (folder / "checkpoint.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    started[0].kill()
    thread.join()
    assert "RecBole's LightGCN stopped with exit code -9" in str(caught[0])
    assert caught[0].file == folder / LOG_FILE
    assert not (folder / "facts.json").exists()
    resumed, undisturbed = interruptible(), fitted["lightgcn", "undisturbed"]
    fit(resumed, data, split, tmp_path / "killed")
    assert "goes on after epoch" in (folder / LOG_FILE).read_text()
    np.testing.assert_array_equal(said(resumed, split), said(undisturbed, split))
    facts = [{**system.facts, "seconds_trained": 0} for system in (resumed, undisturbed)]
    assert facts[0] == facts[1]
    fit(resumed, data, split, tmp_path / "killed")
    assert len(started) == 2  # complete: nothing is trained again


@pytest.mark.slow
def test_leave_one_out_with_and_without_sampled_negatives_is_one_training(fitted, blocks, tmp_path, monkeypatch):
    data = blocks[0]
    loo, sampled = make(data, "loo"), make(data, "loo99", negatives=5)
    system, again, other = (toy("lightgcn", epochs=2) for _ in range(3))
    monkeypatch.setattr(recbole_bridge.paths, "cache", lambda: tmp_path)
    monkeypatch.setattr(recbole_bridge.subprocess, "run", None)
    system.fit(data, loo, seed=1, workdir=fitted["folders"]["lightgcn", "loo"])
    assert system.report()["epochs"] == 2
    assert system.report()["seconds_trained"] > 0
    again.fit(data, sampled, seed=1, workdir=tmp_path / "loo99")
    np.testing.assert_array_equal(said(again, sampled), said(system, loo))
    assert again.report() == system.report()
    with pytest.raises(TypeError, match="NoneType"):  # another seed is another training
        other.fit(data, sampled, seed=2, workdir=tmp_path / "other")
    monkeypatch.setattr(recbole_bridge, "version", lambda package: "0")
    with pytest.raises(TypeError, match="NoneType"):  # so is one by another RecBole
        again.fit(data, sampled, seed=1, workdir=tmp_path / "later")


def test_files_name_all_tasks_and_servers_but_only_training_pairs(blocks, tmp_path):
    data, split = blocks
    folder = folder_of_job(toy("bpr"), data, split, tmp_path)
    pairs = np.loadtxt(folder / "data" / "data.train.inter", dtype=int, skiprows=1)
    assert sorted(map(tuple, pairs)) == sorted(zip(*split.train.nonzero(), strict=True))
    for kind, n in (("user", data.n_tasks), ("item", data.n_servers)):
        assert (folder / "data" / f"data.{kind}").read_text().splitlines()[1:] == [str(row) for row in range(n)]
    assert not (folder / "valid.npz").exists()
    assert (folder_of_job(toy("bpr", patience=1), data, split, tmp_path / "early") / "valid.npz").exists()


def test_an_error_names_the_model_and_the_log(monkeypatch, blocks, tmp_path):
    def run(command, stdout, **options):
        stdout.write("No module named 'it'\n")
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(recbole_bridge.subprocess, "run", run)
    with pytest.raises(StudyError, match=r"BPR stopped.*No module named 'it'") as caught:
        fit(RecBole("BPR"), *blocks, tmp_path)
    assert caught.value.file == tmp_path / "recbole" / LOG_FILE


def test_stopping_needs_trained_validation_tasks_and_the_setting_gpu_needs_one(cold_blocks, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for refused, reason in (({"patience": 3}, "no validation task has training"), ({"device": "gpu"}, "no GPU")):
        with pytest.raises(StudyError, match=reason):
            fit(RecBole("BPR", **refused), *cold_blocks, tmp_path)


@pytest.mark.parametrize("name", ["item_knn", "ease", "ials", "neumf", "ngcf", "lightgcn"])
def test_a_transferred_system_is_the_system_itself_but_for_its_stopping_rule(name):
    configs = (compose.load([f"system={each}"]) for each in (f"{name}_transfer", name))
    own, base = (compose.plain(config)["system"]["model"] for config in configs)
    assert {**own["base"], "patience": None} == {**base, "patience": None}


@pytest.mark.parametrize(("system", "setting", "nearest"), UNKNOWN)
def test_a_key_that_recbole_does_not_know_is_named_with_the_nearest(system, setting, nearest):
    place, config = "base.settings" if system.endswith("_transfer") else "settings", compose.load([f"system={system}"])
    own = {**OmegaConf.select(config, f"system.model.{place}"), **setting}
    config = change_settings(config, {f"system.model.{place}": own}, merge=False)
    with pytest.raises(StudyError, match="setting of RecBole's") as caught:
        compose.build_system(config.system)
    assert caught.value.column.split(".settings.")[1].startswith(*setting)
    assert caught.value.column.startswith(f"model.{place}")
    assert nearest in caught.value.fix
