"""Baselines on a device: the same on the processor, and what a GPU is given."""

import numpy as np
import pytest
import torch

from baselines.on_device import on_device, placed
from baselines.recbole_device import DeviceRecBole
from study.config.compose import build_system, load
from study.runner.devices import on_gpu


def test_tensors_are_made_on_the_device_within_the_block_alone():
    place = torch.device("meta")
    with placed(place):
        made = [torch.zeros(2), torch.randn(2), torch.tensor([1.0]), torch.from_numpy(np.ones(2)), torch.arange(3)]
        assert {tensor.device.type for tensor in made} == {"meta"}
    assert torch.from_numpy(np.ones(2)).device.type == torch.zeros(2).device.type == "cpu"


@pytest.mark.parametrize("name", ["msbpr", "gdsrec", "recafr", "mf_softmax"])
def test_a_wrapped_baseline_is_the_same_on_the_processor(blocks, tmp_path, name):
    data, split = blocks
    config = load(["dataset=synthetic", f"system={name}", "protocol=warm", "profile=smoke"])
    plain_one, wrapped = build_system(config.system), on_device(build_system(config.system), "cpu")
    found = []
    for place, system in (("a", plain_one), ("b", wrapped)):
        (tmp_path / place).mkdir()
        system.fit(data, split, seed=3, workdir=tmp_path / place)
        found.append(system.score(split.tasks("test")))
    np.testing.assert_array_equal(*found)


def test_recbole_on_its_device_path_is_recbole(blocks, tmp_path):
    data, split = blocks
    config = load(["dataset=synthetic", "system=lightgcn", "protocol=warm", "profile=smoke"])
    plain_one = build_system(config.system)
    other = DeviceRecBole(**{key: getattr(plain_one, key) for key in ("model", "settings", "epochs")}, device="cpu")
    other.evaluate_every, other.patience = plain_one.evaluate_every, plain_one.patience
    found = []
    for place, system in (("a", plain_one), ("b", other)):
        (tmp_path / place).mkdir()
        system.fit(data, split, seed=3, workdir=tmp_path / place)
        found.append(system.score(split.tasks("test")))
    np.testing.assert_array_equal(*found)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("name", ["msbpr", "gdsrec", "cvh_rec", "recafr", "mpt_rec", "mf_softmax", "lightgcn"])
def test_on_a_gpu_a_baseline_learns_as_on_the_processor(blocks, tmp_path, name):
    data, split = blocks
    config = load(["dataset=synthetic", f"system={name}", "protocol=warm", "profile=smoke"])
    found = []
    for place, made in (("a", config), ("b", on_gpu(config))):
        (tmp_path / place).mkdir()
        system = build_system(made.system)
        system.fit(data, split, seed=3, workdir=tmp_path / place)
        found.append(system.score(split.tasks("test")))
    assert found[0].shape == found[1].shape
    assert np.array_equal(np.isfinite(found[0]), np.isfinite(found[1]))
