"""`device`: all tensors of a system are on it; that a GPU is used or missed is a rule of the contract."""

import pytest
import torch

from baselines.training import Trained
from study.base.errors import StudyError
from study.data.splits import make
from study.runner.toy_fits import stand_ins
from tests.baselines.toys import build, fit

# transformers looks at values, so the generative ones are asked on a GPU alone.
TRAINED = ["msbpr", "gdsrec", "cvh_rec", "recafr_profile", "recafr_views", "mpt_rec", "mf_softmax", "xsimgcl_softmax"]


@pytest.mark.parametrize("name", [*TRAINED, "lightgcn_sampled_softmax"])
def test_no_operation_mixes_the_device_and_the_processor(name, blocks, tmp_path, monkeypatch):
    """On torch's device without memory, whose tensors take part in no operation with others."""
    copied = torch.Tensor.cpu

    def cpu(tensor):
        return torch.zeros_like(tensor, device="cpu") if tensor.is_meta else copied(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    monkeypatch.setattr(Trained, "place", torch.device("meta"))
    data, split = blocks[0], make(blocks[0], "cold" if name == "cvh_rec" else "warm")
    with stand_ins(tmp_path / "cache"):
        system = fit(name, data, split, tmp_path / "work")
    assert {weight.device.type for weight in system.network.parameters()} == {"meta"}
    assert system.score(split.tasks("test")).shape == (len(split.tasks("test")), data.n_servers)


def test_a_gpu_that_is_not_there_is_refused_and_auto_is_the_processor(blocks, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("msbpr", "lightgcn"):
        with pytest.raises(StudyError, match="no GPU"):
            fit(build(name, device="gpu"), *blocks, tmp_path)
    assert build("msbpr", device="auto").place.type == "cpu"
