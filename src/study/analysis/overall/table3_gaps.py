"""How near the study came to each baseline's row of the paper's Table 3, and by what it tried."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from study.analysis.report.colours import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY
from study.analysis.report.legends import legend_below
from study.analysis.report.plots import MARKERS, STYLE, canvas, metric_name
from study.analysis.report.results import TRANSFER, TUNED_SUFFIX, Results, lineage
from study.pipeline.plan import parents

METRIC, SECOND = "ndcg@10", "recall@10"
FAR = 0.05  # of METRIC from the printed one: see `nearness`
OWN, TUNED, FAULT, EXTENSION, VARIANT = "own settings", "tuned", "fault", "extension", "variant"
KINDS = (OWN, TUNED, VARIANT, FAULT, EXTENSION)
ITSELF = (OWN, TUNED)  # what is the method; the other kinds change it, break it or add to it
COLUMNS = ["printed", "system", "title", "kind", "protocol", "paper", "ours", "gap", "paper_recall", "recall"]
INKS = {"cold": BLUE, "cold_grouped": SKY, "warm": GREEN, "loo": ORANGE, "loo99": PURPLE}


def kind_of(name: str, system: str, family: str) -> str:
    """What a run of `name` tries for the row of `system`: one of `KINDS`.

    A ceiling that builds on a method is the method with a fault that reads the answers.
    """
    if name == system:
        return OWN
    if name == system + TUNED_SUFFIX:
        return TUNED
    if name == f"{system}{TRANSFER}":
        return EXTENSION
    return {"fault": FAULT, "ceiling": FAULT, "extension": EXTENSION}.get(family, VARIANT)


def attempts(
    results: Results, cells: pd.DataFrame, *, builds_on: Callable[[str], Sequence[str]] = parents
) -> pd.DataFrame:
    """Every run of the system behind a baseline's row of Table 3, and of the systems that build on it or carry it.

    Args:
        cells: from `study.analysis.report.paper.load`.
        builds_on: system -> the systems whose settings it builds on.

    Returns: printed (the paper's name), system, title, kind (of `KINDS`), protocol, paper and ours (`METRIC`), gap
        (ours minus paper), paper_recall and recall (`SECOND`, of both); the paper's order, then the nearest first. A
        row of the paper without a run has one line without a protocol and without a number of ours.
    """
    rows = cells[(cells["table"] == "table3") & cells["system"].ne("")]
    rows = rows.assign(column=rows["metric"] + "@" + rows["k"].astype(str))
    wide = rows.pivot_table(index=["printed", "system"], columns="column", values="value", sort=False).reset_index()
    ran = {protocol: results.systems(protocol) for protocol in results.protocols}
    names = [name for name in results.applies if any(name in systems for systems in ran.values())]
    above = {name: lineage(name, builds_on) for name in names}
    parts = []
    for paper in wide.to_dict("records"):
        system = str(paper["system"])
        found = [
            (name, results.titles[name], kind_of(name, system, results.families[name]), protocol)
            for name in names
            if system in above[name]
            for protocol in ran
            if name in ran[protocol]
        ]
        part = pd.DataFrame(found or [(system, results.titles[system], OWN, "")], columns=COLUMNS[1:5])
        ours = {
            column: [
                results.value(protocol, name, metric) if protocol else np.nan
                for name, protocol in zip(part["system"], part["protocol"], strict=True)
            ]
            for column, metric in (("ours", METRIC), ("recall", SECOND))
        }
        part = part.assign(printed=paper["printed"], paper=paper[METRIC], paper_recall=paper[SECOND], **ours)
        part = part.assign(gap=part["ours"] - part["paper"])
        parts.append(part.sort_values("gap", key=lambda gap: gap.abs(), kind="stable"))
    return pd.concat(parts, ignore_index=True)[COLUMNS] if parts else pd.DataFrame(columns=COLUMNS)


def nearness(table: pd.DataFrame, sampled: Collection[str]) -> pd.DataFrame:
    """How near the method itself (`ITSELF`) comes to its printed row, under every protocol that it ran in.

    A variant, a fault or an extension may come near by chance, and so may another protocol than the one at hand; they
    make no method near. A protocol that ranks sampled servers decides nothing, since there every ranking looks better.

    Args:
        table: from `attempts`.
        sampled: the protocols that rank sampled servers.

    Returns: printed, protocol, gap (of the nearer of own settings and tuned values), far (whether both are farther
        than `FAR` from the paper), side (where they are: above, below, or "on both sides of"), crossed (whether both
        are on one side of the paper, and on the other side in `SECOND`).
    """
    itself = table[table["kind"].isin(ITSELF) & table["ours"].notna() & ~table["protocol"].isin([*sampled])]
    rows = []
    for (printed, protocol), part in itself.groupby(["printed", "protocol"], sort=False):
        gap, above, second = part["gap"], part["gap"] > 0, part["recall"] > part["paper_recall"]
        side = "above" if above.all() else "on both sides of" if above.any() else "below"
        crossed = above.nunique() == second.nunique() == 1 and (above != second).all()
        rows.append((printed, protocol, gap.iloc[gap.abs().argmin()], gap.abs().min() > FAR, side, crossed))
    return pd.DataFrame(rows, columns=["printed", "protocol", "gap", "far", "side", "crossed"])


def in_order(protocols: Iterable[str]) -> list[str]:
    """Each protocol once, those with a colour of their own first."""
    found = set(protocols)
    return [*(name for name in INKS if name in found), *sorted(found - INKS.keys())]


def said(table: pd.DataFrame, sampled: Collection[str]) -> list[str]:
    """For every printed row that the method itself is far from under a protocol: where, and what was tried.

    Args:
        table: from `attempts`.
        sampled: the protocols that rank sampled servers; their values are listed and make nothing far.

    Returns: Markdown, each the text of a list item with items below it.
    """
    near, found = nearness(table, sampled), []
    for printed, rows in table.groupby("printed", sort=False):
        paper = f"{printed}: the paper prints NDCG@10 {rows['paper'].iloc[0]:.3f} and Recall@10 "
        paper += f"{rows['paper_recall'].iloc[0]:.3f}"
        ran, places = rows.dropna(subset=["ours"]), near[near["printed"] == printed]
        if ran.empty:
            found.append(f"{paper}; ours has not run.")
        elif places.empty:
            none = f"{paper}; the method itself has not ranked all servers."
            found.append("\n  - ".join([none, *_tried(ran, sampled)]))
        elif places["far"].any():
            found.append("\n  - ".join([f"{paper}. {_where(places)}", *_tried(ran, sampled), _nearest(ran, sampled)]))
    return found


def _where(places: pd.DataFrame) -> str:
    """Sentences on one printed row: under which protocols the method is far, on which side, and where it is near."""
    far = places[places["far"]]
    parts = [
        f"more than {FAR} {side} the paper under {_listed(there)}"
        for side in ("above", "below", "on both sides of")
        if (there := in_order(far.loc[far["side"] == side, "protocol"]))
    ]
    text = f"In NDCG@10 the method itself is {', '.join(parts)}."
    if near := in_order(places.loc[~places["far"], "protocol"]):
        text += f" It is near under {_listed(near)}."
    for side, other in (("above", "below"), ("below", "above")):
        if there := in_order(far.loc[far["crossed"] & (far["side"] == side), "protocol"]):
            text += f" Yet its Recall@10 is {other} the paper's under {_listed(there)}."
    return text


def _listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _tried(ran: pd.DataFrame, sampled: Collection[str]) -> list[str]:
    """A line per kind of attempt at one printed row: each value by its protocol, and what it is."""
    lines = []
    for kind in (kind for kind in KINDS if kind in set(ran["kind"])):
        of_kind, parts = ran[ran["kind"] == kind], []
        for title, rows in of_kind.groupby("title", sort=False):
            values = {
                row["protocol"]: f"{row['ours']:.3f}"
                + (f" and {row['recall']:.3f}" if kind in ITSELF else "")
                + f" ({row['protocol']}{', sampled servers' if row['protocol'] in sampled else ''})"
                for row in rows.to_dict("records")
            }
            name = "" if kind in ITSELF else f"{short(str(title), rows['printed'].iloc[0])} "
            parts.append(name + ", ".join(values[protocol] for protocol in in_order(values)))
        head = f"{kind}, NDCG@10 and Recall@10" if kind in ITSELF else f"{kind}, NDCG@10"
        lines.append(f"{head}: {'; '.join(parts)}")
    return lines


def short(title: str, printed: str) -> str:
    """A title without the method's name, and without the word that its kind says: ``tuned, 4 x epochs``."""
    found = re.fullmatch(rf"{re.escape(printed)} (?:\((?:fault: )?(.+)\)|\+ (.+))", title, re.IGNORECASE)
    return title if found is None else found[1] or found[2]


def _nearest(ran: pd.DataFrame, sampled: Collection[str]) -> str:
    """The attempt of the method itself that came nearest under a full ranking, in both metrics beside the paper."""
    itself = ran[ran["kind"].isin(ITSELF) & ~ran["protocol"].isin([*sampled])]
    row = itself.iloc[itself["gap"].abs().argmin()]
    return (
        f"nearest of the method itself: {row['kind']} under {row['protocol']}, NDCG@10 {row['gap']:+.3f}, Recall@10 "
        f"{row['recall'] - row['paper_recall']:+.3f} from the paper's"
    )


@mpl.rc_context(STYLE)
def attempts_figure(table: pd.DataFrame, caption: str) -> Figure:
    """The paper's value of each baseline as a bar across its line, every attempt of ours as a marker on it."""
    printed = list(dict.fromkeys(table["printed"]))
    caption += (
        " Black bar: the paper's value. Colour: our protocol; marker: what was tried. Under warm a task has several "
        "test servers, under loo and loo99 one; loo99 ranks it among 99 sampled ones."
    )
    figure, axes = canvas(1.4 + 0.42 * len(printed), caption=caption, title="The paper's baselines and every attempt")
    panel = axes[0, 0]
    places = {name: len(printed) - 1 - number for number, name in enumerate(printed)}
    protocols = in_order(table.dropna(subset=["ours"])["protocol"])
    kinds = [name for name in KINDS if name in set(table.dropna(subset=["ours"])["kind"])]
    for name, rows in table.groupby("printed", sort=False):
        panel.vlines(rows["paper"].iloc[0], places[name] - 0.42, places[name] + 0.42, color="black", linewidth=2.2)
    for row in table.dropna(subset=["ours"]).to_dict("records"):
        ink = INKS.get(row["protocol"], BLACK)
        shift = 0.15 * ((len(protocols) - 1) / 2 - protocols.index(row["protocol"]))
        panel.plot(
            row["ours"],
            places[row["printed"]] + shift,
            linestyle="none",
            color=ink,
            marker=MARKERS[KINDS.index(row["kind"])],
            markersize=5,
            markeredgecolor="white",
        )
    panel.set_yticks(list(places.values()), list(places), parse_math=False)
    panel.hlines(
        np.arange(len(printed) - 1) + 0.5, 0, 1, transform=panel.get_yaxis_transform(), color="#DDDDDD", linewidth=0.6
    )
    panel.set(xlabel=f"{metric_name(METRIC)} (0 to 1)", xlim=(0, None), ylim=(-0.6, len(printed) - 0.4))
    panel.grid(axis="x")
    handles: list[Artist] = [Patch(color=INKS.get(name, BLACK)) for name in protocols]
    handles += [Line2D([], [], linestyle="none", marker=MARKERS[KINDS.index(name)], color="#555555") for name in kinds]
    legend_below(figure, handles, protocols + kinds)
    return figure
