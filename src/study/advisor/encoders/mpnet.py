"""all-mpnet-base-v2 in numpy: a sentence encoder five times as large as MiniLM, whose weights are fetched once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from study.advisor.arrays import FloatArray
from study.advisor.encoders import fetched
from study.advisor.encoders.numpy_transformer import Transformer
from study.advisor.encoders.sentence import Embed, cached
from study.base import paths
from study.base.stand_in import StandIn

DIMENSION = 768
EMBED = StandIn[Embed]()  # for the weights
LONGEST = 384  # tokens of a text that are read at most, as the model's authors state


def encode(texts: Sequence[str], *, store: bool = True) -> FloatArray:
    """L2-normalised sentence vectors, shape (n, `DIMENSION`), float32; `store` as of `encoders.sentence.encode`. Raises
    UnavailableError: the weights are not there, or are others than stated."""
    folder = paths.cache() / "embeddings" / "mpnet" if store else None
    identity = version() if store else ""  # names what is kept
    return cached(texts, EMBED() or _embed, identity=identity, dimension=DIMENSION, folder=folder)


def version() -> str:
    """The model's name and the SHA-256 of its archive."""
    return f"mpnet@sha256:{fetched.described('mpnet').sha256}"


def _embed(texts: list[str]) -> FloatArray:
    return _load(fetched.folder_of("mpnet")).embed(texts, label="mpnet")


@cache
def _load(folder: Path) -> Transformer:
    fetched.required("mpnet")
    return Transformer.read(folder, LONGEST)
