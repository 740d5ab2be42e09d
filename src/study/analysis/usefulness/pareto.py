"""What quality costs: milliseconds from the text of one request to ten servers, seconds to train, and which systems no
other dominates. The vectors of the catalogue are always there; `field_dense` and saved models read the text themselves,
for others a new text is made a vector first, timed with the ranking."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm import tqdm

from study.advisor.encoders.sentence import encode
from study.advisor.saved import saved
from study.advisor.saved.grading import DEPTH, DistilledGrader, graded
from study.analysis.framework import Context, Tables, analysis
from study.analysis.report.runs import APART
from study.base.errors import UnavailableError
from study.base.files import read_csv
from study.config.changes import with_tuned_values
from study.config.compose import build_system, load, sound_systems
from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation.ranking import tie_order, top_k
from study.evaluation.runs import KEPT, rank_tasks
from study.judging.store import PROTOCOL, folder, load_split
from study.runner.processes import limit_threads
from study.runner.row_store import read_per_task, read_records
from study.t2mrec.lexical import fit_vectorizer

METRIC = "ndcg@10"
QUALITIES = {"by_labels": "fitting the released labels", "by_judgements": "being useful"}
# Processor time stands for latency: on one thread both agree where nothing else runs, and other programs slow only
# elapsed time.
COSTS = {"seconds_fit": "seconds to train", "cpu": "processor time per request (ms)"}
MEASURED = ["milliseconds", "p5", "p95", "cpu"]
Answer = Callable[[int], object]


@dataclass(frozen=True)
class Latency:
    """How many requests are timed, and who answers: systems, with how each reads a text before it ranks (``words``:
    TF-IDF, ``sentence``: a sentence vector, ``request``: it takes the text itself), models of `study export`, and those
    of them whose first servers are also ordered by the distilled model."""

    requests: int
    warm_up: int
    systems: dict[str, list[str]]
    saved: list[str]
    distilled: list[str]


def timed(answer: Answer, requests: Sequence[int], warm_up: int) -> dict[str, float]:
    """`MEASURED` of requests that are asked one after another, in milliseconds: median, 5th and 95th percentile of
    elapsed time, median of processor time. The first `warm_up` are asked once more before, untimed."""
    for request in requests[:warm_up]:
        answer(request)
    seconds = []
    for request in requests:
        started = time.perf_counter(), time.process_time()
        answer(request)
        seconds.append((time.perf_counter() - started[0], time.process_time() - started[1]))
    elapsed, processor = 1e3 * np.array(seconds).T
    return dict(zip(MEASURED, [*np.percentile(elapsed, [50, 5, 95]), np.median(processor)], strict=True))


def answering(
    system: Any, reading: Sequence[str], data: Dataset, split: Split, readers: Mapping[str, Answer]
) -> Answer:
    """What answers one request of a fitted system, from text to ten servers; `readers` make vectors of its text."""
    if list(reading) == ["request"]:
        order = tie_order(data.n_servers, 0)
        return lambda task: top_k(system.score_requests(data.tasks.iloc[[task]], store=False), KEPT, order)

    def answer(task: int) -> object:
        for kind in reading:
            readers[kind](task)
        return rank_tasks(system, split, np.array([task]), part="valid", k=KEPT, seed=0)

    return answer


def answering_saved(name: str, data: Dataset, *, again: bool = False) -> Answer:
    """What answers one request of a saved model, from text to ten servers; `again`: with the distilled model."""
    model, words = saved.load_saved_model(data.name, name), data.task_texts(("name", "description"))
    names = ["language", "category", "theme", "subcategory"]
    fields = [dict(zip(names, row, strict=True)) for row in data.tasks[names].astype(str).itertuples(index=False)]
    if again:
        grader = DistilledGrader.kept(data.name, model)
        return lambda task: graded(grader, words[task], model.recommend(words[task], **fields[task], k=DEPTH))[:KEPT]
    return lambda task: model.recommend(words[task], **fields[task], k=KEPT)


@analysis("usefulness", slow=True)
def latency(study: Context) -> Tables:
    """How long does each system take to answer one request?

    One after another, on one thread, so run it on a quiet machine; requests are tasks of the validation part. Columns
    system, reading, requests, those of `MEASURED`, seconds_fit (in this process, vectors of the catalogue from the
    cache; empty where a saved model answers).
    """
    settings, (data, split) = study.settings(Latency), load_split(study.dataset)
    limit_threads(1)
    encode([""], store=False)  # loads the encoder, and torch with it
    limit_threads(1)
    texts = data.task_texts()
    known = data.server_texts() + [texts[row] for row in split.tasks("train")]
    vectorizer = fit_vectorizer(known, max_features=50_000, ngram_range=(1, 2))
    readers: dict[str, Answer] = {
        "words": lambda task: vectorizer.transform([texts[task]]),
        "sentence": lambda task: encode([texts[task]], store=False),
    }
    rows: list[dict[str, Any]] = []
    requests = np.resize(split.tasks("valid"), settings.requests).tolist()

    def note(name: str, reading: str, answer: Answer, **rest: float) -> None:
        spent = timed(answer, requests, settings.warm_up)
        rows.append({"system": name, "reading": reading, "requests": len(requests), **spent, **rest})

    for name, reading in tqdm(settings.systems.items(), desc="latency", disable=None):
        system = build_system(with_tuned_values(load([f"dataset={data.name}", f"system={name}"])).system)
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            system.fit(data, split, seed=0, workdir=Path(folder))
            seconds = time.perf_counter() - started
        note(name, " ".join(reading), answering(system, reading, data, split, readers), seconds_fit=seconds)
    for name in settings.saved:
        note(name, "saved", answering_saved(name, data))
    for name in settings.distilled:
        note(name, "saved distilled", answering_saved(name, data, again=True))
    return {"latency": pd.DataFrame(rows)}


def non_dominated(quality: NDArray[np.float64], cost: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether no other system is at least as good and as cheap, and better in one of both, shape (n,).
    `quality` and `cost` have shape (n,); NaN in either leaves a system out."""
    known = ~(np.isnan(quality) | np.isnan(cost))
    better = (quality[None, :] >= quality[:, None]) & (cost[None, :] <= cost[:, None])
    strictly = (quality[None, :] > quality[:, None]) | (cost[None, :] < cost[:, None])
    return known & ~(better & strictly & known[None, :]).any(axis=1)


