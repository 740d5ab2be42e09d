"""Servers for very many requests: files of requests, each answered by one of several workers of Ray Data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from study.advisor.retrieval.ranking import chunks
from study.advisor.saved.ahead import limit_threads
from study.advisor.saved.contract import SavedModel
from study.advisor.saved.saved import load_saved_model
from study.advisor.saved.t2mrec import Recommender
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_parquet

TEXT, SERVERS = "text", "servers"
ATTRIBUTES = ("language", "category", "subcategory", "theme")  # columns that a file may have


class Worker:
    """Answers files with a saved model, which it loads once, on one thread. `root`: the project's folder."""

    def __init__(self, root: str, dataset: str, system: str, k: int) -> None:
        import os

        os.environ["T2M_ROOT"] = root
        limit_threads(1)
        self.model, self.k = load_saved_model(dataset, system), k

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Answer the file ``source`` into ``target``; returns its number of texts, and processor seconds."""
        began = time.process_time()
        path = Path(row["source"])
        try:
            requests = pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise StudyError(f"no parquet file ({error})", file=path, fix="write it again") from error
        if TEXT not in requests:
            raise StudyError("the column is missing", file=path, column=TEXT, fix="give a column named text")
        servers = [
            ids for part in chunks(requests.index.to_numpy()) for ids in best(self.model, requests.iloc[part], self.k)
        ]
        requests[SERVERS] = servers
        write_parquet(Path(row["target"]), requests)
        return {"texts": len(requests), "seconds": time.process_time() - began}


def answer_files(
    folder: Path, output: Path, *, dataset: str, system: str, k: int, workers: int, started: Callable[[int], Any]
) -> list[dict[str, Any]]:
    """Write for every parquet file of `folder` (column ``text``, and `ATTRIBUTES`) one of the same name into `output`
    with the column ``servers``: the ids of the `k` best, best first. Files that are there stay: a stopped call goes on.

    `workers`: processes of Ray, one processor each; one alone is this process. `started`: gives Ray for so many
    processors. Returns: texts and processor seconds of each file. Raises StudyError: no files, no model, or no Ray.
    """
    sources = sorted(folder.glob("*.parquet"))
    if not sources:
        raise StudyError("no parquet files", file=folder, fix="give a folder of files with a column text")
    load_saved_model(dataset, system)  # fails here, once, and not in every worker
    targets = [(path, output / path.name) for path in sources]
    waiting = [{"source": str(path), "target": str(target)} for path, target in targets if not target.exists()]
    words = (str(paths.root().resolve()), dataset, system, k)
    if workers == 1:
        worker = Worker(*words)
        return [worker(pair) for pair in waiting]
    if not waiting:
        return []
    ray = started(workers + 1)  # one for what moves the names of the files
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        try:
            files = ray.data.from_items(waiting, override_num_blocks=len(waiting))
        except TypeError as error:  # the older one that RecBole takes
            raise StudyError(f"Ray {ray.__version__} is too old: {error}", fix="make setup RAY=1") from error
        return list(files.map(Worker, fn_constructor_args=words, num_cpus=1, concurrency=workers).iter_rows())
    finally:
        ray.shutdown()


def best(model: SavedModel, requests: pd.DataFrame, k: int) -> Iterator[list[int]]:
    """The ids of the `k` best servers for each request, as `recommend` names them."""
    attributes = {
        name: requests[name].fillna("").tolist() if name in requests else [""] * len(requests) for name in ATTRIBUTES
    }
    texts = requests[TEXT].tolist()
    if isinstance(model, Recommender):
        yield from model.servers["id"].to_numpy()[model.ranked(texts, attributes, k).rows[:, :k]].tolist()
        return
    for row, text in enumerate(texts):
        recommendations = model.recommend(text, **{name: values[row] for name, values in attributes.items()}, k=k)
        yield [one.server_id for one in recommendations]
