"""Fetching the published files: pinned by commit, checked by SHA-256, from upstream or from a mirror folder."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote

import pooch
import requests
from tqdm import tqdm

from study import paths
from study.errors import StudyError, require_file
from study.paths import MIRROR

UPSTREAM = "https://raw.githubusercontent.com"
# Further attempts after a failed download; the pause between two grows from one second.
RETRIES = 2


class PinnedFile(NamedTuple):
    """One published file: its address `<owner>/<repository>/<commit>/<path>`, its place locally, its SHA-256."""

    address: str
    place: PurePosixPath
    sha256: str


def fetch(name: str, config: Mapping[str, Any], *, base_url: str = UPSTREAM, folder: Path | None = None) -> Path:
    """Bring every file of `config["source"]` into the raw folder of data set `name`.

    A file that is already there with the right checksum is kept. With the environment variable T2M_MIRROR set, files
    are copied from that folder (same layout as upstream) and the network is not used. A file takes its place only
    after its checksum was verified; one that fails leaves the earlier good file as it was.

    `config`: the data set's configuration (``conf/dataset/<name>.yaml``). `source` is a list of entries with
        `repository` (owner/name), `commit`, `files` (path -> SHA-256) or `checksums` (a list as ``sha256sum`` writes
        it, path relative to ``conf/``), and optionally `strip` (leading folder to leave out locally).
    `base_url`: where `<owner>/<repository>/<commit>/<path>` is served.
    `folder`: where to put the files instead of `paths.raw(name)`.
    Returns: the folder.
    Raises StudyError: bad configuration, missing mirror or file, wrong checksum, no network.
    """
    folder, mirror = folder or paths.raw(name), os.environ.get(MIRROR)
    if mirror and not Path(mirror).is_dir():
        raise StudyError(
            f"{MIRROR} names a folder that does not exist", file=mirror, fix=f"correct {MIRROR}, or unset it"
        )
    pinned = {str(file.place): file for file in pinned_files(name, config)}
    base = mirror or base_url.rstrip("/")
    urls = {place: f"{base}/{file.address if mirror else quote(file.address)}" for place, file in pinned.items()}
    checksums = {place: file.sha256 for place, file in pinned.items()}
    pooch.get_logger().setLevel("ERROR")
    store = pooch.create(folder, "", registry=checksums, urls=urls, retry_if_failed=0 if mirror else RETRIES)
    downloader = _copy if mirror else pooch.HTTPDownloader(timeout=60)
    for place in tqdm(pinned, desc=f"fetch {name}", unit="file", disable=None):
        try:
            store.fetch(place, processor=_readable, downloader=downloader)
        except requests.RequestException as error:
            fix = f"check the network, or set {MIRROR} to a folder that holds {pinned[place].address}"
            reason = f"could not download ({type(error).__name__}: {error})"
            raise StudyError(reason, file=urls[place], fix=fix) from error
        except ValueError as error:
            fix = "fetch again; if it stays wrong the published file was changed or damaged, so do not use it"
            raise StudyError(f"wrong checksum: {error}", file=urls[place], fix=fix) from error
    return folder


def _copy(source: str, target: str, _: Any) -> None:
    """The downloader of a mirror."""
    fix = f"complete the mirror, or unset {MIRROR} to download"
    shutil.copyfile(require_file(Path(source), fix, "the mirror lacks a file"), target)


def _readable(path: str, action: str, _: Any) -> None:
    """Let everyone read a new file, which pooch makes private."""
    if action != "fetch":
        Path(path).chmod(0o644)


def pinned_files(name: str, config: Mapping[str, Any]) -> list[PinnedFile]:
    """The files that `config["source"]` names, checked for unsafe or clashing places."""
    where = f"conf/dataset/{name}.yaml"
    found = []
    for row, entry in enumerate(config.get("source") or ()):
        try:
            prefix = f"{entry['repository']}/{entry['commit']}"
            listed = dict(entry["files"]) if entry.get("files") else _checksum_list(str(entry["checksums"]))
        except KeyError as error:
            raise StudyError(
                "a source lacks a key", file=where, row=row, column=str(error.args[0]), fix="add the key"
            ) from error
        for path, checksum in listed.items():
            place = PurePosixPath(path)
            strip = entry.get("strip")
            if strip and place.is_relative_to(strip):
                place = place.relative_to(strip)
            if place.is_absolute() or ".." in place.parts or not place.parts:
                raise StudyError(f"unsafe path {path!r}", file=where, row=row, fix="use a path inside the repository")
            found.append(PinnedFile(f"{prefix}/{path}", place, str(checksum).lower()))
    if not found:
        raise StudyError("the data set has no source to fetch", file=where, column="source", fix="list its files")
    place, count = Counter(file.place for file in found).most_common(1)[0]
    if count > 1:
        raise StudyError(f"{count} files would become {place}", file=where, fix="give one source another `strip`")
    return found


def _checksum_list(name: str) -> dict[str, str]:
    path = require_file(paths.conf() / name, "correct `checksums`", "the checksum list is missing")
    listed = {}
    for row, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        checksum, _, file = line.partition("  ")
        if not file:
            raise StudyError("not a line of sha256sum", file=path, row=f"line {row}", fix="write: <sha256>  <path>")
        listed[file] = checksum
    return listed
