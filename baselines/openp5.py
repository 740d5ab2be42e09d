"""OpenP5: recommendation as text to text; prompts name a task and its servers, answers name a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from baselines.choices import require_choice
from baselines.generative import prompts
from baselines.generative.histories import batched, prefixes, training_lists
from baselines.generative.indexing import identifiers
from baselines.generative.prefix_tree import PAD, PrefixTree
from baselines.generative.seq2seq import IGNORED, Batch, ItemWriter, T5Size, padded, written
from baselines.generative.text import BytePairs, Published, Vocabulary, numbers
from baselines.generative.training import Optimisation, fingerprint, quality_of, train
from baselines.generative.words import Reading, Speller, Word, flatten
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split

TEMPLATES = {"sequential": prompts.SEQUENTIAL, "straightforward": prompts.STRAIGHTFORWARD}
SEEN = 10  # wordings that are trained on; the one after them is not


@dataclass
class OpenP5:
    """Text-to-text recommendation with constrained decoding (Xu et al., SIGIR 2024; indexing: Hua et al. 2023).

    A T5 reads a prompt, the tokens of which carry whole-word embeddings, and is trained by cross-entropy to write
    "<data set> item_<identifier>". Two tasks, ten wordings each: ``sequential`` gives the training servers of a task,
    ``straightforward`` its number alone. score(t, m) = log p(answer m | first wording for t) / tokens for the servers
    that a beam search over the prefix tree of all answers reaches; the others are not ranked.

    Deviations: the wordings are our own. Lists are sets here, so a history is a beginning of a random permutation and
    every other server of the task is an answer (`order`). An answer ends with an end token, so that no identifier is
    the beginning of another one. Whole-word embeddings start small next to tokens. All epochs run, and the best weights
    of a few looks at validation are kept. The history at inference is the training servers alone. The small model is
    made from scratch with words of the templates, names, digits and cluster symbols as tokens, and knows no language.

    With ``source: text`` a task's text stands where its number did, and the model ranks for new tasks. That is an
    extension made for this study (OpenP5-text), never reported under the method's name.

    Args:
        size: the T5, or the name of a published one.
        training: its optimisation; an epoch holds `wordings` prompts of each kind per task.
        indexing: ``random``, ``sequential`` or ``collaborative``.
        clusters, largest: N and K of collaborative indexing.
        kinds: prompts that are trained on, ``sequential`` and ``straightforward``.
        asks: the kind that is asked at inference.
        wordings: prompts per task, kind and epoch, drawn from the ten.
        whole_words: rows of the table of whole-word embeddings; 0 has none.
        source: ``ids`` or ``text``.
        order: ``random`` or ``list``; see `baselines.generative.histories.prefixes`.
        history: servers of a prompt at most, the last ones of the list; at inference never more than in training.
        input_tokens: tokens of a prompt at most.
        text_words, text_vocabulary: of ``source: text``, words per task at most and tokens in all.
        beam: answers written per task; those known are left out later, so it must exceed 10 by their number.
        score_batch: tasks decoded at a time.
    """

    size: T5Size = field(default_factory=T5Size)
    training: Optimisation = field(default_factory=Optimisation)
    indexing: str = "sequential"
    clusters: int = 10
    largest: int = 200
    kinds: Sequence[str] = ("sequential", "straightforward")
    asks: str = "sequential"
    wordings: int = 1
    whole_words: int = 512
    source: str = "ids"
    order: str = "random"
    history: int = 20
    input_tokens: int = 512
    text_words: int = 48
    text_vocabulary: int = 4096
    beam: int = 30
    score_batch: int = 128

    SOURCES: ClassVar[tuple[str, ...]] = ("ids", "text")

    def __post_init__(self) -> None:
        chosen = [("source", self.source, self.SOURCES), ("asks", self.asks, tuple(self.kinds))]
        chosen += [("kinds", kind, tuple(TEMPLATES)) for kind in self.kinds]
        for key, value, allowed in chosen:
            require_choice(key, value, allowed)

    @property
    def uses_validation(self) -> bool:
        """Whether the weights are chosen on validation labels."""
        return self.training.looks > 0

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Index the servers and train the T5; goes on from the checkpoint in `workdir`."""
        self.lists, self.n_servers = training_lists(data, split), data.n_servers
        # A server is left to be named, so no history trained on is longer, and the numbers of words beyond it have
        # embeddings that were never trained.
        self.longest = min(self.history, max(map(len, self.lists)) - 1)
        items = identifiers(
            self.indexing, self.lists, split.train, clusters=self.clusters, largest=self.largest, seed=seed
        )
        self.texts = data.task_texts() if self.source == "text" else None
        self.speller = Speller(self._vocabulary(data, split), items, ["item_", "user_", data.name])
        self.dataset = self.speller.name(data.name)
        self.items = [self.speller.named("item", item) for item in items]
        ends = (self.speller.vocabulary.end,)
        self.answers = padded([[*self.dataset, *item, *ends] for item in self.items], PAD).numpy()
        self.tree = PrefixTree.of(self.answers)
        torch.manual_seed(seed)
        self.writer = ItemWriter(
            self.speller.size, self.size, pad=self.speller.vocabulary.pad, whole_words=self.whole_words
        )
        if self.size.pretrained is not None:
            # What the model knows of numbers has no meaning here.
            with torch.no_grad():
                spelled = numbers(self.speller.vocabulary)
                nn.init.normal_(rows := torch.empty(len(spelled), self.writer.t5.config.d_model))
                self.writer.t5.get_input_embeddings().weight[spelled] = rows.to(self.writer.t5.device)
        identity = fingerprint(self, seed, split.train, split.valid, self.answers, self.texts)
        self.progress = train(
            self.writer,
            lambda epoch: self.batches(epoch, seed),
            self.writer,
            self.training,
            seed=seed,
            workdir=workdir,
            name="openp5",
            identity=identity,
            quality=quality_of(self.score, split, self.training, seed=seed, ranks_new=self.source == "text"),
        )

    def _vocabulary(self, data: Dataset, split: Split) -> Vocabulary:
        """Of the published model, or learned from the templates (and, where texts are read, from training tasks)."""
        if self.size.pretrained is not None:
            return Published(self.size.pretrained)
        words = {word for wordings in TEMPLATES.values() for wording in wordings for word in wording.split()}
        # Twice, so that each becomes one token.
        learned = [" ".join(sorted(words))] * 2
        if self.texts is not None:
            learned += [self.texts[row] for row in split.tasks("train")]
        return BytePairs(learned, self.text_vocabulary)

    def prompt(self, kind: str, wording: int, task: int, seen: IntArray) -> Reading:
        """The tokens and word numbers of a prompt.

        Args:
            kind: ``sequential`` or ``straightforward``.
            wording: 0 to 9 are trained on, 10 is not.
            seen: servers of the history, last one last.
        """
        servers = [self.items[server] for server in seen[max(0, len(seen) - self.longest) :]]
        comma = self.speller.word(",")
        slots = {
            "{dataset}": [self.dataset],
            "{user}": self._user(task),
            "{history}": [word for server in servers for word in (server, comma)][:-1],
        }
        words: list[Word] = []
        for piece in TEMPLATES[kind][wording].split():
            words += slots[piece] if piece in slots else [self.speller.word(piece)]
        return flatten(words, self.input_tokens)

    def _user(self, task: int) -> list[Word]:
        if self.texts is None:
            return [self.speller.named("user", tuple(str(task + 1)))]
        return [self.speller.word(word) for word in self.texts[task].split()[: self.text_words]]

    def examples(self, kind: str, rng: np.random.Generator) -> Iterator[tuple[Reading, list[int]]]:
        """Prompts of one kind, and the servers that answer them."""
        if kind == "sequential":
            drawn = prefixes(self.lists, self.order, rng)
        else:
            drawn = ((task, row[:0], row) for task, row in enumerate(self.lists) if len(row))
        for task, seen, targets in drawn:
            for wording in rng.permutation(SEEN)[: self.wordings]:
                yield self.prompt(kind, int(wording), task, seen), targets.tolist()

    def batches(self, epoch: int, seed: int) -> list[Batch]:
        """The batches of an epoch, each of one kind, in random order."""
        rng = np.random.default_rng([seed, epoch, 1])
        parts = [
            part
            for kind in self.kinds
            for part in batched(
                list(self.examples(kind, rng)), lambda example: len(example[0][0]), self.training.batch_size, rng
            )
        ]
        return [self._collate(parts[place]) for place in rng.permutation(len(parts))]

    def _collate(self, examples: Sequence[tuple[Reading, list[int]]]) -> Batch:
        inputs = padded([tokens for (tokens, _), _ in examples], self.speller.vocabulary.pad)
        words = padded([numbers for (_, numbers), _ in examples], 0)
        answers = self.answers[[server for _, servers in examples for server in servers]]
        targets = torch.from_numpy(np.where(answers == PAD, IGNORED, answers))
        owner = torch.arange(len(examples)).repeat_interleave(torch.tensor([len(servers) for _, servers in examples]))
        return Batch(inputs, words, targets, owner)

    def score(self, tasks: IntArray) -> FloatArray:
        """Mean log-probability of the answers in the beam, shape (len(tasks), n_servers).

        A task without training servers is not ranked, unless its text is read.
        """
        scores = np.full((len(tasks), self.n_servers), -np.inf, dtype=np.float32)
        asked = [place for place, task in enumerate(tasks) if self.texts is not None or len(self.lists[task])]
        readings = [self.prompt(self.asks, 0, int(tasks[place]), self.lists[tasks[place]]) for place in asked]
        scores[asked], _ = written(
            self.writer,
            self.tree,
            readings,
            n_items=self.n_servers,
            beam=self.beam,
            batch=self.score_batch,
            length_power=1.0,
            label="openp5",
        )
        return scores

    def report(self) -> dict[str, Any]:
        """How the model was trained."""
        return self.progress.report()

    def parameters(self) -> int:
        """Weights of the T5 and of the whole-word embeddings."""
        return sum(weight.numel() for weight in self.writer.parameters())
