"""Codebooks of semantic identifiers: use and evenness of each level, and how many servers share all their codes.

A quantiser depends on the servers' texts, its settings and the seed alone, so a run's is trained again, or taken up
from the cache, without the run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from omegaconf import DictConfig
from tqdm import tqdm

from baselines.generative.identifiers import spread_last
from baselines.generative.quantisation import LEAST_USAGE, MOST_COLLISIONS, fit_codes, standardised
from study import paths
from study.config.compose import build_system, load
from study.config.reader import read_settings
from study.config.schema import require_choice
from study.data import dataset as datasets
from study.data.dataset import IntArray
from study.encoders.sentence import encode
from study.evaluation.records import record
from study.files import write_csv, write_json
from study.runner.rows import limit_threads, with_tuned_values

COLUMNS = ["system", "seed", "level", "codes", "usage", "entropy", "uneven", "shared", "shared_after", "collapsed"]


@dataclass(frozen=True)
class Codebooks:
    """``conf/audit/codebooks.yaml``, where every key is explained."""

    systems: list[str]

    def __post_init__(self) -> None:
        for name in self.systems:
            require_choice("system", name)


def use(column: IntArray, codes: int) -> dict[str, float]:
    """How a level's codes are used.

    Args:
        column: the code of each item, shape (n_items,), from 0 to `codes` - 1.

    Returns: usage (share of the codes that an item has), entropy (of a random item's code, as a share of log2(codes):
        1 where all are equally frequent), uneven (mean over codes of |items - n / codes|, as a share of n / codes).
    """
    counts = np.bincount(column, minlength=codes)
    share = counts[counts > 0] / counts.sum()
    even = counts.sum() / codes
    entropy = float(-(share * np.log2(share)).sum() / np.log2(codes)) if codes > 1 else 1.0
    return {"usage": len(share) / codes, "entropy": entropy, "uneven": float(np.abs(counts - even).mean() / even)}


def shared(codes: IntArray) -> float:
    """The share of items beyond the first of each group that has all codes in common; shape (n_items, levels)."""
    return 1 - len(np.unique(codes, axis=0)) / len(codes)


def codebooks(config: DictConfig, settings: Codebooks) -> pd.DataFrame:
    """One row per system, seed and level.

    Returns: columns system, seed, level (from 1), codes (entries), usage, entropy, uneven (`use`, of the codes that the
        search writes: nearest ones, but the last level spread over servers that would share all), shared (before
        spreading) and shared_after; collapsed: whether the training warns of the seed's codebooks.
    """
    data = datasets.load(str(config.dataset.name))
    limit_threads(config.profile.threads)
    vectors = standardised(encode(data.server_texts()))
    jobs = []
    for name in settings.systems:
        chosen = with_tuned_values(load([f"dataset={data.name}", f"profile={config.profile.name}", f"system={name}"]))
        jobs += [(name, chosen, int(seed)) for seed in chosen.system.seeds]
    rows: list[dict[str, Any]] = []
    for name, chosen, seed in tqdm(jobs, desc="codebooks", unit="fit", disable=not sys.stderr.isatty()):
        model, _ = fit_codes(vectors, build_system(chosen.system).quantiser, seed=seed)
        nearest = model.codes(torch.from_numpy(vectors)).numpy()
        spread = spread_last(model, vectors)[0]
        first = use(nearest[:, 0], model.codebooks.shape[1])["usage"]
        collapsed = first < LEAST_USAGE or shared(nearest) > MOST_COLLISIONS
        for level in range(spread.shape[1]):
            entries = model.codebooks.shape[1]
            rows.append(
                {
                    "system": name,
                    "seed": seed,
                    "level": level + 1,
                    "codes": entries,
                    **use(spread[:, level], entries),
                    "shared": shared(nearest),
                    "shared_after": shared(spread),
                    "collapsed": collapsed,
                }
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def compute(config: DictConfig) -> list[Path]:
    """Write codebooks.csv."""
    settings, dataset = read_settings(Codebooks, paths.conf() / "audit" / "codebooks.yaml"), str(config.dataset.name)
    path = paths.results(dataset) / "audit" / "codebooks.csv"
    write_csv(path, codebooks(config, settings).round(6))
    write_json(path.with_suffix(".json"), record(dataset=dataset, settings=vars(settings)))
    return [path]
