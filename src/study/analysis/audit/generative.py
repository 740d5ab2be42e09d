"""Two questions about the generative baselines: their codebooks, and how much the prompt template moves the score.

A quantiser depends on the servers' texts, its settings and the seed alone, so a run's is trained again, or taken from
the cache, without the run.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from omegaconf import DictConfig
from tqdm import tqdm

from study import paths
from study.analysis.audit.settings import Codebooks, PromptTemplates, read
from study.analysis.audit.tables import run_frames, write_tables
from study.config.compose import build_system, load
from study.config.registry import with_tuned_values
from study.data import dataset as datasets
from study.data.dataset import IntArray
from study.encoders.sentence import encode
from study.evaluation import per_task
from study.evaluation.metrics import per_task as measured
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.runner.fingerprint import fingerprint
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads


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


def codebook_table(config: DictConfig, settings: Codebooks) -> pd.DataFrame:
    """One row per system, seed and level.

    Returns: columns system, seed, level (from 1), codes (entries), usage, entropy, uneven (`use`, of the codes that the
        search writes: nearest ones, but the last level spread over servers that would share all), shared (before
        spreading) and shared_after; collapsed: whether the training warns of the seed's codebooks.
    """
    data = datasets.load(str(config.dataset.name))
    limit_threads(config.profile.threads)
    vectors = encode(data.server_texts())
    jobs = []
    for name in settings.systems:
        chosen = with_tuned_values(load([f"dataset={data.name}", f"profile={config.profile.name}", f"system={name}"]))
        jobs += [(name, chosen, int(seed)) for seed in chosen.system.seeds]
    rows: list[dict[str, Any]] = []
    for name, chosen, seed in tqdm(jobs, desc="codebooks", unit="fit", disable=not sys.stderr.isatty()):
        quantiser = build_system(chosen.system).quantiser
        # The module of the configured quantiser trains it.
        maker = import_module(type(quantiser).__module__)
        scaled = maker.standardised(vectors)
        model, _ = maker.fit_codes(scaled, quantiser, seed=seed)
        nearest, entries = model.codes(torch.from_numpy(scaled)).numpy(), model.codebooks.shape[1]
        spread = maker.spread_last(model, scaled)[0]
        rarely = use(nearest[:, 0], entries)["usage"] < maker.LEAST_USAGE
        of_seed = {"shared": shared(nearest), "shared_after": shared(spread)}
        of_seed["collapsed"] = rarely or of_seed["shared"] > maker.MOST_COLLISIONS
        for level, column in enumerate(spread.T, start=1):
            row = {"system": name, "seed": seed, "level": level, "codes": entries}
            rows.append(row | use(column, entries) | of_seed)
    return pd.DataFrame(rows)


def compute_codebooks(config: DictConfig) -> list[Path]:
    """Write codebooks.csv."""
    settings = read(Codebooks)
    table = codebook_table(config, settings).round(6)
    return write_tables(str(config.dataset.name), {"codebooks": table}, "codebooks", settings)


def in_all_templates(config: DictConfig, settings: PromptTemplates, seed: int) -> pd.DataFrame:
    """Train the configured system once and measure the test tasks in every prompt template.

    Returns: a row per template: protocol, seed, template, tasks, the mean of every metric, and as_run: whether each
        task has the values of the run in the tables (of the template that it uses; empty for others and without a run).
    """
    limit_threads(config.profile.threads)
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    system: Any = build_system(config.system)
    first, protocol = system.wording, str(config.protocol.name)
    workdir = paths.cache() / "audit" / "prompt_templates" / f"{protocol}-{seed}-{fingerprint(config)}"
    workdir.mkdir(parents=True, exist_ok=True)
    system.fit(data, split, seed=seed, workdir=workdir)
    tasks = split.tasks("test")
    ids, rows = data.tasks["id"].to_numpy()[tasks], []
    for template in tqdm(range(settings.templates), desc="templates", disable=not sys.stderr.isatty()):
        system.wording = template
        found, _ = rank_tasks(system, split, tasks, part="test", k=KEPT + 1, seed=seed, n_servers=data.n_servers)
        values = per_task.table(ids, seed, measured(found[:, :KEPT], split.test[tasks], ks=CUTOFFS))
        row = {"protocol": protocol, "seed": seed, "template": template, "tasks": len(tasks)}
        row |= {metric: values[metric].mean() for metric in settings.metrics}
        rows.append(row | {"as_run": as_run(values, data.name, config, seed) if template == first else None})
    return pd.DataFrame(rows)


def as_run(values: pd.DataFrame, dataset: str, config: DictConfig, seed: int) -> bool | None:
    """Whether the run in the tables has the same values for every task; None where it has not run with this seed."""
    system = str(config.system.name)
    kept = run_frames(dataset, str(config.protocol.name), [system]).get(system, pd.DataFrame({"seed": []}))
    kept = kept[kept["seed"] == seed]
    if kept.empty:
        return None
    kept = kept.set_index("task_id")
    ours = values.set_index("task_id")[kept.columns]
    return bool(np.allclose(ours.loc[kept.index].to_numpy(), kept.to_numpy(), atol=1e-6, equal_nan=True))


def compute_prompt_templates(config: DictConfig) -> list[Path]:
    """Write prompt_templates.csv; a stopped training goes on, and a finished one is kept in the cache."""
    settings, dataset, parts = read(PromptTemplates), str(config.dataset.name), []
    for protocol, seeds in settings.seeds.items():
        base = [f"dataset={dataset}", f"protocol={protocol}", f"profile={config.profile.name}"]
        chosen = load([*base, f"system={settings.system}"])
        parts += [in_all_templates(chosen, settings, seed) for seed in seeds]
    table = pd.concat(parts, ignore_index=True).round(6)
    return write_tables(dataset, {"prompt_templates": table}, "prompt_templates", settings)