@analysis("usefulness")
def pareto(study: Context) -> Tables:
    """Which systems does no other one beat at the same cost?

    Every system with a record, or with judged answers and a latency; those that stand apart, as oracles, are left out.
    Columns system, title, family, by_labels (mean over seeds and test tasks), by_judgements (test topics), seconds_fit,
    parameters, those of `MEASURED` in ``latency.csv``, and ``front_<quality>_<cost>`` for each pair: whether the system
    is not dominated.
    """
    protocol, known = PROTOCOL, sound_systems()
    if not (file := study.folder / "latency.csv").exists():
        fix = f"run: study analyse usefulness/latency dataset={study.dataset}"
        raise UnavailableError("no request was timed", file=file, fix=fix)
    # A system that is timed itself and as a saved model stands for itself.
    times = read_csv(file).drop_duplicates("system").set_index("system")
    labels = {
        name: frame.groupby("seed")[METRIC].mean().mean()
        for name, frame in read_per_task(study.dataset, protocol, known).items()
    }
    scores = read_csv(folder(study.dataset) / "tables" / "scores.csv")
    judged = scores[(scores["part"] == "test") & (scores["metric"] == METRIC) & scores["comparable"]]
    table = pd.DataFrame({"by_labels": pd.Series(labels), "by_judgements": judged.set_index("system")["mean"]})
    seeds = {system: record["seeds"] for (_, system), record in read_records(study.dataset, protocol).items()}
    costs = {
        name: [np.mean([float(one["seconds_fit"]) for one in own]), own[0]["parameters"]] for name, own in seeds.items()
    }
    table = table.join(pd.DataFrame.from_dict(costs, orient="index", columns=["seconds_fit", "parameters"]))
    table = table.join(times[MEASURED])
    # A system that is judged but has no run of its own is trained for the latency alone.
    table["seconds_fit"] = table["seconds_fit"].fillna(times["seconds_fit"])
    kept = [name for name in table.index if name in known and known[name].family not in APART]
    table = table.loc[kept].dropna(subset=["seconds_fit"]).rename_axis("system").reset_index()
    for column, text in ((1, "title"), (2, "family")):
        table.insert(column, text, [str(getattr(known[name], text)) for name in table["system"]])
    for quality, cost in product(QUALITIES, COSTS):
        table[f"front_{quality}_{cost}"] = non_dominated(*table[[quality, cost]].to_numpy(np.float64).T)
    return {"pareto": table.sort_values("by_judgements", ascending=False, kind="stable")}
