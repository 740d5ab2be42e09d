"""The figure of growth.csv."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from study.analysis.report.colours import BLUE, ORANGE, RED, legend_below
from study.analysis.report.plots import canvas, logarithmic, styled

LOOKS = {"field_dense": (BLUE, "o"), "t2mrec": (RED, "s"), "bm25": (ORANGE, "D")}
PANELS = {
    "cpu_p95_ms": "one question, 95th percentile\n(ms of processor time)",
    "build_s": "indexing\n(s of processor time)",
    "answer_mib": "memory of the process that\nanswers, at most (MiB)",
}


@styled
def growth(table: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Figure:
    """Time of a question, of indexing, and memory, by the number of servers. `table`: rows of growth.csv."""
    figure, axes = canvas(3.1, len(PANELS), caption=caption, title="What an answer costs by the number of servers")
    handles = []
    for panel, (column, label) in zip(axes[0], PANELS.items(), strict=True):
        for system, own in table.groupby("system", sort=False):
            ink, marker = LOOKS[str(system)]
            handles += panel.plot(own["servers"], own[column], color=ink, marker=marker, label=titles[str(system)])
        logarithmic(panel.xaxis, most=5)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))  # 10k, 1M
        logarithmic(panel.yaxis)
        panel.set(xlabel="servers", ylabel=label)
        panel.grid()
    known = {str(handle.get_label()): handle for handle in handles}
    legend_below(figure, list(known.values()), list(known))
    return figure
