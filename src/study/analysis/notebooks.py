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
from collections.abc import Collection, Iterable, Sequence
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

TABLES = (".csv", ".xz", ".parquet", ".yaml")
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
    found = {source.stem: source for source in sorted((paths.root() / "notebooks").glob("[0-9]*.ipynb"))}
    for name in only:
        require_one_of(name, "notebook", found, file=paths.root() / "notebooks")
    folder = paths.results(dataset) / "notebooks"
    note, inputs = folder / "executed.json", digest_inputs(dataset)
    known = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    keys = {name: digest([found[name].read_bytes(), inputs.encode()]) for name in found}
    names = list(found)
    mine = names[:1] if dataset in generated() else names[1:]
    targets = {name: folder / f"{name}.ipynb" for name in only or mine}
    if changed and known.get("figures") == digest_files([paths.figures(dataset)]):
        targets = {name: path for name, path in targets.items() if known.get(name) != keys[name] or not path.exists()}
    spawn = multiprocessing.get_context("spawn")  # papermill sets its kernel by the environment, one per process
    bar = tqdm(total=len(targets), desc="notebooks", unit="notebook", disable=not sys.stderr.isatty())
    with bar, ProcessPoolExecutor(WORKERS, mp_context=spawn, initializer=start) as pool:
        jobs = [pool.submit(execute, found[name], target, dataset=dataset) for name, target in targets.items()]
        for _ in as_completed(jobs):
            bar.update()
    if jobs:
        known = {name: key for name, key in known.items() if name in keys.keys() - targets.keys()}
        known |= {name: keys[name] for name, job in zip(targets, jobs, strict=True) if job.exception() is None}
        write_json(note, dict(sorted(known.items())) | {"figures": digest_files([paths.figures(dataset)])})
    return [job.result() for job in jobs]


def generated() -> set[str]:
    """The data sets that are made here."""
    return {name for name in choices("dataset") if load([f"dataset={name}"]).dataset.generator}


def digest(parts: Iterable[bytes]) -> str:
    """The SHA-256 of some bytes, 16 digits of it."""
    found = hashlib.sha256()
    for part in parts:
        found.update(hashlib.sha256(part).digest())
    return found.hexdigest()[:16]


def digest_files(places: Iterable[Path], *, ends: tuple[str, ...] = ("",), without: Collection[Path] = ()) -> str:
    """A digest of the names and contents of all files below some folders whose names end so."""
    files = sorted(
        path
        for place in places
        for path in {*place.rglob("*")} - {*without}
        if path.is_file() and path.name.endswith(ends)
    )
    return digest(part for path in files for part in (str(path.relative_to(paths.root())).encode(), path.read_bytes()))


def digest_inputs(dataset: str) -> str:
    """A digest of what notebooks depend on: the analyses' code without comments and docstrings, settings, the prepared
    data, tables of results. Records, and tables made of them, hold seconds and machines, and are left out."""
    code = (paths.root() / "src/study/analysis").rglob("*.py")
    results = [path for path in (paths.root() / "results").glob("*/*") if path.name != "notebooks"]
    of_records = {paths.tables(dataset) / "runs.csv", paths.tables(dataset) / "machines.csv"}
    read = [path for path in results if path.parent.name not in generated() - {dataset}]
    return digest(
        [
            *(without_comments(path.read_text(encoding="utf-8")) for path in sorted(code)),
            digest_files([paths.conf()]).encode(),
            digest_files([paths.prepared(dataset), paths.splits(dataset)]).encode(),
            digest_files(read, ends=TABLES, without=of_records).encode(),
        ]
    )


def without_comments(text: str) -> bytes:
    """What Python makes of a module, without docstrings and places."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree).encode()


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
    made: NotebookNode = nbformat.from_dict(fields)  # type: ignore[no-untyped-call]
    return made
