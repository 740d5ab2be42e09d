"""Colours and markers of kinds of systems: one for every configured kind, told apart by colour-blind readers."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from study.analysis.report import colours
from study.config.compose import sound_systems

# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as protanopes and deuteranopes see it.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]


def seen(ink, sight):
    """CIELAB of a colour as somebody sees it."""
    rgb = np.array(to_rgb(ink))
    linear = SIGHT[sight] @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(linear, 0, 1) / (0.95047, 1, 1.08883)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_every_configured_family_has_a_look_of_its_own():
    configured = {str(system.family) for system in sound_systems().values()}
    assert configured <= set(colours.FAMILIES), "a family of conf/system would be drawn as: other"
    looks = [*colours.FAMILIES.values(), colours.OTHER]
    assert len({kind.words for kind in looks}) == len({(kind.ink, kind.marker) for kind in looks}) == len(looks)


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_are_told_apart(sight):
    # The two greys stand apart by an empty area and by their markers.
    inks = {kind.ink for name, kind in colours.FAMILIES.items() if name != colours.ORACLE}
    distances = {(a, b): np.linalg.norm(seen(a, sight) - seen(b, sight)) for a, b in itertools.combinations(inks, 2)}
    # Okabe and Ito's own green and purple are 18 apart under deuteranopia.
    assert min(distances.values()) > 17


def test_legends_name_kinds_once_in_one_order_and_an_unknown_one_as_other():
    assert colours.points(["new", "trivial"])[1] == ["trivial (rules, popularity, chance)", "other"]
    kinds = ["trivial", "ablation", "supervision", "t2mrec", "trivial"]
    handles, labels = colours.points(kinds)
    words = ["T2MRec", "ablation of T2MRec", "T2MRec on other labels", "trivial (rules, popularity, chance)"]
    assert labels == words
    assert [handle.get_marker() for handle in handles] == ["d", "X", "P", "o"]
    assert colours.areas(kinds)[1] == [words[0], " or ".join(words[1:3]), words[3]]


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("heads", [{0}, {0, 2, 4, 6, 8}, {0, 1, 3}, {0, 5, 9}])
def test_no_head_is_the_last_of_a_column_and_without_heads_nothing_is_moved(heads, columns):
    assert colours.columned(7, (), columns) == list(range(7))
    for n in range(max(heads) + 2, 40):
        places = colours.columned(n, heads, columns)
        rows, over = divmod(len(places), columns)
        assert over == 0
        assert [place for place in places if place is not None] == list(range(n))
        assert not {places[end] for end in range(rows - 1, len(places), rows)} & heads
