"""Losses of the softmax rows by hand, with numpy in place of torch."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.special import log_softmax

from baselines.interactions import bipartite
from baselines.softmax_graph import SoftmaxGraph, Vectors

TRAIN = sp.csr_matrix(np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=np.float32))  # 3 tasks, 4 servers
START = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
ASKED, PAIRS = np.array([0, 1]), ([0, 0, 1], [0, 3, 1])


def ready(**settings):
    """A system with the vectors `START`, which learns `TRAIN`."""
    system = SoftmaxGraph(**settings)
    system.histories, system.graph, system.network = TRAIN, bipartite(TRAIN), Vectors(7, 5)
    with torch.no_grad():
        system.network.start.copy_(torch.from_numpy(START))
    return system


def unit(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def layers(n):
    """E^0 ... E^n by the dense graph."""
    degree = np.array([2, 1, 0, 1, 1, 0, 1])
    dense = np.zeros((7, 7))
    dense[:3, 3:] = TRAIN.toarray()
    scale = np.divide(1, np.sqrt(degree), out=np.zeros(7), where=degree > 0)
    graph = scale[:, None] * (dense + dense.T) * scale
    found = [START.astype(np.float64)]
    for _ in range(n):
        found.append(graph @ found[-1])
    return found


def cosines(vectors):
    return unit(vectors)[:3] @ unit(vectors)[3:].T


@pytest.mark.parametrize("n", [0, 1, 2])
def test_full_softmax_by_hand(n):
    logits = cosines(np.mean(layers(n), axis=0))[ASKED] / 0.2
    expected = -log_softmax(logits, axis=1)[PAIRS].mean()
    loss = ready(layers=n, temperature=0.2).loss((ASKED, np.array([], dtype=np.int64)))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_sampled_softmax_by_hand():
    drawn, scores = np.array([2, 2, 0]), cosines(START) / 0.2
    logits = [[scores[ASKED[row], own], *scores[ASKED[row], drawn]] for row, own in zip(*PAIRS, strict=True)]
    expected = -log_softmax(logits, axis=1)[:, 0].mean()
    loss = ready(layers=0, temperature=0.2, loss_over="sampled").loss((ASKED, drawn))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_xsimgcl_by_hand_with_hardly_any_noise():
    """Its vectors leave E^0 out, and tell each task and server of the batch from the others by its first layer."""
    first, second = layers(2)[1:]
    mean = unit((first + second) / 2)
    expected = -log_softmax(cosines((first + second) / 2)[ASKED] / 0.2, axis=1)[PAIRS].mean()
    for chosen in (ASKED, 3 + np.array([0, 1, 3])):
        expected += 0.5 * -np.diag(log_softmax(mean[chosen] @ unit(first[chosen]).T / 0.3, axis=1)).mean()
    settings = {"temperature": 0.2, "noise": 1e-9, "contrast": 0.5, "contrast_temperature": 0.3}
    loss = ready(layers=2, **settings).loss((ASKED, np.array([], dtype=np.int64)))
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_a_noisy_pass_moves_every_vector_by_the_noise_in_its_own_direction():
    torch.manual_seed(0)
    system = ready(layers=1, noise=0.25)
    quiet, noisy = (system.layers_of(perturbed)[1].detach().numpy() for perturbed in (False, True))
    moved = (noisy - quiet)[np.abs(quiet).sum(axis=1) > 0]
    assert np.linalg.norm(moved, axis=1) == pytest.approx(0.25, rel=1e-5)
    assert (np.sign(moved) == np.sign(quiet[np.abs(quiet).sum(axis=1) > 0])).all()
