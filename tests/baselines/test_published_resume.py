"""The eight published methods: a training that is stopped in a stage, and again at its end, changes no score."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from baselines.generative import training as generative
from baselines.published import training as published
from study import paths
from study.data.splits import make
from tests.baselines.toys import block_dataset, build, scores

CODES = {"quantiser.training.checkpoint_seconds": -1, "training.checkpoint_seconds": -1}
SETTINGS: dict[str, dict[str, object]] = {
    "msbpr": {"schedule.checkpoint_seconds": -1},
    "recafr": {"schedule.checkpoint_seconds": -1},
    "gdsrec": {"schedule.checkpoint_seconds": -1},
    "cvh_rec": {"schedule.checkpoint_seconds": -1},
    "tiger": CODES,
    "openp5": {"training.checkpoint_seconds": -1},
    "lc_rec": {**CODES, "training.epochs": 2},
    "mpt_rec": {"first.checkpoint_seconds": -1, "second.checkpoint_seconds": -1},
}
# The checkpoints of each method, in the order of its stages.
STAGES = {
    "msbpr": ["msbpr"],
    "recafr": ["recafr"],
    "gdsrec": ["gdsrec"],
    "cvh_rec": ["cvh_rec", "cvh_rec_encoder"],
    "tiger": ["codes", "tiger"],
    "openp5": ["openp5"],
    "lc_rec": ["codes", "lc_rec"],
    "mpt_rec": ["mpt_rec_experts", "mpt_rec_prompts"],
}


@pytest.mark.parametrize("name", STAGES)
def test_a_training_that_is_stopped_in_every_stage_ends_as_an_undisturbed_one(name, tmp_path, monkeypatch):
    data = block_dataset()
    split = make(data, "cold" if name == "cvh_rec" else "warm")
    saved, stop_at, seconds = [], [], {}

    def save(path, *rest):
        kept(path, *rest)
        saved.append(path.stem)
        seconds[path.stem] = json.loads(rest[3]["progress"])["seconds"]
        if stop_at and path.stem == stop_at[0]:
            stop_at.pop(0)
            raise KeyboardInterrupt

    kept = generative.save_checkpoint
    assert published.save_checkpoint is kept
    for module in (generative, published):
        monkeypatch.setattr(module, "save_checkpoint", save)
    codes = paths.cache() / "quantisers"  # kept for all who come after
    shutil.rmtree(codes, ignore_errors=True)
    whole = scores(build(name, **SETTINGS[name]), data, split, "test", tmp_path / "whole")
    stages = STAGES[name]
    assert saved == [stage for stage in stages for _ in range(2)]  # every epoch, and there are two
    saved.clear()
    shutil.rmtree(codes, ignore_errors=True)
    stop_at += [stage for stage in stages for _ in range(2)]
    while stop_at:
        with pytest.raises(KeyboardInterrupt):
            scores(build(name, **SETTINGS[name]), data, split, "test", tmp_path / "stopped")
    system = build(name, **SETTINGS[name])
    resumed = scores(system, data, split, "test", tmp_path / "stopped")
    assert saved == [stage for stage in stages for _ in range(2)]  # no epoch twice
    np.testing.assert_array_equal(resumed, whole)
    counted = [seconds[stage] for stage in stages if stage != "cvh_rec_encoder"]  # which has a report of its own
    assert system.report()["seconds_trained"] == pytest.approx(sum(counted), abs=1e-3)
    assert min(counted) > 0
