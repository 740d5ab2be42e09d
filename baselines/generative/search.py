"""What the generative baselines share: histories, prefix trees over identifiers, and beam search that follows one."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from baselines.generative.text import pad_rows
from baselines.training import Job, Progress, Schedule, Stage, Trained, n_weights
from study.data.dataset import FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.ranking import chunks

Example = TypeVar("Example")
Codes = tuple[nn.Module, Progress]  # the RQ-VAE and how it was trained
PAD = -1  # fills identifiers that are shorter than the longest, and questions
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
        if len(servers) > 1:
            cut = int(rng.integers(1, len(servers)))
            mixed = servers if order == "list" else rng.permutation(servers)
            yield row, mixed[:cut], mixed[cut : cut + 1] if order == "list" else mixed[cut:]


def batch_by_length(
    examples: Sequence[Example], length: Callable[[Example], int], size: int, rng: np.random.Generator
) -> list[list[Example]]:
    """Batches of examples of similar length, in random order: little padding, and little regularity."""
    order = np.lexsort((rng.random(len(examples)), np.array([length(example) for example in examples])))
    parts = [[examples[i] for i in order[start : start + size]] for start in range(0, len(examples), size)]
    return [parts[i] for i in rng.permutation(len(parts))]


class PrefixTree:
    """What may follow each beginning of an identifier in a catalogue.

    `identifiers`: of all items, shape (n_items, length), rows filled up with PAD; none is the beginning of another.
    `levels`: the looser constraint of the reference programs: the first token of each level and the first one after it;
    any of these may follow, whether an item has the whole identifier (all of one length) or not.
    """

    def __init__(self, identifiers: IntArray, levels: Sequence[tuple[int, int]] | None = None) -> None:
        self.depth, self.levels = identifiers.shape[1], levels
        self.following: dict[tuple[int, ...], dict[int, int]] = {}  # token -> item that ends there, else UNFINISHED
        rows = [tuple(row[row != PAD].tolist()) for row in identifiers]
        for item in sorted(range(len(rows)), key=rows.__getitem__):
            for position, token in enumerate(row := rows[item]):
                end = item if position + 1 == len(row) else UNFINISHED
                self.following.setdefault(row[:position], {})[token] = end

    def children(self, beginnings: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
        """The tokens that may follow each of n beginnings of one length, filled up with PAD, and the items that end
        there (or UNFINISHED, INVALID); each of shape (n, c)."""
        following = [self.following.get(beginning, {}) for beginning in beginnings]
        if self.levels is None:
            ends = [list(each.values()) for each in following]
            return pad_rows(map(list, following), PAD), pad_rows(ends, UNFINISHED)
        level = len(beginnings[0])
        first, end = self.levels[level]
        items = torch.full((len(following), end - first), INVALID if level + 1 == self.depth else UNFINISHED)
        for row, each in enumerate(following):
            items[row, [token - first for token in each]] = torch.tensor(list(each.values()), dtype=torch.int64)
        return torch.arange(first, end).expand(len(following), -1), items


@torch.no_grad()
def beam_search(decoder: Any, tree: PrefixTree, beam: int, *, length_power: float = 0.0) -> tuple[IntArray, FloatArray]:
    """The `beam` most likely identifiers of each of b inputs, best first; exact where there are no more items.

    `decoder.first`, shape (b, s), holds the tokens that each input starts with. `decoder.step(beams, tokens)` gives the
    log-probabilities of what follows, shape (n, vocabulary), after the prefixes numbered `beams`, shape (n,), each with
    `tokens` added, shape (n, s).

    Probabilities are those of the whole vocabulary, not renormalised over what the tree allows. Their logarithms are
    divided by (number of tokens)^length_power. The library's `generate` finds the same where all identifiers have one
    length, in three times the time (it reads a prompt once a beam); of several lengths it loses those that end outside
    the best beams. Returns: items (INVALID where no item has the identifier, UNFINISHED where there are fewer) and
    log-probabilities, both of shape (b, beam).
    """
    b = len(decoder.first)
    likely = decoder.step(torch.arange(b), decoder.first).cpu()
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
        likely = decoder.step(parents, tokens[:, None]).cpu()
    return items.masked_fill(best == -torch.inf, UNFINISHED).numpy(), best.numpy()


@dataclass(kw_only=True)
class Generative(Trained):
    """A system whose language model writes identifiers of servers.

    score(t, m) = log p(identifier of m | question about t) / tokens^length_power for the servers that a beam search
    over `tree` reaches; the others are not ranked. Deviations of all: lists are sets here, so a history is the
    beginning of a random permutation and every other server of the task an answer; all epochs run, and the best of a
    few evaluations on validation gives the weights; the history at inference is the training servers alone.
    """

    training: Schedule = field(default_factory=Schedule)
    history: int = 20  # servers that a question names, at most
    beam: int = 30
    score_batch: int = 128
    text_vocabulary: int = 4096
    lists: Sequence[IntArray] = field(init=False, repr=False)  # training servers of each task
    length_power: ClassVar[float] = 0.0
    decoder: ClassVar[Any]  # of the language model and some questions

    @abstractmethod
    def question(self, task: int) -> Any:
        """What the model reads when it ranks for a task."""

    @abstractmethod
    def batches(self, rng: np.random.Generator, epoch: int) -> Iterable[Any]:
        """The batches of an epoch."""

    def write(self, network: nn.Module, tree: PrefixTree, split: Split, job: Job, codes: Codes | None = None) -> None:
        """Train the language model; goes on from a checkpoint."""
        self.network, self.tree = network.to(self.place), tree
        self.codes, self.n_servers = codes, split.train.shape[1]
        stage = Stage(self.network, self.batches, self.network, self.training)
        self.progress = self.train(stage, split, replace(job, stream=1))

    def finish(self) -> None:
        """Count answers anew: those of evaluations on validation do not count."""
        self.written = self.invalid = 0

    def score(self, tasks: IntArray) -> FloatArray:
        """Log-probabilities, shape (len(tasks), n_servers); -inf for servers not reached and for tasks not ranked."""
        scores = np.full((len(tasks), self.n_servers), -np.inf, dtype=np.float32)
        ranked = np.flatnonzero([self.ranks_new or len(self.lists[task]) > 0 for task in tasks])
        for part in chunks(ranked, self.score_batch):
            questions = [self.question(int(task)) for task in tasks[ranked[part]]]
            beam = min(self.beam, self.n_servers)
            decoder = type(self).decoder(self.network, questions)
            items, values = beam_search(decoder, self.tree, beam, length_power=self.length_power)
            row, rank = np.nonzero(items >= 0)
            scores[ranked[part][row], items[row, rank]] = values[row, rank]
            self.written, self.invalid = self.written + items.size, self.invalid + int((items == INVALID).sum())
        return scores

    def report(self) -> dict[str, Any]:
        """How the models were trained; with an RQ-VAE also the answers and those that name no server."""
        if self.codes is None:
            return super().report()
        answers = {"answers": self.written, "answers_of_no_server": self.invalid}
        return answers | self.progress.report(quantiser=self.codes[1])

    def parameters(self) -> int:
        """Weights of all trained models."""
        return n_weights(self.codes[0] if self.codes else None, self.network)
