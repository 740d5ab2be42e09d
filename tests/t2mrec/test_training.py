"""Training: against a dense reference, stopped and gone on, on a device; tests/runner/test_kill.py kills one."""

import signal
from collections import Counter

import numpy as np
import pytest
import torch

from study.t2mrec import lexical
from study.t2mrec.module import TwoTowers
from study.t2mrec.pairs import draw_pairs
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec
from study.t2mrec.towers import info_nce

SMALL = Towers(hidden=32, output=16)
STILL = Towers(hidden=32, output=16, dropout=0.0)  # a GPU draws other dropout
CASES = {"shared": {"towers": Towers(hidden=32, output=16, shared=True)}, "hard": {"hard_negatives": 2}}
CASES |= {"set": {"in_batch": "set"}, "triples": {"loss": "program_bce", "temperature": 1.0, "negatives": 2}}
# Leaving a device, or coming to it.
CROSSINGS = [(torch.Tensor, name) for name in ("cpu", "numpy", "item", "tolist", "__float__")] + [(torch, "from_numpy")]


def small(epochs=12, towers=SMALL, *, row_wise=True, device="cpu", bf16=False, **training):
    """T2MRec in toy sizes; `row_wise`: False trains on the processor as on any device."""
    settings = Training(epochs=epochs, **{"batch_size": 16, "checkpoint_every": 4, "hard_pool": 5} | training)
    system = T2MRec(Lexical(), towers, settings, Scoring(anchors=3, pool=12), device=device, bf16=bf16)
    system.row_wise = row_wise
    return system


def fitted(system, toy, toy_split, workdir):
    system.fit(toy, toy_split, seed=5, workdir=workdir)
    return system.task_embeddings, system.server_embeddings


def dense_reference(data, split, size, *, epochs, seed):
    """The same method with dense inputs, torch's own layers and torch's own AdamW."""
    _, tasks, servers = lexical.vectorize(data, split.tasks("train"))
    start = TwoTowers(tasks.shape[1], size, Training(), seed=seed)
    towers = []
    for tower in (start.task_tower, start.server_tower):
        first = torch.nn.Linear(tasks.shape[1], size.hidden)
        first.weight.data = torch.from_numpy(tower.wide.T.copy())
        first.bias.data = tower.bias.data.clone()
        layers = [first]
        for layer in tower.rest:
            layers += [torch.nn.ReLU(), torch.nn.Dropout(size.dropout), layer]
        towers.append(torch.nn.Sequential(*layers))
    parameters = [p for tower in towers for p in tower.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)
    for epoch in range(epochs):
        torch.manual_seed(int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0]))
        for *rows, _ in draw_pairs(split.train, np.random.default_rng([seed, epoch])).batches(16):
            embedded = [
                torch.nn.functional.normalize(tower(torch.from_numpy(vectors[own].toarray())), dim=-1)
                for tower, vectors, own in zip(towers, (tasks, servers), rows, strict=True)
            ]
            optimizer.zero_grad()
            info_nce(*embedded, temperature=0.07).backward()
            optimizer.step()
    with torch.inference_mode():
        return tuple(
            torch.nn.functional.normalize(tower.eval()(torch.from_numpy(part.toarray())), dim=-1).numpy()
            for tower, part in zip(towers, (tasks, servers), strict=True)
        )


