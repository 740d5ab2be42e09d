"""The nearest of many vectors by inner product: an exact scan of a small catalogue, faiss for a large one.

Above `exact_below` vectors, k-means divides the catalogue into lists, of which a question reads the nearest (IVF; Sivic
& Zisserman 2003). Up to `scalar_below`, a list holds its vectors with 8 bits a coordinate. Above, it holds short codes
of their principal axes (product quantisation with 4 bits, Jegou et al. 2011, Andre et al. 2017), and the best of these
are refined by the vectors with 8 bits, which stay on disk. `study.advisor.encoders.nearest_build` makes an index.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from study import paths
from study.advisor.arrays import FloatArray, IntArray
from study.config.reader import read_settings
from study.errors import StudyError
from study.files import replacing, write_json

Mask = NDArray[np.bool_]
FORMAT, ALIGNED, CODES = 1, 16, "codes.u8"
WIDER = 0.1  # share by which the range of a coordinate in the sample is widened at either end
EXACT, SCALAR, PRODUCT = "exact", "ivf_sq8", "ivf_pq"


@dataclass(frozen=True)
class Settings:
    """``conf/encoders/nearest.yaml``, where every key is explained."""

    exact_below: int
    scalar_below: int
    piece: int
    most_lists: int
    per_list: int
    reduced: int
    subquantisers: int
    candidates: tuple[int, ...]
    wanted: float
    margin: float
    stale: float

    @classmethod
    def read(cls) -> Settings:
        """The file, checked."""
        return read_settings(cls, paths.conf() / "encoders" / "nearest.yaml")

    def kind(self, n: int) -> str:
        """How `n` vectors are searched."""
        return EXACT if n < self.exact_below else SCALAR if n < self.scalar_below else PRODUCT

    def lists(self, n: int) -> int:
        """The number of lists of `n` vectors."""
        return min(self.most_lists, int(4 * math.sqrt(n)))


class Reading(NamedTuple):
    """How much a question reads: lists, and short codes that are refined (0: none are)."""

    probes: int
    candidates: int


def faiss() -> Any:
    """The library; StudyError where it is not installed."""
    try:
        import faiss as library
    except ImportError as error:
        raise StudyError(
            "a large catalogue is searched by faiss, which is not here", fix="make setup FAISS=1"
        ) from error
    return library


class NearestIndex:
    """Vectors that can be searched, extended and thinned out; `build` makes one, `load` reads one.

    `about`: what the build measured. `removed`: rows that no answer names any more, shape (n,).
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder, settings
        fix = "build the index again"
        try:
            self.about: dict[str, Any] = json.loads((folder / "about.json").read_text(encoding="utf-8"))
            if self.about["format"] != FORMAT:
                raise ValueError(f"format {self.about['format']}, this version reads {FORMAT}")
            self.kind, self.n, self.dimension = (self.about[name] for name in ("kind", "n", "dimension"))
            self.reading = Reading(*self.about["reading"])
            self._open()
            removed = folder / "removed.npy"
            self.removed = np.load(removed) if removed.exists() else np.zeros(self.n, dtype=np.bool_)
            if self.removed.shape != (self.n,):
                raise ValueError(f"{len(self.removed)} marks of {self.n} vectors")
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise StudyError(f"the index does not load: {error}", file=folder, fix=fix) from error

    def _open(self) -> None:
        if self.kind == EXACT:
            self.vectors = np.load(self.folder / "vectors.npy", mmap_mode="r")
            if self.vectors.shape != (self.n, self.dimension):
                raise ValueError(f"vectors of shape {self.vectors.shape}")
            return
        self.trained = Trained.load(self.folder)
        self.lists = faiss().read_index(str(self.folder / "index.faiss"))
        if self.kind == PRODUCT:
            self.codes = _codes(self.folder, self.n, self.trained.width)
        if self.lists.ntotal != self.n:
            raise ValueError(f"{self.lists.ntotal} vectors in the lists, {self.n} expected")

    def search(self, questions: FloatArray, k: int, keep: Mask | None = None) -> tuple[IntArray, FloatArray]:
        """The `k` vectors of the largest products with each question, best first.

        `questions`: shape (m, dimension). `keep`: which rows may be named, shape (n,); None: all.
        Returns: rows and products, shape (m, k); -1 and -inf where the index found fewer.
        """
        allowed = None
        if keep is not None or self.removed.any():
            allowed = ~self.removed if keep is None else keep & ~self.removed
        few = allowed is not None and int(allowed.sum()) < self.settings.exact_below
        if self.kind == EXACT or (few and self.kind == PRODUCT):
            return self._scan(questions, k, allowed)
        reading = Reading(self.lists.nlist, 0) if few else self.reading
        return self.read(questions, k, reading, allowed)

    def _scan(self, questions: FloatArray, k: int, allowed: Mask | None) -> tuple[IntArray, FloatArray]:
        rows = np.arange(self.n) if allowed is None else np.flatnonzero(allowed)
        if self.kind == EXACT:
            vectors = self.vectors if allowed is None else self.vectors[rows]
        else:
            vectors = self.trained.decode(self.codes[rows])
        return best([(rows, questions @ np.asarray(vectors)[:, : questions.shape[1]].T)], len(questions), k)

    def read(
        self, questions: FloatArray, k: int, reading: Reading, allowed: Mask | None = None
    ) -> tuple[IntArray, FloatArray]:
        """As `search`, but with so much reading, of lists."""
        library = faiss()
        more: dict[str, Any] = {}
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            more["sel"] = library.IDSelectorBitmap(bits)
        chosen = library.SearchParametersIVF(nprobe=reading.probes, **more)
        asked = self.trained.turned(questions)
        if not reading.candidates:
            scores, rows = self.lists.search(asked, k, params=chosen)
            return rows, np.where(rows >= 0, scores, -np.inf).astype(np.float32)
        _, rows = self.lists.search(asked, max(k, reading.candidates), params=chosen)
        # In the order of the file, whose pages may have to be read.
        found = [np.sort(own[own >= 0]) for own in rows]
        parts = [best([(own, self._products(one, own))], 1, k) for own, one in zip(found, questions, strict=True)]
        return np.vstack([part[0] for part in parts]), np.vstack([part[1] for part in parts])

    def _products(self, question: FloatArray, rows: IntArray) -> FloatArray:
        vectors = self.trained.decode(self.codes[rows])
        product: FloatArray = question[None] @ vectors[:, : len(question)].T
        return product

    def add(self, vectors: FloatArray) -> IntArray:
        """Append vectors, shape (m, dimension), and return their rows; kept on disk by `save`."""
        rows = np.arange(self.n, self.n + len(vectors))
        if self.kind == EXACT:
            self.vectors = np.vstack([self.vectors, vectors])
        else:
            self.lists.add_with_ids(self.trained.turned(vectors), rows)
            if self.kind == PRODUCT:
                self.trained.write_codes(self.folder, self.n, vectors)
                self.codes = _codes(self.folder, self.n + len(vectors), self.trained.width)
        self.n += len(vectors)
        self.removed = np.append(self.removed, np.zeros(len(vectors), dtype=np.bool_))
        return rows

    def remove(self, rows: Sequence[int] | IntArray) -> None:
        """Let no answer name these rows; kept on disk by `save`."""
        self.removed[np.asarray(rows, dtype=np.int64)] = True

    def changed(self) -> float:
        """The share of the vectors that were added or removed since the build."""
        built: int = self.about["built"]
        return float(self.n - built + self.removed.sum()) / built

    def is_stale(self) -> bool:
        """Whether so much has changed that the measured recall says little, and a new build is due."""
        return self.changed() > self.settings.stale

    def save(self) -> None:
        """Write what `add` and `remove` changed; about.json comes last, and without it the folder is no index."""
        (self.folder / "about.json").unlink(missing_ok=True)
        if self.kind == EXACT:
            write_array(self.folder / "vectors.npy", np.asarray(self.vectors, dtype=np.float32))
        else:
            write_faiss(self.folder / "index.faiss", self.lists)
        write_array(self.folder / "removed.npy", self.removed)
        self.about["n"] = self.n
        write_json(self.folder / "about.json", self.about)


