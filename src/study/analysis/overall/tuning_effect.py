"""What equal tuning brought on the test tasks: every tuned row beside the row at the system's own settings."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from study.analysis.report import plots
from study.analysis.report.plots import STYLE, canvas, metric_name
from study.analysis.report.results import TUNED_SUFFIX, Results
from study.evaluation.significance import bootstrap_interval

METRIC = "ndcg@10"
COLUMNS = ["protocol", "system", "title", "own", "tuned", "difference", "ci_low", "ci_high"]


def effects(results: Results, *, seed: int = 1) -> pd.DataFrame:
    """Every tuned system beside itself at its own settings, under every protocol where both have runs.

    Args:
        seed: of the resampling of tasks.

    Returns: protocol, system (without the suffix), title, own and tuned (`METRIC`, means over seeds and tasks),
        difference (tuned minus own), ci_low and ci_high (95 % bootstrap interval of the difference over tasks); the
        largest difference of a protocol first.
    """
    rows = []
    for protocol in results.protocols:
        ran = results.systems(protocol)
        for name in ran:
            base = name.removesuffix(TUNED_SUFFIX)
            if base == name or base not in ran:
                continue
            own, tuned = (results.per_task(protocol, system)[METRIC] for system in (base, name))
            change = (tuned - own).dropna().to_numpy(np.float64)
            values = own.mean(), tuned.mean(), change.mean(), *bootstrap_interval(change, seed=seed)
            rows.append((protocol, base, results.titles[base], *values))
    table = pd.DataFrame(rows, columns=COLUMNS)
    order = {name: place for place, name in enumerate(results.protocols)}
    return table.sort_values(
        ["protocol", "difference"], key=lambda c: c.map(order) if c.name == "protocol" else -c, kind="stable"
    ).reset_index(drop=True)


def losses(table: pd.DataFrame) -> Sequence[str]:
    """One sentence per protocol that names the systems which tuning made worse, beyond what the tasks leave open."""
    said = []
    for protocol, rows in table[table["ci_high"] < 0].groupby("protocol", sort=False):
        columns = zip(rows["title"], rows["difference"], rows["ci_low"], rows["ci_high"], strict=True)
        named = [f"{title} ({change:+.3f} [{low:+.3f}, {high:+.3f}])" for title, change, low, high in columns]
        said.append(f"{protocol}: worse after tuning: {', '.join(named)}.")
    return said


@mpl.rc_context(STYLE)
def dumbbells(table: pd.DataFrame, caption: str) -> Figure:
    """One line per system and protocol, from its own settings (open) to the tuned ones (filled)."""
    caption += (
        " Open: the system at its own settings. Filled: tuned; it hides an open marker of the same value. "
        "Green: better after tuning, red: worse, where the 95 % bootstrap interval of the difference over tasks leaves "
        "out 0; grey: where it does not. One panel per protocol, the largest gain first."
    )
    sizes = table.groupby("protocol", sort=False).size()
    figure, axes = canvas(
        1.1 + 0.24 * (len(table) + 2 * len(sizes)),
        rows=len(sizes),
        caption=caption,
        title="What equal tuning brought on the test tasks",
        gridspec_kw={"height_ratios": (sizes + 1.5).tolist()},
        sharex=True,
    )
    for panel, (protocol, rows) in zip(axes[:, 0], table.groupby("protocol", sort=False), strict=True):
        places = np.arange(len(rows))[::-1]
        plots.dumbbells(panel, rows, "own", "tuned", "ci_low", "ci_high")
        panel.set_yticks(places, rows["title"].tolist(), parse_math=False)
        panel.set(title=protocol)
    axes[-1, 0].set_xlabel(f"{metric_name(METRIC)} (0 to 1)")
    return figure
