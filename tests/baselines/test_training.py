"""The training loop: resuming, selection on validation, rates and checkpoints."""

import shutil
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from baselines import training
from baselines.training import Job, Schedule, fingerprint, load_checkpoint, train
from study.base import paths
from study.data.splits import make
from study.evaluation.metrics import ndcg
from tests.baselines.generative_toys import steps as schedule
from tests.baselines.toys import block_dataset, build, fit, scores, top10


class Line(torch.nn.Module):
    """Learns y = 3x - 1, with dropout, so that a resumed training must restore the random state too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.dropout = torch.nn.Linear(4, 1), torch.nn.Dropout(0.2)

    def forward(self, batch):
        inputs, wanted = batch
        return ((self.layer(self.dropout(inputs)).squeeze(1) - wanted) ** 2).mean()


def line_batches(epoch: int):
    rng = np.random.default_rng(epoch)
    inputs = torch.from_numpy(rng.normal(size=(3, 16, 4)).astype(np.float32))
    return [(part, 3 * part.sum(dim=1) - 1) for part in inputs]


LOOKS = (0.2, 0.5, 0.4, 0.5, 0.3)  # the second is the best, and an equal one is no better


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Five epochs of three steps, an evaluation after each, by a clock that moves a second a step; may be stopped.

    Returns a function: name of the training -> its weights, progress and steps, and the weights at its evaluations.
    """
    clock = [0.0]
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def run(name: str, *, steps: int = 99, evaluations: int = 99, identity: str = "a"):
        model, taken, seen, before, path = Line(), [], [], 0, tmp_path / f"{name}.pt"
        if stored := load_checkpoint(path, identity):
            before = stored["progress"]["epoch"]

        def loss(batch):
            assert model.training
            if len(taken) == steps:
                raise KeyboardInterrupt
            taken.append(batch)
            clock[0] += 1
            return model(batch)

        def quality() -> float:
            assert not model.training
            assert not torch.is_grad_enabled()
            if len(seen) == evaluations:
                raise KeyboardInterrupt
            seen.append([weight.detach().clone() for weight in model.parameters()])
            return LOOKS[before + len(seen) - 1]

        options = schedule(5, learning_rate=0.05, checkpoint_seconds=-1.0)
        job = Job(1, tmp_path, name, identity)
        progress = train(model, line_batches, loss, options, job, quality=quality)
        assert not model.training
        return list(model.parameters()), progress, len(taken), seen

    return run


