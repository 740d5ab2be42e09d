"""Fetching the published files: pinned by commit, checked by SHA-256, from upstream or from a mirror folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import pooch
import requests
from tqdm import tqdm

from study.base import paths
from study.base.errors import StudyError, require_file
from study.base.paths import MIRROR

UPSTREAM = "https://raw.githubusercontent.com"
# Further attempts after a failed download; the pause between two grows from one second.
RETRIES = 2


def fetch(name: str, config: Mapping[str, Any], *, base_url: str = UPSTREAM, folder: Path | None = None) -> Path:
    """Bring every file of `config["source"]` into the raw folder of data set `name`.

    A file that is already there with the right checksum is kept. With the environment variable T2M_MIRROR set, files
    are copied from that folder (same layout as upstream) and the network is not used. A file takes its place only
    after its checksum was verified; one that fails leaves the earlier good file as it was.

    `config`: the data set's configuration (``conf/dataset/<name>.yaml``), see `pinned_files`.
    `base_url`: where `<owner>/<repository>/<commit>/<path>` is served.
    `folder`: where to put the files instead of `paths.raw(name)`.
    Returns: the folder.
    Raises StudyError: bad configuration, a file that the mirror lacks, wrong checksum, no network.
    """
    folder, mirror = folder or paths.raw(name), os.environ.get(MIRROR)
    pinned, base = pinned_files(name, config), mirror or base_url.rstrip("/")
    urls = {place: f"{base}/{address if mirror else quote(address)}" for place, (address, _) in pinned.items()}
    checksums = {place: checksum for place, (_, checksum) in pinned.items()}
    pooch.get_logger().setLevel("ERROR")
    store = pooch.create(folder, "", registry=checksums, urls=urls, retry_if_failed=0 if mirror else RETRIES)
    downloader = _copy if mirror else pooch.HTTPDownloader(timeout=60)
    for place in tqdm(pinned, desc=f"fetch {name}", unit="file", disable=None):
        try:
            store.fetch(place, processor=_readable, downloader=downloader)
        except requests.RequestException as error:
            fix = f"check the network, or set {MIRROR} to a folder that holds {pinned[place][0]}"
            reason = f"could not download ({type(error).__name__}: {error})"
            raise StudyError(reason, file=urls[place], fix=fix) from error
        except ValueError as error:
            fix = "fetch again; if it stays wrong the published file was changed or damaged, so do not use it"
            raise StudyError(f"wrong checksum: {error}", file=urls[place], fix=fix) from error
    return folder


def _copy(source: str, target: str, _: Any) -> None:
    """The downloader of a mirror."""
    fix = f"correct {MIRROR}, complete the mirror, or unset {MIRROR} to download"
    shutil.copyfile(require_file(Path(source), fix, "the mirror lacks a file"), target)


def _readable(path: str, action: str, _: Any) -> None:
    """Let everyone read a new file, which pooch makes private."""
    if action != "fetch":
        Path(path).chmod(0o644)


def pinned_files(name: str, config: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The files that `config["source"]` names: place below the raw folder -> address, which is
    ``<owner>/<repository>/<commit>/<path>``, and SHA-256.

    A source has `repository` (owner/name), `commit`, `files` (path -> SHA-256) or `checksums` (a list as ``sha256sum``
    writes it, below ``conf/``), and perhaps `strip` (leading folder to leave out locally).
    """
    pinned = {}
    for entry in config.get("source") or ():
        try:
            listed = entry.get("files") or _checksums(paths.conf() / str(entry["checksums"]))
            for path, checksum in listed.items():
                place, strip = PurePosixPath(path), entry.get("strip")
                place = place.relative_to(strip) if strip and place.is_relative_to(strip) else place
                address = f"{entry['repository']}/{entry['commit']}/{path}"
                pinned[str(place)] = (address, str(checksum).lower())
        except KeyError as error:
            column, file = f"source.{error.args[0]}", f"conf/dataset/{name}.yaml"
            raise StudyError("a source lacks a key", file=file, column=column, fix="add the key") from error
    if not pinned:
        fix = "list its files"
        raise StudyError("the data set has no source", file=f"conf/dataset/{name}.yaml", column="source", fix=fix)
    return pinned


def _checksums(path: Path) -> dict[str, str]:
    lines = require_file(path, "correct `checksums`", "the checksum list is missing").read_text("utf-8").splitlines()
    pairs = [line.split("  ", 1) for line in lines]
    if any(len(pair) < 2 for pair in pairs):
        raise StudyError("not a list of sha256sum", file=path, fix="write lines: <sha256>  <path>")
    return {file: checksum for checksum, file in pairs}
