"""What an answer costs by the number of servers: building, memory, disk, time of a question, and what is found.

The first servers are the real ones. A synthetic server has the vector of a random server i, moved by the difference of
two others, x_i + s (x_j - x_k), so that servers vary in the directions in which the real ones do. s is such that the
median cosine between a synthetic server and its i is that between a real server and its nearest neighbour.
"""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from study.advisor.encoders import nearest
from study.advisor.encoders.sentence import encode
from study.advisor.retrieval.fields import VIEWS, texts
from study.advisor.retrieval.towers import embed
from study.advisor.saved.field_dense import SavedFieldDense
from study.advisor.saved.large import STATISTICS, Moments, server_vectors
from study.advisor.saved.t2mrec import Recommender
from study.analysis.framework import Context, Tables, analysis
from study.base import paths
from study.base.errors import StudyError, require_file
from study.base.files import write_json
from study.data.dataset import FloatArray
from study.runner.inputs import load_inputs
from study.runner.processes import end_with_parent, limit_threads

LOG = logging.getLogger(__name__)
TOP, PROTOCOL, BM25 = 10, "cold", "bm25"
STEPS, DRAWS = 20, 4096
ROW = "row.json"


@dataclass(frozen=True)
class Growth:
    """``conf/overall/growth.yaml``, where every key is explained."""

    seed: int
    questions: int
    warm_up: int
    replaced: float
    sizes: dict[str, list[int]]


@dataclass(frozen=True, eq=False)
class SyntheticVectors:
    """Vectors of any number of servers. `real`: shape (n_real, d); its columns are blocks of `width`, each of length 1,
    and whatever follows the last block, which a synthetic server has from its i. `blocks`: their number."""

    real: FloatArray
    blocks: int
    width: int
    seed: int

    def piece(self, start: int, stop: int) -> FloatArray:
        """The servers from `start` to `stop`, shape (stop - start, d); depends on both, the seed and nothing else."""
        real = self.real[start:stop]
        count = stop - start - len(real)
        if not count:
            return real
        rng = np.random.default_rng([self.seed, start])
        return np.vstack([real, self._move_vectors(rng.integers(0, len(self.real), (3, count)), self.length)])

    def _move_vectors(self, chosen: NDArray[np.int64], length: float) -> FloatArray:
        vectors: FloatArray = self.real[chosen[0]]
        for block in self._slices():
            moved = vectors[:, block]
            moved += np.float32(length) * (self.real[chosen[1], block] - self.real[chosen[2], block])
            moved /= np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-12)
        return vectors

    @cached_property
    def length(self) -> float:
        """s, by bisection."""
        nearest_other = NearestNeighbors(n_neighbors=1, metric="cosine")
        distances = [nearest_other.fit(self.real[:, block]).kneighbors()[0] for block in self._slices()]
        target = 1 - np.median(np.concatenate(distances))
        chosen = np.random.default_rng(self.seed).integers(0, len(self.real), (3, DRAWS))
        low, high = 0.0, 4.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            moved, origin = self._move_vectors(chosen, middle), self.real[chosen[0]]
            cosines = [np.einsum("nd,nd->n", moved[:, block], origin[:, block]) for block in self._slices()]
            low, high = (middle, high) if np.median(np.concatenate(cosines)) > target else (low, middle)
        return (low + high) / 2

    def _slices(self) -> list[slice]:
        return [slice(at * self.width, (at + 1) * self.width) for at in range(self.blocks)]


def synthetic_words(real: Sequence[Sequence[int]], n: int, replaced: float, seed: int) -> Iterator[list[int]]:
    """The words (as numbers) of `n` servers: the real ones, and copies of random ones of which each word is replaced by
    one of another random server with the probability `replaced`."""
    rng, filled = np.random.default_rng(seed), [np.asarray(words) for words in real if len(words)]
    yield from (list(words) for words in real[:n])
    for _ in range(len(real), n):
        base, donor = (filled[at] for at in rng.integers(0, len(filled), 2))
        swapped = rng.random(len(base)) < replaced
        yield np.where(swapped, donor[rng.integers(0, len(donor), len(base))], base).tolist()


