"""The training loop: resuming, selection on validation, rates and checkpoints."""

import shutil

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from baselines import training
from baselines.training import Job, Schedule, fingerprint, load_checkpoint, train
from study.base import paths
from study.evaluation.metrics import ndcg
from tests.baselines.toys import build, fit, scores, top10


@pytest.mark.parametrize("stop", [99, 0, 1, 3])
def test_the_best_weights_are_kept_and_patience_ends_the_training_after_a_stop_too(stop, tmp_path):
    values, seen = [0.1, 0.5, 0.3, 0.5, 0.2, 0.9], []

    def run(most):
        model = torch.nn.Linear(1, 1, bias=False)
        model.weight.data.zero_()

        def quality():
            if len(seen) == most:
                raise KeyboardInterrupt
            seen.append(model.weight.item())
            return values[len(seen) - 1]

        options = Schedule(epochs=20, evaluate_every=1, patience=3, checkpoint_seconds=-1.0)
        more = {"quality": quality, "optimiser": torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)}
        job = Job(0, tmp_path, "toy", "a")
        return train(model, lambda _: [0], lambda _: model.weight.sum(), options, job, **more), model.weight.item()

    if stop < 99:
        with pytest.raises(KeyboardInterrupt):
            run(stop)
    progress, weight = run(99)
    assert (progress.epoch, progress.best_epoch, progress.best) == (5, 2, 0.5)  # an equal value is no better one
    assert weight == seen[1]
    assert seen == [-1, -2.5, -4.25, -6.125, -8.0625]  # by steps 1, 1.5, 1.75, ...: the momentum goes on


def test_fingerprints_tell_arrays_and_settings_apart():
    same = fingerprint(Schedule(), np.arange(3))
    assert same == fingerprint(Schedule(), np.arange(3))
    assert same != fingerprint(Schedule(epochs=3), np.arange(3))
    assert same != fingerprint(Schedule(), np.arange(4))
    matrices = [sp.csr_matrix(np.array(rows, np.float32)) for rows in ([[0, 1]], [[1, 0]], [[0, 2]], [[0], [1]])]
    assert len({fingerprint(matrix) for matrix in matrices}) == 4
    assert fingerprint(matrices[0]) == fingerprint(matrices[0].copy())


@pytest.mark.parametrize("damage", ["missing", "cut", "other", "no state", "code"])
def test_nothing_is_restored_where_there_is_nothing_to_go_on_from(damage, tmp_path):
    path = tmp_path / "a.pt"
    if damage != "missing":
        training.save_checkpoint(path, {"identity": "other" if damage == "other" else "this", "best": torch.ones(3)})
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage in ("no state", "code"):
        torch.save([1.0] if damage == "no state" else {"identity": "this", "run": print}, path)
    assert load_checkpoint(path, "this") == {}


# Two stages each, the codes of one kept for all who come after; by these settings every epoch has a checkpoint.
STAGES = {
    "tiger": {"codes": "quantiser.training", "tiger": "training"},
    "mpt_rec": {"mpt_rec_experts": "first", "mpt_rec_prompts": "second"},
}


@pytest.mark.parametrize("name", STAGES)
def test_a_training_that_is_stopped_at_every_checkpoint_ends_as_an_undisturbed_one(name, blocks, tmp_path, monkeypatch):
    """The contract stops every system once."""
    kept, saved, stop_at, seconds = training.save_checkpoint, [], [], {}

    def save(path, state):
        kept(path, state)
        saved.append(path.stem)
        seconds[path.stem] = state["progress"]["seconds"]
        if stop_at and path.stem == stop_at[0]:
            stop_at.pop(0)
            raise KeyboardInterrupt

    def run(folder):
        system = build(name, **{f"{key}.checkpoint_seconds": -1 for key in STAGES[name].values()})
        return system, scores(system, *blocks, "test", tmp_path / folder)

    monkeypatch.setattr(training, "save_checkpoint", save)
    shutil.rmtree(paths.cache() / "quantisers", ignore_errors=True)
    _, whole = run("whole")
    every = [stage for stage in STAGES[name] for _ in range(2)]  # every epoch, and there are two
    assert saved == every
    saved.clear()
    shutil.rmtree(paths.cache() / "quantisers", ignore_errors=True)
    stop_at += every
    while stop_at:
        with pytest.raises(KeyboardInterrupt):
            run("stopped")
    system, found = run("stopped")
    np.testing.assert_array_equal(found, whole)
    assert saved == every  # no epoch twice
    assert system.report()["seconds_trained"] == pytest.approx(sum(seconds.values()), abs=1e-3)
    assert min(seconds.values()) > 0


# Six epochs are enough that some are worse than one before them.
LONGER = {
    "tiger_text": {"training.epochs.smoke": 6, "training.learning_rate.smoke": 0.02},
    "mpt_rec": {"first.epochs.smoke": 6, "second.epochs.smoke": 6, "first.learning_rate": 0.02},
}


@pytest.mark.parametrize("name", LONGER)
def test_the_recorded_quality_is_that_of_the_weights_that_are_kept(name, cold_blocks, tmp_path):
    data, split = cold_blocks
    system = fit(name, data, split, tmp_path, **LONGER[name])
    report, wanted = system.report(), split.valid[split.tasks("valid")]
    measured = ndcg(top10(system, data, split, "valid"), wanted, 10).mean()
    assert report["validation_ndcg"] == pytest.approx(measured, abs=1e-6)
    assert measured > 0
    assert 1 <= report["best_epoch"] <= report["epochs"] == 6
    assert system.uses_validation


def test_quality_is_measured_at_some_validation_tasks_and_nowhere_where_nothing_is_chosen(blocks, cold_blocks):
    asked, options = [], Schedule(evaluations=3, validation_tasks=7)

    def quality(split, options=options, **more):
        def score(tasks):
            asked.append(tasks)
            return split.valid[tasks].toarray()  # the answers themselves

        return training.validation_quality(score, split, options, seed=1, **more)

    assert quality(blocks[1])() == pytest.approx(1)
    assert len(np.concatenate(asked)) == 7
    assert quality(blocks[1], Schedule(evaluations=0), ranks_new=True) is None
    assert quality(cold_blocks[1]) is None
    assert quality(cold_blocks[1], ranks_new=True)() == pytest.approx(1)


def test_evaluations_are_spread_evenly_and_the_rate_rises_and_falls():
    for settings, expected in (
        (Schedule(epochs=28, evaluations=5), [6, 12, 17, 23, 28]),
        (Schedule(epochs=2, evaluations=5), [1, 2]),
        (Schedule(epochs=8, evaluate_every=3), [3, 6, 8]),
    ):
        assert [epoch for epoch in range(1, settings.epochs + 1) if settings.evaluates_after(epoch)] == expected
    assert not Schedule(evaluations=0).selects
    assert not Schedule(patience=None).selects
    for decay in ("cosine", "linear"):
        settings = Schedule(epochs=1, warm_up=0.1, decay=decay)
        assert [settings.rate(share) for share in (0, 0.05, 0.1, 0.55, 1)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert Schedule(warm_up=0.0).rate(0.0) == 1
