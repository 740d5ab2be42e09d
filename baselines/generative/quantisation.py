"""Residual quantisation of item vectors (RQ-VAE), and the semantic identifiers made from the codes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from baselines import training
from baselines.training import Job, Progress, Schedule, fingerprint, train
from study.base import paths
from study.data.dataset import FloatArray, IntArray

LOG = logging.getLogger(__name__)
# Below these, codebooks have collapsed, and identifiers say little about the items.
LEAST_USAGE, MOST_COLLISIONS = 0.5, 0.15
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Quantiser:
    """Sizes and training of the RQ-VAE (Lee et al. 2022; Rajput et al. 2023, section 3.1; Zheng et al. 2024, III-B)."""

    levels: int = 3  # codes per item
    codes: int = 256  # entries of a codebook; never more than there are distinct vectors
    hidden: Sequence[int] = (512, 256, 128)  # widths between the item vector and the code
    width: int = 32  # of a code
    commitment: float = 0.25  # beta, weight of the encoder's pull towards its code
    balanced: bool = True  # assign the last level by Sinkhorn-Knopp, so that its codes are used evenly
    epsilon: float = 0.003  # of Sinkhorn-Knopp; smaller is closer to the nearest code
    iterations: int = 50  # of Sinkhorn-Knopp
    rounds: int = 30  # after training, re-assignments of the last code of items that share all codes
    training: Schedule = field(default_factory=Schedule)


def standardised(vectors: FloatArray) -> FloatArray:
    """Vectors with mean 0 and entries of variance 1; the small entries of unit vectors make codebooks collapse."""
    centred = vectors - vectors.mean(axis=0)
    return np.ascontiguousarray(centred / max(float(centred.std()), 1e-12), dtype=np.float32)


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Affine layers with ReLU between them."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(widths)):
        layers += [nn.ReLU()] * (i > 0) + [nn.Linear(a, b)]
    return nn.Sequential(*layers)


def sinkhorn(distances: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Soft assignments of n vectors to K codes, near to the small distances and even over the codes.

    Q = diag(u) exp(-d / epsilon) diag(v) with distances centred and scaled to [-1, 1], columns brought to n / K and
    rows to 1 in turn (Cuturi 2013; Zheng et al. 2024, eq. 4-5). Returns: shape (n, K) as `distances`, float64.
    """
    middle = (distances.max() + distances.min()) / 2
    spread = (distances.max() - middle).clamp(min=1e-5)
    kernel = torch.exp(-((distances - middle) / spread).double() / epsilon)
    n, k = kernel.shape
    row = torch.ones(n, dtype=torch.float64, device=kernel.device)
    column = torch.ones(k, dtype=torch.float64, device=kernel.device)
    for _ in range(iterations):
        column = (n / k) / (kernel.T @ row)
        row = 1 / (kernel @ column)
    return row[:, None] * kernel * column


