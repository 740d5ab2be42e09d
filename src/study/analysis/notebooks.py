"""Stage `notebooks`: execute with papermill, then strip whatever differs from one execution to the next."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbformat import NotebookNode
from tqdm import tqdm

from study import paths
from study.errors import StudyError, require_one_of
from study.files import write_json, write_text
from study.runner.processes import end_with_parent, limit_threads

WORKERS = 2  # notebooks executed at the same time, each with one thread, so that results do not depend on the machine
# Optuna's import warns that there are no widgets, with a path of this machine; a bar of text serves as well. A kernel
# that is told to end before it is idle logs an interrupt as an error; a failing cell is told by papermill.
KERNEL = ["-W", "ignore:IProgress not found", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
KERNEL += ["--IPKernelApp.log_level=CRITICAL"]


def execute_all(dataset: str, only: Sequence[str] = ()) -> list[Path]:
    """Execute the numbered notebooks of a data set, two at a time; returns the executed copies in order.

    No notebook reads what another one writes. One that fails stops none of the others.

    `only`: names without ``.ipynb``; empty means all.
    Raises StudyError: there is no notebook of that name, or a cell failed.
    """
    found = {source.stem: source for source in sorted((paths.root() / "notebooks").glob("[0-9]*.ipynb"))}
    for name in only:
        require_one_of(name, "notebook", found, file=paths.root() / "notebooks")
    targets = {name: paths.results(dataset) / "notebooks" / f"{name}.ipynb" for name in only or found}
    spawn = multiprocessing.get_context("spawn")  # papermill sets its kernel by the environment, one per process
    bar = tqdm(total=len(targets), desc="notebooks", unit="notebook", disable=not sys.stderr.isatty())
    with bar, ProcessPoolExecutor(WORKERS, mp_context=spawn, initializer=start) as pool:
        jobs = [pool.submit(execute, found[name], target, dataset=dataset) for name, target in targets.items()]
        for _ in as_completed(jobs):
            bar.update()
    return [job.result() for job in jobs]


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
            if "text/html" in output.get("data", {}):  # pandas styles carry a random name
                output.data["text/html"] = re.sub(r"T_[0-9a-f]{5}", "T_table", output.data["text/html"])
    return notebook


def node(**fields: Any) -> NotebookNode:
    """A notebook node with the given fields."""
    made: NotebookNode = nbformat.from_dict(fields)  # type: ignore[no-untyped-call]
    return made
