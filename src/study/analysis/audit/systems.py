"""What scores of systems rest on: rules of attributes, bugs of reference programs, codebooks, prompt templates.

Most terms of the attribute counts are counts of labels, and a count follows whatever made the labels, a rule or a
judgement. So its score says how far attributes tell the labels, not that rules made them.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from omegaconf import DictConfig
from tqdm import tqdm

from study import paths
from study.analysis.audit.settings import Codebooks, PromptTemplates, ReferenceBugs, Rules, read
from study.analysis.audit.tables import write_tables
from study.analysis.report.runs import run_frames
from study.config.compose import build_system, load
from study.config.registry import with_tuned_values
from study.data import dataset as datasets
from study.data.dataset import Dataset, IntArray
from study.data.splits import Split
from study.encoders.sentence import encode
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation.metrics import per_task as measured
from study.evaluation.records import read_record
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks, run_seed
from study.evaluation.statistics import bootstrap_interval, paired
from study.runner.fingerprint import fingerprint
from study.runner.inputs import load_inputs
from study.runner.outputs import Outputs
from study.runner.processes import limit_threads

RESAMPLES = 2_000
RAN, NOT_RUN = "run", "not run"
BUGS = ["row", "system", "protocol", "bug", "state", "metric", "seeds", "n", "without", "with_bug", "diff"]
BUGS += ["diff_ci_low", "diff_ci_high", "least", "most", "unmoved", "no_server"]


def configured(settings: Rules, dataset: str, changes: dict[str, Any], system: str = "") -> DictConfig:
    """The configuration of a system (by default the examined one) with some of its model's settings changed."""
    changed = [f"system.model.{name}={json.dumps(value)}" for name, value in changes.items()]
    base = [f"dataset={dataset}", f"system={system or settings.system}", f"protocol={settings.protocol}"]
    return load([*base, *changed])


def rule_table(data: Dataset, split: Split, settings: Rules) -> pd.DataFrame:
    """Every variant of the attribute counts and every other system on every part, beside the first variant.

    mean with ci_low and ci_high (95 %, over tasks); diff to the first variant, the same tasks, with diff_ci_low and
    diff_ci_high.
    """
    rows: list[dict[str, Any]] = []
    first: dict[str, pd.DataFrame] = {}
    models = {title: configured(settings, data.name, changes) for title, changes in settings.variants.items()}
    models |= {name: configured(settings, data.name, {}, name) for name in settings.others}
    workdir = paths.cache() / "audit" / settings.system
    workdir.mkdir(parents=True, exist_ok=True)
    for variant, config in models.items():
        for part in settings.parts:
            system, seed = build_system(config.system), settings.system_seed
            done = run_seed(system, data, split, seed=seed, workdir=workdir, part=part).per_task.set_index("task_id")
            reference = first.setdefault(part, done)
            for metric in settings.metrics:
                row = {"variant": variant, "part": part, "metric": metric, "n": int(done[metric].count())}
                gap = done[metric] - reference[metric]
                for name, ends, series in (("mean", "", done[metric]), ("diff", "diff_", gap)):
                    values = series.dropna().to_numpy()
                    low, high = bootstrap_interval(values, seed=settings.seed, resamples=RESAMPLES)
                    row |= {name: values.mean(), f"{ends}ci_low": low, f"{ends}ci_high": high}
                rows.append(row)
    return pd.DataFrame(rows)


def compute_rules(config: DictConfig) -> list[Path]:
    """Write rules.csv."""
    settings, dataset = read(Rules), str(config.dataset.name)
    table = rule_table(*load_inputs(dataset, settings.protocol), settings)
    return write_tables(dataset, {"rules": table}, "rules", settings)


def answers_of_no_server(seeds: list[dict[str, Any]]) -> float:
    """The share of a generative method's answers that name no server, over all seeds of a record; NaN for others."""
    said = [facts.get("report", {}) for facts in seeds]
    written = sum(report.get("answers", 0) for report in said)
    return sum(report.get("answers_of_no_server", 0) for report in said) / written if written else np.nan


