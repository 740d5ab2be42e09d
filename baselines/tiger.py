"""TIGER: a transformer reads the semantic identifiers of a task's servers and writes that of another one."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from baselines.generative import quantisation
from baselines.generative.quantisation import Quantiser, as_tokens, fit_codes, standardise
from baselines.generative.search import Generative, PrefixTree, batch_by_length, prefixes
from baselines.generative.seq2seq import Batch, ItemWriter, Reading, T5Beams, T5Size, collate
from baselines.generative.text import PAD, BytePairs
from baselines.training import Job, fingerprint
from study.advisor.encoders.sentence import encode
from study.data.dataset import Dataset, IntArray
from study.data.lists import training_lists
from study.data.splits import Split


@dataclass
class Tiger(Generative):
    """Generative retrieval with semantic identifiers (Rajput et al., NeurIPS 2023).

    A server's identifier is its three codes of an RQ-VAE over its text vector and a number among servers that share
    them (section 3.1). A T5 trained from scratch reads the identifiers of the training servers and learns by
    cross-entropy to write that of a further one (section 3.2). score(t, m) = log p(identifier of m | servers of t).

    Deviations, beside those of `Generative` (`order`): text vectors are those of MiniLM, not of Sentence-T5. No user
    token, as in the unofficial program that the T2MRec paper names. Unused codes are moved at the start of each epoch;
    otherwise most of a codebook stays unused.

    With ``source: text`` the encoder reads the task's text instead of its servers, and so ranks for new tasks. That is
    an extension of this study (TIGER-text), never reported under the method's name.
    """

    quantiser: Quantiser = field(default_factory=Quantiser)
    size: T5Size = field(default_factory=T5Size)
    source: Literal["history", "text"] = "history"
    order: Literal["random", "list"] = "random"
    constrained: bool = True
    text_tokens: int = 64
    decoder = T5Beams

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train the RQ-VAE, or take up a kept one, then the T5; goes on from the checkpoint in `workdir`."""
        vectors = standardise(encode(data.server_texts()))
        codes = fit_codes(vectors, self.quantiser, seed=seed, device=self.place)
        spread, _ = quantisation.spread_last(codes[0], vectors)
        self.identifiers, starts = as_tokens(quantisation.number_collisions(spread), PAD + 1)
        self.lists = training_lists(data, split)
        vocabulary = starts[-1]
        anything = None if self.constrained else [(0, vocabulary)] * self.identifiers.shape[1]
        self.texts: list[list[int]] | None = None
        self.ranks_new = self.source == "text"
        if self.ranks_new:
            texts = data.task_texts()
            train_texts = [texts[row] for row in split.tasks("train")]
            words = BytePairs([*train_texts, *data.server_texts()], self.text_vocabulary)
            self.texts = [[vocabulary + token for token in words.encode(text, self.text_tokens)] for text in texts]
            vocabulary += words.size
        torch.manual_seed(seed)
        writer, tree = ItemWriter(vocabulary, self.size, pad=PAD), PrefixTree(self.identifiers, anything)
        job = Job(seed, workdir, "tiger", fingerprint(self, seed, split.train, split.valid, vectors))
        self.write(writer, tree, split, job, codes)

    def reading(self, task: int, servers: IntArray) -> Reading:
        """What the encoder reads for a task: the text, or the identifiers of `servers`; no word has a number."""
        identifiers: list[int] = self.identifiers[servers[-self.history :]].ravel().tolist()
        tokens = identifiers if self.texts is None else self.texts[task] or [PAD + 1]
        return tokens, [0] * len(tokens)

    def question(self, task: int) -> Reading:
        """The text, or the identifiers of all training servers."""
        return self.reading(task, self.lists[task])

    def batches(self, rng: np.random.Generator, epoch: int) -> list[Batch]:
        """The batches of an epoch."""
        examples: Iterable[tuple[int, IntArray, IntArray]]
        if self.source == "text":
            examples = ((row, servers, servers) for row, servers in enumerate(self.lists) if len(servers))
        else:
            examples = prefixes(self.lists, self.order, rng)
        pairs = [(self.reading(row, seen), targets.tolist()) for row, seen, targets in examples]
        parts = batch_by_length(pairs, lambda pair: len(pair[0][0]), self.training.batch_size, rng)
        return [collate(part, self.identifiers, PAD) for part in parts]
