"""LC-Rec: a language model is taught item indices next to words, and names a server for a task's text by its index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM

from baselines.generative.quantisation import Quantiser, as_tokens, fit_codes, made_unique, spread_last, standardised
from baselines.generative.search import Generative, PrefixTree, batched, prefixes
from baselines.generative.text import BytePairs, Published, Vocabulary, from_disk, padded, task_tokens, widened
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


class Example(NamedTuple):
    """A prompt and the responses that are right for it, each with its end token."""

    prompt: list[int]
    responses: list[list[int]]

    def __len__(self) -> int:
        return len(self.prompt) + sum(map(len, self.responses))


class Packed(NamedTuple):
    """Examples as tensors: each row holds a prompt and its responses one after another."""

    tokens: Tensor  # (b, s), padded to the right
    positions: Tensor  # (b, s): of each token, as if its response were alone
    parts: Tensor  # (b, s): 0 for the prompt, 1, 2, ... for the responses, -1 for padding
    rows: Tensor  # (n,): with `places`, of the states that predict a response's token
    places: Tensor  # (n,)
    labels: Tensor  # (n,): the tokens predicted there


def pack(examples: Sequence[Example], pad: int) -> Packed:
    """Lay out examples; prompts are never labels."""
    tokens, positions, parts = [], [], []
    predicted: list[tuple[int, int, int]] = []
    for row, (prompt, responses) in enumerate(examples):
        n = len(prompt)
        line, place, part = list(prompt), list(range(n)), [0] * n
        for number, response in enumerate(responses, start=1):
            start = len(line)
            sources = [n - 1, *range(start, start + len(response) - 1)]
            predicted += [(row, source, label) for source, label in zip(sources, response, strict=True)]
            line += response
            place += range(n, n + len(response))
            part += [number] * len(response)
        tokens.append(line)
        positions.append(place)
        parts.append(part)
    rows, places, labels = torch.tensor(predicted, dtype=torch.int64).reshape(-1, 3).unbind(dim=1)
    return Packed(padded(tokens, pad), padded(positions, 0), padded(parts, -1), rows, places, labels)


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
            options = {"use_safetensors": True, "dtype": torch.float32}
            lm = widened(from_disk(AutoModelForCausalLM, size.pretrained, **options), vocabulary)
        self.lm, self.pad = lm, pad

    def forward(self, batch: Packed) -> Tensor:
        """Cross-entropy of the responses' tokens, averaged over tokens."""
        tokens, positions, parts, rows, places, labels = (part.to(self.lm.device) for part in batch)
        hidden = ~visible(parts)
        mask = hidden.to(self.lm.dtype).masked_fill(hidden, torch.finfo(self.lm.dtype).min)
        states = self.lm.model(
            input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False
        ).last_hidden_state
        # The output layer is the dearest part, and only the responses need it.
        return cross_entropy(self.lm.lm_head(states[rows, places]), labels)


