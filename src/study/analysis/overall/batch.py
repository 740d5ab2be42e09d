"""How many requests a second one and two workers answer: files of a million texts, by the saved system."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.advisor.engine.batch import answer_files
from study.analysis.framework import Context, Tables, analysis
from study.base import paths
from study.base.files import write_parquet
from study.evaluation.runs import KEPT
from study.runner.cluster import started

TEXTS, FILE = 1_000_000, 5_000  # of the requests, and of a file, which is what a worker takes
REPLACED = 0.3  # share of a text's words that are those of another text
WORKERS = (2, 1)  # one measurement each; the most first, so that a missing Ray shows at once


@analysis("cost", slow=True)
def batch(study: Context) -> Tables:
    """How many requests of a file are answered in a second, by one worker and by two (Ray)?

    Columns: system, workers, texts, seconds (by the clock, Ray's start included), processor_seconds (of the workers),
    texts_per_second (of one worker's processor), busy (the share of the workers' time that they had a processor).
    """
    name, folder, found = study.config.system.name, paths.cache() / "batch" / study.dataset, []
    draw_requests(study.data.task_texts(), folder / "requests")
    for workers in WORKERS:
        shutil.rmtree(folder / "answers", ignore_errors=True)
        (folder / "answers").mkdir()
        began = time.perf_counter()
        words: Any = {"dataset": study.dataset, "system": name, "k": KEPT, "workers": workers, "started": started}
        done = answer_files(folder / "requests", folder / "answers", **words)
        seconds, spent = time.perf_counter() - began, sum(each["seconds"] for each in done)
        texts = sum(each["texts"] for each in done)
        row = {"system": name, "workers": workers, "texts": texts, "seconds": seconds, "processor_seconds": spent}
        found.append(row | {"texts_per_second": texts / spent, "busy": spent / seconds / workers})
    shutil.rmtree(folder)
    return {"batch": pd.DataFrame(found)}


def draw_requests(texts: Sequence[str], folder: Path) -> None:
    """Write files of requests: words of a text in their order, some of them replaced by those of another text."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [np.array(text.split() or [""], dtype=object) for text in texts]
    for start in range(0, TEXTS, FILE):
        rng, drawn = np.random.default_rng([1, start]), []
        for own, other in rng.integers(len(words), size=(min(FILE, TEXTS - start), 2)):
            swapped = rng.random(len(words[own])) < REPLACED
            drawn.append(" ".join(np.where(swapped, rng.choice(words[other], len(words[own])), words[own])))
        write_parquet(folder / f"{start:09}.parquet", pd.DataFrame({"text": drawn}))
