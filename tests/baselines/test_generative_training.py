"""The training loop, vocabularies and examples that the generative baselines share."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from baseline_toys import block_dataset, with_other_answers
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.generative import training
from baselines.generative.histories import batched, prefixes, training_lists
from baselines.generative.sizes import of_profile
from baselines.generative.text import BytePairs, Published, device
from baselines.generative.training import Optimisation, fingerprint, rate, staged_report, train
from baselines.published.training import Progress
from study.data.splits import make
from study.errors import StudyError


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


def test_a_report_of_stages_has_the_seconds_of_all():
    found = staged_report(Progress(epoch=7, seconds=3.0), first=Progress(epoch=2, seconds=1.5))
    assert found == {
        "epochs": 7, "seconds_trained": 4.5, "first": {"epochs": 2, "seconds_trained": 1.5},
    }  # fmt: skip


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
