"""Text as tokens: a byte-pair vocabulary learned here, or the tokenizer of a published model on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn

from study.base.errors import StudyError
from study.data.dataset import FIELD_SEPARATOR, TASK_FIELDS, Dataset

PAD, END = 0, 1  # of vocabularies learned here


class BytePairs:
    """A byte-level BPE vocabulary (Sennrich et al. 2016), lower-cased, learned from the given texts alone.

    The texts are of training tasks and servers, never of a held-out task; `size` counts pad and end.
    """

    pad, end = PAD, END

    def __init__(self, texts: Iterable[str], size: int) -> None:
        self.model = Tokenizer(models.BPE())
        self.model.normalizer = normalizers.Lowercase()
        self.model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        self.model.decoder = decoders.ByteLevel()
        # No special token is known to the tokenizer, so that no text can spell one.
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=max(size - 2, len(alphabet)), min_frequency=2, initial_alphabet=alphabet, show_progress=False
        )
        self.model.train_from_iterator(map(clean, texts), trainer)
        self.size = self.model.get_vocab_size() + 2

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """The tokens of a text, `limit` at most. No text gives a pad, an end or an item's token."""
        return [token + 2 for token in self.model.encode(clean(text)).ids[:limit]]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        text: str = self.model.decode([token - 2 for token in tokens if 2 <= token < self.size])
        return text.strip()


class Published:
    """The tokenizer of a published model, by its name in the local Hugging Face cache, or its folder."""

    def __init__(self, name: str) -> None:
        from transformers import AutoTokenizer

        self.model: Any = from_disk(AutoTokenizer, name)
        self.size, self.end = len(self.model), int(self.model.eos_token_id)
        self.pad = self.end if self.model.pad_token_id is None else int(self.model.pad_token_id)

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """The tokens of a text, `limit` at most. No text gives a pad, an end or an item's token."""
        tokens = self.model(clean(text), add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [int(token) for token in tokens[:limit]]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        known = [token for token in tokens if token < self.size]
        return str(self.model.decode(known, skip_special_tokens=True)).strip()


# Text to tokens from 0 to size - 1 and back; `pad` fills up, `end` ends a sequence. A model's tokens of items follow.
Vocabulary = BytePairs | Published


def numbers(vocabulary: Vocabulary) -> list[int]:
    """The tokens that spell nothing but digits."""
    spelled = {token: vocabulary.decode([token]) for token in range(vocabulary.size)}
    return [token for token, text in spelled.items() if text.isascii() and text.isdecimal()]


def clean(text: str) -> str:
    """Lone surrogates (possible in JSON) are no Unicode text, and no tokenizer accepts them."""
    return text.encode("utf-8", "replace").decode()


def from_disk(loader: Any, name: str, **options: Any) -> Any:
    """`loader.from_pretrained(name)` without a network, foreign code or pickles.

    `StudyError` where the model is not on this machine, or its files are damaged.
    """
    try:
        return loader.from_pretrained(name, local_files_only=True, trust_remote_code=False, **options)
    except (OSError, ValueError) as error:
        raise StudyError(
            f"the published model {name!r} cannot be read: {str(error).splitlines()[0]}",
            column="system.model.size.*.pretrained",
            fix=f"run once: hf download {name} (its safetensors weights), or name a folder that holds it",
        ) from error


def widened(model: Any, size: int) -> Any:
    """A published model with (at least) `size` tokens; new rows start as normal as the old ones, and are trained."""
    old = model.get_input_embeddings().weight
    if size > len(old):
        spread, known = float(old.detach().std()), len(old)
        model.resize_token_embeddings(size, mean_resizing=False)
        for table in {model.get_input_embeddings(), model.get_output_embeddings()}:
            with torch.no_grad():
                nn.init.normal_(table.weight[known:], std=spread)
    return model


def padded(rows: Sequence[Sequence[int]], fill: int, *, left: bool = False) -> Tensor:
    """Rows of tokens as one tensor, shape (len(rows), longest)."""
    matrix = np.full((len(rows), max(map(len, rows))), fill, dtype=np.int64)
    for line, row in zip(matrix, rows, strict=True):
        if len(row):
            line[slice(-len(row), None) if left else slice(len(row))] = row
    return torch.from_numpy(matrix)


ATTRIBUTES = ("language", "category", "theme")  # fields of a task that are a word or two


def task_tokens(data: Dataset, vocabulary: Vocabulary, limit: int) -> list[list[int]]:
    """The tokens of every task's text x_t, `limit` at most.

    What is too long is cut at the end of name and description, so that language, category and theme always stand: a
    plain cut to 24 tokens leaves out the theme of every task of Task2MCP.
    """
    told = data.task_texts(tuple(name for name in TASK_FIELDS if name not in ATTRIBUTES))
    ends = [vocabulary.encode(FIELD_SEPARATOR + text, limit) for text in data.task_texts(ATTRIBUTES)]
    return [[*vocabulary.encode(text, limit - len(end)), *end] for text, end in zip(told, ends, strict=True)]
