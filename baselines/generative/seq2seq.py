"""An encoder-decoder transformer (T5) that reads tokens and writes the identifier of an item."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from transformers import T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from baselines.generative.text import from_disk, pad_rows
from study.data.dataset import IntArray

IGNORED = -100  # a target that does not count
Reading = tuple[list[int], list[int]]  # tokens, and the number of the word that each belongs to
WHOLE_WORD_SPREAD = 0.1  # standard deviation of whole-word embeddings at the start; that of tokens is 1 or more


@dataclass(frozen=True)
class T5Size:
    """Sizes of a T5 (Raffel et al. 2020) made from scratch, or the name of a published one."""

    width: int = 128  # d_model
    feed_forward: int = 512  # d_ff
    heads: int = 4
    head_width: int = 32
    layers: int = 2  # of the encoder, and of the decoder
    dropout: float = 0.1
    pretrained: str | None = None  # a model on this machine that replaces all of these


# Inputs, shape (b, s), padded; the number of the word that each token belongs to, 0 for padding; the identifiers to be
# written, shape (n, l), padded with IGNORED; the input of each, shape (n,): several may share one.
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


def collate(examples: Sequence[tuple[Reading, list[int]]], answers: IntArray, pad: int) -> Batch:
    """A batch of readings and the servers to be named for each; `answers` holds their tokens, -1 where they end."""
    targets = torch.from_numpy(answers[[server for _, servers in examples for server in servers]])
    owner = [number for number, (_, servers) in enumerate(examples) for _ in servers]
    inputs, words = inputs_of([reading for reading, _ in examples], pad)
    return inputs, words, targets.masked_fill(targets < 0, IGNORED), torch.tensor(owner)


def inputs_of(readings: Sequence[Reading], pad: int) -> tuple[Tensor, Tensor]:
    """Tokens and word numbers of readings, padded."""
    tokens, words = zip(*readings, strict=True)
    return pad_rows(tokens, pad), pad_rows(words, 0)


class ItemWriter(nn.Module):
    """A T5 with `vocabulary` tokens, of which `pad` fills up and starts the decoder. `whole_words`: rows of the table
    that is added to the input, one per word number (Geng et al. 2022; Xu et al. 2024); 0 adds nothing."""

    def __init__(self, vocabulary: int, size: T5Size, *, pad: int, whole_words: int = 0) -> None:
        super().__init__()
        if size.pretrained is None:
            sizes = {"d_model": size.width, "d_kv": size.head_width, "d_ff": size.feed_forward, "num_heads": size.heads}
            layers = {"num_layers": size.layers, "num_decoder_layers": size.layers, "dropout_rate": size.dropout}
            special = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": None}
            kind = {"vocab_size": vocabulary, "feed_forward_proj": "relu", "tie_word_embeddings": True}
            t5: Any = T5ForConditionalGeneration(T5Config(**sizes, **layers, **special, **kind))  # type: ignore[arg-type]
        else:
            t5 = from_disk(T5ForConditionalGeneration, size.pretrained, use_safetensors=True)
            t5.resize_token_embeddings(max(vocabulary, t5.config.vocab_size))
        self.t5, self.pad = t5, pad
        self.words = nn.Embedding(whole_words, t5.config.d_model, padding_idx=0) if whole_words else None
        if self.words is not None:
            # Next to tokens as large as these numbers of words, a model from scratch would not see the tokens.
            nn.init.normal_(self.words.weight[1:], std=WHOLE_WORD_SPREAD)

    def read(self, inputs: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Encoder states, shape (b, s, d), and the mask of tokens that count, shape (b, s)."""
        inputs, words = inputs.to(self.t5.device), words.to(self.t5.device)
        mask = (inputs != self.pad).long()
        embedded = self.t5.get_input_embeddings()(inputs)
        if self.words is not None:
            embedded = embedded + self.words(words.clamp(max=self.words.num_embeddings - 1))
        return self.t5.encoder(inputs_embeds=embedded, attention_mask=mask).last_hidden_state, mask

    def forward(self, batch: Batch) -> Tensor:
        """Cross-entropy of the targets' tokens, averaged over tokens and then over targets."""
        inputs, words, targets, owner = (part.to(self.t5.device) for part in batch)
        states, mask = self.read(inputs, words)
        logits = self.t5(
            encoder_outputs=BaseModelOutput(last_hidden_state=states[owner]),
            attention_mask=mask[owner],
            decoder_input_ids=self.t5.prepare_decoder_input_ids_from_labels(targets),
            use_cache=False,
        ).logits
        losses = cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
        return (losses.sum(dim=1) / (targets != IGNORED).sum(dim=1)).mean()


class T5Beams:
    """A decoder of `search.beam_search` for an `ItemWriter`; what is known of a prefix is computed once."""

    def __init__(self, model: ItemWriter, readings: Sequence[Reading]) -> None:
        self.model = model
        self.cache: Any = None
        self.states, self.mask = model.read(*inputs_of(readings, model.pad))
        self.first = torch.full((len(readings), 1), model.t5.config.decoder_start_token_id)

    def step(self, beams: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities of what follows, shape (n, vocabulary)."""
        beams = beams.to(self.states.device)
        if self.cache is not None:
            self.cache.reorder_cache(beams)
        self.states, self.mask = self.states[beams], self.mask[beams]
        read = {"encoder_outputs": BaseModelOutput(last_hidden_state=self.states), "attention_mask": self.mask}
        written = tokens.to(beams.device)
        out = self.model.t5(**read, decoder_input_ids=written, past_key_values=self.cache, use_cache=True)
        self.cache = out.past_key_values
        return log_softmax(out.logits[:, -1].float(), dim=-1)
