"""Token accounting with a real tokenizer: the WordPiece of all-MiniLM-L6-v2, whose vocabulary ships in its package.

Counts of other tokenizers differ by a factor that hardly depends on the tools; the shares reported here do not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files as package_files
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from study.data.dataset import IntArray
from study.encoders.sentence import PACKAGES
from study.tools.catalogues.catalog import ToolCatalog


@cache
def _tokenizer() -> Any:
    tokenizer = Tokenizer.from_file(str(package_files(PACKAGES["minilm"]) / "model" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def count(texts: Sequence[str]) -> IntArray:
    """Tokens of each text without special ones, shape (len(texts),)."""
    clean = [text.encode("utf-8", "replace").decode() for text in texts]
    encoded = _tokenizer().encode_batch(clean, add_special_tokens=False)
    return np.array([len(item.ids) for item in encoded], dtype=np.int64)


def definition_tokens(catalog: ToolCatalog) -> IntArray:
    """Tokens of each tool's definition, the JSON of name, description and parameters, shape (n_tools,)."""
    return count([json.dumps(tool.definition(), ensure_ascii=False) for tool in catalog.tools])


def definition_quarters(catalog: ToolCatalog) -> IntArray:
    """A quarter of each definition's characters, the usual rule of thumb for tokens, shape (n_tools,)."""
    texts = [json.dumps(tool.definition(), ensure_ascii=False) for tool in catalog.tools]
    return np.array([len(text) // 4 for text in texts], dtype=np.int64)


def handed_over(ranked: IntArray, sizes: IntArray) -> IntArray:
    """Tokens of the tools in each ranking, shape (b,).

    Args:
        ranked: tool rows, shape (b, K), -1 where unfilled.
        sizes: tokens per tool, shape (n_tools,).
    """
    total: IntArray = np.where(ranked >= 0, sizes[np.maximum(ranked, 0)], 0).sum(axis=1)
    return total


def last_tokens(texts: Sequence[str], limit: int) -> list[str]:
    """Each text's last `limit` tokens, cut where a token begins; short texts stay as they are."""
    clean = [text.encode("utf-8", "replace").decode() for text in texts]
    encoded = _tokenizer().encode_batch(clean, add_special_tokens=False)
    return [
        text[item.offsets[-limit][0] :] if len(item.ids) > limit else text
        for text, item in zip(clean, encoded, strict=True)
    ]
