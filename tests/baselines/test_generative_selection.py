"""The generative methods and MPT-Rec choose their weights on validation, and their records say at which epoch."""

from __future__ import annotations

import pytest

from study.data.splits import make
from study.evaluation.metrics import ndcg
from tests.baselines.toys import block_dataset, build, top10

CASES = [
    ("tiger", "warm"),
    ("openp5", "warm"),
    ("lc_rec", "warm"),
    ("mpt_rec", "warm"),
    ("tiger_text", "cold"),
    ("openp5_text", "cold"),
    ("lc_rec", "cold"),
    ("mpt_rec", "cold"),
]
# Enough that some epochs are worse than one before them.
EPOCHS = {"training.epochs.smoke": 6, "training.learning_rate.smoke": 0.02}
SETTINGS = {
    "lc_rec": {"training.epochs.smoke": 6},
    "mpt_rec": {"first.epochs.smoke": 6, "second.epochs.smoke": 6, "first.learning_rate": 0.02},
}


@pytest.mark.parametrize(("name", "protocol"), CASES)
def test_the_recorded_quality_is_that_of_the_weights_that_are_kept(name, protocol, tmp_path):
    data = block_dataset()
    split = make(data, protocol)
    system = build(name, **SETTINGS.get(name, EPOCHS))
    system.fit(data, split, seed=1, workdir=tmp_path)
    report = system.report()
    wanted = split.valid[split.tasks("valid")]
    measured = ndcg(top10(system, data, split, "valid"), wanted, 10).mean()
    assert report["validation_ndcg"] == pytest.approx(measured, abs=1e-6)
    assert measured > 0
    assert 1 <= report["best_epoch"] <= report["epochs"] == 6
    assert report["seconds_trained"] > 0
    assert system.uses_validation


def test_the_experts_are_chosen_by_the_heads_of_their_scenarios(tmp_path):
    data = block_dataset()
    split = make(data, "warm")
    both, alone = build("mpt_rec", **SETTINGS["mpt_rec"]), build("mpt_rec_stage1", **SETTINGS["mpt_rec"])
    for number, system in enumerate((both, alone)):
        (tmp_path / str(number)).mkdir()
        system.fit(data, split, seed=1, workdir=tmp_path / str(number))
    first, expected = both.report()["experts"], alone.report()
    assert expected.keys() == {"epochs", "best_epoch", "validation_ndcg", "seconds_trained"}
    for key in ("epochs", "best_epoch", "validation_ndcg"):
        assert first[key] == expected[key]


@pytest.mark.parametrize(
    ("name", "changes", "looks"),
    [
        ("tiger", {"training.looks": 0}, False),
        ("mpt_rec", {"first.looks": 0}, True),
        ("mpt_rec", {"first.looks": 0, "second.looks": 0}, False),
        ("mpt_rec_stage1", {"first.looks": 0}, False),  # its second stage does not run
    ],
)
def test_who_looks_at_validation_says_so(name, changes, looks):
    assert build(name, **changes).uses_validation == looks
