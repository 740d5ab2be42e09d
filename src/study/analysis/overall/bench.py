"""Stage `bench`: how fast training, evaluation and one recommendation are, and how far from the machine's limits.

Measures and reports; nothing here passes or fails.
"""

from __future__ import annotations

import cProfile
import shutil
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from study.advisor.saved.t2mrec import Recommender
from study.analysis.framework import load_settings
from study.analysis.overall.compute_cost import Limits, Work, encoding_work, ranking_work, training_work
from study.analysis.report.runs import REFERENCE
from study.analysis.report.tables import markdown
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_csv, write_json
from study.config.changes import with_values
from study.config.compose import build_system, plain, sound_systems
from study.data.dataset import TASK_FIELDS, Dataset, join_values
from study.data.splits import Split
from study.evaluation.records import record
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads
from study.runner.provenance import require_own_row, require_same_profile
from study.search.export import recommender
from study.t2mrec.system import T2MRec

if TYPE_CHECKING:
    import torch

Line = tuple[str, str, float, str]  # of efficiency.csv: part, measure, value, note


@dataclass(frozen=True)
class Bench:
    """``conf/overall/bench.yaml``, where every key is explained."""

    requests: int
    warm_up: int
    repeats: int
    profiled_epochs: int
    matrix_side: int
    copied_mebibytes: int
    at_most: dict[str, dict[str, float]]


