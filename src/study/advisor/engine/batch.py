"""Servers for very many requests: files of requests, each answered by one of several workers of Ray Data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from study import paths
from study.advisor.arrays import IntArray
from study.advisor.retrieval.fields import TASK_FIELDS, join_values
from study.advisor.retrieval.ranking import chunks
from study.advisor.saved.ahead import limit_threads
from study.advisor.saved.contract import SavedModel
from study.advisor.saved.saved import load_saved_model
from study.advisor.saved.t2mrec import Recommender
from study.data.dataset import read_parquet
from study.errors import StudyError
from study.files import write_parquet
from study.runner.cluster import started
from study.t2mrec.fusion import expand, fuse
from study.t2mrec.inference import embed
from study.t2mrec.structure import structural_score

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
        requests = read_parquet(Path(row["source"]), columns=(TEXT,), fix="give a column named text")
        servers = [
            found
            for part in chunks(requests.index.to_numpy())
            for found in best(self.model, requests.iloc[part], self.k)
        ]
        requests[SERVERS] = servers
        write_parquet(Path(row["target"]), requests)
        return {"texts": len(requests), "seconds": time.process_time() - began}


def answer_files(
    folder: Path, output: Path, *, dataset: str, system: str, k: int, workers: int
) -> list[dict[str, Any]]:
    """Write for every parquet file of `folder` (column ``text``, and `ATTRIBUTES`) one of the same name into `output`
    with the column ``servers``: the ids of the `k` best, best first. Files that are there stay: a stopped call goes on.

    `workers`: processes of Ray, one processor each, here or on the cluster that `RAY_ADDRESS` names; one alone is this
    process. Returns: texts and processor seconds of each file. Raises StudyError: no files, no model, or no Ray.
    """
    sources = sorted(folder.glob("*.parquet"))
    if not sources:
        raise StudyError("no parquet files", file=folder, fix="give a folder of files with a column text")
    load_saved_model(dataset, system)  # fails here, once, and not in every worker
    pairs = [{"source": str(path), "target": str(output / path.name)} for path in sources]
    waiting = [pair for pair in pairs if not Path(pair["target"]).exists()]
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
        answered = files.map(Worker, fn_constructor_args=words, num_cpus=1, concurrency=workers)
        return list(answered.iter_rows())
    finally:
        ray.shutdown()


def best(model: SavedModel, requests: pd.DataFrame, k: int) -> Iterator[list[int]]:
    """The ids of the `k` best servers for each request, as `recommend` names them."""
    asked = {
        name: requests[name].fillna("").tolist() if name in requests else [""] * len(requests) for name in ATTRIBUTES
    }
    texts = requests[TEXT].tolist()
    if isinstance(model, Recommender):
        ids = model.servers["id"].to_numpy()
        yield from ids[_rows(model, texts, asked, k)].tolist()
        return
    for place, text in enumerate(texts):
        found = model.recommend(text, **{name: values[place] for name, values in asked.items()}, k=k)
        yield [one.server_id for one in found]


def _rows(model: Recommender, texts: list[str], asked: dict[str, list[str]], k: int) -> IntArray:
    """T2MRec for many requests at a time, shape (len(texts), k)."""
    empty = [""] * len(texts)
    fields = {"name": texts, "description": empty, **asked}
    words = [join_values(values) for values in zip(*(fields[name] for name in TASK_FIELDS), strict=True)]
    embedding = embed(model.task_tower, model.vectorizer.transform(words))
    features = model.structure.between(*(asked[name] for name in ("category", "subcategory", "language", "theme")))
    structural = structural_score(features, model.scoring.structure_weights)
    fused = fuse(embedding @ model.server_embeddings.T, structural, weight=model.scoring.semantic_weight)
    anchors = model.scoring.anchors if model.scoring.expansion else k
    pool, servers = max(k, model.scoring.pool), model.server_embeddings
    return expand(fused, embedding, servers, anchors=anchors, pool=pool, order=model.order)[0][:, :k]
