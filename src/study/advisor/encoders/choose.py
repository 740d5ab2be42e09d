"""Where vectors come from: the packaged MiniLM, or any endpoint that speaks OpenAI's embeddings interface."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from study.advisor.arrays import FloatArray
from study.advisor.encoders import sentence as encoders
from study.advisor.llm import client as llm
from study.base import paths
from study.base.errors import StudyError
from study.base.settings import read_settings

BATCH = 64
FEW = 100  # texts for which it does not pay to load torch


class Embedder(Protocol):
    """Texts to vectors of length 1."""

    def encode(self, texts: Sequence[str], *, store: bool = True) -> FloatArray:
        """Vectors, shape (len(texts), d); `store` keeps them on disk by the hash of their text."""
        ...


class TextVectors:
    """Vectors of texts, one a distinct text (`texts`), so that equal texts have equal cosines. Multiplied text by text
    they differ in the last digit, in ways that depend on the processor, which would then order them."""

    def __init__(self, texts: Sequence[str], embedder: Embedder) -> None:
        rows: dict[str, int] = {}
        self.row = np.array([rows.setdefault(text, len(rows)) for text in texts], dtype=np.int64)
        self.texts, self.embedder = list(rows), embedder

    @cached_property
    def distinct(self) -> FloatArray:
        """Of `texts`, shape (n_texts, d), length 1; each is embedded once, ever."""
        return self.embedder.encode(self.texts)

    def cosines(self, queries: Sequence[str], *, store: bool) -> FloatArray:
        """Shape (len(queries), n). `store`: keep the queries' vectors on disk."""
        return encoders.cosines(self.embedder.encode(queries, store=store), self.distinct)[:, self.row]


@dataclass(frozen=True)
class MiniLm:
    """all-MiniLM-L6-v2 on this machine; the default. `quick`: in numpy for few new texts, up to rounding the same; its
    vectors are kept apart from those of the study's rows."""

    quick: bool = False

    def encode(self, texts: Sequence[str], *, store: bool = True) -> FloatArray:
        """Shape (len(texts), 384)."""
        if not self.quick:
            return encoders.encode(texts, store=store)
        quick = encoders.WITHOUT_TORCH["minilm"]

        def embed(new: list[str]) -> FloatArray:
            few = len(new) <= FEW or importlib.util.find_spec("sentence_transformers") is None
            return encoders.encode(new, model=quick if few else "minilm", store=store and not few)

        identity, folder = encoders.model_version(quick), paths.cache() / "embeddings" / "tools" if store else None
        return encoders.cached(texts, embed, identity=identity, dimension=encoders.DIMENSION, folder=folder)


@dataclass(frozen=True)
class EndpointEmbedder:
    """An OpenAI-compatible embeddings endpoint: its client, the model's name there, and the length of its vectors."""

    client: llm.Client
    model: str
    dimension: int

    def encode(self, texts: Sequence[str], *, store: bool = True) -> FloatArray:
        """Shape (len(texts), dimension); kept under a name made of endpoint and model."""
        identity = f"{self.client.base_url} {self.model}"
        folder = paths.cache() / "embeddings" / llm.key({"identity": identity})[:16] if store else None
        return encoders.cached(texts, self._embed, identity=identity, dimension=self.dimension, folder=folder)

    def _embed(self, texts: list[str]) -> FloatArray:
        scaled, address = np.zeros((len(texts), self.dimension), dtype=np.float32), self.client.base_url
        for start in range(0, len(texts), BATCH):
            block = texts[start : start + BATCH]
            reply = self.client.post("embeddings", {"model": self.model, "input": block})
            try:
                rows = sorted(reply["data"], key=lambda row: row["index"])
                vectors = np.array([row["embedding"] for row in rows], dtype=np.float32)
            except (KeyError, TypeError, ValueError) as error:
                reason = f"not an embeddings reply ({error})"
                raise StudyError(reason, file=address, fix="check the endpoint") from error
            lengths, expected = np.linalg.norm(vectors, axis=-1, keepdims=True), (len(block), self.dimension)
            if vectors.shape != expected or not np.isfinite(lengths).all() or not lengths.all():
                reason = f"vectors of shape {vectors.shape}, expected finite ones of {expected} other than 0"
                raise StudyError(reason, file=address, fix="correct `dimension` or the model's name")
            scaled[start : start + BATCH] = vectors / lengths
        return scaled


@dataclass(frozen=True)
class EmbedderSettings:
    """Where vectors come from; see ``conf/tools/embedder.yaml``."""

    kind: Literal["minilm", "endpoint"] = "minilm"
    base_url: str | None = None
    model: str | None = None
    dimension: int | None = None
    key_variable: str = "OPENAI_API_KEY"
    timeout: float = 60.0
    retries: int = 3

    def __post_init__(self) -> None:
        if self.kind == "endpoint" and not (self.base_url and self.model and (self.dimension or 0) > 0):
            raise StudyError("an endpoint without base_url, model or dimension", fix="set all three")

    def identity(self) -> dict[str, Any]:
        """What the vectors depend on."""
        names = ("kind",) if self.kind == "minilm" else ("kind", "base_url", "model", "dimension")
        return {name: asdict(self)[name] for name in names}


def embedder_settings() -> EmbedderSettings:
    """``conf/tools/embedder.yaml``."""
    return read_settings(EmbedderSettings, paths.conf() / "tools" / "embedder.yaml")


def configured_embedder() -> Embedder:
    """The embedder of ``conf/tools/embedder.yaml``."""
    chosen = embedder_settings()
    if chosen.base_url is None or chosen.model is None or chosen.dimension is None or chosen.kind == "minilm":
        return MiniLm()
    how: Any = {name: getattr(chosen, name) for name in ("key_variable", "timeout", "retries")}
    return EndpointEmbedder(llm.Client(chosen.base_url, "off", **how), chosen.model, chosen.dimension)


def quick_embedder() -> Embedder:
    """The configured embedder; of MiniLM the form that needs no torch for few texts."""
    chosen = configured_embedder()
    return MiniLm(quick=True) if isinstance(chosen, MiniLm) else chosen
