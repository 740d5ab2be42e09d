"""Training on a device: on the processor the same as the row-wise optimiser, on a GPU within its rounding."""

from collections import Counter

import numpy as np
import pytest
import torch

from study.base.errors import StudyError
from study.t2mrec.module import TwoTowers
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec

SMALL = Towers(hidden=32, output=16)
CASES = {"shared": {"towers": Towers(hidden=32, output=16, shared=True)}, "hard": {"hard_negatives": 2}}
CASES |= {"set": {"in_batch": "set"}, "triples": {"loss": "program_bce", "temperature": 1.0, "negatives": 2}}
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
# Leaving a device, or coming to it.
CROSSINGS = [(torch.Tensor, name) for name in ("cpu", "numpy", "item", "tolist", "__float__")] + [(torch, "from_numpy")]


def made(epochs=8, towers=SMALL, options=None, *, row_wise=False, **training):
    settings = Training(epochs=epochs, batch_size=16, checkpoint_every=4, hard_pool=5, **training)
    system = T2MRec(Lexical(), towers, settings, Scoring(anchors=3, pool=12), **(options or {}))
    system.row_wise = row_wise
    return system


def fitted(system, toy, toy_split, workdir):
    system.fit(toy, toy_split, seed=5, workdir=workdir)
    return system.task_embeddings, system.server_embeddings


@pytest.mark.parametrize("case", CASES)
def test_on_the_processor_it_equals_the_row_wise_optimiser(toy, toy_split, tmp_path, case):
    expected = fitted(made(row_wise=True, **CASES[case]), toy, toy_split, tmp_path / "rows")
    ours = fitted(made(**CASES[case]), toy, toy_split, tmp_path / "device")
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    start = fitted(made(epochs=1, **CASES[case]), toy, toy_split, tmp_path / "short")
    assert np.abs(ours[0] - start[0]).max() > 0.02  # so that agreement means something


def test_nothing_crosses_to_the_host_inside_an_epoch(toy, toy_split, tmp_path, monkeypatch):
    crossed, step = Counter(), TwoTowers.training_step

    def counted(owner, name):
        method = getattr(owner, name)

        def call(*arguments, **options):
            crossed[name] += 1
            return method(*arguments, **options)

        return call

    def watched(self, batch, batch_idx):
        with monkeypatch.context() as patch:
            for owner, name in CROSSINGS:
                patch.setattr(owner, name, counted(owner, name))
            step(self, batch, batch_idx)

    monkeypatch.setattr(TwoTowers, "training_step", watched)
    fitted(made(epochs=2), toy, toy_split, tmp_path / "device")
    assert not crossed
    fitted(made(epochs=2, row_wise=True), toy, toy_split, tmp_path / "rows")
    assert crossed["numpy"] > 0  # so that the count means something


def test_mixed_precision_is_near(toy, toy_split, tmp_path):
    whole = fitted(made(), toy, toy_split, tmp_path / "whole")
    mixed = fitted(made(options={"bf16": True}), toy, toy_split, tmp_path / "mixed")
    cosines = np.einsum("nd,nd->n", whole[0], mixed[0])
    assert cosines.mean() > 0.98
    assert not np.array_equal(whole[0], mixed[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(StudyError, match="no GPU"):
        made(options={"device": "gpu"})
    assert made(options={"device": "auto"}).device == "cpu"


@pytest.mark.gpu
@NEEDS_GPU
def test_on_a_gpu_it_agrees_within_its_rounding(toy, toy_split, tmp_path):
    still = Towers(hidden=32, output=16, dropout=0.0)  # a GPU draws other dropout
    expected = fitted(made(towers=still, row_wise=True), toy, toy_split, tmp_path / "rows")
    ours = fitted(made(towers=still, options={"device": "gpu"}), toy, toy_split, tmp_path / "device")
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)
