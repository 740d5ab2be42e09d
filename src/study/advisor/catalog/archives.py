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
import threading
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin, urlsplit

from study.advisor.catalog.settings import Archive, Limits
from study.base.addresses import is_near
from study.base.errors import StudyError, require_file
from study.base.paths import MIRROR

if TYPE_CHECKING:
    import requests

UPSTREAM = "https://github.com"
_DAMAGED = "fetch it again; if it stays so, do not use it"
_READ = 60.0  # seconds without a byte
_REDIRECTS = 5
Value = TypeVar("Value")


def archive_files(archive: Archive, limits: Limits) -> dict[str, bytes]:
    """The files of the pinned folders, path -> content, checked.

    The archive is read from the folder that T2M_MIRROR names (`<owner>/<name>/<commit>.tar.gz`), or downloaded.

    Raises StudyError: missing, too large, too slow, damaged, or another tree id.
    """
    mirror, address = os.environ.get(MIRROR), f"{archive.repository}/{archive.commit}.tar.gz"
    if mirror:
        where = str(require_file(Path(mirror) / address, f"complete the mirror, or unset {MIRROR}"))
        packed = Path(where).read_bytes()
    else:
        where = f"{UPSTREAM}/{archive.repository}/archive/{archive.commit}.tar.gz"
        try:
            packed = within(limits.seconds, lambda: fetched(where, limits.archive, _READ))
        except (OSError, ValueError) as error:  # OSError: all that `requests` raises
            fix = f"check the network, or set {MIRROR} to a folder that holds the archive"
            raise StudyError(f"could not download ({type(error).__name__}: {error})", file=where, fix=fix) from error
    entries = read_archive(packed, where, most=limits.archive)
    for folder, expected in archive.folders.items():
        if (actual := tree_id(entries, folder)) != expected:
            raise StudyError(f"the tree of {folder!r} is {actual}, expected {expected}", file=where, fix=_DAMAGED)
    starts = tuple(f"{folder}/" for folder in archive.folders)
    return {name: content for name, (mode, content) in entries.items() if name.startswith(starts) and mode != "120000"}


def fetched(address: str, most: int, seconds: float) -> bytes:
    """The body of an address, also where it redirects to another one that uses https; at most `most` bytes, and
    `seconds` without one. OSError, ValueError: it cannot be had.

    A redirect from elsewhere to this machine or its network would let a stranger read what is served here alone.
    """
    import requests  # an archive of the mirror needs none

    for _ in range(_REDIRECTS):
        with requests.get(address, stream=True, timeout=seconds, allow_redirects=False) as answer:
            if not answer.is_redirect:
                answer.raise_for_status()
                return bounded(answer, most)
            target = urljoin(address, answer.headers["Location"])
        # As it will be asked: a host may be written in ways that not every reader takes for the same.
        before, after = (urlsplit(str(requests.Request("GET", url).prepare().url)) for url in (address, target))
        if after.scheme != "https":
            raise ValueError("an address must use https, also one that it redirects to")
        if is_near(after.hostname or "") and not is_near(before.hostname or ""):
            raise ValueError("an address redirects to this machine or its network")
        address = target
    raise ValueError(f"more than {_REDIRECTS} redirects")


def bounded(answer: requests.Response, most: int) -> bytes:
    """The body of a streamed answer; ValueError beyond `most` bytes, before more is read."""
    body = bytearray()
    for part in answer.iter_content(1 << 16):
        body += part
        if len(body) > most:
            raise ValueError(f"more than {most:,} bytes")
    return bytes(body)


def within(seconds: float, work: Callable[[], Value]) -> Value:
    """What `work` returns; TimeoutError after `seconds`. A server that sends a byte now and then keeps within every
    limit of a single read, also in its headers; such a read is left to itself, and ends with the program."""
    done: Future[Value] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return done.result(max(seconds, 0))
    except TimeoutError as error:
        raise (error if done.done() else TimeoutError(f"no complete answer within {seconds:.0f} s")) from None


def read_archive(packed: bytes, where: str, *, most: int) -> dict[str, tuple[str, bytes]]:
    """Every file of a tar.gz below its one top folder: path -> git mode and content (of a link: its target).

    Size and kind are read from each member's head, before its content. Raises StudyError: more than `most` bytes
    unpacked, damaged, an unsafe or repeated name, a file that is also a folder, or another kind than a plain file.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            unpacked = stream.read(most + 1)
        if len(unpacked) > most:
            raise StudyError(f"the archive has more than {most:,} bytes unpacked", file=where, fix=_DAMAGED)
        members: dict[str, tuple[str, bytes]] = {}
        folders: set[str] = set()
        with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:", errors="strict") as tar:
            for member in tar:
                parts = member.name.rstrip("/").split("/")
                if member.name.startswith("/") or {"", ".", ".."} & set(parts):
                    raise StudyError(f"an unsafe name in the archive: {member.name!r:.80}", file=where, fix=_DAMAGED)
                if member.isdir():
                    continue
                name = "/".join(parts[1:])
                above = {"/".join(parts[1:end]) for end in range(2, len(parts))}
                # A sparse member, which counts as regular, may state any size.
                plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
                if not name or name in members or name in folders or above & members.keys():
                    raise StudyError(f"named twice: {member.name!r:.80}", file=where, fix=_DAMAGED)
                if not (plain or member.issym()) or not 0 <= member.size <= len(unpacked):
                    raise StudyError(f"not a plain file: {member.name!r:.80}", file=where, fix=_DAMAGED)
                folders |= above
                mode = "120000" if member.issym() else "100755" if member.mode & 0o100 else "100644"
                content = tar.extractfile(member) if member.isreg() else None
                members[name] = mode, content.read() if content else member.linkname.encode()
    except (OSError, EOFError, ValueError, ArithmeticError, zlib.error, tarfile.TarError) as error:
        raise StudyError(f"the archive cannot be read ({error!r:.200})", file=where, fix=_DAMAGED) from error
    return members


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
