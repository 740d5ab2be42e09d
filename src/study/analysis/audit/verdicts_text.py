"""Sentences about the audit's tables, every number of them computed from the tables."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from study.analysis.audit.verdicts import ORDER
from study.analysis.audit.verdicts_figures import CANNOT, NOT, REPRODUCED
from study.analysis.tables import markdown

Tables = Mapping[str, pd.DataFrame]
NOT_RUN = "not run"


def table(frame: pd.DataFrame, decimals: int) -> str:
    """A Markdown table with rounded numbers; empty where there is no value."""
    return markdown(frame.round(decimals).astype(object).where(frame.notna(), ""))


def listed(names: list[str]) -> str:
    """ "A, B and C"; "none" for nothing."""
    if not names:
        return "none"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def about_verdicts(tables: Tables, protocol: str) -> str:
    """How many cells have which verdict under the stated protocol, and which are near under another one."""
    table = tables["verdicts"]
    cells = table[table["protocol"].notna()]
    home = cells[cells["protocol"] == protocol]
    computed = home[home["verdict"] != CANNOT]
    counts = home["verdict"].value_counts()
    elsewhere = cells[(cells["verdict"] == REPRODUCED) & (cells["protocol"] != protocol)]
    names = [f"{row['row']} {row['metric']}@{row['k']:.0f} ({row['protocol']})" for row in elsewhere.to_dict("records")]
    counted = table[table["metric"] == "count"]["verdict"].value_counts()
    text = (
        f"Under the protocol that the paper states ({protocol}), {len(computed)} of the {len(home)} cells of Tables 3 "
        f"and 4 can be computed: {counts.get(REPRODUCED, 0)} are reproduced, {counts.get(ORDER, 0)} keep their order "
        f"only, {counts.get(NOT, 0)} are not reproduced."
    )
    if len(computed):
        gaps = computed["difference"]
        text += (
            f" Ours minus the paper's lies between {gaps.min():+.3f} and {gaps.max():+.3f}; "
            f"{int(((computed['low'] <= computed['paper']) & (computed['paper'] <= computed['high'])).sum())} of the "
            f"{len(computed)} printed values lie in our interval over test tasks."
        )
    text += f" Cells within the tolerance under another protocol: {len(elsewhere)} ({listed(names)})."
    figures = table[table["protocol"].isna() & (table["metric"] != "count")]["verdict"].value_counts()
    return (
        f"{text} Of the {int(counted.sum())} counts of Table 2, {counted.get(REPRODUCED, 0)} are found again; of the "
        f"{int(figures.sum())} statements on Figures 6 to 9, {counts_of(figures)}."
    )


def counts_of(found: pd.Series) -> str:
    """ "2 reproduced, 1 cannot be computed", from counts by verdict."""
    return ", ".join(f"{count} {name}" for name, count in found.items())


def about_consistency(tables: Tables) -> str:
    """What no protocol can give: rows outside every set of labels, rows that need labels which the release lacks."""
    table = tables["feasibility"]
    printed, own = table[table["table"] != "own"], table[table["table"] == "own"]
    texts = []
    if len(own):
        control = own[(own["labels"] == "task split") & (own["cells"] == "all eight cells")]
        texts.append(
            f"Control: {int(control['possible'].sum())} of our own {len(control)} rows pass under the labels that they "
            f"were computed from (largest change {control['change'].max():.6f})."
        )
    if len(printed):
        rows = printed["row"].nunique()
        labels = list(dict.fromkeys(printed["labels"]))
        for cells, part in printed.groupby("cells", sort=False):
            widest = part[part["labels"] == labels[0]]
            outside = widest[~widest["possible"]]
            impossible = [f"{row['row']} ({row['change']:.4f})" for row in outside.to_dict("records")]
            texts.append(
                f"Counting {cells}, {len(impossible)} of {rows} printed rows are no mean over tasks under {labels[0]} "
                f"servers, by the least change of a cell that would mend it: {listed(impossible)}."
            )
            texts += [
                f'Under "{name}" {int(group["possible"].sum())} of {rows} are possible '
                f"({listed(group.loc[group['possible'], 'row'].tolist())})."
                for name, group in part[part["labels"] != labels[0]].groupby("labels", sort=False)
            ]
    return " ".join(texts)


def about_pairs(tables: Tables) -> str:
    """How many pairs of rows can share their test tasks."""
    table = tables["row_pairs"]
    conflicts = table[table["conflict"]]
    names = [f"{row['row_a']} with {row['row_b']}" for row in conflicts.to_dict("records")]
    return (
        f"{int(table['together'].sum())} of {len(table)} pairs of rows can come from one set of test tasks. "
        f"{len(conflicts)} pairs contradict each other although each row is possible alone: {listed(names)}."
    )


def about_gains(tables: Tables) -> str:
    """Which reading of "Gains" the printed line follows."""
    table = tables["gains"]
    stated = (table["printed"] - table["over_baseline"]).abs().max()
    return (
        f"In {int((table['nearer'] == 'over_method').sum())} of {len(table)} columns the printed gain is nearer to "
        f"(T2MRec - best baseline) / T2MRec than to the relative improvement over the baseline that the caption names; "
        f"it is off by at most {table['error'].max():.2f} percentage points from the former and by up to {stated:.2f} "
        "from the latter."
    )


def about_inference(tables: Tables, row: str, question: str = "own system") -> str:
    """The nearest protocol of one row and whether it gives the row."""
    table = tables["protocol_inference"]
    found = table[(table["row"] == row) & (table["question"] == question)]
    if found.empty:
        return f"{row}: the grid holds no run of its own system."
    best = found.iloc[0]
    verdict = "gives" if best["gives"] else "does not give"
    return (
        f"{row}, {question}: of {int(best['compared'])} combinations of protocol, system and reading, "
        f'"{best["title"]}" with {best["system"]} ({best["reading"]}) is nearest, at a root mean square difference of '
        f"{best['distance']:.3f} (95 % interval over tasks {best['low']:.3f} to {best['high']:.3f}; nearest in "
        f"{best['share']:.0%} of the draws). It {verdict} the row: {int(best['cells_within'])} of 8 cells are within "
        f"the tolerance, the largest difference is {best['largest']:.3f}; the next is {best['next_variant']} with "
        f"{best['next_system']} at {best['next_distance']:.3f}."
    )


def measured_text(tables: Tables, variant: str, system: str, measure: str) -> str:
    """ "0.159 (0.147 to 0.172)": one measured value of the grid with its interval, or that it was not run."""
    name, k = measure.split("@")
    table = tables["protocol_cells"]
    found = table[(table["variant"] == variant) & (table["system"] == system)
                  & (table["measure"] == name) & (table["k"] == int(k))]  # fmt: skip
    if found.empty:
        return NOT_RUN
    cell = found.iloc[0]
    return f"{cell['value']:.4f} ({cell['low']:.4f} to {cell['high']:.4f})"


def about_exposure(tables: Tables, system: str = "t2mrec") -> str:
    """What a system gives on the test tasks without and with them in training, and the bound on re-ranking."""
    if measured_text(tables, "task_split", system, "recall@5") == NOT_RUN:
        return f"{system} has not been run under the grid."
    lines = []
    for measure in ("recall@5", "recall@10", "precision@10", "ndcg@10"):
        apart, seen = (measured_text(tables, name, system, measure) for name in ("task_split", "exposed"))
        lines.append(f"{measure}: {apart} without, {seen} with the test tasks in training")
    bound = measured_text(tables, "task_split", system, "best_recall@10")
    return (
        f"{system} on the test tasks of the task split, 95 % intervals over tasks. {'; '.join(lines)}. "
        f"The best re-ranking of its pool, which no re-ranker can exceed, reaches recall@10 {bound}."
    )
