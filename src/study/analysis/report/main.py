"""Stage `report`: from per-task files to the tables of metrics, comparisons and costs. Trains nothing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from omegaconf import DictConfig

from study.analysis.report import runs, tables
from study.base import paths
from study.base.files import write_csv, write_json, write_text
from study.config.compose import sound_systems
from study.evaluation import per_task
from study.evaluation.statistics import compare_all
from study.reranking.replies import awaits_replies

HEADLINE = ("t2mrec", "popularity_theme", "item_knn", "field_dense")  # systems of metrics.json with Recall@10, too


def report(config: DictConfig) -> Path:
    """Write metrics.*, overall.*, significance.csv, comparisons.csv, runs.csv and machines.csv; returns their folder.
    Warns of every run that today's settings, code or data would not repeat; runs.csv marks it as `stale`."""
    dataset, folder = config.dataset.name, paths.tables(config.dataset.name)
    rows, settings = runs.collect(dataset), sound_systems()
    apart = {name for name, system in settings.items() if system.family in runs.APART}
    cost_table = runs.costs(rows)
    metrics = pd.concat(
        per_task.aggregate(frame, dataset, protocol, system, record["profile"])
        for (protocol, system), (frame, record) in rows.items()
    )
    overalls, empty = [], pd.DataFrame(columns=["system", "protocol"])
    comparisons, further = [], [empty]
    protocols = sorted({protocol for protocol, _ in rows})
    for protocol in protocols:
        frames = {name: frame for (at, name), (frame, _) in rows.items() if at == protocol}
        overalls.append(runs.with_intervals(metrics[metrics["protocol"] == protocol], frames))
        frames = {name: frame for name, frame in frames.items() if name not in apart}
        for reference, others in runs.read_statistics().further.items():
            chosen = {name: frames[name] for name in (reference, *others) if name in frames}
            if reference in chosen and len(chosen) > 1:
                tested = compare_all(chosen, reference, runs.COMPARED, seed=0, per_comparison=1000)
                further.append(tested.assign(protocol=protocol))
        if runs.REFERENCE in frames and len(frames) > 1:
            tested = runs.compare_with_reference(frames, protocol, list(config.dataset.leave_out))
            comparisons.append(tested.assign(protocol=protocol))
    overall = pd.concat(overalls, ignore_index=True).drop(columns="measure")
    significance = pd.concat(comparisons) if comparisons else empty
    written = {"metrics.csv.xz": metrics, "overall.csv": overall, "significance.csv": significance}
    written |= {"comparisons.csv": pd.concat(further), "runs.csv": cost_table, "machines.csv": machines(rows)}
    for name, table in written.items():
        write_csv(folder / name, table)
    write_json(folder / "metrics.json", headline(overall))
    titles = {name: system.title for name, system in settings.items()}
    absent = [name for name, system in settings.items() if awaits_replies(dataset, system)]
    parts = [
        (
            caption(dataset, protocol, rows, cost_table),
            tables.comparison(
                overall,
                protocol,
                tables.add_remarks(titles, cost_table, protocol),
                not_run=[name for name in absent if protocol in settings[name].protocols],
                unranked=apart,
                costs=cost_table,
                marks=tables.marks(significance[significance["protocol"] == protocol]),
            ),
        )
        for protocol in protocols
    ]
    sections = [f"### {heading}\n\n{tables.markdown(table)}" for heading, table in parts]
    write_text(folder / "overall.md", "\n".join(sections))
    write_text(folder / "overall.tex", "\n".join(tables.latex(table, heading) for heading, table in parts))
    return folder


def machines(rows: runs.Runs) -> pd.DataFrame:
    """What the runs were made on: processor, cores, memory_gib, accelerator, python, and how many rows and core hours
    of fitting and scoring each had; a last row, `all`, sums them. A fit counts the threads of its profile."""
    lines = []
    for _, record in rows.values():
        machine, threads = record["hardware"], record["config"]["profile"]["threads"]
        seconds = sum(seed["seconds_fit"] + seed["seconds_score"] for seed in record["seeds"])
        hardware = {name: machine.get(name) for name in ("processor", "cores", "memory_gib", "accelerator")}
        lines.append(
            hardware | {"python": record["versions"]["python"], "rows": 1, "core_hours": seconds * threads / 3600}
        )
    table = pd.DataFrame(lines)
    summed = table.groupby(list(table.columns[:-2]), dropna=False)[["rows", "core_hours"]].sum().reset_index()
    total = summed[["rows", "core_hours"]].sum().to_frame().T.assign(processor="all")
    return pd.concat([summed, total], ignore_index=True).astype({"rows": int})[list(table.columns)]


def headline(overall: pd.DataFrame) -> dict[str, dict[str, dict[str, float]]]:
    """Protocol -> system -> metric -> mean, as `dvc metrics` and `dvc exp show` read it: NDCG@10 of every row, and
    Recall@10 of the systems in `HEADLINE`. `overall`: columns protocol, system, metric, k, mean."""
    means: dict[str, dict[str, dict[str, float]]] = {}
    chosen = overall.query("k == 10 and (metric == 'ndcg' or metric == 'recall' and system in @HEADLINE)")
    for protocol, system, metric, mean in chosen[["protocol", "system", "metric", "mean"]].itertuples(index=False):
        means.setdefault(protocol, {}).setdefault(system, {})[f"{metric}@10"] = mean
    return means


def caption(dataset: str, protocol: str, rows: runs.Runs, table: pd.DataFrame) -> str:
    """What a table shows: question, data, number of tasks, profile, marks, and how many rows are in doubt. `table`:
    from `costs`."""
    chosen = [(frame, record) for (at, _), (frame, record) in rows.items() if at == protocol]
    profiles = sorted({record["profile"] for _, record in chosen})
    tasks, settings = chosen[0][0]["task_id"].nunique(), runs.read_statistics()
    replayed = table.loc[table["protocol"] == protocol, "seconds_score"].isna().any()
    untimed = "; no scoring time: kept replies of a language model, read again" if replayed else ""
    return (
        f"Fitting the released labels: {dataset}, protocol {protocol}, {tasks} test tasks, "
        f"profile {', '.join(profiles)}; mean ± standard deviation over seeds; not converged: "
        f"most seeds were best when training, or a stage of it, ended (a cap on epochs may have cut others, too); "
        "bold: best, italic: second best, oracles and reference bugs left out; "
        f"{tables.ABOVE} above, {tables.BELOW} below {runs.REFERENCE} by the {settings.test} test (significance.csv), "
        f"Holm-corrected p < {settings.alpha}" + untimed + runs.doubts(table, protocol)
    )