class RqVae(nn.Module):
    """x -> encoder -> r_0; c_l = nearest code to r_{l-1}, r_l = r_{l-1} - e_{c_l}; decoder(sum of e_{c_l}) -> x.

    Item vectors have length `dimension`; `n_items` distinct ones are the most codes that can be told apart.
    """

    def __init__(self, dimension: int, n_items: int, settings: Quantiser) -> None:
        super().__init__()
        widths = [dimension, *settings.hidden, settings.width]
        self.encoder, self.decoder, self.settings = mlp(widths), mlp(widths[::-1]), settings
        self.codebooks = nn.Parameter(torch.zeros(settings.levels, min(settings.codes, n_items), settings.width))

    @torch.no_grad()
    def start_codebooks(self, vectors: Tensor, seed: int) -> None:
        """k-means of the residuals, level by level; without it most codes would never be used."""
        residual = self.encoder(vectors)
        for level, book in enumerate(self.codebooks):
            points = residual.cpu().numpy()
            distinct = len(np.unique(points, axis=0))
            with warnings.catch_warnings():
                # Residuals of equal texts may differ by rounding alone; `revive` moves the codes that this wastes.
                warnings.simplefilter("ignore", ConvergenceWarning)
                fitted = KMeans(min(len(book), distinct), n_init=1, random_state=seed + level).fit(points)
            means = fitted.cluster_centers_
            # Where there are fewer distinct residuals than codes, the others start beside them.
            start = np.resize(means, (len(book), means.shape[1]))
            start[distinct:] += np.random.default_rng([seed, level]).normal(0, 0.01, start[distinct:].shape)
            book.copy_(torch.from_numpy(start))
            residual = residual - book[torch.cdist(residual, book).argmin(dim=1)]

    @torch.no_grad()
    def revive(self, vectors: Tensor, rng: np.random.Generator) -> None:
        """Move codes that no item has onto residuals of random items (Dhariwal et al. 2020, 3.1), level by level."""
        residual = self.encoder(vectors)
        for book in self.codebooks:
            used = torch.bincount(torch.cdist(residual, book).argmin(dim=1), minlength=len(book)) > 0
            chosen = rng.choice(len(residual), int((~used).sum()), replace=len(residual) < len(book))
            book[~used] = residual[chosen]
            residual = residual - book[torch.cdist(residual, book).argmin(dim=1)]

    def quantise(self, latent: Tensor, *, balanced: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Codes of r_0, shape (b, levels); the sum of their vectors, shape (b, width); their loss and the commitment's.

        With `balanced` the last level is assigned by Sinkhorn-Knopp.
        """
        residual, codes, total = latent, [], torch.zeros_like(latent)
        loss = latent.new_zeros(())
        for level, book in enumerate(self.codebooks):
            distances = torch.cdist(residual.detach(), book.detach()) ** 2
            if balanced and level + 1 == len(self.codebooks):
                code = sinkhorn(distances, self.settings.epsilon, self.settings.iterations).argmax(dim=1)
            else:
                code = distances.argmin(dim=1)
            chosen = book[code]
            loss = loss + ((residual.detach() - chosen) ** 2).mean()
            loss = loss + self.settings.commitment * ((residual - chosen.detach()) ** 2).mean()
            codes.append(code)
            total = total + chosen
            residual = residual - chosen.detach()
        return torch.stack(codes, dim=1), total, loss / len(self.codebooks)

    def forward(self, vectors: Tensor) -> Tensor:
        """The training loss of a batch: squared error of the reconstruction, codes and commitment."""
        latent = self.encoder(vectors)
        _, total, loss = self.quantise(latent, balanced=self.settings.balanced)
        # Straight-through: the decoder's gradient reaches the encoder as if nothing had been rounded.
        rebuilt = self.decoder(latent + (total - latent).detach())
        total_loss: Tensor = ((rebuilt - vectors) ** 2).mean() + loss
        return total_loss

    @torch.no_grad()
    def codes(self, vectors: Tensor) -> Tensor:
        """The nearest codes, shape (n, levels)."""
        return self.quantise(self.encoder(vectors), balanced=False)[0]


def fit_codes(
    vectors: FloatArray, settings: Quantiser, *, seed: int, place: torch.device = CPU
) -> tuple[RqVae, Progress]:
    """An RQ-VAE of `standardised` item vectors, shape (n_items, q); trained once for all protocols, trials and systems.

    It depends on nothing else but this code, so its checkpoint stays in the cache, from where a stopped training goes
    on, too.
    Returns: the model, and how it was trained, be it now or before.
    """
    identity = fingerprint(
        settings, seed, vectors, *(Path(file).read_bytes() for file in (__file__, training.__file__))
    )
    folder = paths.cache() / "quantisers" / identity[:32]
    torch.manual_seed(seed)
    points = torch.from_numpy(vectors).to(place)
    model = RqVae(points.shape[1], len(np.unique(vectors, axis=0)), settings).to(place)
    size = settings.training.batch_size

    def batches(epoch: int) -> list[Tensor]:
        rng = np.random.default_rng([seed, epoch])
        if epoch == 0:
            model.start_codebooks(points, seed)
        model.revive(points, rng)
        order = rng.permutation(len(points))
        return [points[order[start : start + size]] for start in range(0, len(points), size)]

    progress = train(model, batches, model, settings.training, Job(seed, folder, "codes", identity))
    codes = model.cpu().codes(points.cpu()).numpy()
    usage = [len(np.unique(column)) / model.codebooks.shape[1] for column in codes.T]
    shared = 1 - len(np.unique(codes, axis=0)) / len(codes)
    report = LOG.warning if usage[0] < LEAST_USAGE or shared > MOST_COLLISIONS else LOG.info
    parts = ", ".join(f"{100 * share:.0f} %" for share in usage)
    report("codes in use per level: %s; items that share all codes: %.1f %%", parts, 100 * shared)
    return model, progress


def colliding(codes: IntArray) -> list[IntArray]:
    """The groups of items, two at least, that share all codes."""
    _, group = np.unique(codes, axis=0, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(group.ravel()[order])) + 1)
    return [part for part in parts if len(part) > 1]


@torch.no_grad()
def spread_last(model: RqVae, vectors: FloatArray) -> tuple[IntArray, FloatArray]:
    """Codes with the last level of each colliding group assigned anew by Sinkhorn-Knopp, for some rounds.

    Returns: codes, shape (n_items, levels), and the distances to the codes of the last level, shape (n_items, K).
    """
    points = torch.from_numpy(vectors)
    codes = model.codes(points)
    residual = model.encoder(points)
    for level in range(codes.shape[1] - 1):
        residual = residual - model.codebooks[level][codes[:, level]]
    distances = torch.cdist(residual, model.codebooks[-1]) ** 2
    settings = model.settings
    for _ in range(settings.rounds):
        groups = colliding(codes.numpy())
        if not groups:
            break
        for group in groups:
            part = torch.from_numpy(group)
            codes[part, -1] = sinkhorn(distances[part], settings.epsilon, settings.iterations).argmax(dim=1)
    return codes.numpy().astype(np.int64), distances.numpy()


def numbered(codes: IntArray) -> IntArray:
    """Codes with one more level that is 0, 1, 2, ... among items that share all codes (Rajput et al. 2023, 3.1).

    Returns: shape (n_items, levels + 1), rows are unique.
    """
    number = np.zeros(len(codes), dtype=np.int64)
    for group in colliding(codes):
        number[group] = np.arange(len(group))
    return np.concatenate([codes, number[:, None]], axis=1)


def made_unique(codes: IntArray, distances: FloatArray) -> IntArray:
    """Codes with the last one of every repeated row moved to the nearest that no item with the same beginning has.

    The reference program of LC-Rec leaves such items with one index. Where a whole codebook is taken, new codes follow.
    Distances are those to the codes of the last level, shape (n_items, K).
    """
    unique, taken = codes.copy(), {tuple(row) for row in codes.tolist()}
    for group in colliding(codes):
        for item in group[1:]:
            beginning = unique[item, :-1].tolist()
            candidates = [*np.argsort(distances[item], kind="stable").tolist()]
            candidates += range(len(candidates), len(candidates) + len(codes))
            unique[item, -1] = next(code for code in candidates if (*beginning, code) not in taken)
            taken.add(tuple(unique[item].tolist()))
    return unique


def as_tokens(codes: IntArray, first: int) -> tuple[IntArray, list[int]]:
    """Tokens from `first` on for the codes, other ones on each level; and the first of each level, and the end."""
    sizes = codes.max(axis=0) + 1
    starts = first + np.concatenate([[0], np.cumsum(sizes)])
    return codes + starts[:-1], [int(start) for start in starts]