@dataclass(eq=False)
class Trained:
    """What a sample decides: the lists (empty), the codec of 8 bits and, for short codes, the rotation."""

    empty: Any
    codec: Any
    rotation: FloatArray | None  # shape (padded dimension, reduced)

    @classmethod
    def of(cls, sample: FloatArray, n: int, settings: Settings) -> Trained:
        """Train on a sample, shape (rows, dimension), for a catalogue of `n`."""
        library, padded = faiss(), _padded(sample)
        width, inner = padded.shape[1], library.METRIC_INNER_PRODUCT
        codec = library.IndexScalarQuantizer(width, library.ScalarQuantizer.QT_8bit, inner)
        codec.sq.rangestat_arg = WIDER
        codec.train(padded)
        if settings.kind(n) == SCALAR:
            flat = library.IndexFlatIP(width)
            kind = library.ScalarQuantizer.QT_8bit
            lists = library.IndexIVFScalarQuantizer(flat, width, settings.lists(n), kind, inner, False)
            lists.sq.rangestat_arg = WIDER
            made = cls(lists, codec, None)
        else:
            reduced = min(settings.reduced, width)
            flat, codes = library.IndexFlatIP(reduced), (min(settings.subquantisers, reduced), 4)
            lists = library.IndexIVFPQ(flat, reduced, settings.lists(n), *codes, inner)
            lists.by_residual = False  # codes of the vectors themselves, as the fast scan reads them
            made = cls(lists, codec, _rotation(padded, reduced))
        lists.cp.min_points_per_centroid = 1  # a test's sample is small; faiss would print a warning
        lists.train(made.turned(sample))
        return made

    @classmethod
    def load(cls, folder: Path) -> Trained:
        """Read what `save` wrote."""
        library, turn = faiss(), folder / "rotation.npy"
        empty, codec = (library.read_index(str(folder / name)) for name in ("trained.faiss", "codec.faiss"))
        return cls(empty, codec, np.load(turn) if turn.exists() else None)

    def save(self, folder: Path) -> None:
        """Write the three files; trained.faiss comes last."""
        if self.rotation is not None:
            write_array(folder / "rotation.npy", self.rotation)
        write_faiss(folder / "codec.faiss", self.codec)
        write_faiss(folder / "trained.faiss", self.empty)

    @property
    def width(self) -> int:
        """Bytes of a vector with 8 bits a coordinate."""
        return int(self.codec.d)

    def turned(self, vectors: FloatArray) -> FloatArray:
        """Vectors as the lists know them: padded, and rotated where the lists hold short codes."""
        padded = _padded(vectors)
        return padded if self.rotation is None else np.ascontiguousarray(padded @ self.rotation)

    def write_codes(self, folder: Path, start: int, vectors: FloatArray) -> None:
        """Write vectors with 8 bits a coordinate into the file of codes, from row `start` on."""
        file = folder / CODES
        file.touch()
        with file.open("r+b") as stream:
            stream.seek(start * self.width)
            stream.write(self.codec.sa_encode(_padded(vectors)).tobytes())

    def decode(self, codes: NDArray[np.uint8]) -> FloatArray:
        """The vectors of codes, shape (m, width)."""
        vectors: FloatArray = self.codec.sa_decode(np.ascontiguousarray(codes))
        return vectors


