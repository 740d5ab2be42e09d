"""`device`: what a system trains on and answers from; all its tensors are there."""

import numpy as np
import pytest
import torch

from baselines.training import Trained
from study.base.errors import StudyError
from study.config.compose import build_system, load
from study.data.splits import make
from study.runner.devices import on_gpu
from study.runner.toy_fits import stand_ins
from tests.baselines.toys import build, fit

TRAINED = ["msbpr", "gdsrec", "cvh_rec", "recafr_profile", "recafr_views", "mpt_rec", "mf_softmax", "xsimgcl_softmax"]
TRAINED += ["lightgcn_sampled_softmax"]  # transformers looks at values, so the generative ones are asked on a GPU alone


@pytest.fixture(autouse=True)
def encoders_without_weights(tmp_path):
    with stand_ins(tmp_path / "cache"):
        yield


@pytest.mark.parametrize("name", TRAINED)
def test_no_operation_mixes_the_device_and_the_processor(name, blocks, tmp_path, monkeypatch):
    """On torch's device without memory, whose tensors take part in no operation with others."""
    copied = torch.Tensor.cpu

    def cpu(tensor):
        return torch.zeros_like(tensor, device="cpu") if tensor.is_meta else copied(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    monkeypatch.setattr(Trained, "place", torch.device("meta"))
    data, split = blocks[0], make(blocks[0], "cold" if name == "cvh_rec" else "warm")
    system = fit(name, data, split, tmp_path)
    assert {weight.device.type for weight in system.network.parameters()} == {"meta"}
    assert system.score(split.tasks("test")).shape == (len(split.tasks("test")), data.n_servers)


def test_a_device_that_is_not_there_is_refused(blocks, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("msbpr", "lightgcn"):
        with pytest.raises(StudyError, match="no GPU"):
            fit(build(name, device="gpu"), *blocks, tmp_path)
    assert build("msbpr", device="auto").place.type == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("name", ["msbpr", "gdsrec", "cvh_rec", "recafr", "mpt_rec", "mf_softmax", "lightgcn", "tiger"])
def test_on_a_gpu_a_baseline_learns_as_on_the_processor(blocks, tmp_path, name):
    config, found = load(["dataset=synthetic", f"system={name}", "protocol=warm", "profile=smoke"]), []
    for number, each in enumerate((config, on_gpu(config))):
        system = fit(build_system(each.system), *blocks, tmp_path / str(number), seed=3)
        found.append(np.isfinite(system.score(blocks[1].tasks("test"))))
    assert found[0].shape == found[1].shape
    assert name == "tiger" or np.array_equal(*found)
