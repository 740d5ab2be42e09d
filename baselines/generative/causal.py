"""A decoder-only transformer (LLaMA) that continues a prompt; several responses may share one reading of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM

from baselines.generative.seq2seq import padded
from baselines.generative.text import device, from_disk, widened


@dataclass(frozen=True)
class LlamaSize:
    """Sizes of a LLaMA (Touvron et al. 2023) made from scratch, or the name of a published causal model."""

    width: int = 128  # hidden_size
    feed_forward: int = 344  # intermediate_size
    heads: int = 4
    layers: int = 2
    context: int = 512  # the most tokens of prompt and response
    pretrained: str | None = None  # a model on this machine that replaces all of these
    device: str = "cpu"  # or `auto`, the accelerator where there is one


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
            lm: Any = LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=vocabulary,
                    hidden_size=size.width,
                    intermediate_size=size.feed_forward,
                    num_hidden_layers=size.layers,
                    num_attention_heads=size.heads,
                    max_position_embeddings=size.context,
                    tie_word_embeddings=True,
                    pad_token_id=pad,
                    bos_token_id=None,
                    eos_token_id=None,
                )
            )
        else:
            options = {"use_safetensors": True, "dtype": torch.float32}
            lm = widened(from_disk(AutoModelForCausalLM, size.pretrained, **options), vocabulary)
        self.lm, self.pad = lm, pad
        self.to(device(size.device))

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
    """`baselines.generative.prefix_tree.Decoder` for a `Continuer`; the prompt is read once."""

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