class CausalBeams:
    """`baselines.generative.search.Decoder` for a `Continuer`; the prompt is read once."""

    def __init__(self, model: Continuer, prompts: Sequence[Sequence[int]]) -> None:
        self.model, where = model, model.lm.device
        # To the left, so that all prompts end at the same place.
        self.tokens = padded(prompts, model.pad, left=True).to(where)
        self.length = torch.tensor([len(prompt) for prompt in prompts], device=where)
        place = torch.arange(self.tokens.shape[1], device=where)
        self.mask = (place >= self.tokens.shape[1] - self.length[:, None]).long()
        self.cache: Any = DynamicCache()

    def start(self) -> Tensor:
        """Log-probabilities of the first token of a response, shape (b, vocabulary)."""
        return self._read(self.tokens, (self.mask.cumsum(dim=1) - 1).clamp(min=0))

    def step(self, beams: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities after `tokens`, shape (n, vocabulary)."""
        beams, tokens = beams.to(self.mask.device), tokens.to(self.mask.device)
        self.cache.reorder_cache(beams)
        self.mask = torch.cat([self.mask[beams], torch.ones_like(tokens[:, None])], dim=1)
        positions = self.length[beams]
        self.length = positions + 1
        return self._read(tokens[:, None], positions[:, None])

    def _read(self, tokens: Tensor, positions: Tensor) -> Tensor:
        out = self.model.lm(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=self.mask,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return log_softmax(out.logits[:, -1].float(), dim=-1)


# The kinds of instructions (Zheng et al. 2024, section III-C); the method `_KIND` of `LCRec` makes their examples.
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
    shares: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 1.0))
    asks: Literal["search", "next_item"] = "search"
    constraint: Literal["tree", "level"] = "tree"
    text_tokens: int = 64
    name_tokens: int = 12

    def __post_init__(self) -> None:
        """Refuse a kind of instruction that there is not."""
        super().__post_init__()
        for kind in self.shares:
            require_one_of(kind, "shares", KINDS, column="system.model.shares")

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train the RQ-VAE, or take up a kept one, then the language model; goes on from a checkpoint in `workdir`."""
        vectors = standardised(encode(data.server_texts()))
        codes = fit_codes(vectors, self.quantiser, seed=seed, place=self.place)
        self.lists = training_lists(data, split)
        self._read_texts(data, split)
        self.indices, starts = as_tokens(made_unique(*spread_last(codes[0], vectors)), self.vocabulary.size)
        levels = list(pairwise(starts)) if self.constraint == "level" else None
        torch.manual_seed(seed)
        writer = Continuer(starts[-1], self.size, pad=self.vocabulary.pad)
        job = Job(seed, workdir, "lc_rec", fingerprint(self, seed, split.train, split.valid, vectors))
        self.train(writer, PrefixTree(self.indices, levels), split, job, codes=codes)

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

    def _indices(self, servers: IntArray) -> list[int]:
        """The tokens of the servers' indices, one after another."""
        return self.indices[servers[-self.history :]].ravel().tolist()

    def _responses(self, servers: IntArray) -> list[list[int]]:
        """The servers' indices as responses."""
        return [[*self.indices[server].tolist(), self.vocabulary.end] for server in servers]

    def instruction(self, template: str, **slots: list[int]) -> list[int]:
        """The tokens of a template with its slots filled; a slot's tokens are never read as words of the template."""
        tokens: list[int] = []
        for number, piece in enumerate(template.replace("}", "{").split("{")):
            tokens += slots[piece] if number % 2 else self.vocabulary.encode(piece)
        return tokens

    def question(self, task: int, seen: IntArray, template: int, *, asks: str = "search") -> list[int]:
        """What is asked about a task of which the servers `seen` are known."""
        kind = "search_with_history" if asks == "search" and len(seen) else asks
        return self.instruction(INSTRUCTIONS[kind][template], items=self._indices(seen), text=self.task_texts[task])

    def _drawn(self, rng: np.random.Generator, kind: str, **slots: list[int]) -> list[int]:
        """An instruction of a kind in one of its wordings."""
        return self.instruction(INSTRUCTIONS[kind][int(rng.integers(len(INSTRUCTIONS[kind])))], **slots)

    def _next_item(self, rng: np.random.Generator) -> Iterator[Example]:
        """Indices of a history -> index."""
        for _, seen, targets in prefixes(self.lists, "random", rng):
            yield Example(self._drawn(rng, "next_item", items=self._indices(seen)), self._responses(targets))

    def _index_of_text(self, rng: np.random.Generator) -> Iterator[Example]:
        """Name and description -> index."""
        for server, (name, about) in enumerate(zip(self.names, self.about, strict=True)):
            asked = self._drawn(rng, "index_of_text", name=name, about=about)
            yield Example(asked, self._responses(np.array([server])))

    def _text_of_index(self, rng: np.random.Generator) -> Iterator[Example]:
        """Index -> name and description."""
        for index, name, about in zip(self.indices.tolist(), self.names, self.about, strict=True):
            asked = self._drawn(rng, "text_of_index", item=index)
            yield Example(asked, [[*[*name, *about][: self.text_tokens], self.vocabulary.end]])

    def _fusion(self, rng: np.random.Generator) -> Iterator[Example]:
        """Names of a history -> index, or its indices -> name."""
        comma = self.vocabulary.encode(",")
        for _, seen, targets in prefixes(self.lists, "random", rng):
            if rng.random() < 0.5:
                names = [token for server in seen[-self.history :] for token in (*self.names[server], *comma)]
                asked = self._drawn(rng, "names_to_index", names=names[: -len(comma)])
                yield Example(asked, self._responses(targets))
            else:
                asked = self._drawn(rng, "indices_to_name", items=self._indices(seen))
                yield Example(asked, [[*self.names[server], self.vocabulary.end] for server in targets])

    def _search(self, rng: np.random.Generator) -> Iterator[Example]:
        """A task's text, half of the time with a history -> index."""
        for task in self.known:
            mixed = rng.permutation(self.lists[task])
            cut = int(rng.integers(1, len(mixed))) if len(mixed) > 1 and rng.random() < 0.5 else 0
            asked = self.question(int(task), mixed[:cut], int(rng.integers(len(INSTRUCTIONS["search"]))))
            yield Example(asked, self._responses(mixed[cut:]))

    def _preference(self, rng: np.random.Generator) -> Iterator[Example]:
        """Indices of a task's servers -> its text."""
        for task in self.known:
            items = self._indices(rng.permutation(self.lists[task]))
            asked = self._drawn(rng, "preference", items=items)
            yield Example(asked, [[*self.task_texts[task], self.vocabulary.end]])

    def examples(self, rng: np.random.Generator) -> Iterator[Example]:
        """The examples of an epoch, kind after kind, each present with the chance that `shares` gives its kind."""
        for kind, share in self.shares.items():
            yield from (example for example in getattr(self, f"_{kind}")(rng) if rng.random() < share)

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
        return self.question(task, self.lists[task], 0, asks=self.asks)

    def decoder(self, readings: Sequence[list[int]]) -> CausalBeams:
        """The decoder of some questions."""
        return CausalBeams(self.writer, readings)
