"""The index file of a catalogue: the vectors of its texts, in every form that was searched, beside the catalogue.

A safetensors file. For a form of the texts it holds the vectors in the order of the ids, shape (n, d), and the SHA-256
of each text, shape (n, 32), as ``FORM`` and ``FORM.sha256``; ids, format and embedder are JSON in one value of its
metadata, since several would be written in any order. A vector belongs to a text: what a changed catalogue still holds
is not embedded again, and what it no longer holds is left out.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from study.advisor.arrays import FloatArray
from study.advisor.encoders.choose import Embedder, embedder_settings, quick_embedder
from study.advisor.encoders.sentence import model_version
from study.advisor.retrieval.documents import ToolCatalog, tool_keys
from study.advisor.retrieval.route import server_texts, summaries
from study.advisor.retrieval.texts import TEMPLATES, documents
from study.errors import StudyError
from study.files import replacing

log = logging.getLogger(__name__)
FORMAT, HASHES, ABOUT = "2", ".sha256", "about"
SERVER_FORMS = ("server_named", "server_description", "server_summary")


def server_forms(catalog: ToolCatalog) -> dict[str, list[str]]:
    """The texts of every server that routing compares, by form."""
    texts = server_texts(catalog, named=True), server_texts(catalog, named=False), summaries(catalog)
    return dict(zip(SERVER_FORMS, texts, strict=True))


def text_hash(text: str) -> bytes:
    """What the file knows a text by, 32 bytes."""
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


class IndexFile:
    """An `Embedder` that looks texts up in one file first, and remembers those that it had to embed.

    `embedder`: for texts that are not in the file. `identity`: what its vectors depend on; a file of another one is not
    read. `new`: texts embedded since the file was read or written.
    """

    def __init__(self, path: Path, embedder: Embedder, identity: str) -> None:
        self.path, self.embedder, self.identity = path, embedder, identity
        self.new = 0
        self.kept: dict[bytes, FloatArray] = {}
        try:
            self.kept = self._read()
        except (SafetensorError, OSError, ValueError) as error:
            log.warning("%s is damaged (%s); its texts are embedded again", path, error)

    def _read(self) -> dict[bytes, FloatArray]:
        found: dict[bytes, FloatArray] = {}
        if not self.path.is_file():
            return found
        with safe_open(self.path, framework="np") as stored:
            facts = json.loads((stored.metadata() or {}).get(ABOUT, "{}"))
            if (facts.get("format"), facts.get("embedder")) != (FORMAT, self.identity):
                return found
            for name in (name for name in stored.keys() if not name.endswith(HASHES)):  # noqa: SIM118  # no mapping
                vectors, hashes = stored.get_tensor(name), stored.get_tensor(name + HASHES)
                if vectors.ndim != 2 or hashes.shape != (len(vectors), 32):
                    raise ValueError(f"{name} has the shape {vectors.shape}")
                packed = hashes.tobytes()
                found.update((packed[32 * row : 32 * row + 32], vector) for row, vector in enumerate(vectors))
        return found

    def encode(self, texts: Sequence[str], *, store: bool = True) -> FloatArray:
        """Shape (len(texts), d); `store` False: passing texts, which are neither looked up nor kept."""
        if not store:
            return self.embedder.encode(texts, store=False)
        hashes = list(map(text_hash, texts))
        missing = {key: text for key, text in zip(hashes, texts, strict=True) if key not in self.kept}
        if missing:
            self.kept.update(zip(missing, self.embedder.encode(list(missing.values())), strict=True))
            self.new += len(missing)
        return np.array([self.kept[key] for key in hashes], dtype=np.float32).reshape(len(hashes), -1)

    def save(self, catalog: ToolCatalog) -> None:
        """Write the forms of the catalogue's texts that are known as a whole; other texts leave the file."""
        tensors: dict[str, NDArray[np.generic]] = {}
        forms = {form: documents(catalog, form) for form in TEMPLATES} | server_forms(catalog)
        for form, texts in forms.items():
            hashes = list(map(text_hash, texts))
            if texts and all(key in self.kept for key in hashes):
                tensors[form] = np.array([self.kept[key] for key in hashes], dtype=np.float32)
                tensors[form + HASHES] = np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(-1, 32)
        about = {"format": FORMAT, "embedder": self.identity, "tools": tool_keys(catalog)}
        about["servers"] = [own.id for own in catalog.servers]
        with replacing(self.path) as temporary:
            save_file(tensors, temporary, metadata={ABOUT: json.dumps(about)})
        self.new = 0


def index_file(catalogue: Path, embedder: Embedder | None = None) -> IndexFile:
    """The index beside a catalogue's file. `embedder`: for what it lacks; default the configured one."""
    identity = embedder_settings().identity()
    if identity["kind"] == "minilm":
        identity["model"] = model_version("minilm")
    path = catalogue.with_suffix(".safetensors")
    return IndexFile(path, embedder or quick_embedder(), json.dumps(identity, sort_keys=True))


@contextmanager
def kept_index(file: Path, catalog: ToolCatalog) -> Iterator[IndexFile]:
    """The index of a catalogue; a form of its texts that was searched for the first time is kept."""
    index = index_file(file)
    yield index
    if index.new:
        index.save(catalog)


def matching(catalog: ToolCatalog, servers: Sequence[str], tags: Sequence[str]) -> NDArray[np.bool_] | None:
    """Which tools are of a server by one of these names and with one of these tags, shape (n_tools,); None: all are.

    `servers`: patterns with * and ? of ids, names and aliases. `tags`: categories or sources. Case is no matter.
    Raises StudyError: no server is left.
    """
    if not servers and not tags:
        return None
    named, tagged = ([word.casefold() for word in words] for words in (servers, tags))
    chosen = []
    for own in catalog.servers:
        names = [name.casefold() for name in (own.id, own.name, *own.aliases)]
        marks = {mark.casefold() for mark in (*own.tags, *own.sources)}
        by_name = not named or any(fnmatchcase(name, word) for name in names for word in named)
        chosen.append(by_name and (not tagged or bool(marks.intersection(tagged))))
    if not any(chosen):
        known = sorted({mark for own in catalog.servers for mark in (*own.tags, *own.sources)})
        fix = f"its tags are: {', '.join(known) or 'none'}" if tags else "patterns may hold * and ?"
        wanted = [f"named {' or '.join(servers)}"] * bool(servers) + [f"with the tag {' or '.join(tags)}"] * bool(tags)
        raise StudyError(f"{catalog.name} has no server {' '.join(wanted)}", fix=fix)
    found: NDArray[np.bool_] = np.array(chosen)[catalog.server_of]
    return found
