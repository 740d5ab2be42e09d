"""LC-Rec: a language model is taught item indices next to words, and names a server for a task's text by its index."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM

from baselines.generative.quantisation import Quantiser, as_tokens, fit_codes, made_unique, spread_last, standardise
from baselines.generative.search import PAD, Generative, PrefixTree, batch_by_length, prefixes
from baselines.generative.text import BytePairs, Published, Vocabulary, from_disk, pad_rows, task_tokens
from baselines.training import Job, fingerprint
from study.advisor.encoders.sentence import encode
from study.base.errors import require_one_of
from study.data.dataset import Dataset, IntArray
from study.data.lists import training_lists
from study.data.splits import Split


@dataclass(frozen=True)
class LlamaSize:
    """Sizes of a LLaMA (Touvron et al. 2023) made from scratch, or the name of a published causal model."""

    width: int = 128  # hidden_size
    feed_forward: int = 344  # intermediate_size
    heads: int = 4
    layers: int = 2
    context: int = 512  # the most tokens of prompt and response
    pretrained: str | None = None  # a model on this machine that replaces all of these


Example = tuple[list[int], list[list[int]]]  # a prompt and the responses that are right for it, each with its end token
# Examples as tensors: tokens, shape (b, s), in each row a prompt and its responses one after another; parts, (b, s): 0
# for the prompt, 1, 2, ... for the responses, -1 for padding; rows and places of the states that predict a response's
# token, and these tokens, (n,) each.
Packed = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def pack(examples: Sequence[Example], pad: int) -> Packed:
    """Lay out examples; prompts are never labels."""
    tokens, parts = [], []
    predicted: list[tuple[int, int, int]] = []
    for row, (prompt, responses) in enumerate(examples):
        line, part = list(prompt), [0] * len(prompt)
        for number, response in enumerate(responses, start=1):
            sources = [len(prompt) - 1, *range(len(line), len(line) + len(response) - 1)]
            predicted += [(row, source, label) for source, label in zip(sources, response, strict=True)]
            line += response
            part += [number] * len(response)
        tokens.append(line)
        parts.append(part)
    rows, places, labels = torch.tensor(predicted, dtype=torch.int64).reshape(-1, 3).unbind(dim=1)
    return pad_rows(tokens, pad), pad_rows(parts, -1), rows, places, labels


def visible(parts: Tensor) -> Tensor:
    """What each token may see: the tokens before it of the prompt and of its own response, shape (b, 1, s, s)."""
    s = parts.shape[1]
    before = torch.ones(s, s, dtype=torch.bool, device=parts.device).tril()
    same = (parts[:, :, None] == parts[:, None, :]) | (parts[:, None, :] == 0)
    return (before & same)[:, None]


class Continuer(nn.Module):
    """A causal language model with `vocabulary` tokens, those of the items among them; `pad` fills up."""

    def __init__(self, vocabulary: int, size: LlamaSize, *, pad: int) -> None:
        super().__init__()
        if size.pretrained is None:
            sizes = {"hidden_size": size.width, "intermediate_size": size.feed_forward, "vocab_size": vocabulary}
            layers = {"num_hidden_layers": size.layers, "num_attention_heads": size.heads}
            kind = {"max_position_embeddings": size.context, "tie_word_embeddings": True}
            special = {"pad_token_id": pad, "bos_token_id": None, "eos_token_id": None}
            lm: Any = LlamaForCausalLM(LlamaConfig(**sizes, **layers, **kind, **special))  # type: ignore[arg-type]
        else:
            lm = from_disk(AutoModelForCausalLM, size.pretrained, use_safetensors=True, dtype=torch.float32)
            lm.resize_token_embeddings(max(vocabulary, lm.config.vocab_size))
        self.lm, self.pad = lm, pad

    def forward(self, batch: Packed) -> Tensor:
        """Cross-entropy of the responses' tokens, averaged over tokens."""
        tokens, parts, rows, places, labels = (part.to(self.lm.device) for part in batch)
        mask = visible(parts)
        positions = mask.sum(dim=3).squeeze(1) - 1  # of each token, as if its response were alone
        states = self.lm.model(tokens, attention_mask=mask, position_ids=positions, use_cache=False).last_hidden_state
        # The output layer is the dearest part, and only the responses need it.
        return cross_entropy(self.lm.lm_head(states[rows, places]), labels)


