"""LC-Rec: a language model is taught item indices next to words, and names a server for a task's text by its index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from baselines.generative import Generative
from baselines.generative.causal import CausalBeams, Continuer, Example, LlamaSize, Packed, pack
from baselines.generative.prefix_tree import LevelTree, PrefixTree
from baselines.generative.quantisation import Quantiser, as_tokens, fit_codes, made_unique, spread_last, standardised
from baselines.generative.text import BytePairs, Published, Vocabulary, task_tokens
from baselines.interactions import batched, prefixes, training_lists
from baselines.settings import require_choice
from baselines.training import Job, Optimisation, fingerprint
from study.data.dataset import Dataset, IntArray
from study.data.splits import Split
from study.encoders.sentence import encode

# The share of its examples that each of the six kinds adds to an epoch (Zheng et al. 2024, section III-C).
SHARES = {
    "next_item": 1.0,  # history of indices -> index
    "index_of_text": 1.0,  # name and description -> index
    "text_of_index": 1.0,  # index -> name and description
    "fusion": 1.0,  # history of names -> index, and history of indices -> name
    "search": 1.0,  # the task's text, with a history where there is one -> index
    "preference": 1.0,  # indices of a task's servers -> the task's text
}

# LC-Rec (Zheng et al. 2024, section III-C): five templates for each of its tasks. {text} is a task's text, {items} are
# indices, {names} are names, {item} is one index, {name} and {about} belong to one server.
INSTRUCTIONS = {
    "next_item": (
        "Servers chosen so far: {items}. The next server:",
        "Given the servers {items}, predict another one:",
        "A developer works with {items} and adds",
        "Continue this list of servers: {items},",
        "What goes together with {items}?",
    ),
    "index_of_text": (
        "Server {name}: {about} Its index:",
        "Which index belongs to {name}, described as {about}?",
        "Name: {name}. Description: {about} Index:",
        "Find the server called {name}. {about}",
        "{about} This is {name}, with the index",
    ),
    "text_of_index": (
        "Describe the server {item}:",
        "What is the server {item}?",
        "Index {item}. Name and description:",
        "Tell me about {item}:",
        "Which server has the index {item}?",
    ),
    "names_to_index": (
        "Servers by name: {names}. The index of the next:",
        "Given {names}, the index of a further server:",
        "A developer uses {names}. Add the index of one more:",
        "After {names} comes the index",
        "What goes together with {names}? Index:",
    ),
    "indices_to_name": (
        "Servers by index: {items}. The name of the next:",
        "Given {items}, the name of a further server:",
        "A developer uses {items}. Add the name of one more:",
        "After {items} comes the server named",
        "What goes together with {items}? Name:",
    ),
    "search": (
        "Task: {text} Server:",
        "A developer wants: {text} Recommend a server:",
        "Which server helps with this? {text}",
        "Need: {text} A fitting server is",
        "Find a server for the following task. {text}",
    ),
    "search_with_history": (
        "Task: {text} Chosen: {items}. Server:",
        "A developer wants: {text} Having {items}, recommend a server:",
        "Which server beside {items} helps with this? {text}",
        "Need: {text} Beside {items}, a fitting server is",
        "Find a server for the following task that goes with {items}. {text}",
    ),
    "preference": (
        "Servers: {items}. What is the developer's task?",
        "Describe the task that {items} are meant for:",
        "A developer chose {items}. The task:",
        "From {items}, tell what is wanted:",
        "Which need do {items} serve?",
    ),
}


@dataclass
class LCRec(Generative):
    """Language and collaborative semantics in one language model (Zheng et al., ICDE 2024).

    A server's index is its four codes of an RQ-VAE over its text vector, the last level assigned evenly by
    Sinkhorn-Knopp ("uniform semantic mapping", section III-B). The tokens of indices join a language model's
    vocabulary, and six kinds of instructions are tuned together by cross-entropy on the responses (section III-C). A
    task's text replaces the intention that the paper has an LLM write. score(t, m) = log p(index of m | instruction
    with the text of t).

    Deviations: the prompt templates are our own, five for each kind. Shared indices are made unique. The search follows
    the tree of existing indices; the reference program allows any token of a level (``constraint: level``). Lists are
    sets here, so a history is the beginning of a random permutation and every other server of the task is a response;
    all of them share one reading of the prompt. All epochs run, and the best of a few evaluations on validation gives
    the weights. The history at inference is the training servers alone. The small model keeps the mechanism, without
    prior knowledge of language. A published model is tuned whole.

    `conf/system/paper/lc_rec.yaml` explains every setting.
    """

    quantiser: Quantiser = field(default_factory=lambda: Quantiser(levels=4))
    size: LlamaSize = field(default_factory=LlamaSize)
    training: Optimisation = field(default_factory=Optimisation)
    shares: Mapping[str, float] = field(default_factory=lambda: dict(SHARES))
    asks: str = "search"
    template: int = 0
    constraint: str = "tree"
    history: int = 20
    text_tokens: int = 64
    name_tokens: int = 12
    text_vocabulary: int = 4096
    beam: int = 30
    score_batch: int = 64

    ASKS: ClassVar[tuple[str, ...]] = ("search", "next_item")
    CONSTRAINTS: ClassVar[tuple[str, ...]] = ("tree", "level")

    def __post_init__(self) -> None:
        chosen = [("asks", self.asks, self.ASKS), ("constraint", self.constraint, self.CONSTRAINTS)]
        chosen += [("shares", kind, tuple(SHARES)) for kind in self.shares]
        for key, value, allowed in chosen:
            require_choice(key, value, allowed)

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train the RQ-VAE, or take up a kept one, then the language model; goes on from a checkpoint in `workdir`."""
        vectors = standardised(encode(data.server_texts()))
        identity = fingerprint(self, seed, split.train, split.valid, vectors)
        self.codes, self.coded = fit_codes(vectors, self.quantiser, seed=seed)
        self.n_servers = data.n_servers
        self.lists = training_lists(data, split)
        self._read_texts(data, split)
        self.indices, starts = as_tokens(made_unique(*spread_last(self.codes, vectors)), self.vocabulary.size)
        tree = PrefixTree.of(self.indices)
        levels = [torch.arange(start, end) for start, end in pairwise(starts)]
        self.tree = LevelTree(tree, levels) if self.constraint == "level" else tree
        torch.manual_seed(seed)
        self.writer = Continuer(starts[-1], self.size, pad=self.vocabulary.pad)
        self.train(split, Job(seed, workdir, "lc_rec", identity))

    def _read_texts(self, data: Dataset, split: Split) -> None:
        """The vocabulary, learned from training tasks, servers and templates alone, and the tokens of all texts."""
        tasks, self.known = data.task_texts(), split.tasks("train")
        if self.size.pretrained is not None:
            self.vocabulary: Vocabulary = Published(self.size.pretrained)
        else:
            templates = map(" ".join, INSTRUCTIONS.values())
            learned = [*(tasks[row] for row in self.known), *data.server_texts(), *templates]
            self.vocabulary = BytePairs(learned, self.text_vocabulary)
        self.task_texts = task_tokens(data, self.vocabulary, self.text_tokens)
        self.names = [self.vocabulary.encode(name, self.name_tokens) for name in data.servers["name"]]
        self.about = [self.vocabulary.encode(text, self.text_tokens) for text in data.servers["description"]]

    # Parts of instructions

    def _indices(self, servers: IntArray) -> list[int]:
        """The tokens of the servers' indices, one after another."""
        return self.indices[servers[-self.history :]].ravel().tolist()

    def _names(self, servers: IntArray) -> list[int]:
        comma = self.vocabulary.encode(",")
        joined = [token for server in servers[-self.history :] for token in (*self.names[server], *comma)]
        return joined[: -len(comma)]

    def _index(self, server: int) -> list[int]:
        """A server's index as a response."""
        return [*map(int, self.indices[server]), self.vocabulary.end]

    def instruction(self, template: str, **slots: list[int]) -> list[int]:
        """The tokens of a template with its slots filled; a slot's tokens are never read as words of the template."""
        tokens: list[int] = []
        for number, piece in enumerate(template.replace("}", "{").split("{")):
            tokens += slots[piece] if number % 2 else self.vocabulary.encode(piece)
        return tokens

    def question(self, task: int, seen: IntArray, template: int, *, asks: str = "search") -> list[int]:
        """What is asked about a task of which the servers `seen` are known."""
        slots = {"items": self._indices(seen)}
        if asks == "next_item":
            return self.instruction(INSTRUCTIONS["next_item"][template], **slots)
        slots["text"] = self.task_texts[task]
        kind = "search_with_history" if len(seen) else "search"
        return self.instruction(INSTRUCTIONS[kind][template], **slots)

    # Examples of each kind

    def _pick(self, rng: np.random.Generator, templates: Sequence[str]) -> str:
        return templates[int(rng.integers(len(templates)))]

    def _next_item(self, rng: np.random.Generator) -> Iterator[Example]:
        for task, seen, targets in prefixes(self.lists, "random", rng):
            asked = self.question(task, seen, int(rng.integers(len(INSTRUCTIONS["next_item"]))), asks="next_item")
            yield Example(asked, [self._index(server) for server in targets])

    def _index_of_text(self, rng: np.random.Generator) -> Iterator[Example]:
        for server, (name, about) in enumerate(zip(self.names, self.about, strict=True)):
            template = self._pick(rng, INSTRUCTIONS["index_of_text"])
            yield Example(self.instruction(template, name=name, about=about), [self._index(server)])

    def _text_of_index(self, rng: np.random.Generator) -> Iterator[Example]:
        for server, (name, about) in enumerate(zip(self.names, self.about, strict=True)):
            asked = self.instruction(self._pick(rng, INSTRUCTIONS["text_of_index"]), item=self._index(server)[:-1])
            yield Example(asked, [[*[*name, *about][: self.text_tokens], self.vocabulary.end]])

    def _fusion(self, rng: np.random.Generator) -> Iterator[Example]:
        for _, seen, targets in prefixes(self.lists, "random", rng):
            if rng.random() < 0.5:
                asked = self.instruction(self._pick(rng, INSTRUCTIONS["names_to_index"]), names=self._names(seen))
                yield Example(asked, [self._index(server) for server in targets])
            else:
                asked = self.instruction(self._pick(rng, INSTRUCTIONS["indices_to_name"]), items=self._indices(seen))
                yield Example(asked, [[*self.names[server], self.vocabulary.end] for server in targets])

    def _search(self, rng: np.random.Generator) -> Iterator[Example]:
        for task in self.known:
            mixed = rng.permutation(self.lists[task])
            # Half of the questions have no history, as those about a new task.
            cut = int(rng.integers(1, len(mixed))) if len(mixed) > 1 and rng.random() < 0.5 else 0
            asked = self.question(int(task), mixed[:cut], int(rng.integers(len(INSTRUCTIONS["search"]))))
            yield Example(asked, [self._index(server) for server in mixed[cut:]])

    def _preference(self, rng: np.random.Generator) -> Iterator[Example]:
        for task in self.known:
            items = self._indices(rng.permutation(self.lists[task]))
            asked = self.instruction(self._pick(rng, INSTRUCTIONS["preference"]), items=items)
            yield Example(asked, [[*self.task_texts[task], self.vocabulary.end]])

    def examples(self, rng: np.random.Generator) -> Iterator[Example]:
        """The examples of an epoch, kind after kind, each present with the chance that `shares` gives its kind."""
        kinds: dict[str, Callable[[np.random.Generator], Iterator[Example]]] = {
            "next_item": self._next_item,
            "index_of_text": self._index_of_text,
            "text_of_index": self._text_of_index,
            "fusion": self._fusion,
            "search": self._search,
            "preference": self._preference,
        }
        for kind, share in self.shares.items():
            yield from (example for example in kinds[kind](rng) if rng.random() < share)

    def batches(self, epoch: int, seed: int) -> list[Packed]:
        """The batches of an epoch."""
        rng = np.random.default_rng([seed, epoch, 1])
        parts = batched(list(self.examples(rng)), len, self.training.batch_size, rng)
        return [pack(part, self.vocabulary.pad) for part in parts]

    @property
    def ranks_new(self) -> bool:
        """Whether the question has the task's text."""
        return self.asks == "search"

    def asked(self, task: int) -> list[int]:
        """The question about a task of which all training servers are known."""
        return self.question(task, self.lists[task], self.template, asks=self.asks)

    def decoder(self, readings: Sequence[list[int]]) -> CausalBeams:
        """The decoder of some questions."""
        return CausalBeams(self.writer, readings)
