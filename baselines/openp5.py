"""OpenP5: recommendation as text to text; prompts name a task and its servers, answers name a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.cluster import SpectralClustering
from torch import nn

from baselines.generative.search import PAD, Generative, PrefixTree, batched, prefixes
from baselines.generative.seq2seq import Batch, ItemWriter, Reading, T5Beams, T5Size, collate
from baselines.generative.text import BytePairs, Published, Vocabulary, numbers, padded
from baselines.training import Job, fingerprint
from study.base.errors import require_one_of
from study.data.dataset import Dataset, IntArray
from study.data.lists import training_lists
from study.data.splits import Split

FIRST_NUMBER = 1001
OTHER = "<other>"  # the cluster of items without a training interaction
# Added to every affinity, so that the graph of co-occurrences is connected and its spectrum defined.
LINK = 1e-6

Identifier = tuple[str, ...]


def random_numbers(n_items: int, seed: int) -> list[Identifier]:
    """Shuffled numbers from 1001."""
    numbers = FIRST_NUMBER + np.random.default_rng([seed, 2]).permutation(n_items)
    return [tuple(str(number)) for number in numbers]


def sequential_numbers(lists: Sequence[IntArray], n_items: int, seed: int) -> list[Identifier]:
    """Numbers from 1001 in the order in which items first appear in the training lists; items without one follow in
    random order.
    """
    rest = np.random.default_rng([seed, 2]).permutation(n_items).tolist()
    order = list(dict.fromkeys([int(item) for row in lists for item in row] + rest))
    number = {item: FIRST_NUMBER + place for place, item in enumerate(order)}
    return [tuple(str(number[item])) for item in range(n_items)]


def collaborative(train: sp.csr_matrix, *, clusters: int, largest: int, seed: int) -> list[Identifier]:
    """The path of spectral clusters of the co-occurrence graph, then the place in the last cluster (Hua et al. 2023).

    Args:
        clusters: parts into which a cluster is cut (N of the paper).
        largest: items of a cluster that is cut no further (K).
    """
    seen = np.flatnonzero(train.getnnz(axis=0))
    together = sp.csr_matrix(train[:, seen].T @ train[:, seen]).astype(np.float64)
    together.setdiag(0)
    found: list[Identifier] = [()] * train.shape[1]
    counter = 0
    queue: list[tuple[IntArray, Identifier]] = [(np.arange(len(seen)), ())]
    while queue:
        group, path = queue.pop(0)
        if len(group) <= largest:
            for place, item in enumerate(group):
                found[seen[item]] = (*path, f"<{place}>")
            continue
        labels = cut(together[group][:, group].toarray(), clusters, seed)
        for label in range(labels.max() + 1):
            # As in the reference program, symbols of clusters are counted on through all of them.
            queue.append((group[labels == label], (*path, f"<{counter % max(largest, clusters)}>")))
            counter += 1
    for place, item in enumerate(np.setdiff1d(np.arange(train.shape[1]), seen)):
        found[item] = (OTHER, f"<{place // largest}>", f"<{place % largest}>")
    return found


def cut(affinity: np.ndarray, clusters: int, seed: int) -> IntArray:
    """Spectral clusters of an affinity matrix, numbered from 0 without gaps; equal parts where it sees only one."""
    affinity = affinity + LINK
    model = SpectralClustering(clusters, affinity="precomputed", assign_labels="cluster_qr", random_state=seed)
    labels = np.unique(model.fit_predict(affinity), return_inverse=True)[1]
    return labels if labels.max() else np.arange(len(labels)) * clusters // len(labels)


Word = tuple[int, ...]  # the tokens of one word


class Speller:
    """Turns words, identifiers and users into tokens; symbols of identifiers get tokens of their own.

    A published vocabulary spells digits and `names` (words of every prompt and answer, such as ``item_``) itself, in
    whatever pieces it has, as the original does. With one learned here each is a token, which no other text has.
    """

    def __init__(self, vocabulary: Vocabulary, items: Sequence[Identifier], names: Sequence[str]) -> None:
        self.vocabulary, self.small = vocabulary, isinstance(vocabulary, BytePairs)
        symbols = sorted({symbol for item in items for symbol in item if len(symbol) > 1})
        if self.small:
            symbols += [*"0123456789", *names]
        self.symbols = {symbol: vocabulary.size + number for number, symbol in enumerate(symbols)}
        self.size = vocabulary.size + len(symbols)
        self.word = cache(lambda text: tuple(vocabulary.encode(text)))  # an ordinary word

    def name(self, text: str) -> Word:
        """One of the `names`."""
        return (self.symbols[text],) if self.small else self.word(text)

    def named(self, kind: str, identifier: Identifier) -> Word:
        """The word ``item_<identifier>`` or ``user_<number>``."""
        if not self.small and all(len(symbol) == 1 for symbol in identifier):
            return self.word(f"{kind}_{''.join(identifier)}")
        return (*self.name(f"{kind}_"), *(self.symbols[symbol] for symbol in identifier))


def flatten(words: Sequence[Word], limit: int) -> Reading:
    """The first `limit` tokens of the words, and for each token the number of its word, from 1."""
    pairs = [(token, number) for number, word in enumerate(words, start=1) for token in word][:limit]
    return [token for token, _ in pairs], [number for _, number in pairs]


# OpenP5 (Xu et al. 2024): ten templates that are trained on, then one that is not. {history} holds item words.
SEQUENTIAL = (
    "{dataset} {user} already works with {history} , which server comes next ?",
    "given that {user} of {dataset} has chosen {history} , choose one more server",
    "after {history} , what will {user} add in {dataset} ?",
    "the servers of {user} in {dataset} so far are {history} ; name another",
    "{user} listed {history} in {dataset} . continue the list",
    "in {dataset} , {history} were picked for {user} . the next pick is",
    "what goes well with {history} for {dataset} {user} ?",
    "complete the servers of {dataset} {user} : {history} ,",
    "knowing {history} , predict a further server for {user} of {dataset}",
    "{dataset} : {user} uses {history} and also",
    "if {user} has {history} at hand in {dataset} , what is still missing ?",
)
STRAIGHTFORWARD = (
    "which server does {dataset} {user} need ?",
    "recommend a server to {user} of {dataset}",
    "{dataset} {user} is looking for a server , namely",
    "name something from {dataset} for {user}",
    "what should {user} install from {dataset} ?",
    "for {user} , {dataset} offers",
    "pick one server of {dataset} that suits {user}",
    "{user} will choose from {dataset} the server",
    "the best answer of {dataset} to {user} is",
    "suggest to {user} a server of {dataset}",
    "which entry of {dataset} helps {user} ?",
)
TEMPLATES = {"sequential": SEQUENTIAL, "straightforward": STRAIGHTFORWARD}
SEEN = 10  # templates that are trained on; the one after them is not


@dataclass
class OpenP5(Generative):
    """Text-to-text recommendation with constrained decoding (Xu et al., SIGIR 2024; indexing: Hua et al. 2023).

    A T5 reads a prompt, whose tokens carry whole-word embeddings, and learns by cross-entropy to write
    "<data set> item_<identifier>". Two kinds of prompts, ten templates each: ``sequential`` gives the training servers
    of a task, ``straightforward`` its number alone. score(t, m) = log p(answer m | first template for t) / tokens.

    Deviations: the templates are our own. Lists are sets here, so a history is the beginning of a random permutation
    and every other server of the task is an answer. An answer ends with an end token, so that no identifier
    is the beginning of another one. Whole-word embeddings start small next to tokens. All epochs run, and the best of a
    few evaluations on validation gives the weights. The history at inference is the training servers alone. The small
    model is trained from scratch; words of the templates, names, digits and cluster symbols are its tokens.

    With ``source: text`` a task's text replaces its number, and the model ranks for new tasks. That is an extension of
    this study (OpenP5-text), never reported under the method's name.

    `conf/system/paper/openp5.yaml` explains every setting.
    """

    size: T5Size = field(default_factory=T5Size)
    indexing: Literal["random", "sequential", "collaborative"] = "sequential"
    clusters: int = 10
    largest: int = 200
    kinds: Sequence[str] = ("sequential", "straightforward")
    asks: str = "sequential"
    templates: int = 1
    whole_words: int = 512
    source: Literal["ids", "text"] = "ids"
    input_tokens: int = 512
    text_words: int = 48

    length_power: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        """Refuse what cannot be asked."""
        super().__post_init__()
        for kind in self.kinds:
            require_one_of(kind, "kinds", TEMPLATES, column="system.model.kinds")
        require_one_of(self.asks, "asks", self.kinds, column="system.model.asks")

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Index the servers and train the T5; goes on from the checkpoint in `workdir`."""
        self.lists = training_lists(data, split)
        # A server is left to be named, so no history trained on is longer, and the numbers of words beyond it have
        # embeddings that were never trained.
        self.longest = min(self.history, max(map(len, self.lists)) - 1)
        if self.indexing == "random":
            items = random_numbers(data.n_servers, seed)
        elif self.indexing == "sequential":
            items = sequential_numbers(self.lists, data.n_servers, seed)
        else:
            items = collaborative(split.train, clusters=self.clusters, largest=self.largest, seed=seed)
        self.texts = data.task_texts() if self.source == "text" else None
        self.speller = Speller(self._vocabulary(data, split), items, ["item_", "user_", data.name])
        self.dataset = self.speller.name(data.name)
        self.items = [self.speller.named("item", item) for item in items]
        ends = (self.speller.vocabulary.end,)
        self.answers = padded([[*self.dataset, *item, *ends] for item in self.items], PAD).numpy()
        torch.manual_seed(seed)
        writer = ItemWriter(self.speller.size, self.size, pad=self.speller.vocabulary.pad, whole_words=self.whole_words)
        if self.size.pretrained is not None:
            # What the model knows of numbers has no meaning here.
            with torch.no_grad():
                spelled = numbers(self.speller.vocabulary)
                nn.init.normal_(rows := torch.empty(len(spelled), writer.t5.config.d_model))
                writer.t5.get_input_embeddings().weight[spelled] = rows
        identity = fingerprint(self, seed, split.train, split.valid, self.answers, self.texts)
        self.train(writer, PrefixTree(self.answers), split, Job(seed, workdir, "openp5", identity))

    def _vocabulary(self, data: Dataset, split: Split) -> Vocabulary:
        """Of the published model, or learned from the templates (and, where texts are read, from training tasks)."""
        if self.size.pretrained is not None:
            return Published(self.size.pretrained)
        words = {word for templates in TEMPLATES.values() for template in templates for word in template.split()}
        # Twice, so that each becomes one token.
        learned = [" ".join(sorted(words))] * 2
        if self.texts is not None:
            learned += [self.texts[row] for row in split.tasks("train")]
        return BytePairs(learned, self.text_vocabulary)

    def prompt(self, kind: str, template: int, task: int, seen: IntArray) -> Reading:
        """The tokens and word numbers of a prompt after the servers `seen`, last one last."""
        servers = [self.items[server] for server in seen[max(0, len(seen) - self.longest) :]]
        comma = self.speller.word(",")
        history = [word for server in servers for word in (server, comma)][:-1]
        if self.texts is None:
            user = [self.speller.named("user", tuple(str(task + 1)))]
        else:
            user = [self.speller.word(word) for word in self.texts[task].split()[: self.text_words]]
        slots = {"{dataset}": [self.dataset], "{user}": user, "{history}": history}
        words: list[Word] = []
        for piece in TEMPLATES[kind][template].split():
            words += slots[piece] if piece in slots else [self.speller.word(piece)]
        return flatten(words, self.input_tokens)

    def examples(self, kind: str, rng: np.random.Generator) -> Iterator[tuple[Reading, list[int]]]:
        """Prompts of one kind, and the servers that answer them."""
        if kind == "sequential":
            drawn = prefixes(self.lists, "random", rng)
        else:
            drawn = ((task, row[:0], row) for task, row in enumerate(self.lists) if len(row))
        for task, seen, targets in drawn:
            for template in rng.permutation(SEEN)[: self.templates]:
                yield self.prompt(kind, int(template), task, seen), targets.tolist()

    def batches(self, epoch: int, seed: int) -> list[Batch]:
        """The batches of an epoch, each of one kind, in random order."""
        rng, parts = np.random.default_rng([seed, epoch, 1]), []
        for kind in self.kinds:
            drawn = list(self.examples(kind, rng))
            parts += batched(drawn, lambda example: len(example[0][0]), self.training.batch_size, rng)
        pad = self.speller.vocabulary.pad
        return [collate(parts[place], self.answers, pad) for place in rng.permutation(len(parts))]

    @property
    def ranks_new(self) -> bool:
        """Whether the text stands in the place of the task's number."""
        return self.source == "text"

    def asked(self, task: int) -> Reading:
        """The first template of the kind `asks`, filled in for a task."""
        return self.prompt(self.asks, 0, task, self.lists[task])

    def decoder(self, readings: Sequence[Reading]) -> T5Beams:
        """The decoder of some prompts."""
        return T5Beams(self.writer, readings)
