"""TIGER: a transformer reads the semantic identifiers of a task's servers and writes that of another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from baselines.generative import Generative
from baselines.generative.prefix_tree import LevelTree, PrefixTree
from baselines.generative.quantisation import Quantiser, as_tokens, fit_codes, numbered, spread_last, standardised
from baselines.generative.seq2seq import Batch, ItemWriter, Reading, T5Beams, T5Size, collate
from baselines.generative.text import PAD, BytePairs
from baselines.interactions import batched, prefixes, training_lists
from baselines.settings import require_choice
from baselines.training import Job, Optimisation, fingerprint
from study.data.dataset import Dataset, IntArray
from study.data.splits import Split
from study.encoders.sentence import encode


@dataclass
class Tiger(Generative):
    """Generative retrieval with semantic identifiers (Rajput et al., NeurIPS 2023).

    A server's identifier is its three codes of an RQ-VAE over its text vector and a number among servers that share
    them (section 3.1). A T5 trained from scratch reads the identifiers of the training servers and learns by
    cross-entropy to write that of a further one (section 3.2). score(t, m) = log p(identifier of m | servers of t).

    Deviations: text vectors are those of MiniLM, not of Sentence-T5. Lists are sets here, so a history is the beginning
    of a random permutation and every other server of the task is a target (`order`). All epochs run, and the best of a
    few evaluations on validation gives the weights. The history at inference is the training servers, for validation
    and test alike. No user token unless `user_tokens` is set, as in the unofficial program that the T2MRec paper names.
    Unused codes are moved at the start of each epoch; otherwise most of a codebook stays unused.

    With ``source: text`` the encoder reads the task's text instead of its servers, and so ranks for new tasks. That is
    an extension of this study (TIGER-text), never reported under the method's name.

    `conf/system/paper/tiger.yaml` explains every setting.
    """

    quantiser: Quantiser = field(default_factory=Quantiser)
    size: T5Size = field(default_factory=T5Size)
    training: Optimisation = field(default_factory=Optimisation)
    source: str = "history"
    order: str = "random"
    history: int = 20
    user_tokens: int = 0
    beam: int = 30
    constrained: bool = True
    text_tokens: int = 64
    text_vocabulary: int = 4096
    score_batch: int = 128

    SOURCES: ClassVar[tuple[str, ...]] = ("history", "text")

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train the RQ-VAE, or take up a kept one, then the T5; goes on from the checkpoint in `workdir`."""
        require_choice("source", self.source, self.SOURCES)
        torch.manual_seed(seed)
        vectors = standardised(encode(data.server_texts()))
        identity = fingerprint(self, seed, split.train, split.valid, vectors)
        self.codes, self.coded = fit_codes(vectors, self.quantiser, seed=seed)
        first = PAD + 1
        self.identifiers, starts = as_tokens(numbered(spread_last(self.codes, vectors)[0]), first)
        vocabulary = starts[-1] + self.user_tokens
        tree = PrefixTree.of(self.identifiers)
        self.tree = tree if self.constrained else LevelTree(tree, [torch.arange(vocabulary)] * tree.depth)
        self.n_servers = data.n_servers
        self.lists = training_lists(data, split)
        self.first_user = starts[-1]
        self.texts: list[list[int]] | None = None
        if self.source == "text":
            vocabulary += self._read_texts(data, split, vocabulary)
        torch.manual_seed(seed)
        self.writer = ItemWriter(vocabulary, self.size, pad=PAD)
        self.train(split, Job(seed, workdir, "tiger", identity))

    def _read_texts(self, data: Dataset, split: Split, first: int) -> int:
        """Tokens of all tasks' texts, from `first` on; returns the size of their vocabulary."""
        texts = data.task_texts()
        known = [texts[row] for row in split.tasks("train")]
        words = BytePairs([*known, *data.server_texts()], self.text_vocabulary)
        self.texts = [[first + token for token in words.encode(text, self.text_tokens)] for text in texts]
        return words.size

    def reading(self, task: int, servers: IntArray) -> Reading:
        """What the encoder reads for a task: the text, or the identifiers of `servers`; no word has a number."""
        if self.texts is not None:
            tokens = self.texts[task] or [PAD + 1]
        else:
            user = [self.first_user + task % self.user_tokens] if self.user_tokens else []
            tokens = user + self.identifiers[servers[-self.history :]].ravel().tolist()
        return tokens, [0] * len(tokens)

    def batches(self, epoch: int, seed: int) -> list[Batch]:
        """The batches of an epoch."""
        rng = np.random.default_rng([seed, epoch, 1])
        if self.source == "text":
            pairs = [(self.reading(row, servers), servers.tolist()) for row, servers in enumerate(self.lists)]
            pairs = [pair for pair in pairs if pair[1]]
        else:
            drawn = prefixes(self.lists, self.order, rng)
            pairs = [(self.reading(row, seen), targets.tolist()) for row, seen, targets in drawn]
        parts = batched(pairs, lambda pair: len(pair[0][0]), self.training.batch_size, rng)
        return [collate(part, self.identifiers, PAD) for part in parts]

    @property
    def ranks_new(self) -> bool:
        """Whether the encoder reads texts."""
        return self.source == "text"

    def asked(self, task: int) -> Reading:
        """The text, or the identifiers of all training servers."""
        return self.reading(task, self.lists[task])

    def decoder(self, readings: Sequence[Reading]) -> T5Beams:
        """The decoder of some readings."""
        return T5Beams(self.writer, readings)
