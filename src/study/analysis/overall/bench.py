"""Stage `bench`: how fast training, evaluation and one recommendation are, and how far from the machine's limits.

Measures and reports; nothing here passes or fails.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from study import paths
from study.analysis.overall.compute_cost import Limits, Work, encoding_work, ranking_work, training_work
from study.analysis.overall.growth import Settings as Growth
from study.analysis.overall.growth import growth_rows
from study.analysis.report.runs import REFERENCE
from study.analysis.report.tables import markdown
from study.config.changes import with_values
from study.config.compose import build_system, plain, sound_systems
from study.config.reader import read_settings
from study.data.dataset import TASK_FIELDS, Dataset, join_values
from study.data.splits import Split
from study.encoders.nearest import Settings as Nearest
from study.encoders.nearest import faiss
from study.errors import StudyError
from study.evaluation.records import record
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.files import write_csv, write_json, write_parquet
from study.recommend.batch import answer_files
from study.recommend.t2mrec import Recommender
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads
from study.runner.provenance import require_own_row, require_same_profile
from study.t2mrec.system import T2MRec

if TYPE_CHECKING:
    import torch

COUNTED = ("study.t2mrec.system.T2MRec", "study.t2mrec.device.DeviceT2MRec")


@dataclass(frozen=True)
class Batch:
    """Of ``conf/bench.yaml``: requests in files, for `batch`."""

    texts: int
    file: int
    replaced: float
    workers: list[int]


@dataclass(frozen=True)
class Settings:
    """``conf/bench.yaml``, where every key is explained."""

    requests: int
    warm_up: int
    repeats: int
    matrix_side: int
    copied_mebibytes: int
    batch: Batch
    at_most: dict[str, dict[str, float]]

    @classmethod
    def read(cls) -> Settings:
        """Read the file."""
        return read_settings(cls, paths.conf() / "bench.yaml")


def best_of(action: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest of several calls: the machine at its best is the limit to compare with."""
    seconds = []
    for _ in range(repeats):
        started = clock()
        action()
        seconds.append(clock() - started)
    return min(seconds)


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Another process keeps a core busy within the block."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            yield
        finally:
            child.kill()


def machine_limits(
    settings: Settings, device: torch.device | str = "cpu", clock: Callable[[], float] = time.perf_counter
) -> Limits:
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
        return best_of(finished, settings.repeats, clock)

    return Limits(2 * side**3 / best(lambda: a @ b), 2 * source.nbytes / best(lambda: target.copy_(source)))


def can_be_benched(model: Mapping[str, Any]) -> bool:
    """Whether a system's work can be counted: T2MRec with towers over TF-IDF and no hard negatives. `model`: the
    section of that name of its yaml."""
    if model.get("_target_") not in COUNTED:
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
        known = [name for name, system in sound_systems().items() if can_be_benched(system.model)]
        raise StudyError(
            f"{name} cannot be benched: only the work of T2MRec with towers over TF-IDF is counted",
            fix=f"system= one of: {', '.join(known)}",
        )
    stem = "efficiency" if name == REFERENCE else f"efficiency_{name}"
    record_file = paths.results(dataset) / "records" / f"{stem}.json"
    require_own_row(config)
    require_same_profile(record_file, config)
    settings, seed = Settings.read(), int(config.system.seeds[0])
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    table = measure(config, settings, data, split, seed)
    write_csv(paths.tables(dataset) / f"{stem}.csv", table)
    write_json(record_file, record(dataset=dataset, seed=seed, profile=config.profile.name, config=plain(config)))
    shown = {name: table[name].map("{:.4g}".format).replace("nan", "") for name in ("value", "at_most")}
    return markdown(table.assign(**shown))


def growth(config: DictConfig) -> str:
    """Measure what an answer costs by the number of servers.

    growth.csv and its record are written anew after each size, since the largest may take hours.
    """
    dataset, settings, rows = config.dataset.name, Growth.read(), list[dict[str, Any]]()
    for found in growth_rows(dataset, settings):
        rows.append(found)
        write_csv(paths.tables(dataset) / "growth.csv", pd.DataFrame(rows))
        facts = {"settings": asdict(settings), "index": asdict(Nearest.read()), "faiss": faiss().__version__}
        write_json(paths.results(dataset) / "records" / "growth.json", record(dataset=dataset, **facts))
    return markdown(pd.DataFrame(rows).map(lambda cell: f"{cell:.4g}" if isinstance(cell, float) else cell))