@analysis("cost", slow=True)
def growth(study: Context) -> Tables:
    """What does an answer cost by the number of servers, to ten millions?"""
    rows = list(growth_rows(study.dataset, study.settings(Growth)))
    study.facts.update(index=asdict(nearest.Settings.read()), faiss=nearest.faiss().__version__)
    return {"growth": pd.DataFrame(rows)}


def growth_rows(dataset: str, settings: Growth) -> Iterator[dict[str, Any]]:
    """One row per system and size, smallest first. Raises StudyError: a system was not exported, or a process stopped.

    Each is measured in two processes of its own with one thread, one that builds and one that answers, so that each has
    a greatest memory. A stopped table goes on.

    Columns: system, servers, index, build_s (processor seconds; without those of the synthetic vectors and of the exact
    scan for the questions), recall (of the exact ten), build_mib and answer_mib (greatest resident memory of each
    process, mapped files included), disk_mib, cpu_p95_ms (of one question, from its vectors to ten servers: 95th
    percentile of the processor time, which is that of an idle machine).
    """
    for system in settings.sizes.keys() - {BM25}:
        _saved_model(dataset, system)
    for n, system in sorted((n, system) for system, sizes in settings.sizes.items() for n in sizes):
        folder = paths.cache() / "growth" / dataset / f"{system}-{n}"
        if not (folder / ROW).exists():
            row: dict[str, Any] = {"system": system, "servers": n}
            for step in (_build, _answer):
                row |= _in_own_process(step, dataset, system, n, folder, settings)
            write_json(folder / ROW, row)
            shutil.rmtree(folder / "index", ignore_errors=True)  # it may be large
        yield json.loads((folder / ROW).read_text(encoding="utf-8"))


def _in_own_process(step: Callable[..., dict[str, Any]], *words: Any) -> dict[str, Any]:
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_start) as pool:
            return pool.submit(step, *words).result()
    except BrokenProcessPool as error:
        fix = "it may lack memory; the same command goes on from there"
        raise StudyError(f"{words[1]} over {words[2]} servers stopped", file=words[3], fix=fix) from error


def _start() -> None:
    end_with_parent()
    limit_threads(1)


def _build(dataset: str, system: str, n: int, folder: Path, settings: Growth) -> dict[str, Any]:
    LOG.info("%s: indexing %d servers", system, n)
    if system == BM25:
        began = time.process_time()
        _build_bm25(dataset, n, folder, settings)
        facts: dict[str, Any] = {"index": "bm25s", "build_s": time.process_time() - began, "recall": 1.0}
    else:
        source, questions = case_of(dataset, system, n, settings)
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "questions.npy", questions)
        gc.collect()
        about = nearest.build(folder / "index", source, questions).about
        facts = {"index": about["kind"], "build_s": about["seconds"], "recall": about["recall"]}
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return facts | {"build_mib": _peak_mib(), "disk_mib": size / 2**20}


def _answer(dataset: str, system: str, n: int, folder: Path, settings: Growth) -> dict[str, Any]:
    """Ask every question, one at a time."""
    if system == BM25:
        ask, questions = _bm25_search(folder)
    else:
        vectors, index = np.load(folder / "questions.npy"), nearest.NearestIndex(folder / "index")
        ask, questions = (lambda at: index.search(vectors[at : at + 1], TOP)), len(vectors)
    milliseconds = []
    for number in range(-settings.warm_up, questions):
        began = time.process_time()
        ask(number % questions)
        milliseconds.append(1e3 * (time.process_time() - began))
    return {
        "answer_mib": _peak_mib(),
        "cpu_p95_ms": float(np.percentile(milliseconds[settings.warm_up :], 95)),
    }


