"""The authors' program as published: fetched, checked, run in a process of its own, its top tens read and measured.

``data/authors/<dataset>`` holds the files that it reads, and one folder per number of epochs in which it runs;
``results/<dataset>/authors`` a first run (``top10.csv``), what `study authors run` gives (``again``), and tables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from omegaconf import DictConfig

from study.base import files, paths
from study.base.errors import StudyError
from study.base.settings import read_keys
from study.config.compose import plain
from study.data import program_input, sources
from study.evaluation import metrics, per_task
from study.evaluation.records import record

Top10 = dict[int, list[int]]

KEPT = 10
SEED = 42  # written in the program
# What the program may see of this process' environment: where things are, no keys.
ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def input_folder(dataset: str) -> Path:
    """The files that the program reads, and its runs (never committed)."""
    return paths.root() / "data" / "authors" / dataset


def results_folder(dataset: str) -> Path:
    """The top tens of the program and what follows from them."""
    return paths.results(dataset) / "authors"


def prepare(config: DictConfig) -> pd.DataFrame:
    """Convert the released files of the configured data set for the program, and measure the top tens that there are.
    Returns: of each file, columns file, rows, altered."""
    name = config.dataset.name
    counts = program_input.convert(paths.raw(name), input_folder(name), labels=config.dataset.labels)
    write_tables(name)
    return counts


def run(config: DictConfig) -> Path:
    """Run the program on what `prepare` made, unless this very run is there, and compare with the first run.

    Returns: the folder with ``again/top10.csv``, ``again/record.json`` and the tables of `write_tables`.
    """
    name, threads, given = config.dataset.name, config.profile.threads, input_folder(config.dataset.name)
    settings = read_keys(paths.conf() / "authors.yaml", ("source", "arguments"))
    ((script, (address, checksum)), *_) = sources.pinned_files("authors", settings).items()
    program = sources.fetch("authors", settings, folder=given.with_name("program")) / script
    arguments = settings["arguments"]
    folder = given / f"epochs_{arguments['epochs']}"
    made_with = {
        "program": {"address": address, "sha256": checksum},
        "arguments": arguments,
        "threads": threads,
        "input": {path.name: files.sha256(path) for path in sorted(given.glob("*.csv"))},
    }
    output, done = folder / "output" / "recs_test.csv", folder / "done.json"
    run_record = json.loads(done.read_text(encoding="utf-8")) if done.exists() and output.exists() else {}
    if not made_with.items() <= run_record.items():
        done.unlink(missing_ok=True)
        run_record = record(**made_with, config=plain(config))
        words = [f"--{key}={value}" for key, value in arguments.items()]
        words += [f"--data_dir={given}", f"--output_dir={output.parent}"]
        run_record["seconds"] = round(_run_program(program, words, folder, threads), 1)
        files.write_json(done, run_record)
    target = results_folder(name)
    tasks = len(read_top10(output, *_ids(name)))
    files.write_text(target / "again" / "top10.csv", output.read_text(encoding="utf-8"))
    files.write_json(target / "again" / "record.json", run_record | {"tasks": tasks})
    write_tables(name)
    return target


def _run_program(program: Path, words: list[str], folder: Path, threads: int) -> float:
    """Run a Python program in a process and a folder of its own, where what it prints goes to ``run.log``; it sees no
    variable of the environment but those of `ENVIRONMENT`. Returns: seconds. Raises StudyError: it failed."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    environment |= dict.fromkeys(THREADS, str(threads)) | {"MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1"}
    log, started, command = folder / "run.log", time.perf_counter(), [sys.executable, str(program), *words]
    how: dict[str, Any] = {"cwd": folder, "env": environment, "stdin": subprocess.DEVNULL, "check": False}
    with log.open("w", encoding="utf-8") as stream:
        done = subprocess.run(command, stdout=stream, **how)  # noqa: S603 (no shell; `fetch` compared the checksum)
    if done.returncode:
        raise StudyError(f"the program ended with code {done.returncode}", file=log, fix="read what it printed")
    return time.perf_counter() - started


