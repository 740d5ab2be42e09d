"""What the generative baselines share: histories, prefix trees over identifiers, and beam search that follows one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from baselines.generative.text import padded
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


class PrefixTree:
    """What may follow each beginning of an identifier in a catalogue.

    Args:
        identifiers: of all items, shape (n_items, length), rows filled up with PAD.
        levels: the looser constraint of the reference programs: the first token of each level and the first one after
            it; any of these may follow, whether an item has the whole identifier (all of one length) or not.

    Raises ValueError: an identifier is repeated, or is the beginning of another one.
    """

    def __init__(self, identifiers: IntArray, levels: Sequence[tuple[int, int]] | None = None) -> None:
        self.depth, self.levels = identifiers.shape[1], levels
        self.following: dict[tuple[int, ...], dict[int, int]] = {}  # token -> item that ends there, else UNFINISHED
        rows = [tuple(row[row != PAD].tolist()) for row in identifiers]
        for item in sorted(range(len(rows)), key=rows.__getitem__):
            for place, token in enumerate(row := rows[item]):
                end = item if place + 1 == len(row) else UNFINISHED
                if self.following.setdefault(row[:place], {}).setdefault(token, end) != end:
                    raise ValueError("an identifier is repeated, or is the beginning of another one")

    def children(self, beginnings: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
        """The tokens that may follow each of n beginnings of one length, filled up with PAD, and the items that end
        there (or UNFINISHED, INVALID); each of shape (n, c)."""
        found = [self.following.get(beginning, {}) for beginning in beginnings]
        if self.levels is None:
            tokens = padded([list(each) for each in found], PAD)
            return tokens, padded([list(each.values()) for each in found], UNFINISHED)
        level = len(beginnings[0])
        first, end = self.levels[level]
        items = torch.full((len(found), end - first), INVALID if level + 1 == self.depth else UNFINISHED)
        for row, each in enumerate(found):
            items[row, [token - first for token in each]] = torch.tensor(list(each.values()), dtype=torch.int64)
        return torch.arange(first, end).expand(len(found), -1), items


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
    beginnings: list[tuple[int, ...]] = [()] * b
    scores, best, items = torch.zeros(b, 1), torch.full((b, beam), -torch.inf), torch.full((b, beam), UNFINISHED)
    for level in range(tree.depth):
        tokens, ends = tree.children(beginnings)
        total = scores.flatten()[:, None] + likely.gather(1, tokens.clamp(min=0))
        total = total.masked_fill(tokens == PAD, -torch.inf).view(b, -1)
        tokens, ends, each = tokens.reshape(b, -1), ends.reshape(b, -1), tokens.shape[1]
        done = (total / (level + 1) ** length_power).masked_fill(ends == UNFINISHED, -torch.inf)
        best, chosen = torch.cat([best, done], dim=1).topk(beam, dim=1)
        items = torch.cat([items, ends], dim=1).gather(1, chosen)
        going = total.masked_fill(ends != UNFINISHED, -torch.inf)
        width = min(beam, int((going > -torch.inf).sum(dim=1).max()))
        if not width:
            break
        parents = torch.arange(b)[:, None] * scores.shape[1]
        scores, chosen = going.topk(width, dim=1)
        parents, tokens = (parents + chosen // each).flatten(), tokens.gather(1, chosen).flatten().clamp(min=0)
        pairs = zip(parents.tolist(), tokens.tolist(), strict=True)
        beginnings = [(*beginnings[parent], token) for parent, token in pairs]
        likely = decoder.step(parents, tokens).cpu()
    return items.masked_fill(best == -torch.inf, UNFINISHED).numpy(), best.numpy()


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

    def likelihoods(self, readings: Sequence[Any]) -> FloatArray:
        """Log-probabilities for what the model reads, shape (len(readings), n_servers)."""
        scores = np.full((len(readings), self.n_servers), -np.inf, dtype=np.float32)
        for start in range(0, len(readings), self.score_batch):
            decoder = self.decoder(readings[start : start + self.score_batch])
            items, values = beam_search(
                decoder, self.tree, min(self.beam, self.n_servers), length_power=self.length_power
            )
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
