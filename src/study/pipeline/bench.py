"""Stage `bench`: how fast training, evaluation and one recommendation are, and how far from the machine's limits.

Measures and reports; nothing here passes or fails.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig
from tqdm import tqdm

from study import paths
from study.analysis.tables import markdown
from study.config import build_system, plain
from study.evaluation.records import record
from study.evaluation.runs import CUTOFFS, rank_tasks
from study.files import write_csv, write_json
from study.pipeline.run import limit_threads, load_inputs
from study.recommend import Recommender
from study.t2mrec.system import T2MRec

REQUESTS = 500  # single recommendations timed, after a tenth as many to warm up


def best_of(action: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of the fastest of several calls: the machine at its best is the limit to compare with."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def machine_limits() -> dict[str, float]:
    """Measured limits of this machine with the threads in use: matrix product, and copying through memory.

    Returns: gflops (float32 multiply-adds count as two), gigabytes_per_second (bytes read plus bytes written).
    """
    import torch

    side = 2048
    a, b = torch.rand(side, side), torch.rand(side, side)
    source = torch.rand(64 * 2**20)  # 256 MiB, beyond what a core's share of the cache holds
    target = torch.empty_like(source)
    return {
        "gflops": 2 * side**3 / best_of(lambda: a @ b) / 1e9,
        "gigabytes_per_second": 2 * source.nbytes / best_of(lambda: target.copy_(source)) / 1e9,
    }


def training_work(system: T2MRec, data: Any, split: Any) -> dict[str, float]:
    """What 200 epochs cost at least, counted from the first epoch's batches.

    FLOPs: forward and backward of all layers (backward twice the forward), two per multiply-add, and 12 per weight and
    AdamW step. Bytes: weights and both moments of every used row of the wide layers read and written once per step,
    twice where it is caught up first, and the same for the narrow layers.
    """
    from study.t2mrec.module import PairEpoch
    from study.t2mrec.towers import used_terms

    towers, training = system.towers, system.training
    _, tasks, servers = _vectors(system, data, split)
    rows = split.tasks("train")
    epoch = PairEpoch(tasks, servers, split.train, rows, batch_size=training.batch_size, seed=0, epoch=0)
    widths = [towers.hidden] * (towers.layers - 1) + [towers.output]
    narrow = sum(a * b + b for a, b in pairwise(widths)) + towers.hidden
    flops = moved = 0.0
    for batch in epoch:
        for vectors in batch:
            used = len(used_terms(vectors)[0])
            products = vectors.nnz * towers.hidden + vectors.shape[0] * (narrow - towers.hidden)
            flops += 3 * 2 * products + 12 * (used * towers.hidden + narrow)
            moved += 4 * 6 * (2 * used * towers.hidden + narrow)
        flops += 3 * 2 * batch.tasks.shape[0] ** 2 * towers.output
    return {
        "steps": len(epoch) * training.epochs,
        "gflop": flops * training.epochs / 1e9,
        "gigabytes": moved * training.epochs / 1e9,
    }


def _vectors(system: T2MRec, data: Any, split: Any) -> Any:
    """The lexical vectors of the configured T2MRec."""
    from study.t2mrec import lexical

    return lexical.vectorize(
        data, split.tasks("train"), max_features=system.lexical.max_features, ngram_range=system.lexical.ngrams
    )


def request_times(recommender: Recommender, texts: list[str], language: list[str]) -> np.ndarray:
    """Milliseconds of single recommendations, one after another, from text to list."""
    milliseconds = []
    for number in range(-REQUESTS // 10, REQUESTS):
        task = number % len(texts)
        started = time.perf_counter()
        recommender.recommend(texts[task], language=language[task], k=5)
        if number >= 0:
            milliseconds.append(1e3 * (time.perf_counter() - started))
    return np.array(milliseconds)


def bench(config: DictConfig) -> str:
    """Measure on the configured data set (cold split, first seed) and write efficiency.csv and its record."""
    threads = config.profile.workers * config.profile.threads
    limit_threads(threads)
    dataset, seed = config.dataset.name, int(config.system.seeds[0])
    data, split = load_inputs(config)
    system = build_system(config.system)
    assert isinstance(system, T2MRec)
    workdir = paths.cache() / "bench" / dataset
    shutil.rmtree(workdir, ignore_errors=True)
    workdir.mkdir(parents=True)
    _warm_up(config, data, split, workdir)
    rows: list[dict[str, Any]] = []
    for step in tqdm(("limits", "training", "evaluation", "requests"), desc="bench", disable=not sys.stderr.isatty()):
        if step == "limits":
            limits = machine_limits()
        elif step == "training":
            work = training_work(system, data, split)
            seconds = best_of(lambda: system.fit(data, split, seed=seed, workdir=workdir), repeats=1)
            floor = max(work["gflop"] / limits["gflops"], work["gigabytes"] / limits["gigabytes_per_second"])
            rows += [
                row(
                    "training",
                    "seconds",
                    seconds,
                    f"{system.training.epochs} epochs, vectorising and checkpoints included",
                ),
                row("training", "steps", work["steps"], "optimisation steps"),
                row("training", "gflop", work["gflop"], "counted, see study.pipeline.bench.training_work"),
                row("training", "gigabytes_moved", work["gigabytes"], "counted: optimiser state and weights"),
                row("training", "seconds_at_limit", floor, "the larger of FLOPs and bytes at the measured limits"),
                row("training", "share_of_limit", floor / seconds, "1 = as fast as this machine could be"),
            ]
        elif step == "evaluation":
            rows += _evaluation(system, data, split, seed, limits)
        else:
            asked, texts = split.tasks("test"), data.task_texts(("name", "description"))
            languages = list(data.tasks["language"].iloc[asked])
            limit_threads(1)  # a request is too small to share between threads
            times = request_times(Recommender.of(system, seed=seed), [texts[task] for task in asked], languages)
            rows += [
                row(
                    "recommendation",
                    f"milliseconds_p{q}",
                    float(np.percentile(times, q)),
                    f"{len(times)} requests, one thread",
                )
                for q in (50, 95, 99)
            ]
    rows += [row("machine", name, value, "measured") for name, value in limits.items()]
    table = pd.DataFrame(rows).assign(threads=threads, profile=config.profile.name)
    write_csv(paths.tables(dataset) / "efficiency.csv", table)
    write_json(
        paths.results(dataset) / "records" / "efficiency.json", record(dataset=dataset, seed=seed, config=plain(config))
    )
    shutil.rmtree(workdir)
    return markdown(table.assign(value=table["value"].map("{:.4g}".format)))


def _warm_up(config: DictConfig, data: Any, split: Any, workdir: Path) -> None:
    """Compile the kernels and load the libraries, which happens once per machine and process, before timing."""
    short = config.copy()
    short.system.model.training.epochs = 1
    build_system(short.system).fit(data, split, seed=0, workdir=workdir)


def _evaluation(system: T2MRec, data: Any, split: Any, seed: int, limits: dict[str, float]) -> list[dict[str, Any]]:
    """Time ranking and measuring all test tasks, expansion included."""
    from study.evaluation.metrics import per_task

    asked, output = split.tasks("test"), system.towers.output

    def evaluate() -> None:
        ranked, _ = rank_tasks(system, split, asked, part="test", k=10, seed=seed, n_servers=data.n_servers)
        per_task(ranked, split.test[asked], ks=CUTOFFS)

    seconds = best_of(evaluate, repeats=3)
    gflop = 2 * 2 * len(asked) * data.n_servers * output / 1e9
    return [
        row("evaluation", "seconds", seconds, f"{len(asked)} test tasks: scores, expansion, metrics"),
        row("evaluation", "gflop", gflop, "the two products with the catalogue"),
        row("evaluation", "seconds_at_limit", gflop / limits["gflops"], "of the products; sorting is the rest"),
    ]


def row(part: str, measure: str, value: float, note: str) -> dict[str, Any]:
    """One line of efficiency.csv."""
    return {"part": part, "measure": measure, "value": value, "note": note}