def bug_table(dataset: str, settings: ReferenceBugs) -> pd.DataFrame:
    """A published method beside its row with a bug of the reference program, from their runs: one row per bug.

    Both sides are compared at the seeds that both have; a pair of which a run is missing has no number. without and
    with_bug: means over tasks of the means over these seeds. diff: with - without, 95 % over tasks; least and
    most: in a single seed. unmoved: share of the tasks and seeds of the same value.
    """
    found = []
    for row, about in settings.rows.items():
        entry: dict[str, Any] = {"row": row, **vars(about), "state": NOT_RUN, "metric": settings.metric}
        outputs = [Outputs.of(dataset, about.protocol, name) for name in (row, about.system)]
        if all(each.record.exists() and each.per_task.exists() for each in outputs):
            faulty, sound = (per_task.read(each.per_task) for each in outputs)
            shared = sorted(set(faulty["seed"]) & set(sound["seed"]))
            if not shared:
                said, fix = f"no seed of {row} is a seed of {about.system}", "run both with a common seed"
                raise StudyError(said, file=outputs[0].per_task, column="seed", fix=fix)
            faulty, sound = (frame[frame["seed"].isin(shared)] for frame in (faulty, sound))
            pairs = paired(faulty, sound, settings.metric)
            gap = (pairs["system"] - pairs["reference"]).to_numpy()
            low, high = bootstrap_interval(gap, seed=settings.seed, resamples=settings.resamples)
            by_seed = faulty.merge(sound, on=["task_id", "seed"], suffixes=("", "_sound"), validate="one_to_one")
            moved = by_seed[settings.metric] - by_seed[f"{settings.metric}_sound"]
            of_seed = moved.groupby(by_seed["seed"]).mean()
            entry |= {"state": RAN, "seeds": len(shared), "n": len(pairs), "without": pairs["reference"].mean()}
            entry |= {"with_bug": pairs["system"].mean(), "diff": gap.mean(), "diff_ci_low": low, "diff_ci_high": high}
            entry |= {"least": of_seed.min(), "most": of_seed.max(), "unmoved": float((moved == 0).mean())}
            entry["no_server"] = answers_of_no_server(read_record(outputs[0].record)["seeds"])
        found.append(entry)
    return pd.DataFrame(found, columns=BUGS).astype({"seeds": "Int64", "n": "Int64"})


def compute_bugs(config: DictConfig) -> list[Path]:
    """Write reference_bugs.csv."""
    settings, dataset = read(ReferenceBugs), str(config.dataset.name)
    return write_tables(dataset, {"reference_bugs": bug_table(dataset, settings)}, "reference_bugs", settings)


def use(column: IntArray, codes: int) -> dict[str, float]:
    """How the items' codes of a level, shape (n_items,), from 0 to `codes` - 1, are used.

    usage: share of the codes that an item has. entropy: of a random item's code, as a share of log2(codes). uneven:
    mean over codes of |items - n / codes|, as a share of n / codes.
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
    """The codes that generative systems write: one row per system, seed and level.

    A quantiser depends on the servers' texts, its settings and the seed alone, so it is trained again without the run.
    `use` is of nearest codes, but the last level is spread over servers that would share all; shared (before) and
    shared_after (spreading); collapsed: whether the training warns of the seed's codebooks.
    """
    data = datasets.load(str(config.dataset.name))
    limit_threads(config.profile.threads)
    vectors = encode(data.server_texts())
    base = [f"dataset={data.name}", f"profile={config.profile.name}"]
    chosen = [with_tuned_values(load([*base, f"system={name}"])).system for name in settings.systems]
    jobs = [(system, int(seed)) for system in chosen for seed in system.seeds]
    rows: list[dict[str, Any]] = []
    for system, seed in tqdm(jobs, desc="codebooks", unit="fit", disable=None):
        quantiser = build_system(system).quantiser
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
            row = {"system": str(system.name), "seed": seed, "level": level, "codes": entries}
            rows.append(row | use(column, entries) | of_seed)
    return pd.DataFrame(rows)


def compute_codebooks(config: DictConfig) -> list[Path]:
    """Write codebooks.csv."""
    settings = read(Codebooks)
    tables = {"codebooks": codebook_table(config, settings).round(6)}
    return write_tables(str(config.dataset.name), tables, "codebooks", settings)


def template_table(config: DictConfig, settings: PromptTemplates, seed: int) -> pd.DataFrame:
    """Train the configured system once and measure the test tasks in every prompt template, one row each.

    as_run: whether each task has the values of the run in the tables; empty for templates that it does not use.
    """
    limit_threads(config.profile.threads)
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    system: Any = build_system(config.system)
    first, protocol = system.template, str(config.protocol.name)
    workdir = paths.cache() / "audit" / "prompt_templates" / f"{protocol}-{seed}-{fingerprint(config)}"
    workdir.mkdir(parents=True, exist_ok=True)
    system.fit(data, split, seed=seed, workdir=workdir)
    tasks = split.tasks("test")
    ids, rows = data.tasks["id"].to_numpy()[tasks], []
    for template in tqdm(range(settings.templates), desc="templates", disable=None):
        system.template = template
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


def compute_templates(config: DictConfig) -> list[Path]:
    """Write prompt_templates.csv; a stopped training goes on, and a finished one is kept in the cache."""
    settings, dataset, parts = read(PromptTemplates), str(config.dataset.name), []
    for protocol, seeds in settings.seeds.items():
        base = [f"dataset={dataset}", f"protocol={protocol}", f"profile={config.profile.name}"]
        chosen = load([*base, f"system={settings.system}"])
        parts += [template_table(chosen, settings, seed) for seed in seeds]
    table = pd.concat(parts, ignore_index=True).round(6)
    return write_tables(dataset, {"prompt_templates": table}, "prompt_templates", settings)
