"""Do the lists of different tasks differ? What each system shows of the catalogue, over all test tasks together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from study import paths
from study.analysis.report import colours, legends
from study.analysis.report.legends import legend_below
from study.analysis.report.plots import STYLE, canvas, logarithmic, metric_name
from study.analysis.report.results import Results
from study.data.dataset import IntArray, read_parquet
from study.evaluation import exposure
from study.evaluation.runs import KEPT
from study.pipeline.evaluate import TOP
from study.runner.rows import HITS_ALONE

METRIC = "ndcg@10"
# A system whose lists of ten hold fewer different servers than this, over all tasks together, gives nearly one list.
NEARLY_ONE = 10 * KEPT
MEASURES = ("coverage", "gini", "novelty")
COLUMNS = ["system", "title", "family", "servers", *MEASURES, "quality"]


def exposed(results: Results, protocol: str, server_ids: pd.Series, popularity: IntArray) -> pd.DataFrame:
    """What the runs of a protocol show in their lists of ten.

    Args:
        server_ids: id of each server, in the catalogue's order.
        popularity: training interactions of each, shape (n_servers,).

    Returns: best `METRIC` first: system, title, family, servers (how many different ones), coverage (their share of the
        catalogue), gini, novelty in bits (`study.evaluation.exposure`) and quality (`METRIC`); means over seeds.
        Without rows where only the hits of lists are kept (`study.runner.rows.HITS_ALONE`).
    """
    place = pd.Series(np.arange(len(server_ids)), index=server_ids)
    rows: list[dict[str, Any]] = []
    for name in [] if protocol in HITS_ALONE else results.systems(protocol, METRIC):
        path = paths.results(results.dataset) / "top10" / protocol / f"{name}.parquet"
        fix = f"run: study run system={name} protocol={protocol} dataset={results.dataset}"
        seeds = []
        for _, top in read_parquet(path, columns=TOP, fix=fix).groupby("seed"):
            tasks, found = pd.factorize(top["task_id"])
            ranked = np.full((len(found), KEPT), -1, dtype=np.int64)
            ranked[tasks, top["rank"] - 1] = place.loc[top["server_id"]]
            seeds.append(exposure.list_level(ranked, popularity, (KEPT,)))
        means = pd.DataFrame(seeds).mean()
        rows.append(
            {
                "system": name,
                "title": results.titles[name],
                "family": results.families[name],
                "servers": means[f"coverage@{KEPT}"] * len(server_ids),
                "quality": results.value(protocol, name, METRIC),
                **{measure: means[f"{measure}@{KEPT}"] for measure in MEASURES},
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def nearly_one_list(table: pd.DataFrame) -> Sequence[str]:
    """A sentence for every system, rules and chance aside, whose lists hardly depend on the task."""
    few = table[(table["servers"] < NEARLY_ONE) & (table["family"] != "floor")]
    return [
        f"{row['title']}: its lists of ten hold {row['servers']:.0f} different servers over all tasks together, so "
        f"whatever is asked it answers nearly one list ({metric_name(METRIC)} {row['quality']:.3f})."
        for row in few.to_dict("records")
    ]


@mpl.rc_context(STYLE)
def exposed_figure(table: pd.DataFrame, n_servers: int, caption: str) -> Figure:
    """How many different servers each system's lists of ten hold over all tasks, best quality first."""
    caption += (
        f" How many different servers the lists of ten hold over all test tasks together, means over seeds; dashed: "
        f"one list ({KEPT}) and the whole catalogue ({n_servers:,}). Logarithmic. Best {metric_name(METRIC)} first."
    )
    figure, axes = canvas(1.3 + 0.2 * len(table), caption=caption, title="Do lists differ between tasks?")
    panel, places = axes[0, 0], np.arange(len(table))[::-1]
    for y, row in zip(places, table.to_dict("records"), strict=True):
        kind = colours.look(row["family"])
        panel.hlines(y, KEPT, row["servers"], color="#DDDDDD", linewidth=0.8)
        panel.plot(row["servers"], y, marker=kind.marker, color=kind.ink, markersize=4.5)
    for end in (KEPT, n_servers):
        panel.axvline(end, color="black", linewidth=0.8, linestyle="--")
    panel.set_yticks(places, table["title"].tolist(), parse_math=False)
    logarithmic(panel.xaxis)
    panel.set(xlabel="different servers in all lists of ten", ylim=(-0.7, len(table) - 0.3))
    panel.grid(axis="x")
    legend_below(figure, *legends.points(table["family"]))
    return figure
