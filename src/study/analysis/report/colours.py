"""How the kinds of systems are drawn and named: one colour, marker and phrase per family of ``conf/system``.

Colours are those of Okabe and Ito (2008), told apart by colour-blind readers, and five more that keep a distance from
them under simulated protanopia and deuteranopia. Related families share a colour; no two share colour and marker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
    "#7F7F7F",
)
BLACK, CRIMSON, LIME, INDIGO, TEAL, SILVER = "#000000", "#AA1133", "#88BB66", "#5522CC", "#004455", "#BDBDBD"
SHADE = 0.35  # opacity of a filled area, so that lines on it can be seen
CEILING = "ceiling"  # the family that reads the answers: its areas stay empty


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
    "fault": Look("fault of a published program", TEAL, "X"),
    "floor": Look("floor (rules, popularity, chance)", BLACK, "o"),
    CEILING: Look("reads the answers", GREY, "*"),
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
    return (ink, 0.0 if ink == FAMILIES[CEILING].ink else SHADE)
