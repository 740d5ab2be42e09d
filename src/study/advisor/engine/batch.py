"""Servers for very many requests: files of requests, each answered by one of several workers of Ray Data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from study.advisor.retrieval.ranking import chunks
from study.advisor.saved.ahead import limit_threads
from study.advisor.saved.contract import ATTRIBUTES, SavedModel
from study.advisor.saved.saved import load_saved_model
from study.advisor.saved.t2mrec import Recommender
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_parquet


class Worker:
    """Answers files with a saved model, which it loads once, on one thread. `root`: the project's folder."""

    def __init__(self, root: str, dataset: str, system: str, k: int) -> None:
        os.environ["T2M_ROOT"] = root
        limit_threads(1)
        self.model, self.k = load_saved_model(dataset, system), k

    def __call__(self, row: dict[str, Any]) -> dict[str, int]:
        """Answer the file ``source`` into ``target``; returns its number of texts."""
        path = Path(row["source"])
        try:
            requests = pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise StudyError(f"no parquet file ({error})", file=path, fix="write it again") from error
        if "text" not in requests:
            raise StudyError("the column is missing", file=path, column="text", fix="give a column named text")
        if (missing := requests["text"].isna()).any():
            where = int(missing.to_numpy().argmax()) + 1
            raise StudyError("there is no text", file=path, row=where, column="text", fix="give every request words")
        parts = chunks(requests.index.to_numpy())
        requests["servers"] = [ids for part in parts for ids in best(self.model, requests.iloc[part], self.k)]
        write_parquet(Path(row["target"]), requests)
        return {"texts": len(requests)}


def answer_files(
    folder: Path, output: Path, *, dataset: str, system: str, k: int, workers: int, started: Callable[[int], Any]
) -> int:
    """Write for every parquet file of `folder` (column ``text``, and `ATTRIBUTES`) one of the same name into `output`
    with the column ``servers``: the ids of the `k` best, best first. Files that are there stay: a stopped call goes on.

    `workers`: processes of Ray, one processor each; one alone is this process. `started`: gives Ray for so many
    processors. Returns: how many requests were answered. Raises StudyError: no files, no model, or no Ray.
    """
    sources = sorted(folder.glob("*.parquet"))
    if not sources:
        raise StudyError("no parquet files", file=folder, fix="give a folder of files with a column text")
    words = (str(paths.root().resolve()), dataset, system, k)
    worker = Worker(*words)  # fails here, once, and not in every process
    targets = {path: output / path.name for path in sources}
    waiting = [{"source": str(path), "target": str(target)} for path, target in targets.items() if not target.exists()]
    if workers == 1 or not waiting:
        return sum(worker(pair)["texts"] for pair in waiting)
    ray = started(workers + 1)  # one for what moves the names of the files
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        try:
            files = ray.data.from_items(waiting, override_num_blocks=len(waiting))
        except TypeError as error:  # the older one that RecBole takes
            raise StudyError(f"Ray {ray.__version__} is too old: {error}", fix="make setup RAY=1") from error
        done = files.map(Worker, fn_constructor_args=words, num_cpus=1, concurrency=workers).iter_rows()
        return sum(each["texts"] for each in done)
    finally:
        ray.shutdown()


def best(model: SavedModel, requests: pd.DataFrame, k: int) -> Iterator[list[int]]:
    """The ids of the `k` best servers for each request, as `recommend` names them."""
    rows = requests.reindex(columns=["text", *ATTRIBUTES], fill_value="").fillna(dict.fromkeys(ATTRIBUTES, ""))
    if isinstance(model, Recommender):
        attributes = {name: rows[name].tolist() for name in ATTRIBUTES}
        ranked = model.ranked(rows["text"].tolist(), attributes, k).rows[:, :k]
        yield from model.servers["id"].to_numpy()[ranked].tolist()
    else:
        asked: list[Any] = rows.to_dict("records")
        for row in asked:
            yield [one.server_id for one in model.recommend(row.pop("text"), k=k, **row)]
