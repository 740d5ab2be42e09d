"""Stage 2 of CVH-REC: an encoder that gives a new task the vector that its text calls for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from baselines.published.sampling import shuffled
from baselines.published.training import Progress, Schedule, train
from baselines.published.views import decaying


def encoder(inputs: int, hidden: int, width: int, dropout: float) -> nn.Sequential:
    """From the text vector of a new task to the vector that it would have."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width))


def fit_encoder(
    model: nn.Module,
    texts: Tensor,
    wanted: Tensor,
    schedule: Schedule,
    *,
    learning_rate: float,
    batch_size: int,
    seed: int,
    workdir: Path,
    identity: str,
    quality: Callable[[], float] | None = None,
) -> Progress:
    """Train `model` so that model(texts) is near `wanted`, shapes (n, q) and (n, d); how that went."""

    def batches(epoch: int) -> Iterator[Tensor]:
        for part in shuffled(len(texts), batch_size, np.random.default_rng([seed, epoch])):
            yield torch.from_numpy(part)

    return train(
        model,
        torch.optim.Adam(model.parameters(), lr=learning_rate),
        batches,
        lambda rows: mse_loss(model(texts[rows]), wanted[rows]),
        schedule,
        quality=quality,
        seed=seed,
        workdir=workdir,
        name="cvh_rec_encoder",
        identity=identity,
        rate=decaying(),
    )
