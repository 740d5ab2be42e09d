"""The nearest of many vectors by inner product: an exact scan of a small catalogue, faiss for a large one.

Above `exact_below` vectors, k-means divides the catalogue into lists, of which a question reads the nearest (IVF; Sivic
& Zisserman 2003). Up to `scalar_below`, a list holds its vectors with 8 bits a coordinate. Above, it holds short codes
of their principal axes (product quantisation with 4 bits, Jegou et al. 2011, Andre et al. 2017), and the best of these
are refined by the vectors with 8 bits, which stay on disk.

A build reads its source in pieces and writes each, so that it needs the memory of one piece and goes on after a stop.
Along the way it scans the catalogue exactly for some questions. Half of them choose how much is read, the other half
measure the recall that is stored.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from study.advisor.arrays import FloatArray, IntArray
from study.base import paths
from study.base.errors import StudyError
from study.base.files import replacing, write_json
from study.base.settings import read_settings

Mask = NDArray[np.bool_]
FORMAT, ALIGNED, CODES = 1, 16, "codes.u8"
WIDER = 0.1  # share by which the range of a coordinate in the sample is widened at either end
EXACT, SCALAR, PRODUCT = "exact", "ivf_sq8", "ivf_pq"
TENS = 10  # places of an answer that recall is about
# Settings that decide the files of a build.
SHAPING = ("piece", "most_lists", "per_list", "reduced", "subquantisers")
SPENT = ("source", "index", "scan")  # what the seconds of a piece go to
APART = 8  # a byte of a vector that lies alone costs as many bytes of a list
SCANNED = 8192  # vectors of which all products are held at a time


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
    """Vectors of a folder that can be searched; `build` makes one. `about`: what the build measured."""

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
        few = keep is not None and int(keep.sum()) < self.settings.exact_below
        if self.kind == EXACT or (few and self.kind == PRODUCT):
            return self._scan(questions, k, keep)
        reading = Reading(self.lists.nlist, 0) if few else self.reading
        return self.read(questions, k, reading, keep)

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
        queries = self.trained.turned(questions)
        if not reading.candidates:
            scores, rows = self.lists.search(queries, k, params=chosen)
            return rows, np.where(rows >= 0, scores, -np.inf).astype(np.float32)
        _, rows = self.lists.search(queries, max(k, reading.candidates), params=chosen)
        # In the order of the file, whose pages may have to be read.
        candidates = [np.sort(ids[ids >= 0]) for ids in rows]
        parts = [best([(ids, self._products(one, ids))], 1, k) for ids, one in zip(candidates, questions, strict=True)]
        return np.vstack([part[0] for part in parts]), np.vstack([part[1] for part in parts])

    def _products(self, question: FloatArray, rows: IntArray) -> FloatArray:
        vectors = self.trained.decode(self.codes[rows])
        product: FloatArray = question[None] @ vectors[:, : len(question)].T
        return product


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
            trained = cls(lists, codec, None)
        else:
            reduced = min(settings.reduced, width)
            flat, codes = library.IndexFlatIP(reduced), (min(settings.subquantisers, reduced), 4)
            lists = library.IndexIVFPQ(flat, reduced, settings.lists(n), *codes, inner)
            lists.by_residual = False  # codes of the vectors themselves, as the fast scan reads them
            trained = cls(lists, codec, _rotation(padded, reduced))
        lists.cp.min_points_per_centroid = 1  # a test's sample is small; faiss would print a warning
        lists.train(trained.turned(sample))
        return trained

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
    rows = np.hstack([np.broadcast_to(ids, products.shape) for ids, products in parts])
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


class Source(NamedTuple):
    """The vectors of a catalogue, made on demand.

    `piece`: of a first and a last row (exclusive), shape (rows, dimension), float32, the same at every call.
    `identity`: names what it holds; a stopped build goes on only for the same.
    """

    n: int
    dimension: int
    piece: Callable[[int, int], FloatArray]
    identity: str


def recall(rows: IntArray, exact: IntArray) -> float:
    """The mean share of the exact answers' rows that were found, both of shape (m, k); -1 is no row."""
    pairs = ((hits, true[true >= 0]) for hits, true in zip(rows, exact, strict=True))
    return float(np.mean([len(np.intersect1d(hits, true)) / len(true) for hits, true in pairs]))