def read_top10(path: Path, tasks: Container[int], servers: Container[int]) -> Top10:
    """The program's ``recs_test.csv`` (task_id, top5, top10, the lists as JSON) as task id -> ten different server ids,
    best first, in file order. `tasks`, `servers`: the ids that there are.
    Raises StudyError: naming the file, the line and the column of the first fault."""
    top, fix = Top10(), "run the program again"
    table = files.read_csv(path, fix=fix, columns=["task_id", "top5", "top10"], dtype=str, keep_default_na=False)
    for line, row in enumerate(table.to_dict("records"), 2):
        where: dict[str, Any] = {"file": path, "row": f"line {line}", "fix": fix}
        try:
            task, five, ten = (json.loads(row[name]) for name in ("task_id", "top5", "top10"))
        except (ValueError, RecursionError) as error:
            raise StudyError(f"not JSON ({error})", **where) from error
        are_servers = isinstance(ten, list) and all(type(each) is int and each in servers for each in ten)
        for column, wrong in {
            "task_id": type(task) is not int or task not in tasks or task in top,
            "top10": not are_servers or not len(ten) == len(set(ten)) == KEPT,
            "top5": not are_servers or five != ten[:5],
        }.items():
            if wrong:
                raise StudyError("not one task, its ten servers and the first five of them", column=column, **where)
        top[task] = ten
    if not top:
        raise StudyError("the file has no rows", file=path, fix=fix)
    return top


def _ids(dataset: str) -> tuple[set[int], set[int]]:
    """The ids of tasks and of servers in the files that the program reads."""
    columns = ((program_input.TASKS, "task_id"), (program_input.SERVERS, "num"))
    tasks, servers = (set(pd.read_csv(input_folder(dataset) / name)[column].tolist()) for name, column in columns)
    return tasks, servers


def measure(top: Top10, relevant: Mapping[int, set[int]]) -> pd.DataFrame:
    """The eight measures of the paper's Table 3, a per-task table (`study.evaluation.per_task`), shape (len(top), 10).

    `relevant`: task id -> listed ids. Every one counts, as in the program: also one that no server has.
    """
    pairs = [(row, server) for row, task in enumerate(top) for server in sorted(relevant[task])]
    ids = np.unique([*np.ravel(list(top.values())), *(server for _, server in pairs)])
    rows, servers = np.array(pairs, dtype=np.int64).T
    labels = sp.csr_matrix(
        (np.ones(len(rows), np.float32), (rows, np.searchsorted(ids, servers))), (len(top), len(ids))
    )
    values = metrics.per_task(np.searchsorted(ids, np.array(list(top.values()))), labels, ks=(5, KEPT))
    return per_task.table(top, SEED, values[list(metrics.PAPER_METRICS)])


def write_tables(dataset: str) -> None:
    """Measure the top tens that there are, ``top10.csv`` and ``again/top10.csv``: ``metrics.csv`` (run, metric, k,
    value, n), ``per_task.csv.xz`` (of the first run) and, with both runs, ``agreement.csv``."""
    folder = results_folder(dataset)
    places = {"first": folder / "top10.csv", "again": folder / "again" / "top10.csv"}
    runs = {name: read_top10(path, *_ids(dataset)) for name, path in places.items() if path.exists()}
    relevant = program_input.read_wide(input_folder(dataset) / program_input.LABELS)
    tables = {name: measure(top, relevant) for name, top in runs.items()}
    rows = [
        (name, metric, int(k), table[f"{metric}@{k}"].mean(), len(table))
        for name, table in tables.items()
        for metric, _, k in (column.partition("@") for column in metrics.PAPER_METRICS)
    ]
    if rows:
        files.write_csv(folder / "metrics.csv", pd.DataFrame(rows, columns=["run", "metric", "k", "value", "n"]))
    if "first" in tables:
        files.write_csv(folder / "per_task.csv.xz", tables["first"])
    if len(runs) == len(places):
        first, again = runs.values()
        if first.keys() != again.keys():
            raise StudyError("the two runs answer different tasks", fix="run both on the same data set")
        same = {"same_order": sum(first[task] == again[task] for task in first)}
        same |= {"same_set": sum({*first[task]} == {*again[task]} for task in first)}
        files.write_csv(folder / "agreement.csv", pd.DataFrame([{"tasks": len(first)} | same]))
