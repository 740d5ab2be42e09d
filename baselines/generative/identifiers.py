"""Semantic identifiers: the codes of an RQ-VAE made unique, and the tokens that spell them."""

from __future__ import annotations

import numpy as np
import torch

from baselines.generative.quantisation import RqVae, sinkhorn
from study.data.dataset import FloatArray, IntArray


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

    Args:
        codes: shape (n_items, levels).
        distances: to the codes of the last level, shape (n_items, K).
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
    """Tokens of their own for the codes of every level.

    Args:
        first: the first token of level 0.

    Returns: tokens, shape (n_items, levels), and the first token of each level, followed by the end.
    """
    sizes = codes.max(axis=0) + 1
    starts = first + np.concatenate([[0], np.cumsum(sizes)])
    return codes + starts[:-1], [int(start) for start in starts]
