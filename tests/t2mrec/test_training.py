"""Training against a dense reference; tests/runner/test_kill.py kills one."""

import signal

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


def small(epochs=12, towers=SMALL, **training):
    settings = {"batch_size": 16, "checkpoint_every": 4} | training
    return T2MRec(Lexical(), towers, Training(epochs=epochs, **settings), Scoring(anchors=3, pool=12))


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
    fast.fit(toy, toy_split, seed=5, workdir=tmp_path)
    tasks, servers = dense_reference(toy, toy_split, size, epochs=12, seed=5)
    np.testing.assert_allclose(fast.task_embeddings, tasks, atol=1e-4)
    np.testing.assert_allclose(fast.server_embeddings, servers, atol=1e-4)
    untrained, _ = dense_reference(toy, toy_split, size, epochs=0, seed=5)
    assert np.abs(tasks - untrained).max() > 0.1  # so that agreement means something
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
        assert np.asarray(toy_split.train[tasks, servers]).all()
        drawn |= set(zip(tasks, servers, strict=True))
    assert len(drawn) > 0.95 * toy_split.train.nnz  # every positive gets its turn