def test_a_training_that_ctrl_c_stops_goes_on_from_its_last_checkpoint(toy, toy_split, tmp_path, monkeypatch):
    """Ctrl-C is one of the command, which ends; that the scores are the same is a rule of the contract."""
    epochs, end = [], TwoTowers.on_train_epoch_end

    def ended(self):
        end(self)
        epochs.append(self.current_epoch)
        if len(epochs) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(TwoTowers, "on_train_epoch_end", ended)
    with pytest.raises(KeyboardInterrupt):
        small().fit(toy, toy_split, seed=1, workdir=tmp_path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    small().fit(toy, toy_split, seed=1, workdir=tmp_path)
    assert epochs == [*range(6), *range(4, 12)]  # a checkpoint after every four


@pytest.mark.parametrize("size", [SMALL, Towers(hidden=16, output=8, layers=2)], ids=["three layers", "two"])
def test_equals_the_dense_reference(toy, toy_split, tmp_path, size):
    """Seed 5 is in force in both, so a seed that did nothing would be seen."""
    fast = small(towers=size)
    expected = dense_reference(toy, toy_split, size, epochs=12, seed=5)
    for number, system in enumerate((fast, small(towers=size, row_wise=False))):
        for own, dense in zip(fitted(system, toy, toy_split, tmp_path / str(number)), expected, strict=True):
            np.testing.assert_allclose(own, dense, atol=1e-4)
    untrained, _ = dense_reference(toy, toy_split, size, epochs=0, seed=5)
    assert np.abs(expected[0] - untrained).max() > 0.1  # so that agreement means something
    without = small(towers=Towers(enabled=False))
    without.fit(toy, toy_split, seed=5, workdir=tmp_path / "without")
    assert fast.parameters() > without.parameters() == 0


def test_learns_the_planted_topics(toy, toy_split, tmp_path):
    system = small(epochs=150, checkpoint_every=150)
    system.fit(toy, toy_split, seed=1, workdir=tmp_path)
    asked = toy_split.tasks("test")
    rows, scores = system.rank(asked, 5, toy_split.known("test"))
    hits = [len(set(row) & set(toy.lists[task])) for row, task in zip(rows, asked, strict=True)]
    assert np.mean(hits) > 4
    assert (np.diff(scores, axis=1) <= 0).all()


def test_pairs_are_positives_and_every_task_comes_once(toy_split):
    drawn = set()
    for epoch in range(30):
        pairs = draw_pairs(toy_split.train, np.random.default_rng([0, epoch]))
        batches = [np.stack(rows) for *rows, _ in pairs.batches(16)]
        assert {part.shape[1] for part in batches[:-1]} == {16}
        tasks, servers = np.concatenate(batches, axis=1)
        assert sorted(tasks) == sorted(toy_split.tasks("train"))
        drawn |= set(zip(tasks, servers, strict=True))
    positives = set(zip(*toy_split.train.nonzero(), strict=True))
    assert drawn <= positives
    assert len(drawn) > 0.95 * len(positives)  # every positive gets its turn


@pytest.mark.parametrize("case", CASES)
def test_on_the_processor_it_equals_the_row_wise_optimiser(toy, toy_split, tmp_path, case):
    expected = fitted(small(**CASES[case]), toy, toy_split, tmp_path / "rows")
    ours = fitted(small(row_wise=False, **CASES[case]), toy, toy_split, tmp_path / "device")
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    start = fitted(small(epochs=1, **CASES[case]), toy, toy_split, tmp_path / "short")
    assert np.abs(ours[0] - start[0]).max() > 0.02  # so that agreement means something


def test_nothing_comes_back_to_the_host_inside_an_epoch(toy, toy_split, tmp_path, monkeypatch):
    crossed, start, end = Counter(), TwoTowers.on_train_epoch_start, TwoTowers.on_train_epoch_end
    inside = pytest.MonkeyPatch()

    def counted(owner, name):
        method = getattr(owner, name)

        def call(*arguments, **options):
            crossed[name] += 1
            return method(*arguments, **options)

        return call

    def started(self):
        start(self)
        for owner, name in CROSSINGS:
            inside.setattr(owner, name, counted(owner, name))

    def ended(self):
        inside.undo()
        end(self)

    monkeypatch.setattr(TwoTowers, "on_train_epoch_start", started)
    monkeypatch.setattr(TwoTowers, "on_train_epoch_end", ended)
    fitted(small(epochs=2, row_wise=False), toy, toy_split, tmp_path / "device")
    assert crossed == {"from_numpy": 2}  # the places of an epoch's batches are sent once; nothing comes back
    fitted(small(epochs=2), toy, toy_split, tmp_path / "rows")
    assert crossed["numpy"] > 0  # so that the count means something


def test_mixed_precision_is_near(toy, toy_split, tmp_path):
    whole = fitted(small(row_wise=False), toy, toy_split, tmp_path / "whole")
    mixed = fitted(small(row_wise=False, bf16=True), toy, toy_split, tmp_path / "mixed")
    cosines = np.einsum("nd,nd->n", whole[0], mixed[0])
    assert cosines.mean() > 0.98
    assert not np.array_equal(whole[0], mixed[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_on_a_gpu_it_agrees_within_its_rounding(toy, toy_split, tmp_path):
    expected = fitted(small(towers=STILL), toy, toy_split, tmp_path / "rows")
    ours = fitted(small(towers=STILL, row_wise=False, device="gpu"), toy, toy_split, tmp_path / "device")
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)
