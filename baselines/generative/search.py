"""What the generative baselines share: histories, prefix trees over identifiers, and beam search that follows one."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from baselines.training import (
    Job,
    Progress,
    Schedule,
    Trained,
    n_weights,
    staged_report,
    train,
    validation_quality,
)
from study.data.dataset import FloatArray, IntArray
from study.data.splits import Split

Example = TypeVar("Example")
PAD = -1  # fills identifiers that are shorter than the longest
UNFINISHED, INVALID = -1, -2  # instead of an item: the prefix goes on, and there is no item of this identifier


def prefixes(
    lists: Sequence[IntArray], order: str, rng: np.random.Generator
) -> Iterator[tuple[int, IntArray, IntArray]]:
    """One example per task with two servers or more: its row, the servers seen, the servers to be named.

    ``random``: a beginning (of uniform length, one at least) of a random permutation, and all the rest. A list is a
    set, so every server that is not seen is an equally right next one; one reading of the history then serves several
    targets. ``list``: a beginning of the list and the next server alone, as the sequential methods have it.
    """
    for row, servers in enumerate(lists):
        if len(servers) < 2:
            continue
        cut = int(rng.integers(1, len(servers)))
        if order == "list":
            yield row, servers[:cut], servers[cut : cut + 1]
        else:
            mixed = rng.permutation(servers)
            yield row, mixed[:cut], mixed[cut:]


def batched(
    examples: Sequence[Example], length: Callable[[Example], int], size: int, rng: np.random.Generator
) -> list[list[Example]]:
    """Batches of examples of similar length, in random order: little padding, and little regularity."""
    order = np.lexsort((rng.random(len(examples)), np.array([length(example) for example in examples])))
    parts = [[examples[i] for i in order[start : start + size]] for start in range(0, len(examples), size)]
    return [parts[i] for i in rng.permutation(len(parts))]


@dataclass(frozen=True)
class PrefixTree:
    """All identifiers of a catalogue; a node is the set of items that share a prefix, node 0 the empty one.

    With `levels` the looser constraint of the reference programs: any token of its level may follow, whether an item
    has the whole identifier or not.
    """

    first: Tensor  # (n_nodes + 1,): the children of node v are the edges first[v] to first[v + 1] - 1
    token: Tensor  # (n_nodes - 1,): the token of an edge; edge e leads to node e + 1
    item: Tensor  # (n_nodes,): the item whose identifier ends in a node, else UNFINISHED
    depth: int  # tokens of the longest identifier
    levels: Sequence[Tensor] | None = None  # the tokens that are allowed at each level

    @classmethod
    def of(cls, identifiers: IntArray, levels: Sequence[Tensor] | None = None) -> PrefixTree:
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
        token = torch.from_numpy(np.concatenate(tokens))
        return cls(torch.from_numpy(first), token, torch.from_numpy(item), length, levels)

    def children(self, nodes: Tensor, level: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What may follow the prefixes `nodes`, shape (n,), that have `level` tokens.

        Returns: tokens, nodes reached, items (or UNFINISHED, INVALID), and whether the entry counts; each (n, c).
        """
        if self.levels is not None:
            tokens = self.levels[level].expand(len(nodes), -1)
            reached = self.find(nodes[:, None].expand_as(tokens), tokens)
            items = torch.full_like(reached, UNFINISHED)
            if level + 1 == self.depth:
                items = torch.where(reached >= 0, self.item[reached], INVALID)
            return tokens, reached, items, torch.ones_like(tokens, dtype=torch.bool)
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


class Decoder(Protocol):
    """A model that says how likely each next token is, for many prefixes at a time."""

    def start(self) -> Tensor:
        """Log-probabilities of the first token, shape (b, vocabulary)."""

    def step(self, beams: Tensor, tokens: Tensor) -> Tensor:
        """Go on from the prefixes numbered `beams`, each with one of `tokens` added; both of shape (n,).

        Returns: log-probabilities of what follows, shape (n, vocabulary).
        """


