"""Text as tokens: a byte-pair vocabulary learned here, or the tokenizer of a published model on this machine."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from study.base.errors import StudyError
from study.data.dataset import FIELD_SEPARATOR, TASK_FIELDS, Dataset

PAD, END = 0, 1  # of vocabularies learned here
ATTRIBUTES = ("language", "category", "theme")  # fields of a task that are a word or two


class BytePairs:
    """A byte-level BPE vocabulary (Sennrich et al. 2016), lower-cased, learned from the given texts alone, which are of
    training tasks and servers, never of a held-out task; `size` counts pad and end."""

    pad, end = PAD, END

    def __init__(self, texts: Iterable[str], size: int) -> None:
        self.model = Tokenizer(models.BPE())
        self.model.normalizer = normalizers.Lowercase()
        self.model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
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


# Text to tokens from 0 to size - 1; `pad` fills up, `end` ends a sequence. A model's tokens of items follow.
Vocabulary = BytePairs | Published


def clean(text: str) -> str:
    """Lone surrogates (possible in JSON) are no Unicode text, and no tokenizer accepts them."""
    return text.encode("utf-8", "replace").decode()


def from_disk(loader: Any, name: str, **options: Any) -> Any:
    """`loader.from_pretrained(name)` without a network, foreign code or pickles. Raises StudyError: the model is not on
    this machine, or its files are damaged."""
    try:
        return loader.from_pretrained(name, local_files_only=True, trust_remote_code=False, **options)
    except (OSError, ValueError) as error:
        reason = f"the published model {name!r} cannot be read: {str(error).splitlines()[0]}"
        fix = f"run once: hf download {name} (its safetensors weights), or name a folder that holds it"
        raise StudyError(reason, column="system.model.size.*.pretrained", fix=fix) from error


def pad_rows(rows: Iterable[Sequence[int]], fill: int, *, left: bool = False) -> Tensor:
    """Rows of tokens as one tensor, shape (n, longest)."""
    tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=fill, padding_side="left" if left else "right")


def task_tokens(data: Dataset, vocabulary: Vocabulary, limit: int) -> list[list[int]]:
    """The tokens of every task's text x_t, `limit` at most, cut at the end of name and description: a plain cut to 24
    tokens leaves out the theme of every task of Task2MCP."""
    descriptions = data.task_texts(tuple(name for name in TASK_FIELDS if name not in ATTRIBUTES))
    ends = [vocabulary.encode(FIELD_SEPARATOR + text, limit) for text in data.task_texts(ATTRIBUTES)]
    return [[*vocabulary.encode(text, limit - len(end)), *end] for text, end in zip(descriptions, ends, strict=True)]
