"""The nearest of many vectors by inner product, searched by faiss.

Fewer than `exact_below` vectors are scanned. Above, k-means divides them into lists, of which a question reads the
nearest (IVF; Sivic & Zisserman 2003). Up to `scalar_below`, a list holds its vectors with 8 bits a coordinate. Above,
it holds short codes of their principal axes (product quantisation with 4 bits, Jegou et al. 2011, Andre et al. 2017),
and the best of these are refined by the vectors with 8 bits, which stay on disk.

A build reads its source in pieces and scans each exactly for some questions. Half of them choose how many lists are
read, the other half measure the recall. The manifest comes last: an index without one is built again.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from study.advisor.arrays import FloatArray, IntArray
from study.base import paths
from study.base.errors import StudyError
from study.base.files import sha256, write_json
from study.base.settings import read_settings

FORMAT, FILE, MANIFEST = 2, "index.faiss", "manifest.json"
EXACT, SCALAR, PRODUCT = "exact", "ivf_sq8", "ivf_pq"
TOP = 10  # places of an answer that recall is about
ALIGNED = 16  # coordinates that a processor takes at a time
WIDER = 0.1  # share by which the range of a coordinate in the sample is widened at either end


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
    candidates: int
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


class Source(NamedTuple):
    """The vectors of a catalogue, made on demand."""

    n: int
    dimension: int
    # Of a first and a last row (exclusive), shape (rows, dimension), float32, the same at every call.
    piece: Callable[[int, int], FloatArray]
    identity: str  # names what it holds

    def spans(self, size: int) -> list[tuple[int, int]]:
        """The first and last rows of its pieces."""
        return [(start, min(self.n, start + size)) for start in range(0, self.n, size)]


def faiss() -> Any:
    """The library; StudyError where it is not installed."""
    try:
        import faiss as library
    except ImportError as error:
        reason = "a large catalogue is searched by faiss, which is not here"
        raise StudyError(reason, fix="make setup FAISS=1") from error
    return library


class NearestIndex:
    """An index that `build` wrote. `about`: its manifest. Raises StudyError: it is damaged or of another format."""

    def __init__(self, folder: Path) -> None:
        library = faiss()
        try:
            self.about: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            if self.about["format"] != FORMAT:
                raise ValueError(f"format {self.about['format']}, this version reads {FORMAT}")
            if sha256(folder / FILE) != self.about["sha256"]:
                raise ValueError(f"{FILE} is not the file of the manifest")
            self.index = library.read_index(str(folder / FILE), library.IO_FLAG_MMAP_IFC)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            fix = "remove the folder; the same command builds it again"
            raise StudyError(f"the index does not load: {error}", file=folder, fix=fix) from error

    def search(self, questions: FloatArray, k: int, rows: IntArray | None = None) -> tuple[IntArray, FloatArray]:
        """Rows and products of the `k` vectors of the largest products with each question (shape (m, dimension)), best
        first, shape (m, k); -1 and -inf where the index found fewer. `rows`: the only ones that may be named, of which
        none is passed over."""
        return _search(self.index, self.about, questions, k, rows)


def _search(
    index: Any, about: dict[str, Any], questions: FloatArray, k: int, rows: IntArray | None = None
) -> tuple[IntArray, FloatArray]:
    """See `NearestIndex.search`. `about`: kind, lists, probes and candidates."""
    library, chosen = faiss(), {} if rows is None else {"sel": faiss().IDSelectorBatch(rows)}
    if about["kind"] == EXACT:
        parameters = library.SearchParameters(**chosen)
    else:
        parameters = library.SearchParametersIVF(nprobe=about["probes" if rows is None else "lists"], **chosen)
    if about["kind"] == PRODUCT:
        parameters = library.SearchParametersPreTransform(index_params=parameters)
        factor = max(1.0, about["candidates"] / k)
        parameters = library.IndexRefineSearchParameters(k_factor=factor, base_index_params=parameters)
    products, hits = index.search(_padded(questions), k, params=parameters)
    return hits, np.where(hits >= 0, products, -np.inf).astype(np.float32)


def build(folder: Path, source: Source, questions: FloatArray, settings: Settings | None = None) -> NearestIndex:
    """Index the vectors of a source in `folder`, or read the index of the same source and settings that is there.
    `questions`: of the kind that will be asked, shape (m, dimension), m >= 2; they measure the recall. Raises
    StudyError: a damaged index, one that finds less than the wanted share of the exact answers, or no faiss."""
    settings = settings or Settings.read()
    shaping = {name: value for name, value in asdict(settings).items() if name != "wanted"}
    origin = {"identity": source.identity, "n": source.n, "dimension": source.dimension, "settings": shaping}
    index = NearestIndex(folder) if (folder / MANIFEST).exists() else None
    if index is None or index.about["source"] != origin:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        about = _write(folder / FILE, source, questions, settings)
        write_json(folder / MANIFEST, about | {"source": origin, "sha256": sha256(folder / FILE)})
        index = NearestIndex(folder)
    if (measured := index.about["recall"]) < settings.wanted:
        reason = f"the index finds {measured:.3f} of the ten nearest, {settings.wanted} are wanted"
        fix = "raise candidates, subquantisers or most_lists in conf/encoders/nearest.yaml, or lower wanted"
        raise StudyError(reason, file=folder, column="candidates", fix=fix)
    return index


def _write(file: Path, source: Source, questions: FloatArray, settings: Settings) -> dict[str, Any]:
    """Build and measure an index. Returns what the manifest says of it; `seconds` are of the processor, without those
    of the source and of the exact scan."""
    library, width = faiss(), source.dimension + -source.dimension % ALIGNED
    inner, kind, lists = library.METRIC_INNER_PRODUCT, settings.kind(source.n), settings.lists(source.n)
    reduced = min(settings.reduced, width)
    codes = f"PCAR{reduced},IVF{lists},PQ{min(settings.subquantisers, reduced)}x4fs,Refine(SQ8)"
    index = library.index_factory(width, {EXACT: "Flat", SCALAR: f"IVF{lists},SQ8", PRODUCT: codes}[kind], inner)
    seconds = 0.0
    if kind != EXACT:
        codec = library.downcast_index(index.refine_index) if kind == PRODUCT else index
        codec.sq.rangestat_arg = WIDER
        sample = _padded(sampled(source, lists * settings.per_list, settings))
        began = time.process_time()
        if kind == PRODUCT:  # the axes about the origin: a product with a question has no mean to subtract
            turn = library.downcast_VectorTransform(library.downcast_index(index.base_index).chain.at(0))
            turn.train(np.vstack([sample, -sample]))
        index.train(sample)
        seconds += time.process_time() - began
    exact = library.ResultHeap(len(questions), TOP, keep_max=True)
    spans = source.spans(settings.piece)
    for start, stop in tqdm(spans, desc="index", unit="piece", disable=not sys.stderr.isatty()):
        vectors = source.piece(start, stop)
        began = time.process_time()
        index.add(_padded(vectors))
        seconds += time.process_time() - began
        products, rows = library.knn(questions, vectors, TOP, metric=inner)
        exact.add_result(products, np.where(rows < 0, rows, rows + start))
    exact.finalize()
    began = time.process_time()
    about = {"format": FORMAT, "kind": kind, "lists": lists, "probes": 0, "candidates": settings.candidates}
    about["recall"] = 1.0 if kind == EXACT else _measure(index, about, questions, exact.I, settings)
    library.write_index(index, str(file))
    return about | {"seconds": seconds + time.process_time() - began}


def _measure(index: Any, about: dict[str, Any], questions: FloatArray, exact: IntArray, settings: Settings) -> float:
    """Set ``probes`` to the fewest lists whose recall on every other question suffices; the recall on the rest."""
    for probes in (*(2**power for power in range(about["lists"].bit_length())), about["lists"]):
        about["probes"] = probes
        if recall(_search(index, about, questions[::2], TOP)[0], exact[::2]) >= settings.wanted + settings.margin:
            break
    return round(recall(_search(index, about, questions[1::2], TOP)[0], exact[1::2]), 4)


def recall(rows: IntArray, exact: IntArray) -> float:
    """The mean share of the exact answers' rows that were found, both of shape (m, k); -1 is no row."""
    pairs = ((hits, true[true >= 0]) for hits, true in zip(rows, exact, strict=True))
    return float(np.mean([len(np.intersect1d(hits, true)) / len(true) for hits, true in pairs]))


def sampled(source: Source, size: int, settings: Settings) -> FloatArray:
    """`size` random vectors of up to eight pieces that are spread evenly over a source; all, where it has no more."""
    spans = source.spans(settings.piece)
    chosen = [spans[at] for at in np.unique(np.linspace(0, len(spans) - 1, 8).astype(int))]
    rng, share = np.random.default_rng(0), size / sum(stop - start for start, stop in chosen)
    parts = []
    for start, stop in chosen:
        piece = source.piece(start, stop)
        rows = rng.permutation(len(piece))[: math.ceil(share * len(piece))]
        parts.append(piece[np.sort(rows)])
    return np.vstack(parts)


def _padded(vectors: FloatArray) -> FloatArray:
    """Zeros up to a multiple of `ALIGNED`."""
    return np.ascontiguousarray(np.pad(vectors, ((0, 0), (0, -vectors.shape[1] % ALIGNED))), dtype=np.float32)