def batch(config: DictConfig) -> str:
    """Answer many drawn requests with the saved system by one, two, ... workers (`study.recommend.batch`), and write
    batch.csv and its record.

    Columns: system, workers, texts, seconds (by the clock, Ray's start included), processor_seconds (of the workers),
    texts_per_second (of one worker's processor), busy (the share of the workers' time that they had a processor).
    """
    settings, name, dataset = Settings.read().batch, config.system.name, config.dataset.name
    folder, found = paths.cache() / "batch" / dataset, []
    draw_requests(load_inputs(dataset, config.protocol.name)[0].task_texts(), settings, folder / "requests")
    for workers in settings.workers:
        shutil.rmtree(folder / "answers", ignore_errors=True)
        (folder / "answers").mkdir()
        began = time.perf_counter()
        words = {"dataset": dataset, "system": name, "k": KEPT, "workers": workers}
        done = answer_files(folder / "requests", folder / "answers", **words)
        seconds, spent = time.perf_counter() - began, sum(each["seconds"] for each in done)
        texts = sum(each["texts"] for each in done)
        one = {"system": name, "workers": workers, "texts": texts, "seconds": seconds, "processor_seconds": spent}
        found.append(one | {"texts_per_second": texts / spent, "busy": spent / seconds / workers})
        write_csv(paths.tables(dataset) / "batch.csv", pd.DataFrame(found))
        facts = {"settings": asdict(settings), "profile": config.profile.name}
        write_json(paths.results(dataset) / "records" / "batch.json", record(dataset=dataset, **facts))
    shutil.rmtree(folder)
    return markdown(pd.DataFrame(found).round(2))