def case_of(dataset: str, system: str, n: int, settings: Growth) -> tuple[nearest.Source, FloatArray]:
    """A system's catalogue of `n` servers, and the vectors of the test tasks as its questions, shape (m, d). Raises
    StudyError: not exported."""
    data, split = load_inputs(dataset, PROTOCOL)
    test_tasks, folder = split.tasks("test")[: settings.questions], _saved_model(dataset, system)
    if system == "t2mrec":
        saved = Recommender.load(folder)
        words = [data.task_texts()[task] for task in test_tasks]
        vectors = SyntheticVectors(saved.server_embeddings, 1, saved.server_embeddings.shape[1], settings.seed)
        return _source(system, n, vectors), embed(saved.task_tower, saved.vectorizer.transform(words))
    fields = SavedFieldDense.load(folder).system
    real, terms = server_vectors(fields), fields.terms
    vectors = SyntheticVectors(real, len(fields.fields), (real.shape[1] - 1) // len(fields.fields), settings.seed)
    source = _source(system, n, vectors)
    # The statistics of the catalogue, from the sample that places the lists: they are needed before the catalogue is.
    moments = Moments.of(nearest.sampled(source, STATISTICS, nearest.Settings.read()))
    views = {
        name: encode(texts(data.tasks.iloc[test_tasks], VIEWS, name)) for name in sorted({term.view for term in terms})
    }
    return source, moments.questions(terms, views).vectors


def _saved_model(dataset: str, system: str) -> Path:
    fix = f"run: study export dataset={dataset} system={system}"
    return require_file(paths.models(dataset) / system / "model.json", fix, "no saved model here").parent


def _source(system: str, n: int, vectors: SyntheticVectors) -> nearest.Source:
    identity = f"{system} {vectors.seed} {vectors.length:.6f} {vectors.real.shape} {float(vectors.real.sum()):.6f}"
    return nearest.Source(n, vectors.real.shape[1], vectors.piece, identity)


def _build_bm25(dataset: str, n: int, folder: Path, settings: Growth) -> None:
    """Index the words of `n` servers as `baselines/bm25.py` does."""
    import bm25s
    from bm25s.tokenization import Tokenizer

    data, split = load_inputs(dataset, PROTOCOL)
    tokenizer = Tokenizer(stopwords=None)
    ids, vocabulary = tokenizer.tokenize(data.server_texts(), return_as="tuple", show_progress=False)
    index = bm25s.BM25(k1=1.2, b=0.75, method="lucene", backend="numpy")
    documents = list(synthetic_words(ids, n, settings.replaced, settings.seed))
    index.index((documents, vocabulary), show_progress=False)
    index.save(folder / "index")
    requests = [data.task_texts()[task] for task in split.tasks("test")[: settings.questions]]
    questions = tokenizer.tokenize(
        requests, update_vocab=False, allow_empty=False, return_as="ids", show_progress=False
    )
    write_json(folder / "index" / "questions.json", [list(map(int, tokens)) for tokens in questions], compact=True)


def _bm25_search(folder: Path) -> tuple[Callable[[int], Any], int]:
    import bm25s

    index = bm25s.BM25.load(folder / "index")
    questions = json.loads((folder / "index" / "questions.json").read_text(encoding="utf-8"))

    def ask(at: int) -> Any:
        scores = index.get_scores_from_ids(questions[at])
        best = np.argpartition(-scores, TOP)[:TOP]
        return best[np.argsort(-scores[best])]

    return ask, len(questions)


def _peak_mib() -> float:
    """The greatest resident memory of this process so far; NaN where the system does not tell."""
    status = Path("/proc/self/status")
    match = re.search(r"VmHWM:\s+(\d+)", status.read_text(encoding="ascii")) if status.exists() else None
    return int(match[1]) / 2**10 if match else float("nan")
