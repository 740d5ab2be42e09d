"""How the kinds of systems are drawn and named: one colour, marker and phrase per family of ``conf/system``.

Colours are those of Okabe and Ito (2008), told apart by colour-blind readers, and five more that keep a distance from
them under simulated protanopia and deuteranopia. Related families share a colour; no two share colour and marker.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from study.analysis.report.runs import ORACLE

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#7F7F7F"
BLACK, CRIMSON, LIME, INDIGO, TEAL, SILVER = "#000000", "#AA1133", "#88BB66", "#5522CC", "#004455", "#BDBDBD"
SHADE = 0.35  # opacity of a filled area, so that lines on it can be seen


class Look(NamedTuple):
    """How systems of a kind are drawn: the legend's words, colour, and the marker of a lone point."""

    words: str
    ink: str
    marker: str


# In the order of legends. The study's subject stands out; what it is changed to has a darker red.
FAMILIES = {
    "t2mrec": Look("T2MRec", RED, "d"),
    "ablation": Look("ablation of T2MRec", CRIMSON, "X"),
    "supervision": Look("T2MRec on other labels", CRIMSON, "P"),
    "lexical": Look("lexical", BLUE, "^"),
    "dense": Look("dense", SKY, "v"),
    "neighbour": Look("neighbour", GREEN, "s"),
    "linear": Look("linear", LIME, "P"),
    "collaborative": Look("collaborative", PURPLE, "o"),
    "graph": Look("graph", INDIGO, "X"),
    "hybrid": Look("hybrid", ORANGE, "p"),
    "published": Look("published", TEAL, ">"),
    "extension": Look("extension of a published one", TEAL, "<"),
    "reference_bug": Look("bug of a published program", TEAL, "X"),
    "trivial": Look("trivial (rules, popularity, chance)", BLACK, "o"),
    ORACLE: Look("reads the answers", GREY, "*"),
}
OTHER = Look("other", SILVER, "h")


def look(family: str) -> Look:
    """How a kind of system is drawn."""
    return FAMILIES.get(family, OTHER)


def colour(family: str) -> str:
    """The colour of a kind of system."""
    return look(family).ink


def present(families: Iterable[str]) -> list[Look]:
    """The looks of some kinds, each once, in the order of legends."""
    found = {look(family) for family in families}
    return [known for known in (*FAMILIES.values(), OTHER) if known in found]


def worded(families: Iterable[str]) -> dict[str, str]:
    """Colour -> the legend's words for what has it among some kinds."""
    words: dict[str, list[str]] = {}
    for kind in present(families):
        words.setdefault(kind.ink, []).append(kind.words)
    return {ink: " or ".join(said) for ink, said in words.items()}


def filling(ink: str) -> tuple[str, float]:
    """The face of an area whose edge has a colour."""
    return (ink, 0.0 if ink == FAMILIES[ORACLE].ink else SHADE)


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

    Call it last: the layout keeps the legend's place free, and knows nothing else of it. `heads` are places of entries
    that head those after them: bold, and never the last of a column.
    """
    for columns in (3, 2, 1):
        places = columned(len(labels), heads, columns)
        shown = [Line2D([], [], linestyle="none") if place is None else handles[place] for place in places]
        words = ["" if place is None else labels[place] for place in places]
        legend = figure.legend(shown, words, loc="lower left", ncols=columns, fontsize=7.5, borderaxespad=0)
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
