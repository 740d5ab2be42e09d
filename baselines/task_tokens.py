"""A task's text in few tokens."""

from __future__ import annotations

from baselines.generative.text import Vocabulary
from study.data.dataset import FIELD_SEPARATOR, TASK_FIELDS, Dataset

ATTRIBUTES = ("language", "category", "theme")  # fields of a task that are a word or two


def task_tokens(data: Dataset, vocabulary: Vocabulary, limit: int) -> list[list[int]]:
    """The tokens of every task's text x_t, `limit` at most.

    What is too long is cut at the end of name and description, so that language, category and theme always stand: a
    plain cut to 24 tokens leaves out the theme of every task of Task2MCP.
    """
    told = data.task_texts(tuple(name for name in TASK_FIELDS if name not in ATTRIBUTES))
    ends = [vocabulary.encode(FIELD_SEPARATOR + text, limit) for text in data.task_texts(ATTRIBUTES)]
    return [[*vocabulary.encode(text, limit - len(end)), *end] for text, end in zip(told, ends, strict=True)]
