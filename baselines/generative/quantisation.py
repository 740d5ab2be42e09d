"""Residual quantisation of item vectors (RQ-VAE), and the semantic identifiers made from the codes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, pairwise
from pathlib import Path
from warnings import catch_warnings

import numpy as np
import pandas as pd
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from baselines import training
from baselines.interactions import shuffle_batches
from baselines.training import Job, Progress, Schedule, Stage, fingerprint, train
from study.base import paths
from study.data.dataset import FloatArray, IntArray


@dataclass(frozen=True)
class Quantiser:
    """Sizes and training of the RQ-VAE (Lee et al. 2022; Rajput et al. 2023, section 3.1; Zheng et al. 2024, III-B)."""

    levels: int = 3  # codes per item
    codes: int = 256  # entries of a codebook; never more than there are distinct vectors
    hidden: Sequence[int] = (512, 256, 128)  # widths between the item vector and the code
    width: int = 32  # of a code
    commitment: float = 0.25  # beta, weight of the encoder's pull towards its code
    epsilon: float = 0.003  # of Sinkhorn-Knopp, in training at the last level; smaller is closer to the nearest code
    iterations: int = 50  # of Sinkhorn-Knopp
    rounds: int = 30  # after training, re-assignments of the last code of items that share all codes
    training: Schedule = field(default_factory=Schedule)


def standardise(vectors: FloatArray) -> FloatArray:
    """Vectors with mean 0 and entries of variance 1; the small entries of unit vectors make codebooks collapse."""
    centred = vectors - vectors.mean(axis=0)
    return np.ascontiguousarray(centred / max(float(centred.std()), 1e-12), dtype=np.float32)


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Affine layers with ReLU between them."""
    return nn.Sequential(*[layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())][:-1])


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
    """x -> encoder -> r_0; c_l = nearest code to r_{l-1}, r_l = r_{l-1} - e_{c_l}; decoder(sum of e_{c_l}) -> x. No
    more codes than `n_items`, the number of distinct x."""

    def __init__(self, dimension: int, n_items: int, settings: Quantiser) -> None:
        super().__init__()
        widths = [dimension, *settings.hidden, settings.width]
        self.encoder, self.decoder, self.settings = mlp(widths), mlp(widths[::-1]), settings
        self.codebooks = nn.Parameter(torch.zeros(settings.levels, min(settings.codes, n_items), settings.width))

    @torch.no_grad()
    def renew(self, vectors: Tensor, rng: np.random.Generator, *, seed: int | None = None) -> None:
        """Move codes that no item has onto residuals of random items (Dhariwal et al. 2020, 3.1), level by level;
        at the start (`seed`) after k-means of the residuals, without which most codes would never be used."""
        residual = self.encoder(vectors)
        for level, book in enumerate(self.codebooks):
            if seed is not None:
                means = KMeans(len(book), n_init=1, random_state=seed + level)
                with catch_warnings(action="ignore", category=ConvergenceWarning):  # equal texts leave codes unused
                    book.copy_(torch.from_numpy(means.fit(residual.cpu().numpy()).cluster_centers_))
            used = torch.bincount(torch.cdist(residual, book).argmin(dim=1), minlength=len(book)) > 0
            book[~used] = residual[rng.choice(len(residual), int((~used).sum()), replace=len(residual) < len(book))]
            residual = residual - book[torch.cdist(residual, book).argmin(dim=1)]

    def quantise(self, latent: Tensor, *, balanced: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Codes of r_0, shape (b, levels), if `balanced` at the last level by Sinkhorn-Knopp, so that they are used
        evenly; the sum of their vectors, shape (b, width); their loss and the commitment's; squared distances to the
        codes of the last level, shape (b, K)."""
        residual, codes, total, loss = latent, [], torch.zeros_like(latent), latent.new_zeros(())
        for level, book in enumerate(self.codebooks):
            distances = torch.cdist(residual.detach(), book.detach()) ** 2
            code = distances.argmin(dim=1)
            if balanced and level + 1 == len(self.codebooks):
                code = sinkhorn(distances, self.settings.epsilon, self.settings.iterations).argmax(dim=1)
            chosen = book[code]
            loss = loss + ((residual.detach() - chosen) ** 2).mean()
            loss = loss + self.settings.commitment * ((residual - chosen.detach()) ** 2).mean()
            codes.append(code)
            total, residual = total + chosen, residual - chosen.detach()
        return torch.stack(codes, dim=1), total, loss / len(self.codebooks), distances

    def forward(self, vectors: Tensor) -> Tensor:
        """The training loss of a batch: squared error of the reconstruction, codes and commitment."""
        latent = self.encoder(vectors)
        _, total, loss, _ = self.quantise(latent, balanced=True)
        # Straight-through: the decoder's gradient reaches the encoder as if nothing had been rounded.
        rebuilt = self.decoder(latent + (total - latent).detach())
        return torch.add(((rebuilt - vectors) ** 2).mean(), loss)


def fit_codes(
    vectors: FloatArray, settings: Quantiser, *, seed: int, device: torch.device | str = "cpu"
) -> tuple[RqVae, Progress]:
    """An RQ-VAE of `standardised` item vectors, shape (n_items, q), and how it was trained, now or before: it depends
    on nothing but these and this code, so one training, kept in the cache, serves all protocols, trials and systems."""
    code = (Path(file).read_bytes() for file in (__file__, training.__file__))
    identity = fingerprint(settings, seed, vectors, *code)
    folder = paths.cache() / "quantisers" / identity[:32]
    torch.manual_seed(seed)
    points = torch.from_numpy(vectors).to(device)
    model = RqVae(points.shape[1], len(np.unique(vectors, axis=0)), settings).to(device)

    def batches(rng: np.random.Generator, epoch: int) -> Iterable[Tensor]:
        model.renew(points, rng, seed=None if epoch else seed)
        return (points[part] for part in shuffle_batches(len(points), settings.training.batch_size, rng))

    progress = train(Stage(model, batches, model, settings.training), Job(seed, folder, "codes", identity))
    return model.cpu(), progress


def find_collisions(codes: IntArray) -> list[IntArray]:
    """The groups of items, two at least, that share all codes."""
    groups = pd.DataFrame(codes).groupby([*range(codes.shape[1])]).indices.values()
    return [np.asarray(group) for group in groups if len(group) > 1]


@torch.no_grad()
def spread_last(model: RqVae, vectors: FloatArray) -> tuple[IntArray, FloatArray]:
    """Codes, shape (n_items, levels), with the last level of each colliding group assigned anew by Sinkhorn-Knopp, for
    some rounds, and the squared distances to the codes of the last level, shape (n_items, K)."""
    codes, _, _, distances = model.quantise(model.encoder(torch.from_numpy(vectors)), balanced=False)
    settings = model.settings
    for _ in range(settings.rounds):
        for group in find_collisions(codes.numpy()):
            part = torch.from_numpy(group)
            codes[part, -1] = sinkhorn(distances[part], settings.epsilon, settings.iterations).argmax(dim=1)
    return codes.numpy(), distances.numpy()


def number_collisions(codes: IntArray) -> IntArray:
    """Codes with one more level that is 0, 1, 2, ... among items that share all codes (Rajput et al. 2023, 3.1); rows
    are unique, shape (n_items, levels + 1)."""
    number = pd.DataFrame(codes).groupby([*range(codes.shape[1])]).cumcount()
    return np.column_stack([codes, number])


def made_unique(codes: IntArray, distances: FloatArray) -> IntArray:
    """Codes with the last one of every repeated row moved to the nearest, by `distances` to the codes of the last
    level, shape (n_items, K), that no item with the same beginning has; where all are taken, to a new one. The
    reference program of LC-Rec leaves such items with one index."""
    unique, taken = codes.copy(), {tuple(row) for row in codes.tolist()}
    for group in find_collisions(codes):
        for item in group[1:]:
            beginning = unique[item, :-1].tolist()
            nearest = np.argsort(distances[item], kind="stable").tolist()
            candidates = chain(nearest, count(len(nearest)))
            unique[item, -1] = next(code for code in candidates if (*beginning, code) not in taken)
            taken.add(tuple(unique[item].tolist()))
    return unique


def as_tokens(codes: IntArray, first: int) -> tuple[IntArray, list[int]]:
    """Tokens from `first` on for the codes, other ones on each level; and the first of each level, and the end."""
    sizes = codes.max(axis=0) + 1
    starts = first + np.concatenate([[0], np.cumsum(sizes)])
    return codes + starts[:-1], [int(start) for start in starts]
