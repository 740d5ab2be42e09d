"""The overall results as tables that fit a terminal of 100 columns, one per protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from study import paths
from study.config.registry import all_system_settings
from study.errors import StudyError

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = ("recall@10", "ndcg@10")
WIDTH = 100


def overall_tables(dataset: str) -> list[Table]:
    """One table per protocol, best NDCG@10 first: mean over seeds, the difference to T2MRec, seconds to fit.

    Raises:
        StudyError: there are no tables yet.
    """
    from rich.table import Table

    folder = paths.tables(dataset)
    if not (folder / "overall.csv").exists():
        raise StudyError("there is no table yet", file=folder / "overall.csv", fix=f"run: make repro DATASET={dataset}")
    overall, tests = pd.read_csv(folder / "overall.csv"), pd.read_csv(folder / "significance.csv")
    seconds = pd.read_csv(folder / "runs.csv").set_index(["protocol", "system"])["seconds_fit"]
    titles = {name: str(settings.title) for name, settings in all_system_settings().items()}
    overall["measure"] = overall["metric"] + "@" + overall["k"].astype(str)
    made = []
    for protocol, part in overall[overall["measure"].isin(SHOWN)].groupby("protocol"):
        means = part.pivot_table(index="system", columns="measure", values="mean").sort_values(
            "ndcg@10", ascending=False
        )
        spread = part[part["measure"] == "ndcg@10"].set_index("system")["sd"]
        compared = pd.Series(dtype=float)
        if "protocol" in tests and len(tests):
            own = tests[(tests["protocol"] == protocol) & (tests["metric"] == "ndcg@10")]
            compared = own.set_index("system")["difference"]
        table = Table(title=f"{dataset}, protocol {protocol}: how well systems fit the released labels", width=WIDTH)
        table.add_column("system", overflow="ellipsis", no_wrap=True, ratio=1)
        for heading in (*SHOWN, "sd", "to T2MRec", "fit (s)"):
            table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
        for system, row in means.iterrows():
            name = str(system)
            cells = [f"{row[measure]:.3f}" for measure in SHOWN]
            cells += ["" if pd.isna(spread[name]) else f"{spread[name]:.3f}"]
            cells += ["" if name not in compared else f"{compared[name]:+.3f}"]
            table.add_row(titles.get(name, name), *cells, f"{seconds[str(protocol), name]:,.1f}")
        made.append(table)
    return made
