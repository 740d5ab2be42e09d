"""Where the time of T2MRec's training and evaluation goes, in processor time: `study bench --parts`."""

from __future__ import annotations

import cProfile
import pstats
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from study import paths
from study.analysis.overall.compute_cost import FLOAT, Work, narrow_weights
from study.analysis.report.tables import markdown
from study.config.compose import build_system, plain
from study.config.registry import with_values
from study.evaluation.metrics import per_task
from study.evaluation.records import record
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.files import write_csv, write_json
from study.pipeline.bench import Settings, machine_limits
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads

EPOCHS = 10  # that are watched; batches differ little
# Part -> the end of the file and the name of the function whose time it is, with all that it calls. No part is within
# another one.
TRAINING = {
    "catching rows up": ("t2mrec/row_adamw.py", "_catch_up"),
    "wide layers, forward": ("t2mrec/row_adamw.py", "_project"),
    "narrow layers, forward": ("t2mrec/towers.py", "forward"),
    "loss": ("t2mrec/module.py", "loss"),
    "backward of loss and narrow layers": ("pytorch_lightning/core/module.py", "manual_backward"),
    "AdamW of narrow layers": ("pytorch_lightning/core/optimizer.py", "step"),
    "wide layers, backward and AdamW": ("t2mrec/row_adamw.py", "_update"),
    "terms of a batch": ("t2mrec/towers.py", "used_terms"),
    "batches": ("t2mrec/module.py", "__iter__"),
}
EVALUATION = {
    "cosines": ("t2mrec/system.py", "semantic"),
    "structural scores": ("t2mrec/system.py", "structural"),
    "fusion": ("t2mrec/fusion.py", "fuse"),
    "best ten, twice": ("evaluation/ranking.py", "top_k"),
    "metrics": ("evaluation/metrics.py", "per_task"),
}


def parts(config: DictConfig) -> str:
    """Watch `EPOCHS` epochs of the first seed and one evaluation on one thread; write parts.csv and its record.

    Columns: of (training, evaluation), part, milliseconds (processor time: of one step, or of all test tasks), share,
    limit (milliseconds at the machine's measured limits, where the work is counted).
    """
    settings, seed = Settings.read(), int(config.system.seeds[0])
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    workdir = paths.cache() / "bench" / "parts"
    shutil.rmtree(workdir, ignore_errors=True)
    workdir.mkdir(parents=True)
    limit_threads(1)
    # The first training compiles the kernels and loads the libraries.
    short, warm = (with_values(config, {"training.epochs": epochs}) for epochs in (EPOCHS, 1))
    build_system(warm.system).fit(data, split, seed=seed, workdir=workdir)
    system, limits = build_system(short.system), machine_limits(settings, clock=time.process_time)
    fitted = _watched(lambda: system.fit(data, split, seed=seed, workdir=workdir))
    asked, steps = split.tasks("test"), EPOCHS * -(-len(split.tasks("train")) // system.training.batch_size)

    def evaluate() -> None:
        ranked, _ = rank_tasks(system, split, asked, part="test", k=KEPT, seed=seed, n_servers=data.n_servers)
        per_task(ranked, split.test[asked], ks=CUTOFFS)

    evaluate()
    work = step_work(system, split, seed)
    found = _table("training", fitted, TRAINING, ("t2mrec/module.py", "train"), steps)
    found += _table("evaluation", _watched(evaluate), EVALUATION, ("bench_parts.py", "evaluate"), 1)
    for row in found:
        row["limit"] = 1e3 * work[row["part"]].seconds_at(limits) if row["part"] in work else None
    shutil.rmtree(workdir)
    table = pd.DataFrame(found)
    write_csv(paths.tables(config.dataset.name) / "parts.csv", table)
    facts = {"config": plain(config), "seed": seed, "epochs": EPOCHS, "limits": asdict(limits)}
    write_json(
        paths.results(config.dataset.name) / "records" / "parts.json", record(dataset=config.dataset.name, **facts)
    )
    return markdown(table.round(2))


def step_work(system: Any, split: Any, seed: int) -> dict[str, Work]:
    """The counted work of a step by part, on average over an epoch (as `training_work`). `system`: fitted."""
    from study.t2mrec import lexical
    from study.t2mrec.module import PairEpoch
    from study.t2mrec.towers import used_terms

    rows, towers = split.tasks("train"), system.towers
    _, tasks, servers = lexical.vectorize(
        system.data, rows, max_features=system.lexical.max_features, ngram_range=system.lexical.ngrams
    )
    epoch = PairEpoch(tasks, servers, split.train, rows, batch_size=system.training.batch_size, seed=seed, epoch=0)
    used = texts = entries = 0
    for batch in epoch:
        for vectors in (batch.tasks, batch.servers):
            used, texts, entries = used + len(used_terms(vectors)[0]), texts + vectors.shape[0], entries + vectors.nnz
    narrow = narrow_weights(towers) - towers.hidden
    moved, wide = 6 * FLOAT * used * towers.hidden, 2 * entries * towers.hidden
    all_steps = {
        "catching rows up": Work(0, moved),
        "wide layers, forward": Work(wide, FLOAT * used * towers.hidden),
        "narrow layers, forward": Work(2 * texts * narrow, 0),
        "backward of loss and narrow layers": Work(4 * texts * narrow, 0),
        "wide layers, backward and AdamW": Work(wide, moved),
    }
    return {part: work * (1 / len(epoch)) for part, work in all_steps.items()}


def _watched(action: Callable[[], Any]) -> Mapping[Any, Any]:
    """Processor time by function."""
    profile = cProfile.Profile(timer=time.process_time)
    profile.enable()
    action()
    profile.disable()
    return dict(pstats.Stats(profile).stats)  # type: ignore[attr-defined]


def _table(
    what: str, stats: Mapping[Any, Any], wanted: Mapping[str, tuple[str, str]], whole: tuple[str, str], times: int
) -> list[dict[str, Any]]:
    def milliseconds(file: str, name: str) -> float:
        taken = (each[3] for (path, _, function), each in stats.items() if function == name and path.endswith(file))
        return float(1e3 * sum(taken) / times)

    total = milliseconds(*whole)
    found = {part: milliseconds(*place) for part, place in wanted.items()}
    found |= {"the rest": total - sum(found.values()), "all": total}
    return [{"of": what, "part": part, "milliseconds": taken, "share": taken / total} for part, taken in found.items()]