def draw_requests(texts: Sequence[str], settings: Batch, folder: Path) -> None:
    """Write files of requests: words of a text in their order, some of them replaced by those of another text."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [np.array(text.split() or [""], dtype=object) for text in texts]
    for start in range(0, settings.texts, settings.file):
        rng, drawn = np.random.default_rng([1, start]), []
        for own, other in rng.integers(len(words), size=(min(settings.file, settings.texts - start), 2)):
            swapped = rng.random(len(words[own])) < settings.replaced
            drawn.append(" ".join(np.where(swapped, rng.choice(words[other], len(words[own])), words[own])))
        write_parquet(folder / f"{start:09}.parquet", pd.DataFrame({"text": drawn}))


def measure(config: DictConfig, settings: Settings, data: Dataset, split: Split, seed: int) -> pd.DataFrame:
    """Train, evaluate and answer requests, each against the limits that were measured. Returns: columns part, measure,
    value, at_most (the upper limit, NaN where there is none), note, threads, profile."""
    threads = config.profile.threads  # as of a row: kernels of two threads wait for each other beside other work
    workdir = paths.cache() / "bench" / config.dataset.name / config.system.name
    shutil.rmtree(workdir, ignore_errors=True)
    workdir.mkdir(parents=True)
    limit_threads(threads)
    system = build_system(config.system)
    _warm_up(config, data, split, workdir / "warm_up")
    limits = machine_limits(settings)
    device = getattr(system, "device", None)  # of a system that trains on one
    fast = limits if device is None else machine_limits(settings, device)
    rows = [*_training(system, data, split, seed, workdir, fast), *_machine("machine", limits)]
    rows += [] if device is None else _machine(f"machine_{device.type}", fast)
    rows += _evaluation(system, data, split, seed, limits, settings)
    rows += _recommendation(Recommender.of(system, seed=seed), system, data, split, limits, settings)
    shutil.rmtree(workdir)
    table = pd.DataFrame(rows).assign(threads=threads, profile=config.profile.name)
    wanted = [
        settings.at_most.get(part, {}).get(name) for part, name in zip(table["part"], table["measure"], strict=True)
    ]
    table.insert(3, "at_most", pd.Series(wanted, dtype=float))
    return table


def _machine(part: str, limits: Limits) -> list[dict[str, Any]]:
    return [
        row(part, "gflops", limits.flops_per_second / 1e9, "measured: matrix product"),
        row(part, "gigabytes_per_second", limits.bytes_per_second / 1e9, "measured: copying"),
    ]


def _warm_up(config: DictConfig, data: Dataset, split: Split, workdir: Path) -> None:
    """Compile the kernels and load the libraries, which happens once per machine and process, before timing."""
    short = with_values(config, {"training.epochs": 1})
    build_system(short.system).fit(data, split, seed=0, workdir=workdir)


def _training(
    system: T2MRec, data: Dataset, split: Split, seed: int, workdir: Path, limits: Limits
) -> list[dict[str, Any]]:
    """Time one whole training; its work is counted from the batches of the first epoch."""
    from study.t2mrec import lexical
    from study.t2mrec.module import PairEpoch

    epochs, rows = system.training.epochs, split.tasks("train")
    _, tasks, servers = lexical.vectorize(
        data, rows, max_features=system.lexical.max_features, ngram_range=system.lexical.ngrams
    )
    epoch = PairEpoch(tasks, servers, split.train, rows, batch_size=system.training.batch_size, seed=seed, epoch=0)
    seconds = best_of(lambda: system.fit(data, split, seed=seed, workdir=workdir), repeats=1)
    dense = hasattr(system, "device")
    with busy_neighbour():
        busy = best_of(lambda: system.fit(data, split, seed=seed, workdir=workdir), repeats=1)
    return [
        row("training", "seconds", seconds, f"{epochs} epochs, vectorising and checkpoints included"),
        row("training", "seconds_busy", busy, "the same beside a process that never waits"),
        row("training", "busy_over_quiet", busy / seconds, "1 = other work costs nothing"),
        row("training", "steps", len(epoch) * epochs, "optimisation steps"),
        *against_limits("training", training_work(epoch, system.towers, dense=dense) * epochs, seconds, limits),
    ]


def _evaluation(
    system: T2MRec, data: Dataset, split: Split, seed: int, limits: Limits, settings: Settings
) -> list[dict[str, Any]]:
    """Time ranking and measuring all test tasks, expansion included."""
    from study.evaluation.metrics import per_task

    asked = split.tasks("test")

    def evaluate() -> None:
        ranked, _ = rank_tasks(system, split, asked, part="test", k=KEPT, seed=seed)
        per_task(ranked, split.test[asked], ks=CUTOFFS)

    seconds = best_of(evaluate, settings.repeats)
    work = ranking_work(len(asked), data.n_servers, system.towers.output)
    return [
        row("evaluation", "seconds", seconds, f"{len(asked)} test tasks: scores, expansion, metrics"),
        *against_limits("evaluation", work, seconds, limits),
    ]


def _recommendation(
    recommender: Recommender, system: T2MRec, data: Dataset, split: Split, limits: Limits, settings: Settings
) -> list[dict[str, Any]]:
    """Time single requests, the texts and languages of the test tasks, from text to list."""
    asked, words = split.tasks("test"), data.task_texts(("name", "description"))
    requests = [{"name": words[task], "language": data.tasks["language"].iloc[task]} for task in asked]
    milliseconds, terms = [], []
    for number in range(-settings.warm_up, settings.requests):
        request = requests[number % len(requests)]
        started = time.perf_counter()
        recommender.recommend(request["name"], language=request["language"])
        if number >= 0:
            milliseconds.append(1e3 * (time.perf_counter() - started))
            text = join_values(request.get(name, "") for name in TASK_FIELDS)
            terms.append(recommender.vectorizer.transform([text]).nnz)
    work = encoding_work(float(np.mean(terms)), 1, system.towers) + ranking_work(
        1, data.n_servers, system.towers.output
    )
    quantiles = {f"milliseconds_p{q}": float(np.percentile(milliseconds, q)) for q in (50, 95, 99)}
    return [
        *(row("recommendation", name, value, f"{len(milliseconds)} requests") for name, value in quantiles.items()),
        *against_limits("recommendation", work, quantiles["milliseconds_p50"] / 1e3, limits),
    ]


def against_limits(part: str, work: Work, seconds: float, limits: Limits) -> list[dict[str, Any]]:
    """The counted work of a part, its least time on this machine, and the share that the measured time reached."""
    least = work.seconds_at(limits)
    return [
        row(part, "gflop", work.flops / 1e9, "counted, see study.analysis.overall.compute_cost"),
        row(part, "gigabytes_moved", work.bytes / 1e9, "counted, see study.analysis.overall.compute_cost"),
        row(part, "seconds_at_limit", least, "the larger of FLOPs and bytes at the measured limits"),
        row(part, "share_of_limit", least / seconds, "1 = as fast as this machine could be"),
    ]


def row(part: str, measure: str, value: float, note: str) -> dict[str, Any]:
    """One line of efficiency.csv."""
    return {"part": part, "measure": measure, "value": value, "note": note}
