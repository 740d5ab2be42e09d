"""Making an index of `study.advisor.encoders.nearest` in pieces, with bounded memory, and measuring what it finds.

A build reads its source in pieces and writes each, so that it needs the memory of one piece and goes on after a stop.
Along the way it scans the catalogue exactly for some questions. Half of them choose how much is read, the other half
measure the recall that is stored.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from study.advisor.arrays import FloatArray, IntArray
from study.advisor.encoders.nearest import (
    EXACT,
    FORMAT,
    PRODUCT,
    NearestIndex,
    Reading,
    Settings,
    Trained,
    best,
    faiss,
    write_array,
    write_faiss,
)
from study.errors import StudyError
from study.files import replacing, write_json

TENS = 10  # places of an answer that recall is about
# Settings that decide the files of a build.
SHAPING = ("piece", "most_lists", "per_list", "reduced", "subquantisers")
SPENT = ("source", "index", "scan")  # what the seconds of a piece go to
APART = 8  # a byte of a vector that lies alone costs as many bytes of a list
SCANNED = 8192  # vectors of which all products are held at a time


class Source(NamedTuple):
    """The vectors of a catalogue, made on demand.

    `piece`: of a first and a last row (exclusive), shape (rows, dimension), float32, the same at every call.
    `identity`: names what it holds; a stopped build goes on only for the same.
    """

    n: int
    dimension: int
    piece: Callable[[int, int], FloatArray]
    identity: str


def recall(found: IntArray, exact: IntArray) -> float:
    """The mean share of the exact answers' rows that were found, both of shape (m, k); -1 is no row."""
    pairs = ((own, true[true >= 0]) for own, true in zip(found, exact, strict=True))
    return float(np.mean([len(np.intersect1d(own, true)) / len(true) for own, true in pairs]))


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
    wanted = {"identity": source.identity, "n": source.n, "dimension": source.dimension, "settings": shaping}
    state = folder / "source.json"
    if state.exists() and json.loads(state.read_text(encoding="utf-8")) == wanted:
        return
    for path in folder.glob("*") if folder.exists() else ():
        path.unlink()
    write_json(state, wanted)


def _write_exact(folder: Path, source: Source) -> None:
    write_array(folder / "vectors.npy", source.piece(0, source.n))
    about = {"format": FORMAT, "kind": EXACT, "n": source.n, "built": source.n, "dimension": source.dimension}
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
    about = {"format": FORMAT, "kind": settings.kind(source.n), "n": source.n, "built": source.n}
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
    scanned = [best([(rows[own], questions @ vectors[own].T)], len(questions), TENS) for own in parts]
    found, scores = best(scanned, len(questions), TENS)
    seconds.append(clock.lap())
    with replacing(_truth_file(folder, number)) as temporary, temporary.open("wb") as stream:
        np.savez(stream, rows=found, scores=scores, seconds=np.array(seconds))


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
            found, _ = index.read(questions[choosing], TENS, reading := Reading(probes, candidates))
            if recall(found, exact[choosing]) >= settings.wanted + settings.margin:
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
