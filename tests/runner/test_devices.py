"""`trainer=gpu`: which class trains, under which name."""

import pytest
import torch

from study.base.errors import StudyError
from study.config.changes import with_tuned_values
from study.config.compose import build_system, load, plain
from study.runner.devices import on_trainer
from study.runner.provenance import require_own_row


@pytest.fixture
def gpu(monkeypatch):
    """Systems may be made for a GPU; nothing is trained on it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize(
    ("name", "target"), [("t2mrec", "study.t2mrec.system.T2MRec"), ("lightgcn", "baselines.recbole_bridge.RecBole")]
)
def test_a_system_keeps_its_settings(gpu, name, target):
    base = load(["dataset=task2mcp", f"system={name}"])
    moved = on_trainer(load(["dataset=task2mcp", f"system={name}", "trainer=gpu"]))
    model = plain(moved.system)["model"]
    assert moved.system.name == f"{name}_gpu"
    assert (model.pop("_target_"), model.pop("device")) == (target, "gpu")
    assert model == {key: value for key, value in plain(base.system)["model"].items() if key != "_target_"}
    assert moved.system.seeds == base.system.seeds
    require_own_row(moved)


def test_a_tuned_system_keeps_its_values_a_wrapped_one_trains_there_and_mixed_precision_is_a_row_of_its_own(gpu):
    tuned = load(["dataset=task2mcp", "system=msbpr_tuned", "trainer=gpu"])
    moved = on_trainer(tuned)
    assert moved.system.tuned is None
    assert plain(moved.system)["model"] == plain(with_tuned_values(tuned).system)["model"] | {"device": "gpu"}
    model = plain(on_trainer(load(["dataset=task2mcp", "system=msbpr_transfer", "trainer=gpu"])).system)["model"]
    assert ("device" in model, model["base"]["device"]) == (False, "gpu")
    moved = on_trainer(load(["system=t2mrec", "trainer=gpu_bf16"]))
    assert (moved.system.name, moved.system.model.bf16, moved.system.model.device) == ("t2mrec_gpu_bf16", True, "gpu")
    assert build_system(moved.system).bf16


@pytest.mark.parametrize("name", ["tfidf", "t2mrec_listwise", "label_ranker", "lightgcn"])
def test_what_a_gpu_does_not_serve_is_named(gpu, name):
    with pytest.raises(StudyError, match=f"{name} (trains nothing|has no mixed)"):
        on_trainer(load([f"system={name}", "trainer=gpu_bf16" if name == "lightgcn" else "trainer=gpu"]))


def test_without_a_gpu_auto_is_the_processor_and_gpu_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = load(["system=t2mrec", "trainer=auto"])
    assert on_trainer(config) is config
    with pytest.raises(StudyError, match="no GPU") as caught:
        on_trainer(load(["system=t2mrec", "trainer=gpu"]))
    assert caught.value.column == "trainer"