@pytest.mark.parametrize("stop", [{"steps": 7}, {"evaluations": 0}, {"evaluations": 1}, {"evaluations": 3}])
def test_a_stopped_training_ends_where_an_undisturbed_one_does_and_is_not_repeated(stop, trained):
    """The best weights are kept, all epochs run, and steps of a lost epoch count in no report."""
    whole, expected, steps, seen = trained("whole")
    assert steps == 15
    assert expected == training.Progress(epoch=5, best=0.5, best_epoch=2, stale=3, seconds=15.0)
    assert expected.report() == {"epochs": 5, "best_epoch": 2, "validation_ndcg": 0.5, "seconds_trained": 15.0}
    for kept, then, last in zip(whole, seen[1], seen[-1], strict=True):
        torch.testing.assert_close(kept, then, rtol=0, atol=0)
        assert not torch.equal(kept, last)
    with pytest.raises(KeyboardInterrupt):
        trained("parts", **stop)
    done = stop.get("evaluations", 2)
    for left in (5 - done, 0):  # and once more, when nothing is left to be done
        resumed, progress, steps, seen = trained("parts")
        assert (steps, len(seen), progress) == (3 * left, left, expected)
        for a, b in zip(whole, resumed, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert trained("parts", identity="another")[2] == 15


def test_the_best_weights_are_kept_and_patience_ends_the_training(tmp_path):
    model, values, seen = torch.nn.Linear(1, 1, bias=False), iter([0.1, 0.5, 0.3, 0.5, 0.2, 0.9]), []

    def quality():
        seen.append(model.weight.item())
        return next(values)

    options, job = Schedule(epochs=20, evaluate_every=1, patience=3), Job(0, tmp_path, "toy", "a")
    more = {"quality": quality, "optimiser": torch.optim.SGD(model.parameters(), lr=1.0)}
    progress = train(model, lambda epoch: [0], lambda batch: model.weight.sum(), options, job, **more)
    assert (progress.epoch, progress.best_epoch, progress.best) == (5, 2, 0.5)  # an equal value is no better one
    assert model.weight.item() == seen[1]


def test_evaluations_are_spread_evenly_and_the_last_is_at_the_end():
    def evaluated(settings):
        return [epoch for epoch in range(1, settings.epochs + 1) if settings.evaluates_after(epoch)]

    assert evaluated(Schedule(epochs=28, evaluations=5)) == [6, 12, 17, 23, 28]
    assert evaluated(Schedule(epochs=2, evaluations=5)) == [1, 2]
    assert evaluated(Schedule(epochs=9, evaluations=1)) == [9]
    assert evaluated(Schedule(epochs=8, evaluate_every=3)) == [3, 6, 8]
    assert not Schedule(evaluations=0).selects
    assert not Schedule(patience=None).selects


def test_a_look_measures_validation_at_some_tasks_and_none_is_taken_where_none_is_wanted(blocks, cold_blocks):
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


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_the_rate_rises_and_then_falls_to_nothing(decay):
    settings = Schedule(epochs=1, warm_up=0.1, decay=decay)
    values = [settings.rate(share / 1000) for share in range(1001)]
    assert values[0] == 0
    assert np.argmax(values) == 100
    assert [values[place] for place in (0, 50, 100, 550, 1000)] == pytest.approx([0, 0.5, 1, 0.5, 0], abs=1e-9)
    assert Schedule(warm_up=0.0).rate(0.0) == 1


def test_fingerprints_tell_arrays_and_settings_apart():
    same = fingerprint(Schedule(), np.arange(3))
    assert same == fingerprint(Schedule(), np.arange(3))
    assert same != fingerprint(Schedule(epochs=3), np.arange(3))
    assert same != fingerprint(Schedule(), np.arange(4))
    matrices = [sp.csr_matrix(np.array(rows, np.float32)) for rows in ([[0, 1]], [[1, 0]], [[0, 2]], [[0], [1]])]
    assert len({fingerprint(matrix) for matrix in matrices}) == 4
    assert fingerprint(matrices[0]) == fingerprint(matrices[0].copy())


class Tied(torch.nn.Module):
    """Two layers with one weight, as a language model's first and last table are."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3))
        self.layers[1].weight = self.layers[0].weight

    def forward(self, batch):
        return self.layers(batch).square().sum()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_tied_weights_and_the_state_of_an_optimiser_go_on_from_a_checkpoint(momentum, tmp_path):
    def run(name, epochs, wanted):
        model = Tied()
        quality = iter(wanted).__next__
        options = Schedule(epochs=epochs, evaluate_every=1, checkpoint_seconds=-1.0)
        more = {"optimiser": torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum), "quality": quality}
        train(
            model, lambda epoch: [torch.full((2, 3), 1.0 + epoch)], model, options, Job(0, tmp_path, name, "a"), **more
        )
        assert model.layers[1].weight is model.layers[0].weight
        return model.state_dict()

    run("parts", 2, [0.1, 0.2])
    torch.testing.assert_close(run("parts", 4, [0.3, 0.2]), run("whole", 4, [0.1, 0.2, 0.3, 0.2]), rtol=0, atol=0)


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


# The checkpoints of each method, in the order of its stages, and the settings by which every epoch has one.
STAGES = {
    "msbpr": {"msbpr": "schedule"},
    "recafr": {"recafr": "schedule"},
    "gdsrec": {"gdsrec": "schedule"},
    "cvh_rec": {"cvh_rec": "schedule", "cvh_rec_encoder": "schedule"},
    "tiger": {"codes": "quantiser.training", "tiger": "training"},
    "openp5": {"openp5": "training"},
    "lc_rec": {"codes": "quantiser.training", "lc_rec": "training"},
    "mpt_rec": {"mpt_rec_experts": "first", "mpt_rec_prompts": "second"},
}


@pytest.mark.parametrize("name", STAGES)
def test_a_training_that_is_stopped_in_every_stage_ends_as_an_undisturbed_one(name, tmp_path, monkeypatch):
    data = block_dataset()
    split = make(data, "cold" if name == "cvh_rec" else "warm")
    saved, stop_at, seconds = [], [], {}

    def save(path, state):
        kept(path, state)
        saved.append(path.stem)
        seconds[path.stem] = state["progress"]["seconds"]
        if stop_at and path.stem == stop_at[0]:
            stop_at.pop(0)
            raise KeyboardInterrupt

    kept = training.save_checkpoint
    monkeypatch.setattr(training, "save_checkpoint", save)
    codes = paths.cache() / "quantisers"  # kept for all who come after
    settings = {f"{key}.checkpoint_seconds": -1 for key in STAGES[name].values()}
    settings |= {"training.epochs": 2} if name == "lc_rec" else {}
    shutil.rmtree(codes, ignore_errors=True)
    whole = scores(build(name, **settings), data, split, "test", tmp_path / "whole")
    every = [stage for stage in STAGES[name] for _ in range(2)]  # every epoch, and there are two
    assert saved == every
    saved.clear()
    shutil.rmtree(codes, ignore_errors=True)
    stop_at += every
    while stop_at:
        with pytest.raises(KeyboardInterrupt):
            scores(build(name, **settings), data, split, "test", tmp_path / "stopped")
    system = build(name, **settings)
    np.testing.assert_array_equal(scores(system, data, split, "test", tmp_path / "stopped"), whole)
    assert saved == every  # no epoch twice
    counted = [seconds[stage] for stage in STAGES[name] if stage != "cvh_rec_encoder"]  # which has a report of its own
    assert system.report()["seconds_trained"] == pytest.approx(sum(counted), abs=1e-3)
    assert min(counted) > 0


# Enough that some epochs are worse than one before them.
SIX_EPOCHS = {"training.epochs.smoke": 6, "training.learning_rate.smoke": 0.02}
SIX = {
    "lc_rec": {"training.epochs.smoke": 6},
    "mpt_rec": {"first.epochs.smoke": 6, "second.epochs.smoke": 6, "first.learning_rate": 0.02},
}
WARM, COLD = ("tiger", "openp5", "lc_rec", "mpt_rec"), ("tiger_text", "openp5_text", "lc_rec", "mpt_rec")


@pytest.mark.parametrize(("name", "protocol"), [*product(WARM, ["warm"]), *product(COLD, ["cold"])])
def test_the_recorded_quality_is_that_of_the_weights_that_are_kept(name, protocol, blocks, tmp_path):
    data, split = blocks[0], make(blocks[0], protocol)
    system = fit(name, data, split, tmp_path, **SIX.get(name, SIX_EPOCHS))
    report, wanted = system.report(), split.valid[split.tasks("valid")]
    measured = ndcg(top10(system, data, split, "valid"), wanted, 10).mean()
    assert report["validation_ndcg"] == pytest.approx(measured, abs=1e-6)
    assert measured > 0
    assert 1 <= report["best_epoch"] <= report["epochs"] == 6
    assert report["seconds_trained"] > 0
    assert system.uses_validation


def test_the_experts_are_chosen_by_the_heads_of_their_scenarios(blocks, tmp_path):
    both, alone = (
        fit(name, *blocks, tmp_path / name, **SIX["mpt_rec"]).report() for name in ("mpt_rec", "mpt_rec_stage1")
    )
    assert alone.keys() == {"epochs", "best_epoch", "validation_ndcg", "seconds_trained"}
    assert {**both["experts"], "seconds_trained": 0} == {**alone, "seconds_trained": 0}


def test_one_stage_that_looks_is_enough_and_one_that_does_not_run_is_none():
    """Without any look no system says that it uses validation; test_every_system.py asks them all."""
    assert build("mpt_rec", **{"first.evaluations": 0}).uses_validation
    assert not build("mpt_rec_stage1", **{"first.evaluations": 0}).uses_validation