def best_of(action: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest of several calls: the machine at its best is the limit to compare with."""
    return min(timeit.repeat(action, "gc.enable()", number=1, repeat=repeats))


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Another process keeps a core busy within the block."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            yield
        finally:
            child.kill()


def machine_limits(settings: Bench, device: torch.device | str = "cpu") -> Limits:
    """Measured limits of this machine with the threads in use, or of an accelerator: matrix product in float32, and
    copying through memory."""
    import torch

    side, device = settings.matrix_side, torch.device(device)
    a, b = torch.rand(side, side, device=device), torch.rand(side, side, device=device)
    source = torch.rand(settings.copied_mebibytes * 2**18, device=device)
    target = torch.empty_like(source)

    def best(action: Callable[[], Any]) -> float:
        def finished() -> None:
            action()
            if device.type == "cuda":
                torch.cuda.synchronize()

        finished()  # loads the kernels
        return best_of(finished, settings.repeats)

    return Limits(2 * side**3 / best(lambda: a @ b), 2 * source.nbytes / best(lambda: target.copy_(source)))


def can_be_benched(model: Mapping[str, Any]) -> bool:
    """Whether a system's work can be counted: T2MRec with towers over TF-IDF and no hard negatives. `model`: the
    section of that name of its yaml."""
    if model.get("_target_") != f"{T2MRec.__module__}.{T2MRec.__name__}" or model["training"]["loss"] == "program_bce":
        return False
    hard = model["training"]["hard_negatives"]
    return bool(model["lexical"]["kind"] == "tfidf" and model["towers"]["enabled"] and not hard)


def bench(config: DictConfig) -> str:
    """Measure on the configured data set (configured split, first seed) and write efficiency.csv and its record.

    Another system than `t2mrec` gets files of its own, ``efficiency_<system>``.

    Raises StudyError: a system whose work cannot be counted, or settings or a profile that would replace other results.
    """
    name, dataset = config.system.name, config.dataset.name
    if not can_be_benched(config.system.model):
        names = [name for name, settings in sound_systems().items() if can_be_benched(settings.model)]
        reason = f"{name} cannot be benched: only the work of T2MRec with towers over TF-IDF is counted"
        raise StudyError(reason, fix=f"system= one of: {', '.join(names)}")
    stem = "efficiency" if name == REFERENCE else f"efficiency_{name}"
    record_file = paths.results(dataset) / "records" / f"{stem}.json"
    require_own_row(config)
    require_same_profile(record_file, config)
    table = measure(config, load_settings(Bench))
    write_csv(paths.tables(dataset) / f"{stem}.csv", table)
    about = {"dataset": dataset, "seed": int(config.system.seeds[0]), "profile": config.profile.name}
    write_json(record_file, record(**about, config=plain(config)))
    texts = {name: table[name].map("{:.4g}".format).replace("nan", "") for name in ("value", "at_most")}
    return markdown(table.assign(**texts))


def measure(config: DictConfig, settings: Bench) -> pd.DataFrame:
    """Train, evaluate and answer requests, each against the limits that were measured. Returns: columns part, measure,
    value, at_most (the upper limit, NaN where there is none), note, threads, profile."""
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    seed, threads = int(config.system.seeds[0]), config.profile.threads
    workdir = paths.cache() / "bench" / config.dataset.name / config.system.name
    shutil.rmtree(workdir, ignore_errors=True)
    workdir.mkdir(parents=True)
    limit_threads(threads)  # as of a row: kernels of two threads wait for each other beside other work
    system = build_system(config.system)
    # Kernels are compiled and libraries loaded once per machine and process, before anything is timed.
    short = with_values(config, {"training.epochs": 1})
    build_system(short.system).fit(data, split, seed=0, workdir=workdir / "warm_up")
    limits = {"machine": machine_limits(settings)}
    if not system.row_wise:
        limits[f"machine_{system.device}"] = machine_limits(settings, system.device)
    rows = _training(system, data, split, seed, workdir, list(limits.values())[-1])
    if system.row_wise:  # a device works on while Python goes on
        few = with_values(config, {"training.epochs": min(settings.profiled_epochs, system.training.epochs)})
        rows += _step(build_system(few.system), data, split, seed, workdir / "profiled")
    for part, limit in limits.items():
        rows.append((part, "gflops", limit.flops_per_second / 1e9, "measured: matrix product"))
        rows.append((part, "gigabytes_per_second", limit.bytes_per_second / 1e9, "measured: copying"))
    rows += _evaluation(system, data, split, seed, limits["machine"], settings)
    rows += _recommendation(recommender(system, seed=seed), system, data, split, limits["machine"], settings)
    shutil.rmtree(workdir)
    table = pd.DataFrame(rows, columns=["part", "measure", "value", "note"])
    upper = [settings.at_most.get(part, {}).get(name) for part, name, *_ in rows]
    table.insert(3, "at_most", pd.Series(upper, dtype=float))
    return table.assign(threads=threads, profile=config.profile.name)


def _training(system: T2MRec, data: Dataset, split: Split, seed: int, workdir: Path, limits: Limits) -> list[Line]:
    """Time one whole training; its work is counted from the batches of the first epoch."""
    from study.t2mrec import lexical
    from study.t2mrec.pairs import draw_pairs

    epochs, rows = system.training.epochs, split.tasks("train")
    words: Any = {"max_features": system.lexical.max_features, "ngram_range": system.lexical.ngrams}
    _, tasks, servers = lexical.vectorize(data, rows, **words)
    pairs = draw_pairs(split.train, np.random.default_rng([seed, 0]))
    batches = [
        (tasks[task_rows], servers[server_rows])
        for task_rows, server_rows, _ in pairs.batches(system.training.batch_size)
    ]
    work = training_work(batches, system.towers, dense=not system.row_wise) * epochs
    seconds = best_of(lambda: system.fit(data, split, seed=seed, workdir=workdir), repeats=1)
    with busy_neighbour():
        busy = best_of(lambda: system.fit(data, split, seed=seed, workdir=workdir), repeats=1)
    return [
        ("training", "seconds", seconds, f"{epochs} epochs, vectorising and checkpoints included"),
        ("training", "seconds_busy", busy, "the same beside a process that never waits"),
        ("training", "busy_over_quiet", busy / seconds, "1 = other work costs nothing"),
        ("training", "steps", len(batches) * epochs, "optimisation steps"),
        *against_limits("training", work, seconds, limits),
    ]


def _step(system: T2MRec, data: Dataset, split: Split, seed: int, workdir: Path) -> list[Line]:
    """Where the time of a step goes, by the functions that do it with all that they call; milliseconds of a training
    that is profiled, its start and end included."""
    from pytorch_lightning.core.optimizer import LightningOptimizer

    from study.t2mrec.module import PairData, TwoTowers, train
    from study.t2mrec.row_adamw import RowAdamW

    parts: dict[str, tuple[Callable[..., Any], ...]] = {
        "batches": (PairData.train_dataloader, PairData.transfer_batch_to_device),
        "input layer, forward": (TwoTowers.project,),
        "hidden layers, forward": (TwoTowers.forward,),
        "loss, forward": (TwoTowers.loss,),
        "loss and hidden layers, backward": (TwoTowers.manual_backward,),
        "hidden layers, AdamW": (LightningOptimizer.step,),
        "input layer, backward and AdamW": (RowAdamW.step,),
        "all": (train,),
    }
    profiler = cProfile.Profile()
    workdir.mkdir()
    profiler.runcall(system.fit, data, split, seed=seed, workdir=workdir)
    seen: dict[Any, Any] = {entry.code: entry for entry in profiler.getstats()}
    steps = seen[RowAdamW.step.__code__].callcount // (1 if system.towers.shared else 2)
    called = {entry.code: entry.totaltime for entry in seen[RowAdamW.project.__code__].calls}
    caught_up = 1e3 * called[RowAdamW.catch_up.__code__] / steps
    spent = {
        part: 1e3 * sum(seen[function.__code__].totaltime for function in functions) / steps
        for part, functions in parts.items()
    }
    spent["input layer, forward"] -= caught_up
    spent = {"catching rows up": caught_up} | spent
    whole = spent.pop("all")
    spent |= {"the rest": whole - sum(spent.values()), "all": whole}
    return [("step", part, value, f"milliseconds, mean of {steps} profiled steps") for part, value in spent.items()]


def _evaluation(system: T2MRec, data: Dataset, split: Split, seed: int, limits: Limits, settings: Bench) -> list[Line]:
    """Time ranking and measuring all test tasks, expansion included."""
    from study.evaluation.metrics import per_task

    test_tasks = split.tasks("test")

    def evaluate() -> None:
        ranked, _ = rank_tasks(system, split, test_tasks, part="test", k=KEPT, seed=seed)
        per_task(ranked, split.test[test_tasks], ks=CUTOFFS)

    seconds = best_of(evaluate, settings.repeats)
    work = ranking_work(len(test_tasks), data.n_servers, system.towers.output)
    note = f"{len(test_tasks)} test tasks: scores, expansion, metrics"
    return [("evaluation", "seconds", seconds, note), *against_limits("evaluation", work, seconds, limits)]


def _recommendation(
    recommender: Recommender, system: T2MRec, data: Dataset, split: Split, limits: Limits, settings: Bench
) -> list[Line]:
    """Time single requests, the texts and languages of the test tasks, from text to list."""
    test_tasks, words = split.tasks("test"), data.task_texts(("name", "description"))
    requests = [(words[task], data.tasks["language"].iloc[task]) for task in test_tasks]
    milliseconds, terms = [], []
    for number in range(-settings.warm_up, settings.requests):
        name, language = requests[number % len(requests)]
        started = time.perf_counter()
        recommender.recommend(name, language=language)
        if number >= 0:
            milliseconds.append(1e3 * (time.perf_counter() - started))
            fields = {"name": name, "language": language}
            text = join_values(fields.get(field, "") for field in TASK_FIELDS)
            terms.append(len(recommender.vectorizer.transform([text]).data))
    work = encoding_work(float(np.mean(terms)), 1, system.towers)
    work += ranking_work(1, data.n_servers, system.towers.output)
    note, quantiles = f"{len(milliseconds)} requests", {q: float(np.percentile(milliseconds, q)) for q in (50, 95, 99)}
    return [
        *(("recommendation", f"milliseconds_p{q}", value, note) for q, value in quantiles.items()),
        *against_limits("recommendation", work, quantiles[50] / 1e3, limits),
    ]


def against_limits(part: str, work: Work, seconds: float, limits: Limits) -> list[Line]:
    """The counted work of a part, its least time on this machine, and the share that the measured time reached."""
    least, counted = work.seconds_at(limits), "counted, see study.analysis.overall.compute_cost"
    return [
        (part, "gflop", work.flops / 1e9, counted),
        (part, "gigabytes_moved", work.bytes / 1e9, counted),
        (part, "seconds_at_limit", least, "the larger of FLOPs and bytes at the measured limits"),
        (part, "share_of_limit", least / seconds, "1 = as fast as this machine could be"),
    ]
