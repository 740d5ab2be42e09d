"""Prefix trees over item identifiers, and beam search that follows one: every answer is an item of the catalogue."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from study.data.dataset import FloatArray, IntArray

Reading = TypeVar("Reading")
PAD = -1  # fills identifiers that are shorter than the longest
UNFINISHED, INVALID = -1, -2  # instead of an item: the prefix goes on, and there is no item of this identifier


class Tree(Protocol):
    """Which tokens may follow a prefix."""

    @property
    def depth(self) -> int:
        """The most tokens of an identifier."""

    def children(self, nodes: Tensor, level: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What may follow the prefixes `nodes`, shape (n,), that have `level` tokens.

        Returns: tokens, nodes reached, items (or UNFINISHED, INVALID), and whether the entry counts; each (n, c).
        """


@dataclass(frozen=True)
class PrefixTree:
    """All identifiers of a catalogue; a node is the set of items that share a prefix, node 0 the empty one."""

    first: Tensor  # (n_nodes + 1,): the children of node v are the edges first[v] to first[v + 1] - 1
    token: Tensor  # (n_nodes - 1,): the token of an edge; edge e leads to node e + 1
    item: Tensor  # (n_nodes,): the item whose identifier ends in a node, else UNFINISHED
    depth: int  # tokens of the longest identifier

    @classmethod
    def of(cls, identifiers: IntArray) -> PrefixTree:
        """The tree of `identifiers`, shape (n_items, length), rows filled up with PAD.

        `ValueError` where an identifier is repeated, or is the beginning of another one.
        """
        n_items, length = identifiers.shape
        node = np.zeros(n_items, dtype=np.int64)  # reached by each item so far
        parents, tokens, n_nodes = [], [], 1
        for level in range(length):
            alive = np.flatnonzero(identifiers[:, level] != PAD)
            edges, place = np.unique(
                np.stack([node[alive], identifiers[alive, level]], axis=1), axis=0, return_inverse=True
            )
            node[alive] = n_nodes + place.ravel()
            parents.append(edges[:, 0])
            tokens.append(edges[:, 1])
            n_nodes += len(edges)
        # Nodes are numbered level by level, and by parent within a level, so that edges are sorted by parent.
        first = np.searchsorted(np.concatenate(parents), np.arange(n_nodes + 1))
        item = np.full(n_nodes, UNFINISHED, dtype=np.int64)
        item[node] = np.arange(n_items)
        if len(np.unique(node)) < n_items or (np.diff(first)[node] > 0).any():
            raise ValueError("an identifier is repeated, or is the beginning of another one")
        return cls(torch.from_numpy(first), torch.from_numpy(np.concatenate(tokens)), torch.from_numpy(item), length)

    def children(self, nodes: Tensor, level: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The continuations that some item has."""
        start, count = self.first[nodes], self.first[nodes + 1] - self.first[nodes]
        place = torch.arange(max(1, int(count.max())))
        counts = place < count[:, None]
        edge = (start[:, None] + place).clamp(max=len(self.token) - 1)
        return self.token[edge], edge + 1, self.item[edge + 1], counts

    def find(self, nodes: Tensor, tokens: Tensor) -> Tensor:
        """The nodes reached from `nodes` by `tokens` (same shape), -1 where there is none (-1 stays -1)."""
        parents = torch.repeat_interleave(torch.arange(len(self.first) - 1), self.first.diff())
        base = int(self.token.max()) + 1
        keys = parents * base + self.token  # ascending, as edges are sorted by parent and then by token
        wanted = nodes * base + tokens
        edge = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
        found = (keys[edge] == wanted) & (nodes >= 0) & (tokens < base)
        return torch.where(found, edge + 1, -1)


@dataclass(frozen=True)
class LevelTree:
    """The looser constraint of the reference programs: any token of its level, whether an item has the whole or not."""

    tree: PrefixTree  # what an identifier means; all have the same length
    levels: Sequence[Tensor]  # the tokens that are allowed at each level

    @property
    def depth(self) -> int:
        """Tokens of every identifier."""
        return self.tree.depth

    def children(self, nodes: Tensor, level: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All tokens of the level."""
        tokens = self.levels[level].expand(len(nodes), -1)
        reached = self.tree.find(nodes[:, None].expand_as(tokens), tokens)
        item = torch.full_like(reached, UNFINISHED)
        if level + 1 == self.depth:
            item = torch.where(reached >= 0, self.tree.item[reached], INVALID)
        return tokens, reached, item, torch.ones_like(tokens, dtype=torch.bool)


class Decoder(Protocol):
    """A model that says how likely each next token is, for many prefixes at a time."""

    def start(self) -> Tensor:
        """Log-probabilities of the first token, shape (b, vocabulary)."""

    def step(self, beams: Tensor, tokens: Tensor) -> Tensor:
        """Go on from the prefixes numbered `beams`, each with one of `tokens` added; both of shape (n,).

        Returns: log-probabilities of what follows, shape (n, vocabulary).
        """


@torch.no_grad()
def beam_search(decoder: Decoder, tree: Tree, beam: int, *, length_power: float = 0.0) -> tuple[IntArray, FloatArray]:
    """The `beam` most likely identifiers of each of b inputs, best first; exact where there are no more items.

    Probabilities are those of the whole vocabulary, not renormalised over what the tree allows. Their logarithms are
    divided by (number of tokens)^length_power.

    Returns: items (INVALID where no item has the identifier, UNFINISHED where there are fewer), log-probabilities; both
        (b, beam).
    """
    likely = decoder.start().cpu()
    b = len(likely)
    nodes, scores = torch.zeros(b, 1, dtype=torch.int64), torch.zeros(b, 1)
    best = torch.full((b, beam), -torch.inf)
    items = torch.full((b, beam), UNFINISHED)
    for level in range(tree.depth):
        tokens, reached, ends, counts = tree.children(nodes.flatten(), level)
        total = scores.flatten()[:, None] + likely.gather(1, tokens)
        total = total.masked_fill(~counts, -torch.inf).view(b, -1)
        tokens, reached, ends = tokens.reshape(b, -1), reached.reshape(b, -1), ends.reshape(b, -1)
        done = (total / (level + 1) ** length_power).masked_fill(ends == UNFINISHED, -torch.inf)
        best, chosen = torch.cat([best, done], dim=1).topk(beam, dim=1)
        items = torch.cat([items, ends], dim=1).gather(1, chosen)
        going = total.masked_fill(ends != UNFINISHED, -torch.inf)
        width = min(beam, int((going > -torch.inf).sum(dim=1).max()))
        if not width:
            break
        scores, chosen = going.topk(width, dim=1)
        parents = chosen // (total.shape[1] // nodes.shape[1]) + torch.arange(b)[:, None] * nodes.shape[1]
        nodes = reached.gather(1, chosen)
        likely = decoder.step(parents.flatten(), tokens.gather(1, chosen).flatten()).cpu()
    items = items.masked_fill(best == -torch.inf, UNFINISHED)
    return items.numpy(), best.numpy()


def score_matrix(items: IntArray, scores: FloatArray, n_items: int) -> FloatArray:
    """Scores of the items found, -inf for all others, shape (b, n_items)."""
    matrix = np.full((len(items), n_items), -np.inf, dtype=np.float32)
    row, place = np.nonzero(items >= 0)
    matrix[row, items[row, place]] = scores[row, place]
    return matrix


@torch.no_grad()
def search_scores(
    decoder: Callable[[Sequence[Reading]], Decoder],
    tree: Tree,
    readings: Sequence[Reading],
    *,
    n_items: int,
    beam: int,
    batch: int,
    length_power: float = 0.0,
    label: str,
) -> tuple[FloatArray, int]:
    """Beam search for every reading, `batch` at a time; `decoder` makes the decoder of some readings.

    Returns: log-probabilities, -inf where an item is not reached, shape (len(readings), n_items); and the number of
        identifiers that no item has.
    """
    scores, invalid = np.full((len(readings), n_items), -np.inf, dtype=np.float32), 0
    starts, quiet = range(0, len(readings), batch), not sys.stderr.isatty()
    for start in tqdm(starts, desc=label, unit="batch", leave=False, disable=quiet):
        part = decoder(readings[start : start + batch])
        items, values = beam_search(part, tree, min(beam, n_items), length_power=length_power)
        invalid += int((items == INVALID).sum())
        scores[start : start + batch] = score_matrix(items, values, n_items)
    return scores, invalid
