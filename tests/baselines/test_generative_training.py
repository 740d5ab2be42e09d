"""The training loop, vocabularies and examples that the generative baselines share."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from baselines.generative import training
from baselines.generative.histories import batched, prefixes, training_lists
from baselines.generative.sizes import of_profile
from baselines.generative.text import BytePairs, Published, device
from baselines.generative.training import Optimisation, fingerprint, quality_of, rate, staged_report, train
from baselines.published.training import Progress
from study.data.splits import make
from study.errors import StudyError
from tests.baselines.toys import block_dataset, with_other_answers


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


def run(workdir, *, epochs: int = 6, stop_after: int | None = None, identity: str = "a", schedule: int | None = None):
    model, calls = Line(), []
    options = Optimisation(epochs=epochs, learning_rate=0.05, checkpoint_seconds=-1.0)

    def loss(batch):
        if stop_after is not None and len(calls) == stop_after:
            raise KeyboardInterrupt
        calls.append(batch)
        return model(batch)

    train(model, line_batches, loss, options, seed=1, workdir=workdir, name="line", identity=identity)
    return [weight.detach().clone() for weight in model.parameters()], len(calls)


def test_a_stopped_training_ends_where_an_undisturbed_one_does(tmp_path):
    whole, calls = run(tmp_path / "whole")
    assert calls == 18
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "parts", stop_after=7)
    resumed, calls = run(tmp_path / "parts")
    assert calls == 18 - 12
    for a, b in zip(whole, resumed, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_complete_training_is_not_repeated(tmp_path):
    first, _ = run(tmp_path)
    again, calls = run(tmp_path)
    assert calls == 0
    for a, b in zip(first, again, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_seconds_are_those_of_all_epochs_that_count_also_before_a_stop(tmp_path, monkeypatch):
    """A clock that moves a second with every step: six epochs of three steps. Steps of a lost epoch do not count."""
    clock = [0.0]

    class Timed(Line):
        def forward(self, batch):
            clock[0] += 1
            if clock[0] in (8, 17):  # in the third epoch, and again in the fifth
                raise KeyboardInterrupt
            return super().forward(batch)

    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    options = Optimisation(epochs=6, checkpoint_seconds=-1.0)

    def trained() -> Progress:
        model = Timed()
        return train(model, line_batches, model, options, seed=1, workdir=tmp_path, name="line", identity="a")

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            trained()
    assert trained() == Progress(epoch=6, seconds=18.0)
    assert clock[0] > 18
    assert trained().report() == {"epochs": 6, "seconds_trained": 18.0}  # nothing is left to be done


LOOKS = (0.2, 0.5, 0.4, 0.5, 0.3)  # the second is the best, and an equal one is no better


def looked_at(workdir, *, stop_at: int | None = None):
    """Five epochs with a look after each; may be stopped after a look. Returns weights, progress, weights at looks."""
    model, seen = Line(), []
    options = Optimisation(epochs=5, learning_rate=0.05, checkpoint_seconds=-1.0)

    def quality() -> float:
        assert not model.training
        assert not torch.is_grad_enabled()
        if stop_at is not None and len(seen) == stop_at:
            raise KeyboardInterrupt
        seen.append([weight.detach().clone() for weight in model.parameters()])
        return LOOKS[done + len(seen) - 1]

    def loss(batch):
        assert model.training
        return model(batch)

    path = workdir / "line.safetensors"
    with safe_open(path, framework="pt") if path.exists() else nullcontext() as stored:
        done = json.loads(stored.metadata()["progress"])["epoch"] if stored else 0
    progress = train(
        model, line_batches, loss, options, seed=1, workdir=workdir, name="line", identity="a", quality=quality
    )
    return list(model.parameters()), progress, seen


def test_the_best_weights_are_kept_and_all_epochs_run(tmp_path):
    weights, progress, seen = looked_at(tmp_path)
    assert (progress.epoch, progress.best_epoch, progress.best) == (5, 2, 0.5)
    assert progress.report().keys() == {"epochs", "best_epoch", "validation_ndcg", "seconds_trained"}
    for kept, then, last in zip(weights, seen[1], seen[4], strict=True):
        torch.testing.assert_close(kept, then, rtol=0, atol=0)
        assert not torch.equal(kept, last)


@pytest.mark.parametrize("stop_at", [0, 1, 3])
def test_a_stopped_training_keeps_the_weights_that_an_undisturbed_one_does(stop_at, tmp_path):
    whole, expected, _ = looked_at(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        looked_at(tmp_path / "parts", stop_at=stop_at)
    resumed, progress, seen = looked_at(tmp_path / "parts")
    assert len(seen) == 5 - stop_at
    for _ in range(2):  # and once more, when nothing is left to be done
        assert (progress.epoch, progress.best_epoch, progress.best) == (5, expected.best_epoch, expected.best)
        for a, b in zip(whole, resumed, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        resumed, progress, seen = looked_at(tmp_path / "parts")
        assert not seen


def test_looks_are_spread_evenly_and_the_last_is_at_the_end():
    assert Optimisation(epochs=28, looks=5).look_epochs() == {6, 12, 17, 23, 28}
    assert Optimisation(epochs=2, looks=5).look_epochs() == {1, 2}
    assert Optimisation(epochs=9, looks=1).look_epochs() == {9}
    assert Optimisation(looks=0).look_epochs() == set()


def test_a_look_measures_validation_at_some_tasks_and_none_is_taken_where_none_is_wanted():
    data = block_dataset()
    split = make(data, "warm")
    asked = []

    def score(tasks):
        asked.append(tasks)
        return split.valid[tasks].toarray()  # the answers themselves

    options = Optimisation(looks=3, validation_tasks=7)
    quality = quality_of(score, split, options, seed=1, ranks_new=False)
    assert quality() == pytest.approx(1)
    assert len(np.concatenate(asked)) == 7
    assert quality_of(score, split, Optimisation(looks=0), seed=1, ranks_new=True) is None
    cold = make(data, "cold")
    assert quality_of(score, cold, options, seed=1, ranks_new=False) is None
    right = quality_of(lambda tasks: cold.valid[tasks].toarray(), cold, options, seed=1, ranks_new=True)
    assert right() == pytest.approx(1)


def test_a_report_of_stages_has_the_seconds_of_all():
    found = staged_report(Progress(epoch=7, seconds=3.0), first=Progress(epoch=2, seconds=1.5))
    assert found == {
        "epochs": 7,
        "seconds_trained": 4.5,
        "first": {"epochs": 2, "seconds_trained": 1.5},
    }


def test_a_checkpoint_of_another_training_is_not_taken_up(tmp_path):
    run(tmp_path, identity="other")
    _, calls = run(tmp_path)
    assert calls == 18


@pytest.mark.parametrize("damage", [lambda good: b"", lambda good: good[:-3], lambda good: b"\xff" * 99])
def test_a_damaged_checkpoint_is_not_taken_up(damage, tmp_path):
    whole, _ = run(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    again, calls = run(tmp_path)
    assert calls == 18
    torch.testing.assert_close(again[0], whole[0], rtol=0, atol=0)


def test_training_ends_in_evaluation_mode_and_learns(tmp_path):
    weights, _ = run(tmp_path, epochs=60)
    assert weights[0].mean() == pytest.approx(3, abs=0.8)
    model = Line()
    options = Optimisation(epochs=1)
    train(model, line_batches, model, options, seed=1, workdir=tmp_path, name="other", identity="b")
    assert not model.training


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_the_rate_rises_and_then_falls_to_nothing(decay):
    settings_ = Optimisation(warm_up=0.1, decay=decay)
    values = [rate(share / 1000, settings_) for share in range(1001)]
    assert values[0] == 0
    assert max(values) == pytest.approx(1)
    assert np.argmax(values) == 100
    assert values[-1] == pytest.approx(0, abs=1e-9)
    assert values[550] == pytest.approx(0.5)
    assert rate(0.0, Optimisation(warm_up=0.0)) == 1


def test_fingerprints_tell_arrays_and_settings_apart():
    same = fingerprint(Optimisation(), np.arange(3))
    assert same == fingerprint(Optimisation(), np.arange(3))
    assert same != fingerprint(Optimisation(epochs=3), np.arange(3))
    assert same != fingerprint(Optimisation(), np.arange(4))
    matrices = [sp.csr_matrix(np.array(rows, np.float32)) for rows in ([[0, 1]], [[1, 0]], [[0, 2]], [[0], [1]])]
    assert len({fingerprint(matrix) for matrix in matrices}) == 4
    assert fingerprint(matrices[0]) == fingerprint(matrices[0].copy())


# Vocabularies


TEXTS = ["Query a PostgreSQL database", "Render an image of a database", "naïve café \N{SNOWMAN}"]


@given(st.text(max_size=60))
@settings(max_examples=60)
def test_any_text_is_spelled_and_read_back_in_lower_case(text):
    words = BytePairs(TEXTS * 3, 300)
    tokens = words.encode(text)
    assert all(2 <= token < words.size for token in tokens)
    spelled = text.encode("utf-8", "replace").decode()
    assert words.decode(tokens) == spelled.lower().strip() or spelled.lower() != spelled.casefold()


def test_no_text_spells_a_special_token():
    words = BytePairs(TEXTS * 3, 300)
    for text in ("<pad>", "</s>", "<a_1><b_2>", "[PAD]", "\x00\x01", "<0>"):
        assert not {words.pad, words.end} & set(words.encode(text))
    assert words.encode("database " * 50, 7) == words.encode("database " * 50)[:7]


def test_frequent_words_become_single_tokens():
    words = BytePairs(["recommend server"] * 5, 2000)
    assert len(words.encode("recommend")) == 1
    assert len(words.encode("server")) == 1


def test_a_model_that_is_not_here_says_what_to_do(tmp_path):
    with pytest.raises(StudyError, match="hf download no/such-model"):
        Published("no/such-model")
    with pytest.raises(StudyError, match="cannot be read"):
        Published(str(tmp_path))


def test_the_processor_is_used_where_there_is_no_accelerator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device("auto").type == device("cpu").type == "cpu"


# Examples


def test_training_lists_keep_the_listed_order_and_hold_no_other_server():
    data = block_dataset()
    split = make(data, "warm")
    lists = training_lists(data, split)
    for task, row in enumerate(lists):
        assert set(row) == set(split.train[[task]].indices)
        places = [data.lists[task].tolist().index(server) for server in row]
        assert places == sorted(places)
    changed, other = with_other_answers(data, split, ("valid", "test"))
    for before, after in zip(lists, training_lists(changed, other), strict=True):
        np.testing.assert_array_equal(before, after)
    cold = make(data, "cold")
    assert [len(row) for row in training_lists(data, cold)] == np.diff(cold.train.indptr).tolist()


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.integers(0, 99))
def test_prefixes_split_a_list_in_two(counts, seed):
    lists = [np.arange(count) + 10 * row for row, count in enumerate(counts)]
    drawn = list(prefixes(lists, "random", np.random.default_rng(seed)))
    assert [row for row, _, _ in drawn] == [row for row, count in enumerate(counts) if count >= 2]
    for row, seen, targets in drawn:
        assert len(seen)
        assert len(targets)
        assert sorted([*seen, *targets]) == lists[row].tolist()
    for row, seen, targets in prefixes(lists, "list", np.random.default_rng(seed)):
        assert [*seen, *targets] == lists[row][: len(seen) + 1].tolist()


def test_every_beginning_is_drawn_as_often_as_any_other():
    drawn = [
        len(seen)
        for seed in range(600)
        for _, seen, _ in prefixes([np.arange(5)], "random", np.random.default_rng(seed))
    ]
    counts = np.bincount(drawn, minlength=5)[1:]
    assert counts.sum() == 600
    assert abs(counts - 150).max() < 5 * np.sqrt(600 * 0.25 * 0.75)


def test_an_unknown_order_is_refused():
    with pytest.raises(StudyError, match="unknown order 'sorted'"):
        list(prefixes([np.arange(3)], "sorted", np.random.default_rng(0)))


def test_batches_hold_every_example_once_and_similar_lengths_together():
    examples = ["x" * n for n in range(1, 30)]
    parts = batched(examples, len, 4, np.random.default_rng(0))
    assert sorted((example for part in parts for example in part), key=len) == examples
    assert all(max(map(len, part)) - min(map(len, part)) <= 3 for part in parts)
    assert [len(part[0]) for part in parts] != sorted(len(part[0]) for part in parts)


def test_a_profile_of_another_name_has_no_size():
    assert of_profile("laptop", 1, 2, 3) == 2
    with pytest.raises(StudyError, match="huge"):
        of_profile("huge", 1, 2, 3)
