"""Stage `run`: one system under one protocol, all seeds, in a process pool; resumable seed by seed."""

from __future__ import annotations

import json
import logging
import multiprocessing
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from study.base import paths
from study.base.errors import StudyError, explained
from study.base.files import write_json, write_parquet
from study.base.registry import system_file
from study.config.changes import with_tuned_values
from study.config.compose import build_system, plain, recorded
from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation.records import accelerator, record
from study.evaluation.runs import KEPT, run_seed
from study.runner.identity import identity, row_key
from study.runner.inputs import load_inputs, require_applicable, require_places
from study.runner.loggers import logged, make_logger
from study.runner.own_system import require_sound
from study.runner.processes import limit_threads, start_worker
from study.runner.provenance import is_current, require_own_row, require_profile_of
from study.runner.row_store import HITS_ONLY, Row, find_record, lock_row, read_row, rows_folder, write_rows

LOG = logging.getLogger(__name__)


def run_one(settings: dict[str, Any], seed: int, folder: Path) -> None:
    """Run one seed in this process and leave its result in `folder`."""
    config = OmegaConf.create(settings)
    limit_threads(config.profile.threads)
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    workdir = folder / f"work-{seed}"
    workdir.mkdir(parents=True, exist_ok=True)
    with logged(settings, seed, folder.name) as log:
        done = run_seed(build_system(config.system), data, split, seed=seed, workdir=workdir, depth=config.run_depth)
        log(done)
    write_parquet(folder / f"per_task-{seed}.parquet", done.per_task)
    write_parquet(folder / f"top-{seed}.parquet", done.top)
    facts = done.facts | {"accelerator": accelerator()}  # of the process that trained
    write_json(folder / f"facts-{seed}.json", facts)  # last: its presence says that the seed is complete
    shutil.rmtree(workdir)
    said = f"fitted in {facts['seconds_fit']:.1f} s, ranked in {facts['seconds_score']:.1f} s"
    LOG.info("%s %s seed %d: %s", config.system.name, config.protocol.name, seed, said)


def run_row(config: DictConfig, *, replace: bool = False) -> Row:
    """Run the configured system under the configured protocol with every seed, and write its row.

    Seeds already finished by a stopped run with the same configuration, code and data are kept. A row that another
    process makes is waited for, and not made again. `replace`: also results that were made under another profile.
    Raises StudyError: as `ready`, or a seed failed.
    """
    cell = config.dataset.name, config.protocol.name, config.system.name
    config, data, split = ready(config, replace=replace)
    with lock_row(*cell) as waited:
        found = find_record(*cell) if waited else None
        if found is not None and is_current(found, config):
            return read_row(*cell)
        return _make(config, data, split)


def _make(config: DictConfig, data: Dataset, split: Split) -> Row:
    """Compute the seeds that are missing, write the row and remove the seeds' files."""
    dataset, protocol, system = config.dataset.name, config.protocol.name, config.system.name
    seeds, made_of = list(config.system.seeds), identity(config)
    folder, missing = pending(config)
    if len(missing) < len(seeds):
        LOG.info("%s: %d of %d seeds were finished before", system, len(seeds) - len(missing), len(seeds))
    folder.mkdir(parents=True, exist_ok=True)
    _run_missing(config, missing, folder)
    facts = [json.loads((folder / f"facts-{seed}.json").read_text(encoding="utf-8")) for seed in seeds]
    values, top = (
        pd.concat([pd.read_parquet(folder / f"{kind}-{seed}.parquet") for seed in seeds], ignore_index=True)
        for kind in ("per_task", "top")
    )
    if all(fact["tie_rate"] == 1 for fact in facts):
        LOG.warning("%s %s: equal scores decide every top ten; did its training diverge?", system, protocol)
    best = top[top["rank"] <= KEPT].drop(columns="score")
    if config.run_depth > KEPT:
        write_parquet(paths.results(dataset) / "runs" / protocol / f"{system}.parquet", top)
    cards = [fact.pop("accelerator", None) for fact in facts]
    about = {"dataset": dataset, "protocol": protocol, "system": system, "profile": config.profile.name}
    made = record(**about, **made_of, config=recorded(config), seeds=facts)
    made["hardware"]["accelerator"] = next((name for name in cards if name is not None), None)
    row = Row(values, relevant(best, data, split) if protocol in HITS_ONLY else best, made)
    write_rows(dataset, {(protocol, system): row})
    folder.rename(Path(tempfile.mkdtemp(prefix=".finished.", dir=folder.parent)) / folder.name)
    for finished in folder.parent.glob(".finished.*"):  # one that stops halfway leaves no seed that looks finished
        shutil.rmtree(finished)
    return row


