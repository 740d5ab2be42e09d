"""Sentences about the audit's tables, every number of them computed from the tables."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from study.analysis.audit.consistency_tables import KEYS, READINGS
from study.analysis.audit.paper_cells import settings
from study.analysis.audit.verdicts import ORDER
from study.analysis.audit.verdicts_figures import CANNOT, NOT, NOT_RUN, REPRODUCED
from study.analysis.report import paper
from study.analysis.report.tables import PAPER_METRICS, markdown

# How the reading by the paper's definitions is called among readings.
READ_AS = {"without F1": "as defined"}
Tables = Mapping[str, pd.DataFrame]
NO_CELL = "not run"


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
    computed = home[home["ours"].notna()]
    counts = home["verdict"].value_counts()
    elsewhere = cells[(cells["verdict"] == REPRODUCED) & (cells["protocol"] != protocol)]
    names = [f"{row['row']} {row['metric']}@{row['k']:.0f} ({row['protocol']})" for row in elsewhere.to_dict("records")]
    counted = table[table["metric"] == "count"]["verdict"].value_counts()
    text = (
        f"Under the protocol that the paper states ({protocol}), {len(computed)} of the {len(home)} cells of Tables 3 "
        f"and 4 have a value here: {counts.get(REPRODUCED, 0)} are reproduced, {counts.get(ORDER, 0)} keep their order "
        f"only, {counts.get(NOT, 0)} are not reproduced. {counts.get(NOT_RUN, 0)} were not run here, and "
        f"{counts.get(CANNOT, 0)} cannot be computed, since the system needs a task's history and the tasks are new."
    )
    if len(computed):
        gaps = computed["difference"]
        text += (
            f" Ours minus the paper's lies between {gaps.min():+.3f} and {gaps.max():+.3f}; "
            f"{int(((computed['low'] <= computed['paper']) & (computed['paper'] <= computed['high'])).sum())} of the "
            f"{len(computed)} printed values lie in our interval over test tasks."
        )
    text += f" Cells reproduced under another protocol: {len(elsewhere)} ({listed(names)})."
    figures = table[table["protocol"].isna() & (table["metric"] != "count")]["verdict"].value_counts()
    return (
        f"{text} Of the {int(counted.sum())} counts of Table 2, {counted.get(REPRODUCED, 0)} are found again; of the "
        f"{int(figures.sum())} statements on Figures 6 to 9, {counts_of(figures)}."
    )


def counts_of(found: pd.Series) -> str:
    """ "2 reproduced, 1 cannot be computed", from counts by verdict."""
    return ", ".join(f"{count} {name}" for name, count in found.items())


def about_consistency(tables: Tables) -> str:
    """What no protocol can give: rows outside every set of labels; `possible_rows` has those of each assumption."""
    table, small = tables["feasibility"], settings("consistency", KEYS)["small"]
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
        for cells, part in printed[printed["cells"].isin(READINGS)].groupby("cells", sort=False):
            widest = part[part["labels"] == labels[0]]
            outside = widest[~widest["possible"]]
            texts.append(
                f"By the paper's definitions, counting {cells}, {len(outside)} of {rows} printed rows are no mean over "
                f"tasks under {labels[0]} servers, {int((outside['change'] > small).sum())} by more than {small}."
            )
    return " ".join(texts)


def possible_rows(tables: Tables) -> pd.DataFrame:
    """How many printed rows are possible under each assumption about the labels, and which, by cells that count."""
    table = tables["feasibility"]
    printed = table[(table["table"] != "own") & table["cells"].isin(READINGS)]
    lines = []
    for labels, part in printed.groupby("labels", sort=False):
        line: dict[str, object] = {"labels": labels, "rows": part["row"].nunique()}
        for cells, group in part.groupby("cells", sort=False):
            names = group.loc[group["possible"], "row"].tolist()
            line |= {f"possible, {cells}": len(names), f"which, {cells}": listed(names)}
        lines.append(line)
    return pd.DataFrame(lines)


def about_readings(tables: Tables, labels: str, row: str) -> str:
    """How far a row is from possible under every reading of its columns, F1 left out."""
    table = tables["feasibility"]
    found = table[(table["table"] != "own") & (table["labels"] == labels) & (table["cells"] != "all eight cells")]
    titles = {cells: READ_AS.get(cells, cells.removeprefix("without F1, ")) for cells in found["cells"].astype(str)}
    said = [f"{titles[line['cells']]} {line['change']:.3f}" for line in found[found["row"] == row].to_dict("records")]
    counts = [f"{name} {int(found.loc[found['cells'] == cells, 'possible'].sum())}" for cells, name in titles.items()]
    return (
        f'Under "{labels}", F1 left out, the least change of a cell that makes the row {row} possible depends on how '
        f"the columns are read: {listed(said)}. Rows of {found['row'].nunique()} that are possible: {listed(counts)}."
    )


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
    found = table[
        (table["variant"] == variant)
        & (table["system"] == system)
        & (table["measure"] == name)
        & (table["k"] == int(k))
    ]
    if found.empty:
        return NO_CELL
    cell = found.iloc[0]
    return f"{cell['value']:.4f} ({cell['low']:.4f} to {cell['high']:.4f})"


def about_exposure(tables: Tables, system: str = "t2mrec", row: str = "T2MRec") -> str:
    """What a system gives on the test tasks without and with them in training, and the bound on re-ranking.

    Where the paper describes the data set, the printed cells of `row` stand beside it.
    """
    if measured_text(tables, "task_split", system, "recall@5") == NO_CELL:
        return f"{system} has not been run under the grid."
    distances = tables.get("protocol_distances")
    printed = paper.wide(paper.load(), "table3").loc[row] if distances is not None else pd.Series(dtype=float)
    lines = []
    for measure in ("recall@5", "recall@10", "precision@5", "precision@10", "ndcg@10"):
        apart, seen = (measured_text(tables, name, system, measure) for name in ("task_split", "exposed"))
        beside = f", printed {printed[measure]:.4f}" if measure in printed else ""
        lines.append(f"{measure}: {apart} without, {seen} with the test tasks in training{beside}")
    bound = measured_text(tables, "task_split", system, "best_recall@10")
    text = (
        f"{system} on the test tasks of the task split, 95 % intervals over tasks. {'; '.join(lines)}. "
        f"The best re-ranking of its pool, which no re-ranker can exceed, reaches recall@10 {bound}."
    )
    if distances is None:
        return text
    found = distances[
        (distances["row"] == row)
        & (distances["system"] == system)
        & (distances["variant"] == "exposed")
        & (distances["choice"] == "as defined")
    ]
    if len(found):
        line = found.iloc[0]
        verdict = "gives" if line["cells_within"] == len(PAPER_METRICS) else "does not give"
        text += (
            f" Having the test tasks in training {verdict} the row {row} either: {int(line['cells_within'])} of "
            f"{len(PAPER_METRICS)} cells are within the tolerance, the largest difference is {line['largest']:.3f}."
        )
    return text


def about_limits(tables: Tables) -> str:
    """What the inference of a protocol rests on, and what it leaves out."""
    cells = tables["protocol_cells"]
    protocols = cells["variant"].nunique()
    few = [
        f"{system} stands in {part['variant'].nunique()}"
        for system, part in cells.groupby("system", sort=False)
        if part["variant"].nunique() < protocols
    ]
    return (
        f"How to read it: {int(cells['seeds'].max())} seed per cell, so intervals are over tasks alone and leave out "
        "how far another seed would lie. `share` compares draws made for every cell on its own, although cells share "
        "tasks, with the reading fixed at the one nearest to the mean: a guide, not a probability. Noise only adds to "
        "a distance, so the intervals of distances lie too high. "
        f"Of {protocols} protocols {listed(few)}. Sampled candidates are not combined with the test tasks in training. "
        "The nearest of many combinations is near by choice."
    )
