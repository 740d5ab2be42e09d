"""Stage `notebooks`: execute with papermill, then strip whatever differs from one execution to the next."""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbformat import NotebookNode
from tqdm import tqdm

from study.base import paths
from study.base.errors import StudyError, require_one_of
from study.base.files import write_json, write_text
from study.base.registry import choices
from study.config.compose import load
from study.runner.processes import end_with_parent, limit_threads

TABLES, OF_RECORDS = (".csv", ".xz", ".parquet", ".yaml"), ("runs.csv", "machines.csv")
WORKERS = 2  # notebooks executed at the same time, each with one thread, so that results do not depend on the machine
# Optuna's import warns that there are no widgets, with a path of this machine; a bar of text serves as well. A kernel
# that is told to end before it is idle logs an interrupt as an error; a failing cell is told by papermill.
KERNEL = ["-W", "ignore:IProgress not found", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
KERNEL += ["--IPKernelApp.log_level=CRITICAL"]


def execute_all(dataset: str, only: Sequence[str] = (), *, changed: bool = False) -> list[Path]:
    """Execute the numbered notebooks of a data set, two at a time; returns the executed copies in order. The first is
    for generated data, the others are for published data.

    No notebook reads what another one writes. One that fails stops none of the others.

    `only`: names without ``.ipynb``; empty means all that are for the data set.
    `changed`: leave out those of which source, code, settings, tables and figures are as at their last execution.
    Raises StudyError: there is no notebook of that name, or a cell failed.
    """
    sources = {source.stem: source for source in sorted((paths.root() / "notebooks").glob("[0-9]*.ipynb"))}
    for name in only:
        require_one_of(name, "notebook", sources, file=paths.root() / "notebooks")
    folder, figures = paths.results(dataset) / "notebooks", paths.figures(dataset)
    note, read = folder / "executed.json", digest(inputs(dataset))
    digests = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    keys = {name: digest([source]) + read for name, source in sources.items()}
    names = only or (list(sources)[:1] if dataset in list_generated() else list(sources)[1:])
    targets = {name: folder / f"{name}.ipynb" for name in names}
    if changed and digests.get("figures") == digest(figures.rglob("*")):
        targets = {name: path for name, path in targets.items() if digests.get(name) != keys[name] or not path.exists()}
    spawn = multiprocessing.get_context("spawn")  # papermill sets its kernel by the environment, one per process
    bar = tqdm(total=len(targets), desc="notebooks", unit="notebook", disable=not sys.stderr.isatty())
    with bar, ProcessPoolExecutor(WORKERS, mp_context=spawn, initializer=start) as pool:
        jobs = {name: pool.submit(execute, sources[name], path, dataset=dataset) for name, path in targets.items()}
        for _ in as_completed(jobs.values()):
            bar.update()
    if jobs:
        digests = {name: key for name, key in digests.items() if name in keys.keys() - targets.keys()}
        digests |= {name: keys[name] for name, job in jobs.items() if job.exception() is None}
        write_json(note, dict(sorted(digests.items())) | {"figures": digest(figures.rglob("*"))})
    return [job.result() for job in jobs.values()]


def list_generated() -> set[str]:
    """The data sets that are made here."""
    return {name for name in choices("dataset") if load([f"dataset={name}"]).dataset.generator}


def inputs(dataset: str) -> list[Path]:
    """What notebooks depend on: the analyses' code, settings, the prepared data, tables of results. Records, and tables
    made of them, hold seconds and machines, and are left out."""
    root, skipped = paths.root(), list_generated() - {dataset}
    tables = [path for path in (root / "results").rglob("*.*") if path.name.endswith(TABLES)]
    tables = [path for path in tables if path.relative_to(root).parts[1] not in skipped and path.name not in OF_RECORDS]
    folders = root / "src/study/analysis", paths.conf(), paths.prepared(dataset), paths.splits(dataset)
    return sorted({*tables, *(path for folder in folders for path in folder.rglob("*.*") if path.suffix != ".pyc")})


def digest(files: Iterable[Path]) -> str:
    """A digest of the names and contents of files, of code without its comments, 16 digits."""
    hasher = hashlib.sha256()
    for path in sorted(path for path in files if path.is_file()):
        content = path.read_bytes()
        if path.suffix == ".py":
            content = ast.dump(ast.parse(content)).encode()
        for part in (str(path.relative_to(paths.root())).encode(), content):
            hasher.update(hashlib.sha256(part).digest())
    return hasher.hexdigest()[:16]


def start() -> None:
    """Prepare a worker: its kernels inherit the one thread, and it ends with its parent."""
    limit_threads(1)
    end_with_parent()


def execute(source: Path, target: Path, **parameters: str) -> Path:
    """Execute one notebook from its own folder with injected parameters and write the normalised result. Raises
    StudyError: a cell failed; the earlier result stays."""
    logging.getLogger("papermill").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        # The kernel is this very interpreter, whatever kernels the user has installed.
        kernel = {"argv": [sys.executable, *KERNEL], "display_name": "study", "language": "python"}
        write_json(Path(folder) / "kernels" / "study" / "kernel.json", kernel)
        os.environ["JUPYTER_PATH"] = folder
        done, quiet = Path(folder) / source.name, {"progress_bar": False, "log_output": False}
        try:
            papermill.execute_notebook(
                str(source), str(done), parameters, kernel_name="study", cwd=str(source.parent), **quiet
            )
        except papermill.PapermillExecutionError as error:
            raise StudyError(
                f"a cell failed: {error.ename}: {error.evalue}",
                file=source,
                row=f"cell {error.cell_index}",
                fix="open the notebook, run it to that cell; often a stage before it has not run",
            ) from error
        notebook = nbformat.read(done, as_version=4)  # type: ignore[no-untyped-call]
    text: str = nbformat.writes(normalise(notebook))  # type: ignore[no-untyped-call]
    write_text(target, text + "\n")
    return target


def normalise(notebook: NotebookNode) -> NotebookNode:
    """Remove timings, random identifiers and machine names, so that equal executions are equal bytes."""
    language = notebook.metadata.get("language_info", {}).get("name", "python")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = node(kernelspec=kernel, language_info={"name": language})
    for number, cell in enumerate(notebook.cells):
        cell.id = hashlib.sha256(f"{number}:{cell.source}".encode()).hexdigest()[:8]
        cell.metadata = node(**{key: tags for key, tags in cell.metadata.items() if key == "tags" and tags})
        for output in cell.get("outputs", []):
            output.metadata = node()
            data = output.get("data", {})
            if "text/html" in data:  # pandas styles carry a random name
                data["text/html"] = re.sub(r"T_[0-9a-f]{5}", "T_table", data["text/html"])
            if "text/plain" in data:
                data["text/plain"] = re.sub(r" at 0x[0-9a-f]+", "", data["text/plain"])
    return notebook


def node(**fields: Any) -> NotebookNode:
    """A notebook node with the given fields."""
    new_node: NotebookNode = nbformat.from_dict(fields)  # type: ignore[no-untyped-call]
    return new_node