def build(folder: Path, source: Source, questions: FloatArray, settings: Settings | None = None) -> NearestIndex:
    """Index the vectors of a source in `folder`; a stopped build goes on, a finished one is read.

    `questions`: of the kind that will be asked, shape (m, dimension), m >= 2; they measure the recall.
    Raises StudyError: the index finds less than the wanted share of the exact answers, or faiss is not installed.
    """
    settings = settings or Settings.read()
    _take_over(folder, source, settings)
    if not (folder / "about.json").exists():
        if settings.kind(source.n) == EXACT:
            _write_exact(folder, source)
        else:
            _build_lists(folder, source, questions, settings)
    index = NearestIndex(folder, settings)
    if index.about["recall"] < settings.wanted:
        _measure(index, questions, settings)
    if (measured := index.about["recall"]) < settings.wanted:
        raise StudyError(
            f"the index finds {measured:.3f} of the ten nearest, {settings.wanted} are wanted",
            file=folder,
            column="candidates",
            fix="raise candidates, subquantisers or most_lists in conf/encoders/nearest.yaml, or lower wanted",
        )
    # Kept until here: to try other candidates, no new lists are needed.
    for path in (*folder.glob("piece-*"), *folder.glob("truth-*")):
        path.unlink()
    return index


def _take_over(folder: Path, source: Source, settings: Settings) -> None:
    """Keep the files of a build of the same source and shape; remove those of another."""
    kind = settings.kind(source.n)
    shaping: dict[str, Any] = {"kind": kind}
    if kind != EXACT:
        shaping |= {name: value for name, value in asdict(settings).items() if name in SHAPING}
    identity = {"identity": source.identity, "n": source.n, "dimension": source.dimension, "settings": shaping}
    state = folder / "source.json"
    if state.exists() and json.loads(state.read_text(encoding="utf-8")) == identity:
        return
    for path in folder.glob("*") if folder.exists() else ():
        path.unlink()
    write_json(state, identity)


def _write_exact(folder: Path, source: Source) -> None:
    write_array(folder / "vectors.npy", source.piece(0, source.n))
    about = {"format": FORMAT, "kind": EXACT, "n": source.n, "dimension": source.dimension}
    write_json(folder / "about.json", about | {"reading": [0, 0], "recall": 1.0})


def _build_lists(folder: Path, source: Source, questions: FloatArray, settings: Settings) -> None:
    if not (folder / "trained.faiss").exists():
        _train(folder, source, settings)
    trained, clock = Trained.load(folder), Clock()
    spans = list(_spans(source.n, settings.piece))
    for number, (start, stop) in enumerate(tqdm(spans, desc="index", unit="piece", disable=not sys.stderr.isatty())):
        if not _truth_file(folder, number).exists():
            _write_piece(folder, number, trained, start, source, stop, questions)
    clock.lap()
    lists = trained.empty
    for number in range(len(spans)):
        lists.merge_from(faiss().read_index(str(_piece_file(folder, number))), 0)
    if settings.kind(source.n) == PRODUCT:  # faiss's merge of lists that are laid out for the fast scan damages memory
        lists = faiss().IndexIVFPQFastScan(lists)
    write_faiss(folder / "index.faiss", lists)
    del lists, trained
    seconds = json.loads((folder / "clock.json").read_text(encoding="utf-8")) | {"merge": clock.lap()}
    seconds |= dict(zip(SPENT, np.sum([truth["seconds"] for truth in _truths(folder)], axis=0).tolist(), strict=True))
    about = {"format": FORMAT, "kind": settings.kind(source.n), "n": source.n}
    about |= {"dimension": source.dimension, "reading": [1, 0], "recall": 0.0, "seconds": seconds}
    write_json(folder / "about.json", about)


def _train(folder: Path, source: Source, settings: Settings) -> None:
    clock = Clock()
    sample = sampled(source, settings.lists(source.n) * settings.per_list, settings)
    trained = Trained.of(sample, source.n, settings)
    write_json(folder / "clock.json", {"train": clock.lap()})
    trained.save(folder)