def best(parts: Sequence[tuple[IntArray, FloatArray]], m: int, k: int) -> tuple[IntArray, FloatArray]:
    """The `k` largest of several parts, each rows (n,) or (m, n) with products (m, n); equal ones by row.

    Returns: rows and products, shape (m, k); -1 and -inf behind the last.
    """
    rows = np.hstack([np.broadcast_to(own, products.shape) for own, products in parts])
    scores = np.hstack([products for _, products in parts]).astype(np.float32)
    if scores.shape[1] > k:
        at = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        rows, scores = np.take_along_axis(rows, at, 1), np.take_along_axis(scores, at, 1)
    order = np.lexsort((rows, -scores), axis=1)
    rows, scores = np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
    missing = k - scores.shape[1]
    rows = np.pad(rows, ((0, 0), (0, missing)), constant_values=-1)
    return rows.astype(np.int64), np.pad(scores, ((0, 0), (0, missing)), constant_values=-np.inf)


def _rotation(sample: FloatArray, reduced: int) -> FloatArray:
    """The sample's principal axes about the origin, turned at random so that each has about the same share."""
    _, axes = np.linalg.eigh((sample.T @ sample).astype(np.float64))
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((reduced, reduced)))
    return np.ascontiguousarray(axes[:, ::-1][:, :reduced] @ turn, dtype=np.float32)


def _padded(vectors: FloatArray) -> FloatArray:
    """Zeros up to a multiple of what a processor takes at a time."""
    return np.ascontiguousarray(np.pad(vectors, ((0, 0), (0, -vectors.shape[1] % ALIGNED))), dtype=np.float32)


def _codes(folder: Path, n: int, width: int) -> NDArray[np.uint8]:
    codes: NDArray[np.uint8] = np.memmap(folder / CODES, dtype=np.uint8, mode="r", shape=(n, width))
    return codes


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array as numpy's own file."""
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.save(stream, array)


def write_faiss(path: Path, index: Any) -> None:
    """Write an index of faiss."""
    with replacing(path) as temporary:
        faiss().write_index(index, str(temporary))
