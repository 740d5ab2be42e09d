"""What quality costs: seconds of fits and searches, quality against time, and the least work that T2MRec needs.

A fit has one core (`threads` of the profile), so its seconds by the clock are core seconds. They were measured on a
machine that did other work as well, which makes single ones too long. Work is counted with two operations per
multiply-add and float32 throughout; what depends on the machine (sorting, Python) is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.analysis.overall.table3_gaps import OWN, TUNED, kind_of
from study.analysis.report.plots import (
    GREY,
    area,
    canvas,
    colour,
    from_zero,
    legend_below,
    logarithmic,
    look,
    styled,
    worded,
)
from study.analysis.report.results import Results, lineage
from study.analysis.report.runs import ORACLE
from study.analysis.report.tables import RISING, still_rising
from study.runner.row_store import read_records
from study.t2mrec.settings import Towers

if TYPE_CHECKING:  # importing it loads torch
    from study.t2mrec.module import Batch

LONG = 600  # seconds by the clock that a fit under the profile laptop should not exceed
HOUR = 3600
# Kinds of effort, in the order of the table: runs at the system's own settings and tuned, searches, and the runs
# that train longer, of variants, of reference bugs and of extensions.
SEARCHES, SIDE = "searches", "side rows"
KINDS = (OWN, TUNED, SEARCHES, SIDE)
PUBLISHED = "published"  # family of the methods that this study wrote after their papers
COLUMNS = ["printed", "system", "family", *KINDS, "total"]
# Shapes that a small marker still tells apart, and how they are filled once every shape of a colour is taken.
SHAPES, FILLS = "osD^vPX<>dp", ("full", "left", "bottom", "right", "top")
RESOLUTION = 1e-3  # seconds; shorter times cannot be told from 0
# So many systems can always be told apart; more are close together where the worst reaches this share of the best.
FEW, NEAR = 10, 0.75
TUNED_TITLE = " (tuned)"  # how the title of a tuned system ends; the rest is the title at its own settings
FLOAT = 4  # bytes
# Per (task, server) pair: three features weighted and summed (5), scaled and added to the cosine (3).
FUSION = 8
# Score matrices per pair, each written once and read once: cosine, three features, fused score, centroid similarity.
MATRICES = 6


def fits(results: Results) -> pd.DataFrame:
    """Every fit behind the tables: protocol, system, title, seed, seconds_fit, seconds_score (of all test tasks)."""
    columns, rows = ["seed", "seconds_fit", "seconds_score"], []
    records = read_records(results.dataset)
    for protocol, system in results.costs[["protocol", "system"]].itertuples(index=False):
        title = results.titles[system]
        rows += [
            (protocol, system, title, *(seed[name] for name in columns)) for seed in records[protocol, system]["seeds"]
        ]
    return pd.DataFrame(rows, columns=["protocol", "system", "title", *columns])


def long_fits(fitted: pd.DataFrame) -> pd.DataFrame:
    """The systems whose longest seed took more than `LONG`, the longest first; `fitted`: from `fits`.
    Returns: columns protocol, title, longest and mean (minutes), seeds."""
    minutes = fitted.assign(minutes=fitted["seconds_fit"] / 60).groupby(["protocol", "title"], sort=False)["minutes"]
    table = minutes.agg(longest="max", mean="mean", seeds="size").reset_index()
    long = table[table["longest"] > LONG / 60]
    return long.sort_values("longest", ascending=False, kind="stable", ignore_index=True)


def core_hours(
    results: Results, fitted: pd.DataFrame, searches: pd.DataFrame, printed: Mapping[str, str]
) -> pd.DataFrame:
    """Core hours behind each row of the paper's Table 3 that has a run, its share in every kind of effort.

    `fitted`: from `fits`. `searches`: from `study.analysis.overall.tuning.tuned`. `printed`: the paper's name ->
    system; the systems that build on it, or carry it to new tasks, count with it.

    Returns: `COLUMNS`, hours of fitting and scoring, in the paper's order.
    """
    core = (fitted["seconds_fit"] + fitted["seconds_score"]).groupby(fitted["system"]).sum()
    searched = searches.groupby("system")["seconds"].sum()
    above = {name: lineage(name) for name in {*core.index, *searched.index} & results.applies.keys()}
    rows = []
    for title, system in printed.items():
        hours = dict.fromkeys(KINDS, 0.0)
        for name in (name for name in sorted(above) if system in above[name]):
            kind = kind_of(name, system, results.families[name])
            hours[kind if kind in KINDS else SIDE] += float(core.get(name, 0)) / HOUR
            hours[SEARCHES] += float(searched.get(name, 0)) / HOUR
        if any(hours.values()):
            family = results.families[system]
            rows.append({"printed": title, "system": system, "family": family, **hours, "total": sum(hours.values())})
    # Without a row pandas would take the hours for objects.
    return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys([*KINDS, "total"], float))


def summed(table: pd.DataFrame) -> pd.DataFrame:
    """The table of `core_hours` with two sums below it: of the rows of `PUBLISHED`, and of all rows."""
    published, sums = table[table["family"] == PUBLISHED], []
    for family, part in ((PUBLISHED, published), ("", table)):
        if len(part):
            name = f"sum of the {len(part)} of family {family}" if family else f"sum of all {len(part)}"
            sums.append({"printed": name, "system": "", "family": family, **part[[*KINDS, "total"]].sum()})
    return pd.concat([table, pd.DataFrame(sums, columns=COLUMNS)], ignore_index=True) if sums else table


@styled
def cost_quality(costs: pd.DataFrame, caption: str) -> Figure:
    """What quality costs: NDCG@10 against time to fit and time per task, without ablations.
    `costs`: columns title, family, quality, tasks, seconds_fit, milliseconds_per_task, seeds, rising."""
    ablations = costs["family"] == "ablation"
    costs = _drawn(costs[~ablations])
    better = crowded(costs)
    if costs["open"].any():
        caption += " Open marker: a system at its own settings; filled, the same shape: tuned."
    caption += RISING * bool(still_rising(costs).any())
    if ablations.any():
        caption += f" Left out: {look('ablation').words}."
    if not better.empty:
        caption += " Right: the better half of the systems alone, enlarged."
    caption += (
        " Times are means over seeds, on logarithmic axes; a fit or a whole ranking of under "
        f"{1000 * RESOLUTION:.0f} ms is drawn as that. They come from the runs' records, and not all runs were made on "
        "a quiet machine (docs/reproducibility.md)."
    )
    parts = [costs] if better.empty else [costs, better]
    figure, axes = canvas(8.0, len(parts), rows=2, caption=caption, title="Cost and quality")
    floor = {"seconds_fit": RESOLUTION, "milliseconds_per_task": 1e3 * RESOLUTION / costs["tasks"].max()}
    labels = {"seconds_fit": "time to fit (s)", "milliseconds_per_task": "time to rank (ms per task)"}
    for line, (column, label) in zip(axes, labels.items(), strict=True):
        drawn = [
            _points(panel, part, part[column].clip(lower=floor[column]))
            for panel, part in zip(line, parts, strict=True)
        ]
        for panel in line:
            logarithmic(panel.xaxis, most=7 if len(parts) == 1 else 4)
            panel.set(xlabel=label)
            panel.grid(True)
        line[0].set(ylabel="NDCG@10 (0 to 1)")
        from_zero(line[0])
    handles: list[Artist] = []
    heads: dict[int, str] = {}
    for ink, kind in worded(costs["family"]).items():
        heads[len(handles)] = kind
        handles += [area(ink), *drawn[0][ink]]
    words = [heads.get(place, str(handle.get_label())) for place, handle in enumerate(handles)]
    legend_below(figure, handles, words, heads)
    return figure


def _drawn(costs: pd.DataFrame) -> pd.DataFrame:
    """The table of costs, best quality first, with columns ink, marker, fill and open that tell 55 of a colour apart.

    A tuned system has the shape of the same system at its own settings, which is open, as in the figure of what tuning
    brought. What reads the answers is a star.
    """
    costs = costs.sort_values("quality", ascending=False, kind="stable")
    base, ink = costs["title"].str.removesuffix(TUNED_TITLE), costs["family"].map(colour)
    number = base.groupby(ink).transform(lambda own: pd.factorize(own)[0])
    shapes = ink.map(lambda name: "*" if name == GREY else SHAPES)
    marker = [own[place % len(own)] for own, place in zip(shapes, number, strict=True)]
    fill = [FILLS[place // len(own) % len(FILLS)] for own, place in zip(shapes, number, strict=True)]
    tuned = base[costs["title"].str.endswith(TUNED_TITLE)]
    title = costs["title"] + still_rising(costs).map({True: " †", False: ""})
    return costs.assign(ink=ink, marker=marker, fill=fill, open=costs["title"].isin(tuned), title=title)


def crowded(costs: pd.DataFrame) -> pd.DataFrame:
    """The better half of the systems that do not read the answers, if they lie too close together to be told apart.
    `costs`: best quality first. Returns no row where there is room."""
    systems = costs[costs["family"] != ORACLE]
    better = systems.head((len(systems) + 1) // 2)
    close = len(better) > FEW and better["quality"].iloc[-1] > NEAR * better["quality"].iloc[0]
    return better if close else better.head(0)


def _points(panel: Axes, costs: pd.DataFrame, times: pd.Series) -> dict[str, list[Line2D]]:
    """One marker per system of `_drawn`; returns them by colour, in its order."""
    drawn: dict[str, list[Line2D]] = {}
    for row, time in zip(costs.to_dict("records"), times, strict=True):
        # Filled markers that overlap are parted by a white edge, open ones show what lies below them; the study's
        # subject lies on top.
        ink, parted = row["ink"], row["fill"] == "full" and not row["open"]
        look: dict[str, Any] = {"marker": row["marker"], "fillstyle": row["fill"], "linestyle": "none", "color": ink}
        look |= {"markerfacecolor": "none" if row["open"] else ink, "markersize": 9 if row["marker"] == "*" else 6.5}
        look |= {"markeredgecolor": "white" if parted else ink, "markeredgewidth": 0.6 if parted else 1.1}
        look |= {"alpha": 0.85, "clip_on": False, "zorder": 3 if row["family"] == "t2mrec" else 2}
        drawn.setdefault(ink, []).extend(panel.plot(time, row["quality"], label=row["title"], **look))
    return drawn


@dataclass(frozen=True)
class Limits:
    """Measured limits of a machine: float32 operations per second, and bytes read plus written per second."""

    flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True)
class Work:
    """A number of float32 operations, and of bytes read plus written."""

    flops: float
    bytes: float

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: float) -> Work:
        return Work(self.flops * times, self.bytes * times)

    def seconds_at(self, limits: Limits) -> float:
        """The least time at these limits: arithmetic and memory overlap, so the slower of both decides."""
        return max(self.flops / limits.flops_per_second, self.bytes / limits.bytes_per_second)


def narrow_weights(towers: Towers) -> int:
    """Weights and biases of one tower without its first matrix, whose rows belong to terms."""
    widths = [towers.hidden] * (towers.layers - 1) + [towers.output]
    return sum(a * b + b for a, b in pairwise(widths)) + towers.hidden


def training_work(epoch: Iterable[Batch], towers: Towers, *, dense: bool = False) -> Work:
    """One epoch of contrastive training (eq. 6-10). `dense`: AdamW moves every row of the wide layers, as on a device.

    FLOPs: forward and backward of all layers (backward twice the forward), the products of the batch's embeddings, and
    12 per weight and AdamW step. Bytes: weights and both moments of every used row of the wide layers read and written
    once per step, twice where it is caught up first, and the same for the narrow layers. Dense: weights, gradient and
    both moments of all rows, read and written once.
    """
    from study.t2mrec.towers import used_terms

    narrow, total = narrow_weights(towers), Work(0, 0)
    for batch in epoch:
        for vectors in (batch.tasks, batch.servers):
            used = vectors.shape[1] if dense else len(used_terms(vectors)[0])
            products = vectors.nnz * towers.hidden + vectors.shape[0] * (narrow - towers.hidden)
            flops = 3 * 2 * products + 12 * (used * towers.hidden + narrow)
            moved = 8 * (used * towers.hidden + narrow) if dense else 6 * (2 * used * towers.hidden + narrow)
            total += Work(flops, FLOAT * moved)
        total += Work(3 * 2 * batch.tasks.shape[0] * batch.servers.shape[0] * towers.output, 0)
    return total


def encoding_work(terms: float, texts: int, towers: Towers) -> Work:
    """`texts` texts, whose lexical vectors have `terms` non-zero entries in all, through one tower (eq. 6-7)."""
    narrow = narrow_weights(towers)
    flops = 2 * (terms * towers.hidden + texts * (narrow - towers.hidden))
    return Work(flops, FLOAT * (terms * towers.hidden + narrow))


def ranking_work(tasks: int, servers: int, output: int) -> Work:
    """Cosine, structure, fusion, anchors and expansion (eq. 8, 17-22) of embedded tasks against a catalogue.

    FLOPs: the two products with the catalogue (tasks, then centroids) and `FUSION` per pair. Bytes: the catalogue's
    embeddings read once per product, and `MATRICES` score matrices written and read.
    """
    pairs = tasks * servers
    moved = 2 * servers * output + 2 * tasks * output + 2 * MATRICES * pairs
    return Work(2 * 2 * pairs * output + FUSION * pairs, FLOAT * moved)
