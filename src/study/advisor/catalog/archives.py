"""Pinned archives, read in memory: nothing is unpacked to disk, so no name in an archive can become a path.

An archive is checked by the git tree id of each folder, computed from its files as git does. The id depends on names,
modes and contents alone, not on how the archive was packed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.advisor.catalog.settings import Archive
from study.base.errors import StudyError, require_file
from study.base.paths import MIRROR

if TYPE_CHECKING:
    import requests

UPSTREAM = "https://github.com"
_DAMAGED = "fetch it again; if it stays so, do not use it"


def archive_files(archive: Archive, *, most: int, timeout: float = 60.0) -> dict[str, bytes]:
    """The files of the pinned folders, path -> content, checked.

    The archive is read from the folder that T2M_MIRROR names (`<owner>/<name>/<commit>.tar.gz`), or downloaded.

    `most`: bytes that it may have unpacked. Raises StudyError: missing, too large, damaged, or another tree id.
    """
    mirror, address = os.environ.get(MIRROR), f"{archive.repository}/{archive.commit}.tar.gz"
    if mirror:
        where = str(require_file(Path(mirror) / address, f"complete the mirror, or unset {MIRROR}"))
        packed = Path(where).read_bytes()
    else:
        where = f"{UPSTREAM}/{archive.repository}/archive/{archive.commit}.tar.gz"
        packed = _download(where, most, timeout)
    entries = read_archive(packed, where, most=most)
    for folder, expected in archive.folders.items():
        if (found := tree_id(entries, folder)) != expected:
            raise StudyError(f"the tree of {folder!r} is {found}, expected {expected}", file=where, fix=_DAMAGED)
    wanted = tuple(f"{folder}/" for folder in archive.folders)
    return {name: content for name, (mode, content) in entries.items() if name.startswith(wanted) and mode != "120000"}


def _download(url: str, most: int, timeout: float) -> bytes:
    import requests  # an archive of the mirror needs none

    try:
        with requests.get(url, stream=True, timeout=timeout) as answer:
            answer.raise_for_status()
            return bounded(answer, most)
    except (OSError, ValueError) as error:  # OSError: all that `requests` raises
        fix = f"check the network, or set {MIRROR} to a folder that holds the archive"
        raise StudyError(f"could not download ({type(error).__name__}: {error})", file=url, fix=fix) from error


def bounded(answer: requests.Response, most: int) -> bytes:
    """The body of a streamed answer; ValueError beyond `most` bytes, before more is read."""
    body = bytearray()
    for part in answer.iter_content(1 << 16):
        body += part
        if len(body) > most:
            raise ValueError(f"more than {most:,} bytes")
    return bytes(body)


def read_archive(packed: bytes, where: str, *, most: int) -> dict[str, tuple[str, bytes]]:
    """Every file of a tar.gz below its one top folder: path -> git mode and content (of a link: its target).

    Raises StudyError: more than `most` bytes unpacked, damaged, an unsafe or repeated name, a device or hard link.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            unpacked = stream.read(most + 1)
        if len(unpacked) > most:
            raise StudyError(f"the archive has more than {most:,} bytes unpacked", file=where, fix=_DAMAGED)
        found: dict[str, tuple[str, bytes]] = {}
        with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as tar:
            for member in tar:
                parts = member.name.rstrip("/").split("/")
                if member.name.startswith("/") or {"", ".", ".."} & set(parts):
                    raise StudyError(f"an unsafe name in the archive: {member.name!r:.80}", file=where, fix=_DAMAGED)
                if member.isdir():
                    continue
                name = "/".join(parts[1:])
                if not name or name in found or not (member.isreg() or member.issym()):
                    problem = f"not a plain file, or named twice: {member.name!r:.80}"
                    raise StudyError(problem, file=where, fix=_DAMAGED)
                found[name] = _git_mode(member), _content(tar, member)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise StudyError(f"the archive cannot be read ({error})", file=where, fix=_DAMAGED) from error
    return found


def _git_mode(member: tarfile.TarInfo) -> str:
    return "120000" if member.issym() else "100755" if member.mode & 0o100 else "100644"


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member) if member.isreg() else None
    return stream.read() if stream else member.linkname.encode()


def tree_id(entries: Mapping[str, tuple[str, bytes]], folder: str) -> str:
    """The git tree id (SHA-1, hex) of a folder, from `entries` as `read_archive` gives them."""
    root: dict[str, Any] = {}
    for name, entry in entries.items():
        if name.startswith(f"{folder}/"):
            *folders, leaf = name[len(folder) + 1 :].split("/")
            node = root
            for part in folders:
                node = node.setdefault(part, {})
            node[leaf] = entry
    return _hashed_tree(root).hex()


def _hashed_tree(node: Mapping[str, Any]) -> bytes:
    lines = []
    for name, value in node.items():
        inner = isinstance(value, dict)
        mode, digest = ("40000", _hashed_tree(value)) if inner else (value[0], _hashed(b"blob", value[1]))
        # Git sorts a folder as if its name ended in a slash.
        lines.append((f"{name}/" if inner else name, f"{mode} {name}\0", digest))
    body = b"".join(head.encode() + digest for _, head, digest in sorted(lines, key=lambda line: line[0].encode()))
    return _hashed(b"tree", body)


def _hashed(kind: bytes, content: bytes) -> bytes:
    return hashlib.sha1(b"%s %d\0%s" % (kind, len(content), content), usedforsecurity=False).digest()
