"""Residual quantisation: codes, their balance, and identifiers that are unique."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.neighbors import NearestNeighbors

from baselines.generative import quantisation
from baselines.generative.quantisation import Quantiser, RqVae, fit_codes, sinkhorn, standardise
from baselines.training import Schedule
from study.base import paths


def clusters(n: int = 200, width: int = 12, seed: int = 0) -> np.ndarray:
    """Vectors around ten centres."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(10, width))
    return standardise((centres[rng.integers(10, size=n)] + 0.3 * rng.normal(size=(n, width))).astype(np.float32))


def small(**changes: object) -> Quantiser:
    training = Schedule(epochs=40, batch_size=64, learning_rate=3e-3, weight_decay=1e-4)
    return Quantiser(**{"codes": 8, "hidden": (16,), "width": 8, "training": training, **changes})


@pytest.fixture(scope="module")
def fitted():
    vectors = clusters()
    return vectors, fit_codes(vectors, small(), seed=1)[0]


def nearest_codes(model: RqVae, vectors: torch.Tensor) -> torch.Tensor:
    return model.quantise(model.encoder(vectors), balanced=False)[0]


def test_each_level_takes_the_nearest_code_of_what_is_left(fitted):
    """By scikit-learn's nearest neighbour, level by level; each brings the sum nearer to the code."""
    vectors, model = fitted
    with torch.no_grad():
        residual = model.encoder(torch.from_numpy(vectors)).numpy()
    codes, errors = nearest_codes(model, torch.from_numpy(vectors)).numpy(), [(residual**2).sum()]
    for level, book in enumerate(model.codebooks.detach().numpy()):
        nearest = NearestNeighbors(n_neighbors=1).fit(book).kneighbors(residual, return_distance=False).ravel()
        np.testing.assert_array_equal(nearest, codes[:, level])
        residual = residual - book[nearest]
        errors.append((residual**2).sum())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.5 * errors[0]


@pytest.mark.parametrize("commitment", [0.0, 0.25])
def test_the_loss_and_the_gradient_through_the_codes(commitment, monkeypatch):
    """Squared error, codes and commitment; the decoder's gradient reaches the encoder as if nothing were rounded."""
    torch.manual_seed(0)
    model = RqVae(12, 100, small(levels=2, commitment=commitment))
    vectors = torch.from_numpy(clusters(30))
    model.renew(vectors, np.random.default_rng(0), seed=0)
    monkeypatch.setattr(quantisation, "sinkhorn", lambda distances, *_: -distances)  # the nearest code here, too
    latent, codes = model.encoder(vectors).detach().requires_grad_(), nearest_codes(model, vectors)
    first, second = (model.codebooks[level][codes[:, level]] for level in range(2))
    rounded = (first + second).detach().requires_grad_()
    error = ((model.decoder(rounded) - vectors) ** 2).mean()
    rest = (((latent - first) ** 2).mean() + ((latent - first - second) ** 2).mean()) / 2
    assert model(vectors).item() == pytest.approx((error + (1 + commitment) * rest).item(), rel=1e-5)
    (plain,) = torch.autograd.grad(error, rounded)
    (pulled,) = torch.autograd.grad(commitment * rest, latent)
    weights = list(model.encoder.parameters())
    expected = torch.autograd.grad(model.encoder(vectors), weights, grad_outputs=plain + pulled)
    for gradient, wanted in zip(torch.autograd.grad(model(vectors), weights), expected, strict=True):
        torch.testing.assert_close(gradient, wanted)
        assert gradient.abs().max() > 0


def test_in_training_the_last_level_alone_is_assigned_evenly():
    """At every level nearly all of 400 vectors have the same nearest of eight codes."""
    torch.manual_seed(0)
    # After fifty rounds, the default, code 0 still has 76 of the 400; these are enough for an even plan.
    model, vectors = RqVae(12, 400, small(iterations=1000)), torch.randn(400, 12)
    latent = model.encoder(vectors).detach()
    books = torch.randn(model.codebooks.shape) * latent.std()
    books[:, 1:] += 3 * latent.std()
    books[:, 0] *= 0.1
    model.codebooks.data.copy_(books)
    (nearest, *_), (even, total, rest, _) = (model.quantise(latent, balanced=each) for each in (False, True))
    assert min(torch.bincount(column, minlength=8).max() for column in nearest.T) > 350
    assert torch.equal(even[:, :-1], nearest[:, :-1])
    usage = torch.bincount(even[:, -1], minlength=8)
    assert 45 <= usage.min() <= usage.max() <= 55
    # What is passed on is the sum of the codes assigned, not of the nearest ones; so it is in training.
    torch.testing.assert_close(total, sum(model.codebooks[level][even[:, level]] for level in range(3)))
    loss = model(vectors)
    assert loss.item() == pytest.approx((((model.decoder(total) - vectors) ** 2).mean() + rest).item(), rel=1e-5)
    loss.backward()
    moved = (model.codebooks.grad.abs().sum(dim=2) > 0).sum(dim=1)
    assert moved[:-1].max() < moved[-1] == 8


