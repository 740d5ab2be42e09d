"""RecBole's models in toy sizes, and how their tests ask them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp
from baseline_toys import build

from study.data.splits import Split

MODELS = ("neumf", "ngcf", "lightgcn", "bpr", "multivae", "simplex")
TRANSFERS = ("neumf_transfer", "ngcf_transfer", "lightgcn_transfer")
# A toy of 240 pairs makes one step per epoch, so the steps are large. With more of them the layered models learn by
# heart which servers of the block were not in training.
EPOCHS = {"bpr": 60}
# 800 servers: passes, batch size, learning rate.
PLANTED = {
    "neumf": (12, 1024, 0.005), "ngcf": (15, 512, 0.02), "lightgcn": (30, 512, 0.02), "bpr": (30, 512, 0.02),
    "multivae": (15, 64, 0.002), "simplex": (4, 12800, 0.02),
}  # fmt: skip


@cache
def configured(name):
    return build(name)


def toy(name, epochs=None, patience=None, **settings):
    """The configured system with large steps, by default for all epochs; composing it takes longer than training."""
    system = configured(name)
    base = system.base if name in TRANSFERS else system
    own = {**base.settings, "learning_rate": 0.02, **settings}
    base = replace(base, epochs=epochs or EPOCHS.get(name, 20), evaluate_every=4, patience=patience, settings=own)
    return replace(system, base=base, content=replace(system.content)) if name in TRANSFERS else base


def toy_planted(name):
    epochs, batch, rate = PLANTED[name.removesuffix("_transfer")]
    return toy(name, epochs=epochs, train_batch_size=batch, learning_rate=rate)


def bare(train):
    """Training interactions with nothing else: what `fit` takes as data set and split."""
    matrix = sp.csr_matrix(np.asarray(train, dtype=np.float32))
    data = SimpleNamespace(n_tasks=matrix.shape[0], n_servers=matrix.shape[1])
    nothing = sp.csr_matrix(matrix.shape, dtype=np.float32)
    return data, Split("warm", matrix, nothing, nothing, cold=False)


def interruptible():
    """A training with a checkpoint after every epoch."""
    return replace(build("lightgcn", epochs=40, evaluate_every=1, patience=40), checkpoint_seconds=0)


def folder_of(system, data, split, workdir, seed=1):
    folder = workdir / "recbole"
    getattr(system, "base", system)._write_job(folder, data, split, seed)
    return folder


def said(system, split, part="test"):
    return system.score(split.tasks(part))
