"""Stage `run`: one system under one protocol, all seeds, in a process pool; resumable seed by seed."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
from concurrent.futures.process import BrokenProcessPool
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
from study.config.compose import build_system, format_for_record, plain
from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation.records import accelerator, record
from study.evaluation.runs import KEPT, run_seed
from study.runner.identity import identity, row_key
from study.runner.inputs import load_inputs, require_applicable
from study.runner.loggers import log_seed, make_logger
from study.runner.own_system import require_sound
from study.runner.processes import limit_threads, worker_pool
from study.runner.provenance import CURRENT, require_own_row, require_same_profile, state
from study.runner.row_store import HITS_ONLY, Row, find_record, lock_row, read_row, rows_folder, write_rows

GOES_ON = "finished seeds are kept, the same command goes on from there"
LOG = logging.getLogger(__name__)


def run_one(settings: dict[str, Any], seed: int, folder: Path) -> None:
    """Run one seed in this process and leave its result in `folder`. Raises StudyError: it failed."""
    config = OmegaConf.create(settings)
    name, protocol = config.system.name, config.protocol.name
    try:
        limit_threads(config.profile.threads)
        data, split = load_inputs(config.dataset.name, protocol)
        workdir = folder / f"work-{seed}"
        workdir.mkdir(parents=True, exist_ok=True)
        with log_seed(settings, seed, folder.name) as log:
            system = build_system(config.system)
            done = run_seed(system, data, split, seed=seed, workdir=workdir, depth=config.run_depth)
            log(done)
        write_parquet(folder / f"per_task-{seed}.parquet", done.per_task)
        write_parquet(folder / f"top-{seed}.parquet", done.top)
        facts = done.facts | {"accelerator": accelerator()}  # of the process that trained
        write_json(folder / f"facts-{seed}.json", facts)  # last: its presence says that the seed is complete
        shutil.rmtree(workdir)
    except Exception as error:
        if problem := explained(error):
            problem.file = problem.file or system_file(name)
            raise problem from error
        LOG.exception("%s seed %d failed", name, seed)
        reason = f"{name} under {protocol}: seed {seed} failed: {type(error).__name__}: {error}"
        raise StudyError(reason, fix=f"see the traceback above; {GOES_ON}") from error
    took = f"fitted in {facts['seconds_fit']:.1f} s, ranked in {facts['seconds_score']:.1f} s"
    LOG.info("%s %s seed %d: %s", name, protocol, seed, took)


def run_row(config: DictConfig, *, replace: bool = False) -> Row:
    """Run the configured system under the configured protocol with every seed, and write its row.

    Seeds already finished by a stopped run with the same configuration, code and data are kept. A row that another
    process makes is waited for, and not made again. `replace`: also results that were made under another profile.
    Raises StudyError: as `ready`, or a seed failed.
    """
    cell = config.dataset.name, config.protocol.name, config.system.name
    config, data, split = ready(config, replace=replace)
    with lock_row(*cell) as waited:
        earlier = find_record(*cell) if waited else None
        if earlier is not None and state(earlier, config)[0] == CURRENT:
            return read_row(*cell)
        return _make(config, data, split)


def _make(config: DictConfig, data: Dataset, split: Split) -> Row:
    """Compute the seeds that are missing, write the row and remove the seeds' files."""
    dataset, protocol, system = config.dataset.name, config.protocol.name, config.system.name
    seeds, made_of = list(config.system.seeds), identity(config)
    folder, missing = pending(config)
    if len(missing) < len(seeds):
        LOG.info("%s: %d of %d seeds were finished before", system, len(seeds) - len(missing), len(seeds))
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
    row_record = record(**about, **made_of, config=format_for_record(config), seeds=facts)
    row_record["hardware"]["accelerator"] = next((name for name in cards if name is not None), None)
    row = Row(values, relevant(best, data, split) if protocol in HITS_ONLY else best, row_record)
    write_rows(dataset, {(protocol, system): row})
    # One removal that stops halfway leaves no seed that looks finished.
    folder.rename(Path(tempfile.mkdtemp(prefix=".finished.", dir=folder.parent)) / folder.name)
    for finished in folder.parent.glob(".finished.*"):
        shutil.rmtree(finished)
    return row


def relevant(top: pd.DataFrame, data: Dataset, split: Split) -> pd.DataFrame:
    """The rows of a run whose server is relevant to its task in the test part. `top`: columns task_id, seed, rank,
    server_id."""
    rows, columns = split.test.nonzero()
    pairs = pd.MultiIndex.from_arrays([data.tasks["id"].to_numpy()[rows], data.servers["id"].to_numpy()[columns]])
    return top[pd.MultiIndex.from_frame(top[["task_id", "server_id"]]).isin(pairs)]


def ready(config: DictConfig, *, replace: bool) -> tuple[DictConfig, Dataset, Split]:
    """The configuration of a row with its tuned values, and what the row is made from.

    Raises StudyError, before anything is computed: the protocol does not apply to the system, its settings are not
        those that its name stands for, results of another profile are there, an input is missing or damaged, or a
        system of one's own breaks a rule.
    """
    dataset, protocol, system = config.dataset.name, config.protocol.name, config.system.name
    make_logger(plain(config), "check")
    require_applicable(config)
    require_own_row(config)
    data, split = load_inputs(dataset, protocol)  # fails here, once, and not in every worker
    require_sound(system)
    if not replace and (earlier := find_record(dataset, protocol, system)) is not None:
        require_same_profile(rows_folder(dataset), config, earlier)
    config = with_tuned_values(config)
    build_system(config.system)
    return config, data, split


def pending(config: DictConfig) -> tuple[Path, list[int]]:
    """Where a row (`ready`) keeps its finished seeds, and the seeds that are not finished."""
    parent = paths.cache() / "runs" / config.dataset.name / config.protocol.name / config.system.name
    folder = parent / row_key(config)
    folder.mkdir(parents=True, exist_ok=True)
    return folder, [seed for seed in config.system.seeds if not (folder / f"facts-{seed}.json").exists()]


def _run_missing(config: DictConfig, seeds: list[int], folder: Path) -> None:
    """Run `seeds`: those of a system that trains side by side, those of any other one after another in this process.
    Raises StudyError: one failed."""
    settings, name = plain(config), config.system.name
    workers = min(config.profile.workers, len(seeds)) if config.system.trains else 1
    if workers <= 1:
        title, hidden = f"{name} {config.protocol.name}", not sys.stderr.isatty()
        for seed in tqdm(seeds, desc=title, unit="seed", leave=False, disable=hidden):
            run_one(settings, seed, folder)
        return
    limit_threads(config.profile.threads)
    try:
        with worker_pool(workers) as pool:  # whose end waits for the seeds that still run
            for job in [pool.submit(run_one, settings, seed, folder) for seed in seeds]:
                job.result()
    except BrokenProcessPool as error:
        raise StudyError(f"a worker of {name} died (a kill, or too little memory)", fix=GOES_ON) from error