def test_k_means_of_as_many_points_as_codes_leaves_no_error_and_unused_codes_are_moved():
    vectors = torch.from_numpy(clusters(8, seed=3))
    model = RqVae(12, 8, small(levels=1))
    model.renew(vectors, np.random.default_rng(0), seed=0)
    torch.testing.assert_close(model.codebooks[0][nearest_codes(model, vectors)[:, 0]], model.encoder(vectors))
    vectors = torch.from_numpy(clusters())
    model = RqVae(12, 200, small())
    model.codebooks.data[:] = 100.0
    model.codebooks.data[:, 0] = 0.0
    assert len(nearest_codes(model, vectors)[:, 0].unique()) == 1
    model.renew(vectors, np.random.default_rng(0))
    assert len(nearest_codes(model, vectors)[:, 0].unique()) > 4


@given(st.integers(2, 60), st.integers(2, 12), st.integers(0, 1000))
@settings(max_examples=30)
def test_sinkhorn_is_even_over_rows_and_columns(n, k, seed):
    distances = torch.from_numpy(np.random.default_rng(seed).random((n, k)))
    assigned = sinkhorn(distances, 0.2, 2000)
    torch.testing.assert_close(assigned.sum(dim=1), torch.ones(n, dtype=torch.float64))
    torch.testing.assert_close(assigned.sum(dim=0), torch.full((k,), n / k, dtype=torch.float64), rtol=0, atol=1e-3)
    for extreme in (torch.zeros(5, 4), torch.tensor([[0.0, 1e6], [1e6, 0.0]])):
        assert torch.isfinite(sinkhorn(extreme, 0.003, 50)).all()


@given(arrays(np.int64, st.tuples(st.integers(1, 40), st.just(3)), elements=st.integers(0, 2)))
def test_identifiers_are_unique_whatever_is_shared(codes):
    counted = quantisation.number_collisions(codes)
    changed = quantisation.made_unique(codes, np.random.default_rng(0).random((len(codes), 3)))
    for unique in (counted, changed):
        assert len(np.unique(unique, axis=0)) == len(codes)
    np.testing.assert_array_equal(counted[:, :3], codes)
    np.testing.assert_array_equal(changed[:, :2], codes[:, :2])
    assert (changed == codes).all(axis=1).sum() == len(np.unique(codes, axis=0))


def test_numbers_tokens_and_moves_of_codes_by_hand():
    codes = np.array([[1, 1], [2, 2], [1, 1], [1, 1], [3, 3]])
    assert quantisation.number_collisions(codes)[:, 2].tolist() == [0, 0, 1, 2, 0]
    tokens, starts = quantisation.as_tokens(np.array([[0, 2], [1, 0]]), 5)
    assert (tokens.tolist(), starts) == ([[5, 9], [6, 7]], [5, 7, 10])
    # Item 1 cannot take 1 or 2, so it takes 3; item 3 takes 0, the last one that is free.
    codes, distances = np.array([[0, 1], [0, 1], [0, 2], [0, 1]]), np.array([[9.0, 0.0, 1.0, 2.0]] * 4)
    assert quantisation.made_unique(codes, distances)[:, 1].tolist() == [1, 3, 2, 0]


def test_colliding_items_are_spread_over_the_last_level(fitted):
    _, model = fitted
    vectors = np.repeat(clusters(20, seed=4), 2, axis=0)
    vectors[1::2] += 1e-3
    before = nearest_codes(model, torch.from_numpy(vectors)).numpy()
    after, distances = quantisation.spread_last(model, vectors)
    assert distances.shape == (40, 8)
    np.testing.assert_array_equal(after[:, :-1], before[:, :-1])
    assert len(np.unique(after, axis=0)) > len(np.unique(before, axis=0))


def test_what_is_kept_is_not_trained_again_but_another_quantiser_is(monkeypatch, tmp_path):
    steps, forward = [], RqVae.forward
    monkeypatch.setattr(RqVae, "forward", lambda model, batch: steps.append(model) or forward(model, batch))
    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    kept = Quantiser(codes=6, hidden=(8,), width=4, training=Schedule(epochs=3, batch_size=20))
    vectors = standardise(np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32))
    (first, trained), (again, progress) = (fit_codes(vectors, kept, seed=1) for _ in range(2))
    assert len(steps) == 3 * 2  # epochs times batches of 40 vectors
    assert progress == trained
    assert all(torch.equal(*pair) for pair in zip(first.parameters(), again.parameters(), strict=True))
    (tmp_path / "quantisation.py").write_text("other code")
    for vectors_, settings_, seed, module in (
        (vectors[::-1].copy(), kept, 1, quantisation.__file__),
        (vectors, replace(kept, commitment=0.5), 1, quantisation.__file__),
        (vectors, kept, 2, quantisation.__file__),
        (vectors, kept, 1, str(tmp_path / "quantisation.py")),
    ):
        steps.clear()
        monkeypatch.setattr(quantisation, "__file__", module)
        fit_codes(vectors_, settings_, seed=seed)
        assert len(steps) == 3 * 2
