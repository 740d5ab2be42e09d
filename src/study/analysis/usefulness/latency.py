"""How long one request takes, from its text to ten servers: one system and one request at a time, on one thread.

Systems make the vectors of every task when they are fitted, so for a new request the texts would have to be read first.
`best` and the models of `study export` do that in one call; for the others the reading is done here (`READERS`) and
timed with the ranking. The vectors of the catalogue are there in every case, as they are in a running service.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm import tqdm

from study.config.compose import build_system, load
from study.config.registry import with_tuned_values
from study.data.dataset import Dataset
from study.data.splits import Split
from study.encoders.sentence import encode
from study.errors import StudyError
from study.evaluation.ranking import tie_order, top_k
from study.evaluation.runs import KEPT, rank_tasks
from study.recommend import saved
from study.runner.processes import limit_threads
from study.t2mrec.lexical import fit_vectorizer

# How a text is read before a system can rank: TF-IDF words and pairs, or a sentence vector.
WORDS, SENTENCE = "words", "sentence"
# What takes the text itself: a `FieldDense`, or a model of `study export`, as `study recommend` asks it.
REQUEST, SAVED = "request", "saved"
Answer = Callable[[int], object]
Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Latency:
    """``conf/usefulness/latency.yaml``, where every key is explained."""

    requests: int
    warm_up: int
    systems: dict[str, list[str]]
    saved: list[str]


def quantiles(seconds: Seconds) -> dict[str, float]:
    """Median, 5th and 95th percentile of elapsed time and the median of processor time, in milliseconds.

    Args:
        seconds: elapsed and processor seconds of each request, shape (n, 2).
    """
    low, middle, high = np.percentile(seconds[:, 0] * 1e3, [5, 50, 95])
    cpu = float(np.median(seconds[:, 1]) * 1e3)
    return {"milliseconds": float(middle), "p5": float(low), "p95": float(high), "cpu": cpu}


def timed(answer: Answer, requests: Sequence[int], warm_up: int) -> Seconds:
    """Elapsed and processor seconds of each request, asked one after another, shape (n, 2).

    The first `warm_up` are asked once more before, untimed. Processor time says what a request takes where nothing
    else runs, also if something does.
    """
    for request in requests[:warm_up]:
        answer(request)
    seconds = []
    for request in requests:
        started = time.perf_counter(), time.process_time()
        answer(request)
        seconds.append((time.perf_counter() - started[0], time.process_time() - started[1]))
    return np.array(seconds)


class Readers:
    """Reads one text as systems would read a new request's."""

    def __init__(self, data: Dataset, split: Split) -> None:
        self.texts = data.task_texts()
        known = data.server_texts() + [self.texts[row] for row in split.tasks("train")]
        self.vectorizer = fit_vectorizer(known, max_features=50_000, ngram_range=(1, 2))

    def read(self, kind: str, task: int) -> None:
        """Make the vector of a task's text as if it were new."""
        if kind == WORDS:
            self.vectorizer.transform([self.texts[task]])
        else:
            encode([self.texts[task]], store=False)


def answering(system: Any, name: str, reading: Sequence[str], data: Dataset, split: Split, readers: Readers) -> Answer:
    """What answers one request of a fitted system, from text to ten servers."""
    if list(reading) == [REQUEST]:
        order = tie_order(data.n_servers, 0)
        return lambda task: top_k(system.score_requests(data.tasks.iloc[[task]], store=False), KEPT, order)
    if unknown := set(reading) - {WORDS, SENTENCE}:
        fix = f"{REQUEST} alone, or any of {WORDS}, {SENTENCE}"
        raise StudyError(f"{name} reads {', '.join(sorted(unknown))}", column=f"systems.{name}", fix=fix)

    def answer(task: int) -> object:
        for kind in reading:
            readers.read(kind, task)
        return rank_tasks(system, split, np.array([task]), part="valid", k=KEPT, seed=0, n_servers=data.n_servers)

    return answer


def answering_saved(name: str, data: Dataset) -> Answer:
    """What answers one request of a saved model, from text to ten servers."""
    model = saved.load(data.name, name)
    names = ("language", "category", "theme", "subcategory")
    fields = [{name: str(row[name]) for name in names} for row in data.tasks.to_dict("records")]
    words = data.task_texts(("name", "description"))
    return lambda task: model.recommend(words[task], **fields[task], k=KEPT)


def latency_table(data: Dataset, split: Split, settings: Latency) -> pd.DataFrame:
    """The latency of every configured system, then of the saved models; requests are tasks of the validation part.

    Returns: columns system, reading, requests, milliseconds (median), p5, p95, cpu (median), seconds_fit (in this
        process, on one thread, vectors of the catalogue from the cache; empty where a saved model answers).
    """
    limit_threads(1)
    encode([""], store=False)  # loads the encoder, and torch with it
    limit_threads(1)
    readers, rows = Readers(data, split), []
    tasks = [int(task) for task in split.tasks("valid")]
    requests = [tasks[number % len(tasks)] for number in range(settings.requests)]
    for name, reading in tqdm(settings.systems.items(), desc="latency", disable=not sys.stderr.isatty()):
        system = build_system(with_tuned_values(load([f"dataset={data.name}", f"system={name}"])).system)
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            system.fit(data, split, seed=0, workdir=Path(folder))
            seconds = time.perf_counter() - started
        spent = timed(answering(system, name, reading, data, split, readers), requests, settings.warm_up)
        row = {"system": name, "reading": " ".join(reading), "requests": len(spent), **quantiles(spent)}
        rows.append(row | {"seconds_fit": seconds})
    for name in settings.saved:
        spent = timed(answering_saved(name, data), requests, settings.warm_up)
        rows.append({"system": name, "reading": SAVED, "requests": len(spent), **quantiles(spent)})
    return pd.DataFrame(rows)
