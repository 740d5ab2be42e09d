"""The fusion weight without retraining: scores are computed once per seed and part, then fused with every weight."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation.metrics import PAPER_METRICS, per_task
from study.evaluation.ranking import chunks, mask_known
from study.evaluation.runs import CUTOFFS, KEPT
from study.t2mrec.fusion import expand, fuse
from study.t2mrec.system import T2MRec

PARAMETER = "scoring.semantic_weight"


def fusion_sweep(
    system: T2MRec,
    data: Dataset,
    split: Split,
    weights: list[float],
    parts: list[str],
    *,
    done: Callable[[int], object] = lambda tasks: None,
) -> tuple[list[dict[str, Any]], float]:
    """Measure a trained system with every fusion weight.

    Args:
        done: called with the number of tasks that were just ranked with every weight.

    Returns: one row per weight with `PARAMETER` and the measures of every part (``valid/ndcg@10``), and the seconds
        that scoring and ranking took in all.
    """
    started = time.perf_counter()
    rows: list[dict[str, Any]] = [{PARAMETER: weight} for weight in weights]
    scoring = system.scoring
    for part in parts:
        tasks, known = split.tasks(part), split.known(part)
        ranked = np.full((len(weights), len(tasks), KEPT), -1, dtype=np.int64)
        for piece in chunks(tasks):
            asked = tasks[piece]
            semantic, structural = system.semantic(asked), system.structural(asked)
            for number, weight in enumerate(weights):
                fused = mask_known(fuse(semantic, structural, weight=weight), asked, known)
                pool = max(KEPT, scoring.pool)
                found, _ = expand(
                    fused,
                    system.task_embeddings[asked],
                    system.server_embeddings,
                    anchors=scoring.anchors if scoring.expansion else pool,
                    pool=pool,
                    order=system.order,
                )
                ranked[number, piece] = found[:, :KEPT]
            done(len(asked))
        for number, row in enumerate(rows):
            means = per_task(ranked[number], split.part(part)[tasks], ks=CUTOFFS).mean()
            row |= {f"{part}/{name}": float(means[name]) for name in PAPER_METRICS}
    return rows, time.perf_counter() - started
