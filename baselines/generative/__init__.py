"""What the generative baselines share: residual quantisation, prefix trees and beam search, small transformers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import nn

from baselines.generative.prefix_tree import Decoder, Tree, search_scores
from baselines.training import Job, Optimisation, Progress, n_weights, staged_report, train, validation_quality
from study.data.dataset import FloatArray, IntArray
from study.data.splits import Split


class Generative(ABC):
    """A system whose language model (`writer`) writes identifiers of servers.

    score(t, m) = log p(identifier of m | question about t) / tokens^length_power for the servers that a beam search
    over `tree` reaches; the others are not ranked.
    """

    writer: Any
    training: Optimisation
    progress: Progress
    codes: nn.Module | None = None  # the RQ-VAE, where there is one, and how its training went
    coded: Progress
    tree: Tree
    lists: Sequence[IntArray]  # training servers of each task
    n_servers: int
    beam: int
    score_batch: int
    length_power: ClassVar[float] = 0.0
    written: int = 0  # answers of all searches, and how many of them name no server
    invalid: int = 0

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

    def train(self, split: Split, job: Job) -> None:
        """Train the language model; goes on from a checkpoint. Answers of evaluations on validation do not count."""
        quality = validation_quality(self.score, split, self.training, seed=job.seed, ranks_new=self.ranks_new)
        self.progress = train(
            self.writer, lambda epoch: self.batches(epoch, job.seed), self.writer, self.training, job, quality=quality
        )
        self.written = self.invalid = 0

    def score(self, tasks: IntArray) -> FloatArray:
        """Log-probabilities, shape (len(tasks), n_servers); -inf for servers not reached and for tasks not ranked."""
        scores = np.full((len(tasks), self.n_servers), -np.inf, dtype=np.float32)
        ranked = [place for place, task in enumerate(tasks) if self.ranks_new or len(self.lists[task])]
        scores[ranked], invalid = search_scores(
            self.decoder,
            self.tree,
            [self.asked(int(tasks[place])) for place in ranked],
            n_items=self.n_servers,
            beam=self.beam,
            batch=self.score_batch,
            length_power=self.length_power,
            label=type(self).__name__,
        )
        self.written += len(ranked) * min(self.beam, self.n_servers)
        self.invalid += invalid
        return scores

    def report(self) -> dict[str, Any]:
        """How the models were trained; with an RQ-VAE also the answers and those that name no server."""
        if self.codes is None:
            return self.progress.report()
        answers = {"answers": self.written, "answers_of_no_server": self.invalid}
        return answers | staged_report(self.progress, quantiser=self.coded)

    def parameters(self) -> int:
        """Weights of all trained models."""
        return n_weights(self.codes, self.writer)