class CausalBeams:
    """A decoder of `baselines.generative.search.beam_search` for a `Continuer`; the prompt is read once."""

    def __init__(self, model: Continuer, prompts: Sequence[Sequence[int]]) -> None:
        self.model = model
        self.cache: Any = DynamicCache()
        # To the left, so that all prompts end at the same place.
        self.first = pad_rows(prompts, PAD, left=True)
        self.mask = torch.zeros(len(prompts), 0, dtype=torch.int64, device=model.lm.device)

    def step(self, beams: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities of what follows, shape (n, vocabulary)."""
        beams, tokens = beams.to(self.mask.device), tokens.to(self.mask.device)
        self.cache.reorder_cache(beams)
        self.mask = torch.cat([self.mask[beams], (tokens != PAD).long()], dim=1)
        positions = (self.mask.cumsum(dim=1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        read = {"input_ids": tokens.clamp(min=0), "position_ids": positions, "attention_mask": self.mask}
        out = self.model.lm(**read, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        return log_softmax(out.logits[:, -1].float(), dim=-1)


Lesson = tuple[str, dict[str, list[int]], list[list[int]]]  # a template, what fills its slots, and the right responses
# The kinds of instructions (Zheng et al. 2024, section III-C); the method `_KIND` of `LCRec` makes their lessons.
KINDS = ("next_item", "index_of_text", "text_of_index", "fusion", "search", "preference")

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
    with the text of t, in its first wording).

    Deviations, beside those of `Generative`: the prompt templates are our own, five for each kind. Shared indices are
    made unique. The search follows the tree of existing indices; the reference program allows any token of a level
    (``constraint: level``). All responses to a prompt share one reading of it. The small model keeps the mechanism,
    without prior knowledge of language. A published model is tuned whole.
    """

    quantiser: Quantiser = field(default_factory=lambda: Quantiser(levels=4))
    size: LlamaSize = field(default_factory=LlamaSize)
    shares: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 1.0))
    asks: Literal["search", "next_item"] = "search"
    constraint: Literal["tree", "level"] = "tree"
    text_tokens: int = 64
    name_tokens: int = 12
    decoder = CausalBeams

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train the RQ-VAE, or take up a kept one, then the language model; goes on from a checkpoint in `workdir`."""
        for kind in self.shares:
            require_one_of(kind, "shares", KINDS, column="system.model.shares")
        vectors = standardise(encode(data.server_texts()))
        codes = fit_codes(vectors, self.quantiser, seed=seed, device=self.place)
        self.lists, self.known = training_lists(data, split), split.tasks("train")
        if self.size.pretrained is not None:
            self.vocabulary: Vocabulary = Published(self.size.pretrained)
        else:  # from training tasks, servers and templates alone
            tasks, templates = data.task_texts(), map(" ".join, INSTRUCTIONS.values())
            learned = [*(tasks[row] for row in self.known), *data.server_texts(), *templates]
            self.vocabulary = BytePairs(learned, self.text_vocabulary)
        self.task_texts = task_tokens(data, self.vocabulary, self.text_tokens)
        self.names = [self.vocabulary.encode(name, self.name_tokens) for name in data.servers["name"]]
        self.about = [self.vocabulary.encode(text, self.text_tokens) for text in data.servers["description"]]
        self.indices, starts = as_tokens(made_unique(*spread_last(codes[0], vectors)), self.vocabulary.size)
        tree = PrefixTree(self.indices, list(pairwise(starts)) if self.constraint == "level" else None)
        torch.manual_seed(seed)
        writer = Continuer(starts[-1], self.size, pad=self.vocabulary.pad)
        job = Job(seed, workdir, "lc_rec", fingerprint(self, seed, split.train, split.valid, vectors))
        self.ranks_new = self.asks == "search"
        self.write(writer, tree, split, job, codes)

    def _indices(self, servers: IntArray) -> list[int]:
        """The tokens of the servers' indices, one after another."""
        return self.indices[servers[-self.history :]].ravel().tolist()

    def instruction(self, kind: str, wording: int, **slots: list[int]) -> list[int]:
        """The tokens of a template with its slots filled; a slot's tokens are never read as words of the template."""
        tokens: list[int] = []
        for number, piece in enumerate(INSTRUCTIONS[kind][wording].replace("}", "{").split("{")):
            tokens += slots[piece] if number % 2 else self.vocabulary.encode(piece)
        return tokens

    def question(self, task: int) -> list[int]:
        """What is asked about a task of which all training servers are known."""
        seen = self.lists[task]
        kind = "next_item" if self.asks == "next_item" else "search_with_history" if len(seen) else "search"
        return self.instruction(kind, 0, items=self._indices(seen), text=self.task_texts[task])

    def _next_item(self, rng: np.random.Generator) -> Iterator[Lesson]:
        """Indices of a history -> index."""
        for _, seen, targets in prefixes(self.lists, "random", rng):
            yield "next_item", {"items": self._indices(seen)}, self.indices[targets].tolist()

    def _index_of_text(self, _: np.random.Generator) -> Iterator[Lesson]:
        """Name and description -> index."""
        for name, about, index in zip(self.names, self.about, self.indices.tolist(), strict=True):
            yield "index_of_text", {"name": name, "about": about}, [index]

    def _text_of_index(self, _: np.random.Generator) -> Iterator[Lesson]:
        """Index -> name and description."""
        for name, about, index in zip(self.names, self.about, self.indices.tolist(), strict=True):
            yield "text_of_index", {"item": index}, [[*name, *about][: self.text_tokens]]

    def _fusion(self, rng: np.random.Generator) -> Iterator[Lesson]:
        """Names of a history -> index, or its indices -> name."""
        comma = self.vocabulary.encode(",")
        for _, seen, targets in prefixes(self.lists, "random", rng):
            if rng.random() < 0.5:
                names = [token for server in seen[-self.history :] for token in (*self.names[server], *comma)]
                yield "names_to_index", {"names": names[: -len(comma)]}, self.indices[targets].tolist()
            else:
                yield "indices_to_name", {"items": self._indices(seen)}, [self.names[server] for server in targets]

    def _search(self, rng: np.random.Generator) -> Iterator[Lesson]:
        """A task's text, half of the time with a history -> index."""
        for task in self.known:
            mixed = rng.permutation(self.lists[task])
            cut = int(rng.integers(1, len(mixed))) if len(mixed) > 1 and rng.random() < 0.5 else 0
            slots = {"items": self._indices(mixed[:cut]), "text": self.task_texts[task]}
            yield "search_with_history" if cut else "search", slots, self.indices[mixed[cut:]].tolist()

    def _preference(self, rng: np.random.Generator) -> Iterator[Lesson]:
        """Indices of a task's servers -> its text."""
        for task in self.known:
            yield "preference", {"items": self._indices(rng.permutation(self.lists[task]))}, [self.task_texts[task]]

    def examples(self, rng: np.random.Generator) -> Iterator[Example]:
        """The examples of an epoch, kind after kind, each present with the chance that `shares` gives its kind."""
        for kind, share in self.shares.items():
            for template, slots, responses in getattr(self, f"_{kind}")(rng):
                prompt = self.instruction(template, int(rng.integers(len(INSTRUCTIONS[template]))), **slots)
                if rng.random() < share:
                    yield prompt, [[*response, self.vocabulary.end] for response in responses]

    def batches(self, rng: np.random.Generator, epoch: int) -> list[Packed]:
        """The batches of an epoch."""
        examples, size = list(self.examples(rng)), self.training.batch_size
        parts = batch_by_length(examples, lambda each: len(each[0]) + sum(map(len, each[1])), size, rng)
        return [pack(part, self.vocabulary.pad) for part in parts]