@torch.no_grad()
def beam_search(
    decoder: Decoder, tree: PrefixTree, beam: int, *, length_power: float = 0.0
) -> tuple[IntArray, FloatArray]:
    """The `beam` most likely identifiers of each of b inputs, best first; exact where there are no more items.

    Probabilities are those of the whole vocabulary, not renormalised over what the tree allows. Their logarithms are
    divided by (number of tokens)^length_power. The library's `generate`, with the tree as `prefix_allowed_tokens_fn`,
    finds the same where all identifiers have one length, in three times the time (it reads a prompt once a beam), and
    of several lengths it loses those that end outside the best beams.

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


@dataclass(kw_only=True)
class Generative(Trained):
    """A system whose language model (`writer`) writes identifiers of servers.

    score(t, m) = log p(identifier of m | question about t) / tokens^length_power for the servers that a beam search
    over `tree` reaches; the others are not ranked.
    """

    training: Schedule = field(default_factory=Schedule)
    history: int = 20  # servers that a question names, at most
    beam: int = 30
    score_batch: int = 128
    text_vocabulary: int = 4096
    lists: Sequence[IntArray] = field(init=False, repr=False)  # training servers of each task
    length_power: ClassVar[float] = 0.0

    @property
    @abstractmethod
    def ranks_new(self) -> bool:
        """Whether tasks without training servers are ranked, since their text is read."""

    @abstractmethod
    def asked(self, task: int) -> Any:
        """What the model reads when it ranks for a task."""

    @abstractmethod
    def decoder(self, readings: Sequence[Any]) -> Decoder:
        """The decoder of some readings."""

    @abstractmethod
    def batches(self, epoch: int, seed: int) -> Iterable[Any]:
        """The batches of an epoch."""

    @property
    def uses_validation(self) -> bool:
        """Whether validation labels choose the weights."""
        return self.training.selects

    def train(
        self,
        writer: nn.Module,
        tree: PrefixTree,
        split: Split,
        job: Job,
        *,
        codes: tuple[nn.Module, Progress] | None = None,
    ) -> None:
        """Train the language model `writer`; goes on from a checkpoint. `codes`: the RQ-VAE and how it was trained."""
        self.writer: Any = writer.to(self.place)
        self.tree, self.codes, self.n_servers = tree, codes, split.train.shape[1]
        self.written = self.invalid = 0
        quality = validation_quality(self.score, split, self.training, seed=job.seed, ranks_new=self.ranks_new)
        self.progress = train(
            self.writer, lambda epoch: self.batches(epoch, job.seed), self.writer, self.training, job, quality=quality
        )
        self.written = self.invalid = 0  # answers of evaluations on validation do not count

    def score(self, tasks: IntArray) -> FloatArray:
        """Log-probabilities, shape (len(tasks), n_servers); -inf for servers not reached and for tasks not ranked."""
        scores = np.full((len(tasks), self.n_servers), -np.inf, dtype=np.float32)
        ranked = [row for row, task in enumerate(tasks) if self.ranks_new or len(self.lists[task])]
        scores[ranked] = self.likelihoods([self.asked(int(task)) for task in tasks[ranked]])
        return scores

    @torch.no_grad()
    def likelihoods(self, readings: Sequence[Any]) -> FloatArray:
        """Log-probabilities for what the model reads, shape (len(readings), n_servers)."""
        scores = np.full((len(readings), self.n_servers), -np.inf, dtype=np.float32)
        beam, starts = min(self.beam, self.n_servers), range(0, len(readings), self.score_batch)
        label, quiet = type(self).__name__, not sys.stderr.isatty()
        for start in tqdm(starts, desc=label, unit="batch", leave=False, disable=quiet):
            decoder = self.decoder(readings[start : start + self.score_batch])
            items, values = beam_search(decoder, self.tree, beam, length_power=self.length_power)
            row, place = np.nonzero(items >= 0)
            scores[start + row, items[row, place]] = values[row, place]
            self.written, self.invalid = self.written + items.size, self.invalid + int((items == INVALID).sum())
        return scores

    def report(self) -> dict[str, Any]:
        """How the models were trained; with an RQ-VAE also the answers and those that name no server."""
        if self.codes is None:
            return self.progress.report()
        answers = {"answers": self.written, "answers_of_no_server": self.invalid}
        return answers | staged_report(self.progress, quantiser=self.codes[1])

    def parameters(self) -> int:
        """Weights of all trained models."""
        return n_weights(self.codes[0] if self.codes else None, self.writer)
