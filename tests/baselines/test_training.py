"""The training loop: resuming, selection on validation, rates and checkpoints."""

from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from baselines import training
from baselines.training import Job, Schedule, Stage, Trained, fingerprint, load_checkpoint, train
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
        stage = Stage(model, lambda *_: [0], lambda _: model.weight.sum(), options)
        return train(stage, Job(0, tmp_path, "toy", "a"), **more), model.weight.item()

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
    assert len({same, fingerprint(Schedule(epochs=3), np.arange(3)), fingerprint(Schedule(), np.arange(4))}) == 3
    matrices = [sp.csr_matrix(np.array(rows, np.float32)) for rows in ([[0, 1]], [[1, 0]], [[0, 2]], [[0], [1]])]
    assert len({fingerprint(matrix) for matrix in (*matrices, matrices[0].copy())}) == 4


@pytest.mark.parametrize("damage", ["missing", "cut", "other", "no state", "code"])
def test_nothing_is_restored_where_there_is_nothing_to_go_on_from(damage, tmp_path):
    path, state = tmp_path / "a.pt", {"identity": "other" if damage == "other" else "this", "best": torch.ones(3)}
    state = {"no state": [1.0], "code": {"identity": "this", "run": print}}.get(damage, state)
    if damage != "missing":
        torch.save(state, path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    assert load_checkpoint(path, "this") == {}


def test_a_training_that_is_stopped_at_every_checkpoint_ends_as_an_undisturbed_one(blocks, tmp_path, monkeypatch):
    """The contract stops every system once; here are two stages, and each epoch, of which there are two, has one."""
    every = ["mpt_rec_experts"] * 2 + ["mpt_rec_prompts"] * 2
    replacing, saved, stop_at = training.replacing, [], []

    @contextmanager
    def stopping(path):
        with replacing(path) as temporary:
            yield temporary
        saved.append(path.stem)
        if stop_at and path.stem == stop_at[0]:
            stop_at.pop(0)
            raise KeyboardInterrupt

    def run(folder):
        system = build("mpt_rec", **{f"{stage}.checkpoint_seconds": -1 for stage in ("first", "second")})
        return system, scores(system, *blocks, "test", tmp_path / folder)

    monkeypatch.setattr(training, "replacing", stopping)
    _, whole = run("whole")
    assert saved == every
    saved.clear()
    stop_at += every
    while stop_at:
        with pytest.raises(KeyboardInterrupt):
            run("stopped")
    system, resumed = run("stopped")
    np.testing.assert_array_equal(resumed, whole)
    assert saved == every  # no epoch twice
    assert system.report()["seconds_trained"] > system.report()["experts"]["seconds_trained"] > 0


# Six epochs are enough that some are worse than one before them.
LONGER = {
    "tiger_text": {"training.epochs.smoke": 6, "training.learning_rate.smoke": 0.02},
    "mpt_rec": {"first.epochs.smoke": 6, "second.epochs.smoke": 6, "first.learning_rate": 0.02},
}


@pytest.mark.parametrize("name", LONGER)
def test_the_recorded_quality_is_that_of_the_weights_that_are_kept(name, cold_blocks, tmp_path):
    data, split = cold_blocks
    system = fit(name, data, split, tmp_path, **LONGER[name])
    report, relevant = system.report(), split.valid[split.tasks("valid")]
    measured = ndcg(top10(system, data, split, "valid"), relevant, 10).mean()
    assert report["validation_ndcg"] == pytest.approx(measured, abs=1e-6)
    assert measured > 0
    assert 1 <= report["best_epoch"] <= report["epochs"] == 6
    assert system.uses_validation


def test_quality_is_measured_at_some_validation_tasks_and_nowhere_where_nothing_is_chosen(
    blocks, cold_blocks, monkeypatch, tmp_path
):
    class Answers(Trained):
        def score(self, tasks):
            self.asked = tasks
            return self.answers[tasks].toarray()

    def quality(split, schedule, ranks_new=True):
        system.answers, system.ranks_new = split.valid, ranks_new
        return system.train(Stage(None, None, None, schedule), split, Job(1, tmp_path, "", ""))

    system, some = Answers(), Schedule(evaluations=3, validation_tasks=7)
    monkeypatch.setattr(training, "train", lambda *_, quality: quality)
    assert quality(blocks[1], some, ranks_new=False)() == pytest.approx(1)
    assert len(system.asked) == 7
    assert quality(blocks[1], Schedule(evaluations=0)) is quality(cold_blocks[1], some, ranks_new=False) is None
    assert quality(cold_blocks[1], some)() == pytest.approx(1)


def test_evaluations_are_spread_evenly_and_the_rate_rises_and_falls():
    for settings, expected in (
        (Schedule(epochs=28, evaluations=5), [6, 12, 17, 23, 28]),
        (Schedule(epochs=2, evaluations=5), [1, 2]),
        (Schedule(epochs=8, evaluate_every=3), [3, 6, 8]),
    ):
        assert [epoch for epoch in range(1, settings.epochs + 1) if settings.evaluates_after(epoch)] == expected
    assert not Schedule(evaluations=0).selects | Schedule(patience=None).selects
    for decay in ("cosine", "linear"):
        settings = Schedule(epochs=1, warm_up=0.1, decay=decay)
        assert [settings.rate(share) for share in (0, 0.05, 0.1, 0.55, 1)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert Schedule(warm_up=0.0).rate(0.0) == 1
