"""Baselines on a device: the same on the processor, and what a GPU is given."""

from concurrent.futures import ThreadPoolExecutor

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


def test_arrays_come_from_the_device_in_every_thread(monkeypatch):
    """A backward pass on a GPU runs in a thread of its own."""
    copied = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: copied.append(tensor) or tensor)
    with placed(torch.device("cpu")), ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (torch.ones(2).numpy(), np.asarray(torch.ones(3)))).result()
    assert [len(tensor) for tensor in copied] == [2, 3]


def answers(systems, blocks, folder):
    """The scores of every system, fitted with one seed in a folder of its own."""
    data, split = blocks
    found = []
    for number, system in enumerate(systems):
        (workdir := folder / str(number)).mkdir()
        system.fit(data, split, seed=3, workdir=workdir)
        found.append(system.score(split.tasks("test")))
    return found


def smoke(name):
    return load(["dataset=synthetic", f"system={name}", "protocol=warm", "profile=smoke"])


@pytest.mark.parametrize("name", ["msbpr", "gdsrec", "recafr", "mf_softmax"])
def test_a_wrapped_baseline_is_the_same_on_the_processor(blocks, tmp_path, name):
    plain_one, other = (build_system(smoke(name).system) for _ in range(2))
    np.testing.assert_array_equal(*answers((plain_one, on_device(other, "cpu")), blocks, tmp_path))


def test_recbole_on_its_device_path_is_recbole(blocks, tmp_path):
    plain_one = build_system(smoke("lightgcn").system)
    np.testing.assert_array_equal(
        *answers((plain_one, DeviceRecBole(**vars(plain_one), device="cpu")), blocks, tmp_path)
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("name", ["msbpr", "gdsrec", "cvh_rec", "recafr", "mpt_rec", "mf_softmax", "lightgcn"])
def test_on_a_gpu_a_baseline_learns_as_on_the_processor(blocks, tmp_path, name):
    made = smoke(name), on_gpu(smoke(name))
    own, there = answers([build_system(config.system) for config in made], blocks, tmp_path)
    assert own.shape == there.shape
    assert np.array_equal(np.isfinite(own), np.isfinite(there))
