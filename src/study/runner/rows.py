"""Stage `run`: one system under one protocol, all seeds, in a process pool; resumable seed by seed."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from omegaconf import DictConfig, OmegaConf
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from study import paths
from study.config.compose import build_system, plain
from study.data import dataset as datasets
from study.data import split_files
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation.records import record
from study.evaluation.runs import KEPT, run_seed
from study.files import sha256, write_csv, write_json, write_parquet
from study.runner.provenance import require_own_row, require_same_profile

LOG = logging.getLogger(__name__)
# Of the top tens of runs under these protocols only the relevant servers are kept, with their places, a tenth of the
# size. Every metric of relevance follows from them. The judged collection and the audit read those of `cold`.
HITS_ALONE = ("cold_grouped", "warm", "loo", "loo99")
POOL = "system.model.scoring.pool"  # K2 of T2MRec and its variants


@dataclass(frozen=True)
class Outputs:
    """The committed files of one system under one protocol."""

    per_task: Path
    top10: Path
    record: Path

    @classmethod
    def of(cls, dataset: str, protocol: str, system: str) -> Outputs:
        """The files of (dataset, protocol, system)."""
        base = paths.results(dataset)
        return cls(
            base / "per_task" / protocol / f"{system}.csv.xz",
            base / "top10" / protocol / f"{system}.parquet",
            base / "records" / protocol / f"{system}.json",
        )


def with_tuned_values(config: DictConfig) -> DictConfig:
    """The configuration with the values that `study tune` chose, for systems that say so."""
    if config.system.tuned is None:
        return config
    best = paths.results(config.dataset.name) / "sweeps" / config.system.name / "best.yaml"
    if not best.exists():
        raise StudyError(
            f"{config.system.name} runs with tuned values, and there are none yet",
            file=best,
            fix=f"run: study tune system={config.system.name} dataset={config.dataset.name}, "
            "or add system.tuned=null to a variant that is not tuned",
        )
    chosen, values = config.copy(), _tuned_values(best)
    for name, value in values.items():
        if OmegaConf.select(chosen, f"system.model.{name}", default=_ABSENT) is _ABSENT:
            raise StudyError(
                f"a tuned value for {name!r}, which is no setting of {config.system.name}",
                file=best,
                column=f"values.{name}",
                fix=f"run: study tune system={config.system.name}",
            )
        OmegaConf.update(chosen, f"system.model.{name}", value)
    return chosen


_ABSENT = object()


def _tuned_values(best: Path) -> dict[str, Any]:
    """The chosen values in a best.yaml, by their keys below ``system.model``."""
    fix = "remove the file and run study tune again, or take it from git"
    try:
        content = yaml.safe_load(best.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StudyError(f"not a readable yaml file: {error}", file=best, fix=fix) from error
    values = content.get("values") if isinstance(content, dict) else None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise StudyError("there are no tuned values in the file", file=best, column="values", fix=fix)
    return values


def load_inputs(config: DictConfig) -> tuple[datasets.Dataset, Split]:
    """The prepared data set and the split of the configured protocol."""
    data = datasets.load(config.dataset.name)
    path = paths.splits(config.dataset.name) / f"{config.protocol.name}.parquet"
    if not path.exists():
        raise StudyError("the split is missing", file=path, fix=f"run: study split dataset={config.dataset.name}")
    return data, split_files.load(path, data)


def require_places(config: DictConfig, data: datasets.Dataset, split: Split) -> None:
    """Raise unless there are as many servers to rank as the run is to keep, and as T2MRec's pool is to hold (K2).

    The message stands here and not in a seed, since every worker would repeat it.
    """
    ranked = data.n_servers if split.candidates is None else split.candidates.shape[1]
    # A catalogue that is too small for the metrics themselves is refused by the evaluation.
    if config.keep > max(ranked, KEPT):
        raise StudyError(
            f"{config.keep} places of the run are to be kept, and only {ranked} servers of {config.dataset.name} are "
            f"ranked under {config.protocol.name}",
            file=paths.conf() / "config.yaml",
            column="keep",
            fix=f"keep={ranked} or less",
        )
    pool = OmegaConf.select(config, POOL)
    if pool is not None and pool > data.n_servers:
        raise StudyError(
            f"the pool K2 = {pool} is larger than the catalogue of {data.n_servers} servers",
            file=paths.conf() / "system" / f"{config.system.name}.yaml",
            column=POOL,
            fix=f"{POOL}={data.n_servers} or less",
        )


def limit_threads(threads: int) -> None:
    """Let the numerical libraries use `threads` threads, those already loaded and those loaded later."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = str(threads)
    threadpool_limits(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def end_with_parent() -> None:
    """Let this worker end within a second of its parent's death; an orphan would write beside the run that goes on."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def start_worker(level: int) -> None:
    """Let a worker speak as its parent does (`level` of the study's messages), and end with it."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for name in ("study", "baselines"):
        logging.getLogger(name).setLevel(level)
    end_with_parent()


def _run_one(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """Run one seed in this process and leave its result in `folder`; returns its facts."""
    config = OmegaConf.create(settings)
    limit_threads(config.profile.threads)
    data, split = load_inputs(config)
    workdir = folder / f"work-{seed}"
    workdir.mkdir(parents=True, exist_ok=True)
    done = run_seed(build_system(config.system), data, split, seed=seed, workdir=workdir, keep=config.keep)
    write_parquet(folder / f"per_task-{seed}.parquet", done.per_task)
    write_parquet(folder / f"top-{seed}.parquet", done.top)
    write_json(folder / f"facts-{seed}.json", done.facts)  # last: its presence says that the seed is complete
    shutil.rmtree(workdir)
    return done.facts


def code_of(system: DictConfig) -> list[str]:
    """The files and folders whose change makes a system's runs out of date: its key `code`, one or a list."""
    code = system.code
    return [code] if isinstance(code, str) else list(code)


def python_files(place: Path) -> list[Path]:
    """The Python files of a folder and all below it, in order, or the file itself."""
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def fingerprint(config: DictConfig) -> str:
    """A short hash of all that decides a run's numbers: the model and its settings, how many places are kept, threads,
    the system's own code, the prepared data, the split.

    Left out: names, titles and notes, workers and the budget of tuning, which change no number; and the list of seeds,
    so that adding one keeps the others.

    Raises:
        StudyError: the system's code, the prepared data or the split is not there.
    """
    dataset, protocol = config.dataset.name, config.protocol.name
    settings = {
        "dataset": dataset,
        "protocol": protocol,
        "profile": config.profile.name,
        "threads": config.profile.threads,
        "keep": config.keep,
        "model": plain(config.system)["model"],
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    decides = [
        *(file for place in code_of(config.system) for file in python_files(paths.root() / place)),
        *(paths.prepared(dataset) / f"{part}.parquet" for part in datasets.PREPARED),
        paths.splits(dataset) / f"{protocol}.parquet",
    ]
    for path in decides:
        if not path.exists():
            raise StudyError("a file that decides the run is missing", file=path, fix=f"make repro DATASET={dataset}")
        digest.update(sha256(path).encode())
    return digest.hexdigest()[:16]


def run(config: DictConfig, *, replace: bool = False) -> Outputs:
    """Run the configured system under the configured protocol with every seed, and write its committed files.

    Seeds already finished by a stopped run with the same configuration, code and data are kept.

    Args:
        replace: also replace results that were made under another profile.

    Raises:
        StudyError: the protocol does not apply to the system, its settings are not those that its name stands for,
            results of another profile are there, more places are asked for than there are servers, an input is missing
            or damaged, or a seed failed.
    """
    dataset, protocol, system = config.dataset.name, config.protocol.name, config.system.name
    if protocol not in config.system.protocols:
        raise StudyError(
            f"{system} is not applicable under {protocol!r}",
            fix=f"its protocols are: {', '.join(config.system.protocols)} (conf/system/{system}.yaml)",
        )
    require_own_row(config)
    outputs = Outputs.of(dataset, protocol, system)
    if not replace:
        require_same_profile(outputs.record, config)
    config = with_tuned_values(config)
    data, split = load_inputs(config)  # fails here, once, and not in every worker
    build_system(config.system)
    require_places(config, data, split)
    seeds = list(config.system.seeds)
    folder = paths.cache() / "runs" / dataset / protocol / system / fingerprint(config)
    missing = [seed for seed in seeds if not (folder / f"facts-{seed}.json").exists()]
    if len(missing) < len(seeds):
        LOG.info("%s: %d of %d seeds were finished before", system, len(seeds) - len(missing), len(seeds))
    _run_missing(config, missing, folder)
    facts = [json.loads((folder / f"facts-{seed}.json").read_text()) for seed in seeds]
    write_csv(outputs.per_task, pd.concat([pd.read_parquet(folder / f"per_task-{seed}.parquet") for seed in seeds]))
    top = pd.concat([pd.read_parquet(folder / f"top-{seed}.parquet") for seed in seeds], ignore_index=True)
    best = compact(top[top["rank"] <= KEPT])
    kept = relevant(best, data, split) if protocol in HITS_ALONE else best
    write_parquet(outputs.top10, kept, packed=True)
    if config.keep > KEPT:
        write_parquet(paths.results(dataset) / "runs" / protocol / f"{system}.parquet", top)
    write_json(
        outputs.record,
        record(
            dataset=dataset,
            protocol=protocol,
            system=system,
            profile=config.profile.name,
            fingerprint=folder.name,
            config=plain(config),
            seeds=facts,
        ),
    )
    shutil.rmtree(folder)
    return outputs


def _run_missing(config: DictConfig, seeds: list[int], folder: Path) -> None:
    """Run `seeds`: those of a system that trains side by side, those of any other one after another in this process."""
    if not seeds:
        return
    folder.mkdir(parents=True, exist_ok=True)
    settings = plain(config)
    failed: dict[int, BaseException] = {}
    workers = min(config.profile.workers, len(seeds)) if config.system.trains else 1
    if workers == 1:
        for seed in tqdm(
            seeds,
            desc=f"{config.system.name} {config.protocol.name}",
            unit="seed",
            leave=False,
            disable=not sys.stderr.isatty(),
        ):
            try:
                _report(config, _run_one(settings, seed, folder))
            except Exception as problem:  # the other seeds still count
                failed[seed] = problem
    else:
        # A fresh interpreter per worker: forking a process that has started threads can hang.
        limit_threads(config.profile.threads)
        spawn = multiprocessing.get_context("spawn")
        level = logging.getLogger("study").level
        with ProcessPoolExecutor(workers, mp_context=spawn, initializer=start_worker, initargs=(level,)) as pool:
            jobs = {pool.submit(_run_one, settings, seed, folder): seed for seed in seeds}
            for job in as_completed(jobs):
                if reason := job.exception():
                    failed[jobs[job]] = reason
                else:
                    _report(config, job.result())
    for seed, error in failed.items():
        # A StudyError says all that a user needs; a traceback above it would hide it.
        known = isinstance(error, StudyError)
        LOG.error("%s seed %d failed", config.system.name, seed, exc_info=None if known else error)
    for seed, error in failed.items():
        if isinstance(error, StudyError):
            raise error
        raise StudyError(
            f"{config.system.name} under {config.protocol.name}: seed {seed} failed: {type(error).__name__}: {error}",
            fix="see the traceback above; finished seeds are kept, the same command goes on from there",
        ) from error


def _report(config: DictConfig, facts: dict[str, Any]) -> None:
    """Say that a seed is done."""
    LOG.info(
        "%s %s seed %d: fitted in %.1f s, ranked in %.1f s",
        config.system.name,
        config.protocol.name,
        facts["seed"],
        facts["seconds_fit"],
        facts["seconds_score"],
    )


def compact(top: pd.DataFrame) -> pd.DataFrame:
    """The run with the smallest types that hold it; the scores, which differ in every digit, are left out."""
    return top.drop(columns="score").astype({"task_id": "int32", "seed": "int16", "rank": "int8", "server_id": "int32"})


def relevant(top: pd.DataFrame, data: datasets.Dataset, split: Split) -> pd.DataFrame:
    """The rows of a run whose server is relevant to its task in the test part.

    Args:
        top: columns task_id, seed, rank, server_id.
    """
    rows, columns = split.test.nonzero()
    known = pd.MultiIndex.from_arrays([data.tasks["id"].to_numpy()[rows], data.servers["id"].to_numpy()[columns]])
    return top[pd.MultiIndex.from_frame(top[["task_id", "server_id"]]).isin(known)]
