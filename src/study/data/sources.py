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
    """Bring every file of `config["source"]` into the raw folder of data set `name`, or into `folder`. Returns: it.

    A file that is already there with the right checksum is kept; one that fails leaves the earlier good file as it was.
    With T2M_MIRROR set, files are copied from that folder (same layout as upstream) and the network is not used.

    `config`: ``conf/dataset/<name>.yaml``, see `pinned_files`.
    `base_url`: where `<owner>/<repository>/<commit>/<path>` is served.
    Raises StudyError: bad configuration, a file that the mirror lacks, wrong checksum, no network.
    """
    folder, mirror = folder or paths.raw(name), os.environ.get(MIRROR)
    pinned, base = pinned_files(name, config), mirror or base_url.rstrip("/")
    urls = {path: f"{base}/{address if mirror else quote(address)}" for path, (address, _) in pinned.items()}
    checksums = {path: checksum for path, (_, checksum) in pinned.items()}
    pooch.get_logger().setLevel("ERROR")
    store = pooch.create(folder, "", registry=checksums, urls=urls, retry_if_failed=0 if mirror else RETRIES)
    downloader = _copy if mirror else pooch.HTTPDownloader(timeout=60)
    for path in tqdm(pinned, desc=f"fetch {name}", unit="file", disable=None):
        try:
            store.fetch(path, processor=_readable, downloader=downloader)
        except requests.RequestException as error:
            fix = f"check the network, or set {MIRROR} to a folder that holds {pinned[path][0]}"
            reason = f"could not download ({type(error).__name__}: {error})"
            raise StudyError(reason, file=urls[path], fix=fix) from error
        except ValueError as error:
            fix = "fetch again; if it stays wrong the published file was changed or damaged, so do not use it"
            raise StudyError(f"wrong checksum: {error}", file=urls[path], fix=fix) from error
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
    """The files that `config["source"]` names: path below the raw folder -> address, which is
    ``<owner>/<repository>/<commit>/<path>``, and SHA-256.

    A source has `repository` (owner/name), `commit`, `files` (path -> SHA-256) or `checksums` (a list as ``sha256sum``
    writes it, below ``conf/``), and perhaps `strip` (leading folder to leave out locally).
    """
    pinned, file = {}, f"conf/dataset/{name}.yaml"
    for entry in config.get("source") or ():
        try:
            listed = entry.get("files") or _checksums(paths.conf() / str(entry["checksums"]))
            for path, checksum in listed.items():
                local, strip = PurePosixPath(path), entry.get("strip")
                local = local.relative_to(strip) if strip and local.is_relative_to(strip) else local
                pinned[str(local)] = f"{entry['repository']}/{entry['commit']}/{path}", str(checksum).lower()
        except KeyError as error:
            column = f"source.{error.args[0]}"
            raise StudyError("a source lacks a key", file=file, column=column, fix="add the key") from error
    if not pinned:
        raise StudyError("the data set has no source", file=file, column="source", fix="list its files")
    return pinned


def _checksums(path: Path) -> dict[str, str]:
    text = require_file(path, "correct `checksums`", "the checksum list is missing").read_text("utf-8")
    pairs = [line.split("  ", 1) for line in text.splitlines()]
    if any(len(pair) < 2 for pair in pairs):
        raise StudyError("not a list of sha256sum", file=path, fix="write lines: <sha256>  <path>")
    return {file: checksum for checksum, file in pairs}
