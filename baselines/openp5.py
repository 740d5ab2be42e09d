"""OpenP5: recommendation as text to text; prompts name a task and its servers, answers name a server."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, groupby
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from sklearn.cluster import SpectralClustering

from baselines.generative.search import PAD, Generative, PrefixTree, batch_by_length, prefixes
from baselines.generative.seq2seq import Batch, ItemWriter, Reading, T5Beams, T5Size, collate
from baselines.generative.text import BytePairs, Published, Vocabulary, pad_rows
from baselines.training import Job, fingerprint
from study.base.errors import require_one_of
from study.data.dataset import Dataset, IntArray
from study.data.lists import training_lists
from study.data.splits import Split

FIRST_NUMBER = 1001
OTHER = "<other>"  # the cluster of items without a training interaction
LINK = 1e-6  # added to every affinity, so that the graph of co-occurrences is connected and its spectrum defined

Identifier = tuple[str, ...]


def numbers(lists: Sequence[IntArray], n_items: int, seed: int, *, indexing: str) -> list[Identifier]:
    """Numbers from 1001: shuffled (``random``), or in the order in which items first appear in the training lists, the
    others after them in random order (``sequential``)."""
    number = np.random.default_rng([seed, 2]).permutation(n_items)
    if indexing == "sequential":
        number = np.argsort(pd.unique(np.concatenate([*lists, number])))
    return [tuple(str(FIRST_NUMBER + each)) for each in number]


def collaborative(train: sp.csr_matrix, *, clusters: int, largest: int, seed: int) -> list[Identifier]:
    """The path of spectral clusters of the co-occurrence graph, then the place in the last cluster (Hua et al. 2023):
    `clusters` (N) parts of a cluster, `largest` (K) items of one that is cut no further."""
    seen = np.flatnonzero(train.getnnz(axis=0))
    together = sp.csr_matrix(train[:, seen].T @ train[:, seen]).astype(np.float64)
    together.setdiag(0)
    identifiers: list[Identifier] = [()] * train.shape[1]
    counter = 0
    queue: list[tuple[IntArray, Identifier]] = [(np.arange(len(seen)), ())]
    while queue:
        group, path = queue.pop(0)
        if len(group) <= largest:
            for position, item in enumerate(group):
                identifiers[seen[item]] = (*path, f"<{position}>")
            continue
        labels = cut_graph(together[group][:, group].toarray(), clusters, seed)
        for label in range(labels.max() + 1):
            # As in the reference program, symbols of clusters are counted on through all of them.
            queue.append((group[labels == label], (*path, f"<{counter % max(largest, clusters)}>")))
            counter += 1
    for position, item in enumerate(np.setdiff1d(np.arange(train.shape[1]), seen)):
        identifiers[item] = (OTHER, f"<{position // largest}>", f"<{position % largest}>")
    return identifiers


def cut_graph(affinity: np.ndarray, clusters: int, seed: int) -> IntArray:
    """Spectral clusters of an affinity matrix, numbered from 0 without gaps; equal parts where it sees only one."""
    affinity = affinity + LINK
    model = SpectralClustering(clusters, affinity="precomputed", assign_labels="cluster_qr", random_state=seed)
    labels = np.unique(model.fit_predict(affinity), return_inverse=True)[1]
    return labels if labels.max() else np.arange(len(labels)) * clusters // len(labels)


Word = tuple[int, ...]  # the tokens of one word


class Speller:
    """Turns words, identifiers and users into tokens; symbols of identifiers get tokens of their own. A published
    vocabulary spells digits and `names` (words of every prompt and answer, such as ``item_``) in whatever pieces it
    has, as the original does. With one learned here each is a token, which no other text has."""

    def __init__(self, vocabulary: Vocabulary, items: Sequence[Identifier], names: Sequence[str]) -> None:
        self.vocabulary = vocabulary
        symbols = sorted({symbol for item in items for symbol in item if len(symbol) > 1})
        symbols += [*"0123456789", *names] if isinstance(vocabulary, BytePairs) else []
        self.symbols = {symbol: vocabulary.size + number for number, symbol in enumerate(symbols)}
        self.size = vocabulary.size + len(symbols)
        self.word = cache(lambda text: tuple(vocabulary.encode(text)))  # an ordinary word

    def spell_name(self, *parts: str) -> Word:
        """A name, such as ``item_`` and an identifier: by tokens of their own where there are, else as spelled."""
        pieces = groupby(parts, key=self.symbols.__contains__)
        spelled = (
            [self.symbols[part] for part in run] if is_symbol else self.word("".join(run)) for is_symbol, run in pieces
        )
        return tuple(chain.from_iterable(spelled))


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

    Deviations, beside those of `Generative`: the templates are our own. An answer ends with an end token, so that no
    identifier is the beginning of another one. Whole-word embeddings start small next to tokens. The small model is
    trained from scratch; words of the templates, names, digits and cluster symbols are its tokens.

    With ``source: text`` a task's text replaces its number, and the model ranks for new tasks. That is an extension of
    this study (OpenP5-text), never reported under the method's name.
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

    length_power = 1.0
    decoder = T5Beams

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Index the servers and train the T5; goes on from the checkpoint in `workdir`."""
        for kind in self.kinds:
            require_one_of(kind, "kinds", TEMPLATES, column="system.model.kinds")
        require_one_of(self.asks, "asks", self.kinds, column="system.model.asks")
        self.lists = training_lists(data, split)
        # A server is left to be named, so no history trained on is longer; embeddings beyond it were never trained.
        self.longest = min(self.history, max(map(len, self.lists)) - 1)
        if self.indexing == "collaborative":
            items = collaborative(split.train, clusters=self.clusters, largest=self.largest, seed=seed)
        else:
            items = numbers(self.lists, data.n_servers, seed, indexing=self.indexing)
        self.ranks_new = self.source == "text"
        self.texts = data.task_texts() if self.ranks_new else None
        self.speller = Speller(self._vocabulary(split), items, ["item_", "user_", data.name])
        self.dataset = self.speller.spell_name(data.name)
        self.items = [self.speller.spell_name("item_", *item) for item in items]
        vocabulary = self.speller.vocabulary
        self.answers = pad_rows([[*self.dataset, *item, vocabulary.end] for item in self.items], PAD).numpy()
        torch.manual_seed(seed)
        writer = ItemWriter(self.speller.size, self.size, pad=vocabulary.pad, whole_words=self.whole_words)
        if isinstance(vocabulary, Published):  # what the model knows of numbers has no meaning here
            decode = vocabulary.model.decode
            spelled = [token for token in range(vocabulary.size) if decode([token]).strip().isdecimal()]
            table = writer.t5.get_input_embeddings().weight
            table.data[spelled] = torch.randn(len(spelled), table.shape[1])
        identity = fingerprint(self, seed, split.train, split.valid, self.answers, self.texts)
        tree, job = PrefixTree(self.answers), Job(seed, workdir, "openp5", identity)
        self.write(writer, tree, split, job)

    def _vocabulary(self, split: Split) -> Vocabulary:
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
        """The tokens of a prompt after the servers `seen`, last one last, and the number of each one's word, from 1."""
        servers = [self.items[server] for server in seen[max(0, len(seen) - self.longest) :]]
        comma = self.speller.word(",")
        history = [word for server in servers for word in (server, comma)][:-1]
        if self.texts is None:
            user = [self.speller.spell_name("user_", *str(task + 1))]
        else:
            user = [self.speller.word(word) for word in self.texts[task].split()[: self.text_words]]
        slots = {"{dataset}": [self.dataset], "{user}": user, "{history}": history}
        words: list[Word] = []
        for piece in TEMPLATES[kind][template].split():
            words += slots[piece] if piece in slots else [self.speller.word(piece)]
        tokens = [(token, number) for number, word in enumerate(words, start=1) for token in word][: self.input_tokens]
        return [token for token, _ in tokens], [number for _, number in tokens]

    def examples(self, kind: str, rng: np.random.Generator) -> Iterator[tuple[Reading, list[int]]]:
        """Prompts of one kind, and the servers that answer them."""
        if kind == "sequential":
            histories = prefixes(self.lists, "random", rng)
        else:
            histories = ((task, row[:0], row) for task, row in enumerate(self.lists) if len(row))
        for task, seen, targets in histories:
            for template in rng.permutation(SEEN)[: self.templates]:
                yield self.prompt(kind, int(template), task, seen), targets.tolist()

    def batches(self, rng: np.random.Generator, epoch: int) -> list[Batch]:
        """The batches of an epoch, each of one kind, in random order."""
        parts = []
        for kind in self.kinds:
            examples = list(self.examples(kind, rng))
            parts += batch_by_length(examples, lambda example: len(example[0][0]), self.training.batch_size, rng)
        pad = self.speller.vocabulary.pad
        return [collate(parts[number], self.answers, pad) for number in rng.permutation(len(parts))]

    def question(self, task: int) -> Reading:
        """The first template of the kind `asks`, filled in for a task."""
        return self.prompt(self.asks, 0, task, self.lists[task])