def relevant(top: pd.DataFrame, data: Dataset, split: Split) -> pd.DataFrame:
    """The rows of a run whose server is relevant to its task in the test part. `top`: columns task_id, seed, rank,
    server_id."""
    rows, columns = split.test.nonzero()
    known = pd.MultiIndex.from_arrays([data.tasks["id"].to_numpy()[rows], data.servers["id"].to_numpy()[columns]])
    return top[pd.MultiIndex.from_frame(top[["task_id", "server_id"]]).isin(known)]


def ready(config: DictConfig, *, replace: bool) -> tuple[DictConfig, Dataset, Split]:
    """The configuration of a row with its tuned values, and what the row is made from.

    Raises StudyError, before anything is computed: the protocol does not apply to the system, its settings are not
        those that its name stands for, results of another profile are there, more places are asked for than there are
        servers, an input is missing or damaged, or a system of one's own breaks a rule.
    """
    cell = config.dataset.name, config.protocol.name, config.system.name
    make_logger(plain(config), "check")
    require_applicable(config)
    require_own_row(config)
    require_sound(config.system.name)
    if not replace and (earlier := find_record(*cell)) is not None:
        require_profile_of(earlier, config, rows_folder(config.dataset.name))
    config = with_tuned_values(config)
    data, split = load_inputs(*cell[:2])  # fails here, once, and not in every worker
    build_system(config.system)
    require_places(config, data, split)
    return config, data, split


def pending(config: DictConfig) -> tuple[Path, list[int]]:
    """Where a row (`ready`) keeps its finished seeds, and the seeds that are not finished."""
    kept = paths.cache() / "runs" / config.dataset.name / config.protocol.name / config.system.name
    folder = kept / row_key(config)
    return folder, [seed for seed in config.system.seeds if not (folder / f"facts-{seed}.json").exists()]


def _run_missing(config: DictConfig, seeds: list[int], folder: Path) -> None:
    """Run `seeds`: those of a system that trains side by side, those of any other one after another in this process."""
    settings, failed = plain(config), dict[int, BaseException]()
    name, workers = config.system.name, min(config.profile.workers, len(seeds)) if config.system.trains else 1
    if workers <= 1:
        how: dict[str, Any] = {"unit": "seed", "leave": False, "disable": not sys.stderr.isatty()}
        for seed in tqdm(seeds, desc=f"{name} {config.protocol.name}", **how):
            try:
                run_one(settings, seed, folder)
            except Exception as problem:  # the other seeds still count
                failed[seed] = explained(problem) or problem
    else:
        # A fresh interpreter per worker: forking a process that has started threads can hang.
        limit_threads(config.profile.threads)
        spawn, level = multiprocessing.get_context("spawn"), logging.getLogger("study").level
        with ProcessPoolExecutor(workers, mp_context=spawn, initializer=start_worker, initargs=(level,)) as pool:
            jobs = {pool.submit(run_one, settings, seed, folder): seed for seed in seeds}
            for job in as_completed(jobs):
                if cause := job.exception():
                    failed[jobs[job]] = explained(cause) or cause
    for seed, error in failed.items():
        # A StudyError says all that a user needs; a traceback above it would hide it.
        LOG.error("%s seed %d failed", name, seed, exc_info=None if isinstance(error, StudyError) else error)
    for seed, error in failed.items():
        if isinstance(error, StudyError):
            error.file = error.file or system_file(name)
            raise error
        reason = f"{name} under {config.protocol.name}: seed {seed} failed: {type(error).__name__}: {error}"
        fix = "see the traceback above; finished seeds are kept, the same command goes on from there"
        raise StudyError(reason, fix=fix) from error