class Clock:
    """Processor seconds from one `lap` to the next: those of one thread that nothing disturbs."""

    def __init__(self) -> None:
        self.before = time.process_time()

    def lap(self) -> float:
        """The seconds since the last call."""
        before, self.before = self.before, time.process_time()
        return self.before - before


def sampled(source: Source, size: int, settings: Settings) -> FloatArray:
    """`size` random vectors of up to eight pieces that are spread evenly over a source; all, where it has no more."""
    spans = list(_spans(source.n, settings.piece))
    chosen = [spans[at] for at in np.unique(np.linspace(0, len(spans) - 1, 8).astype(int))]
    rng, share = np.random.default_rng(0), size / sum(stop - start for start, stop in chosen)
    parts = []
    for start, stop in chosen:
        piece = source.piece(start, stop)
        rows = rng.permutation(len(piece))[: math.ceil(share * len(piece))]
        parts.append(piece[np.sort(rows)])
    return np.vstack(parts)


def _write_piece(
    folder: Path, number: int, trained: Trained, start: int, source: Source, stop: int, questions: FloatArray
) -> None:
    """The codes of one piece, its lists, and the exact scan of it; the truth comes last and says that all is there."""
    clock, seconds = Clock(), []
    vectors, rows = source.piece(start, stop), np.arange(start, stop)
    seconds.append(clock.lap())
    if trained.rotation is not None:
        trained.write_codes(folder, start, vectors)
    lists = faiss().clone_index(trained.empty)
    lists.add_with_ids(trained.turned(vectors), rows)
    write_faiss(_piece_file(folder, number), lists)
    seconds.append(clock.lap())
    parts = (slice(*span) for span in _spans(len(rows), SCANNED))
    scanned = [best([(rows[part], questions @ vectors[part].T)], len(questions), TENS) for part in parts]
    best_rows, scores = best(scanned, len(questions), TENS)
    seconds.append(clock.lap())
    with replacing(_truth_file(folder, number)) as temporary, temporary.open("wb") as stream:
        np.savez(stream, rows=best_rows, scores=scores, seconds=np.array(seconds))


def _measure(index: NearestIndex, questions: FloatArray, settings: Settings) -> None:
    """Store the least reading whose recall on every other question suffices, with its recall on the rest.

    Bytes are compared and not seconds, so that a build gives the same index however busy the machine is.
    """
    exact, _ = best([(truth["rows"], truth["scores"]) for truth in _truths(index.folder)], len(questions), TENS)
    clock = Clock()
    choosing, checking = slice(0, None, 2), slice(1, None, 2)
    lists, tried = index.lists.nlist, settings.candidates if index.kind == PRODUCT else (0,)
    enough: dict[Reading, float] = {}
    for candidates in tried:
        for probes in (2**power for power in range(lists.bit_length())):
            hits, _ = index.read(questions[choosing], TENS, reading := Reading(probes, candidates))
            if recall(hits, exact[choosing]) >= settings.wanted + settings.margin:
                listed = probes * index.n / lists * index.lists.code_size
                enough[reading] = listed + APART * candidates * index.trained.width
                break
    reading = min(enough, key=enough.__getitem__) if enough else Reading(lists, max(tried))
    rows, _ = index.read(questions[checking], TENS, reading)
    index.reading = reading
    index.about |= {"reading": list(reading), "recall": round(recall(rows, exact[checking]), 4)}
    index.about["seconds"]["measure"] = clock.lap()
    write_json(index.folder / "about.json", index.about)


def _spans(n: int, size: int) -> Iterator[tuple[int, int]]:
    return ((start, min(n, start + size)) for start in range(0, n, size))


def _piece_file(folder: Path, number: int) -> Path:
    return folder / f"piece-{number:05d}.faiss"


def _truths(folder: Path) -> list[Any]:
    return [np.load(path) for path in sorted(folder.glob("truth-*"))]


def _truth_file(folder: Path, number: int) -> Path:
    return folder / f"truth-{number:05d}.npz"
