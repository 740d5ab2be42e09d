"""A trained RQ-VAE is kept: for other trials, protocols and systems, but for no other settings, seed or vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baselines.generative.quantisation import Quantiser, RqVae, fit_codes, standardised
from baselines.training import Optimisation
from study import paths
from study.data.splits import make
from tests.baselines.toys import block_dataset, build

SETTINGS = Quantiser(codes=6, hidden=(8,), width=4, training=Optimisation(epochs=3, batch_size=20))
STEPS = 3 * 2  # epochs times batches of 40 vectors
VECTORS = standardised(np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32))


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """The steps of training that have been taken, from an empty cache on."""
    taken = []

    def forward(model, batch):
        taken.append(model)
        return kept(model, batch)

    kept = RqVae.forward
    monkeypatch.setattr(RqVae, "forward", forward)
    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    return taken


def files():
    return sorted((paths.cache() / "quantisers").rglob("*.safetensors"))


def same(a: RqVae, b: RqVae) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_what_is_kept_is_not_trained_again_and_its_seconds_stay(steps):
    first, trained = fit_codes(VECTORS, SETTINGS, seed=1)
    assert len(steps) == STEPS
    assert trained.seconds > 0
    again, kept = fit_codes(VECTORS, SETTINGS, seed=1)
    assert len(steps) == STEPS
    assert kept == trained
    assert same(first, again)
    assert len(files()) == 1


@pytest.mark.parametrize("changed", ["settings", "seed", "vectors"])
def test_another_quantiser_is_trained_and_both_are_kept(changed, steps):
    first, _ = fit_codes(VECTORS, SETTINGS, seed=1)
    settings = Quantiser(codes=6, hidden=(8,), width=4, commitment=0.5, training=SETTINGS.training)
    other, _ = fit_codes(
        VECTORS[::-1].copy() if changed == "vectors" else VECTORS,
        settings if changed == "settings" else SETTINGS,
        seed=2 if changed == "seed" else 1,
    )
    assert len(steps) == 2 * STEPS
    assert not same(first, other)
    assert len(files()) == 2


@pytest.mark.parametrize("damage", [lambda good: b"", lambda good: good[:-3], lambda good: b"\xff" * 99])
def test_a_damaged_file_is_trained_again(damage, steps):
    first, _ = fit_codes(VECTORS, SETTINGS, seed=1)
    (path,) = files()
    path.write_bytes(damage(path.read_bytes()))
    again, _ = fit_codes(VECTORS, SETTINGS, seed=1)
    assert len(steps) == 2 * STEPS
    assert same(first, again)
    fit_codes(VECTORS, SETTINGS, seed=1)  # the file is whole again
    assert len(steps) == 2 * STEPS


def test_a_file_of_another_quantiser_in_its_place_is_not_taken_up(steps):
    fit_codes(VECTORS, SETTINGS, seed=1)
    fit_codes(VECTORS, SETTINGS, seed=2)
    one, other = files()
    one.write_bytes(other.read_bytes())
    for seed in (1, 2):
        fit_codes(VECTORS, SETTINGS, seed=seed)
    assert len(steps) == 3 * STEPS


def test_protocols_trials_and_systems_share_one_quantiser(steps, tmp_path):
    data = block_dataset()
    runs = [
        ("tiger", "warm", {}),
        ("tiger", "loo", {}),
        ("tiger_text", "cold", {}),
        ("lc_rec", "cold", SAME),
        ("tiger_tuned", "warm", {"training.learning_rate.smoke": 0.003}),
    ]
    reports = []
    for number, (name, protocol, changes) in enumerate(runs):
        workdir = tmp_path / str(number)
        workdir.mkdir()
        system = build(name, **changes)
        system.fit(data, make(data, protocol), seed=1, workdir=workdir)
        reports.append(system.report())
        if not number:
            taken = len(steps)
    assert len(steps) == taken > 0
    assert len(files()) == 1
    assert all(report["quantiser"] == reports[0]["quantiser"] for report in reports)
    assert all(report["seconds_trained"] > report["quantiser"]["seconds_trained"] > 0 for report in reports)


# What LC-Rec's quantiser has otherwise than TIGER's, as its paper has it.
SAME = {"quantiser.levels": 3, "quantiser.rounds": 30}
