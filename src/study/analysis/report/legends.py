"""Legends under a figure: of kinds of systems, and of systems under the names of their kinds."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from study.analysis.report.colours import filling, present, worded


def points(families: Iterable[str]) -> tuple[list[Artist], list[str]]:
    """Handles and labels of a legend that names the markers of some kinds."""
    shown = present(families)
    handles = [Line2D([], [], linestyle="none", marker=kind.marker, color=kind.ink, markersize=5.5) for kind in shown]
    return list(handles), [kind.words for kind in shown]


def areas(families: Iterable[str]) -> tuple[list[Artist], list[str]]:
    """Handles and labels of a legend that names the areas of some kinds; those of one colour have one entry."""
    words = worded(families)
    return [area(ink) for ink in words], list(words.values())


def area(ink: str) -> Patch:
    """An area in a colour as boxes have it."""
    return Patch(facecolor=filling(ink), edgecolor=ink)


def legend_below(
    figure: Figure, handles: Sequence[Artist], labels: Sequence[str], heads: Collection[int] = ()
) -> Legend:
    """A legend between the axes and the caption of `canvas`, in as many columns as fit; the figure grows by its height.

    Call it last: the layout keeps the legend's place free, and knows nothing else of it.

    Args:
        heads: places of the entries that head those after them: bold, and never the last of a column.
    """
    for columns in (3, 2, 1):
        places = columned(len(labels), heads, columns)
        legend = figure.legend(
            [Line2D([], [], linestyle="none") if place is None else handles[place] for place in places],
            ["" if place is None else labels[place] for place in places],
            loc="lower left",
            ncols=columns,
            fontsize=7.5,
            borderaxespad=0,
        )
        for text, place in zip(legend.get_texts(), places, strict=True):
            if place in heads:
                text.set_fontweight("bold")
        if columns == 1 or legend.get_window_extent().width < 0.97 * figure.bbox.width:
            break
        legend.remove()
    caption = [text for text in figure.texts if text.get_text() == figure.get_supxlabel() != ""]
    gap = 0.08  # inches
    below = sum(text.get_window_extent().height for text in caption) / figure.dpi + gap
    own = legend.get_window_extent().height / figure.dpi + gap
    height = figure.get_figheight() + own
    figure.set_figheight(height)
    legend.set_in_layout(False)
    legend.set_bbox_to_anchor((0.01, below / height), figure.transFigure)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, own / height, 1, 1 - own / height))
    return legend


def columned(n: int, heads: Collection[int], columns: int) -> list[int | None]:
    """The order of `n` entries of a legend, None for an empty place, so that no head is the last of a column."""
    if not heads:
        return list(range(n))
    for rows in itertools.count(max(2, -(-n // columns))):
        places: list[int | None] = []
        for entry in range(n):
            if entry in heads and len(places) % rows == rows - 1:
                places.append(None)
            places.append(entry)
        if len(places) <= rows * columns:
            break
    return places + [None] * (rows * columns - len(places))
