"""The bridge to RecBole: the files that it writes, what it refuses and reports, and how its systems are configured."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from omegaconf import OmegaConf

from baselines import recbole_bridge
from baselines.recbole_bridge import LOG_FILE, RecBole, count_known, known_settings, neumf
from study.config import compose
from study.data.splits import make
from study.errors import StudyError
from tests.baselines.recbole_toys import MODELS, folder_of, said, toy
from tests.baselines.toys import build, fit, settings, without_training


def test_neumf_without_layers_is_the_product_of_its_vectors():
    rng = torch.Generator().manual_seed(0)
    tasks, servers = torch.randn(4, 3, generator=rng), torch.randn(5, 3, generator=rng)
    learned = {
        "gmf_servers": servers,
        "mlp_servers": torch.randn(5, 2, generator=rng),
        "mlp.0.weight": torch.randn(6, 4, generator=rng),
        "mlp.0.bias": torch.randn(6, generator=rng),
        "output.weight": torch.tensor([[1.0] * 3 + [0.0] * 6]),
        "output.bias": torch.zeros(1),
    }
    rows = torch.cat([tasks, torch.randn(4, 2, generator=rng)], dim=1)
    torch.testing.assert_close(neumf(learned, rows), tasks @ servers.T)


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
    system, again, other = (replace(build("lightgcn", epochs=2), patience=None) for _ in range(3))
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


def test_an_error_in_recbole_names_the_model_and_the_log(blocks, tmp_path):
    data, split = blocks
    with pytest.raises(StudyError, match=r"NoSuchModel.*No module named 'recbole.*nosuchmodel") as caught:
        RecBole("NoSuchModel", epochs=1).fit(data, split, seed=1, workdir=tmp_path)
    assert caught.value.file == tmp_path / "recbole" / LOG_FILE


@pytest.mark.parametrize("name", [*MODELS, *(f"{name}_tuned" for name in MODELS)])
def test_search_spaces_name_settings_that_exist(name):
    system = settings(name)
    for key in system.search:
        assert key.startswith("settings.")
        assert OmegaConf.select(system.model, key, default="absent") != "absent", key


@pytest.mark.parametrize("name", ["item_knn", "ease", "ials", "neumf", "ngcf", "lightgcn"])
def test_a_transferred_system_is_the_system_itself_but_for_its_stopping_rule(name):
    own, base = (
        compose.plain(compose.load([f"system={each}"]))["system"]["model"] for each in (f"{name}_transfer", name)
    )
    for model in (own["base"], base):
        model.pop("patience", None)
    assert own["base"] == base


@pytest.mark.parametrize(
    ("system", "setting", "nearest"),
    [
        ("bpr", "learning_rat: 0.5", "learning_rate"),
        ("neumf", "mlp_hidden_sizes: [8]", "mlp_hidden_size"),
        ("bpr", "n_layers: 3", "one of"),  # a setting of another model
        ("simplex", "train_neg_sample_args: {sample_nums: 50}", "sample_num"),
        ("ngcf_transfer", "learning_rat: 0.5", "learning_rate"),  # a model within another system
    ],
)
def test_a_key_that_recbole_does_not_know_is_named_with_the_nearest(system, setting, nearest):
    config = compose.load([f"system={system}"])
    place = config.system.model.base if system.endswith("_transfer") else config.system.model
    key, _, value = setting.partition(": ")
    place.settings = dict(place.settings) | {key: {"sample_nums": 50} if "{" in value else value}
    with pytest.raises(StudyError, match="RecBole's") as caught:
        compose.build_system(config.system)
    assert caught.value.column.split(".settings.")[1].startswith(key)
    assert caught.value.column.startswith("model.base" if system.endswith("_transfer") else "model.settings")
    assert nearest in caught.value.fix


def test_known_settings_are_those_of_training_and_of_the_model_alone():
    assert {"learning_rate", "train_neg_sample_args", "hidden_size_list", "node_dropout"} <= set(known_settings("NGCF"))
    assert "mlp_hidden_size" not in known_settings("NGCF")
