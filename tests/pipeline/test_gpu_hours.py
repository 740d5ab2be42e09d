"""The profile `full`: its sizes run, its operations are as by hand, and its rows replace those of another profile."""

import json
import math
import shutil

import pandas as pd
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from study import paths
from study.config.compose import load
from study.evaluation.records import read_record
from study.pipeline import gpu_hours as estimate
from study.pipeline.plan import _is_current
from study.runner.inputs import load_inputs
from study.runner.outputs import Outputs
from study.runner.rows import run_row
from tests.tiny_study import REPOSITORY, SIZE

ONE_EPOCH = ["system.model.training.epochs.full=1", "system.model.quantiser.training.epochs.full=1"]
ROW = [*SIZE, "profile=full", "protocol=warm", "system=tiger", "system.name=tiger_two_steps", "system.seeds=[1]"]


@pytest.fixture
def generative(root):
    """The tiny study with generative systems, few others, and no record of a run."""
    folder = root / "conf" / "system"
    for path in folder.glob("[!_]*.yaml"):
        path.unlink()
    for name in ("t2mrec", "tiger", "tiger_tuned", "lc_rec", "random"):
        shutil.copy(REPOSITORY / "conf" / "system" / f"{name}.yaml", folder)
    return root


@pytest.fixture
def two_steps(generative):
    """TIGER at the paper's size, for two steps on a processor: half of the training tasks each."""
    tasks = len(
        pd.read_parquet(paths.splits("synthetic") / "warm.parquet").query("part == 'train'")["task_id"].unique()
    )
    return load([*ROW, *ONE_EPOCH, f"system.model.training.batch_size={-(-tasks // 2)}"])


def test_a_row_of_the_papers_size_trains_two_steps_on_a_processor(two_steps):
    steps = []
    counting = register_optimizer_step_post_hook(lambda made, *_: steps.append(made))
    try:
        made = read_record(run_row(two_steps).record)
    finally:
        counting.remove()
    assert len([each for each in steps if each is steps[-1]]) == 2  # the steps before are the RQ-VAE's
    assert made["profile"] == "full"
    # Twice four layers of 128, heads of 6 x 64, a feed-forward width of 1,024.
    attention, forward = 4 * 128 * 6 * 64, 2 * 128 * 1024
    assert made["seeds"][0]["parameters"] > 4 * (attention + forward) + 4 * (2 * attention + forward)
    assert _is_current(Outputs.of("synthetic", "warm", "tiger_two_steps"), "full")
    assert not _is_current(Outputs.of("synthetic", "warm", "tiger_two_steps"), "laptop")


def test_operations_by_hand():
    layer = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    rows = torch.zeros(7, 3)
    # Forward; gradients of both matrices and of the layer between: no gradient goes to the input.
    by_hand = 2 * 7 * (3 * 5 + 5) * 2 + 2 * 7 * 5
    model = nn.Module()
    model.forward = lambda batch: layer(batch).sum()
    model.add_module("layer", layer)
    assert estimate._count(model, rows) == by_hand
    assert layer[0].weight.grad is None


def test_a_published_model_is_counted_at_its_size_without_its_weights(generative, monkeypatch):
    settings = estimate.Settings.read()
    sizes = {"width": 64, "feed_forward": 96, "heads": 2, "layers": 3, "context": 512}
    own = estimate.Published(vocabulary=5000, sizes=sizes)
    monkeypatch.setitem(settings.published, "Qwen/Qwen2.5-0.5B", own)
    config = load([*SIZE, "profile=full", "protocol=warm", "system=lc_rec"])
    found = estimate.operations(config, settings, *load_inputs("synthetic", "warm"))
    layers = 3 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64) + 64
    assert found.parameters >= layers + 5000 * 64
    assert found.parameters < layers + 6000 * 64  # the tokens of indices come on top
    epochs = config.system.model.training.epochs.full
    assert found.steps % epochs == 0
    assert found.code_steps == 3000
    assert found.step > 6 * layers  # more than one token
    assert found.training == found.step * found.steps


def test_hours_are_those_of_operations_or_of_waiting():
    settings = estimate.Settings("card", teraflops=10.0, share=0.5, step_seconds=0.01, steps=1, published={})
    assert settings.hours(5e12 * 3600) == 1
    assert settings.hours(5e12 * 3600, steps=10) == 1
    assert settings.hours(5e12, steps=360_000) == 1


def test_every_row_that_trains_has_its_line(generative, call, monkeypatch):
    one = estimate.Operations(parameters=9, steps=1000, step=5e12, code_steps=10, codes=2e12, decoding=1e12)
    monkeypatch.setattr(estimate, "operations", lambda *_: one)
    settings = paths.conf() / "dataset" / "synthetic.yaml"
    settings.write_text(settings.read_text().replace("published, ", "").replace('"*_tuned", ', ""))
    assert call("bench", "--hours", "--parts", *SIZE)[0] == 2  # one measurement at a time
    code, out, err = call("bench", "--hours", *SIZE, "profile=full")
    assert code == 0, err
    table = pd.read_csv(paths.tables("synthetic") / "gpu_hours.csv").set_index(["protocol", "system"])
    assert (
        table["basis"].to_dict() | {("warm", "tiger"): "counted", ("cold", "t2mrec"): "not known"}
        == table["basis"].to_dict()
    )
    assert "random" not in table.index.get_level_values("system")
    tiger, tuned = table.loc[("warm", "tiger")], table.loc[("warm", "tiger_tuned")]
    assert (tiger["seeds"], tiger["trials"], tuned["trials"]) == (5, 0, 12)
    settings = estimate.Settings.read()
    training, rest = settings.hours(5e15, 1000), settings.hours(2e12, 10)
    decoding = settings.hours(1e12)
    assert math.isclose(tiger["hours"], 5 * (training + decoding + rest), rel_tol=1e-4)
    assert math.isclose(tuned["hours"], (5 + 12 * 0.33) * training + 17 * decoding + 5 * rest, rel_tol=1e-4)
    kept = json.loads((paths.results("synthetic") / "records" / "gpu_hours.json").read_text())
    assert kept["profile"] == "full"
    assert "tiger" in out
