"""Figures: equal bytes, small files, whole captions, colours that are told apart, and the figures of a data set."""

import itertools

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from study.analysis.report import plots
from study.base import paths
from study.config.compose import sound_systems
from study.data.dataset import Dataset, relevance_from_lists
from tests.analysis.report.helpers import misplaced

# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as protanopes and deuteranopes see it.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]


@pytest.mark.usefixtures("new_root")
def test_saved_twice_gives_equal_bytes_without_a_date_and_leaks_no_style():
    before, written = dict(mpl.rcParams), []
    for name in ("first", "second"):
        figure, axes = plots.canvas(2.0, caption="Question: fitting the released labels.", title="T")
        axes[0, 0].plot([0, 1], [1, 0])
        path = plots.save_figure(figure, name, "toy")
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert path == paths.figures("toy") / "second.png"
    with Image.open(path) as image:
        assert "Software" not in image.info
        assert image.width == pytest.approx(plots.WIDTH * plots.STYLE["savefig.dpi"], abs=1)
        assert len(np.unique(np.asarray(image.convert("L")))) > 20
    assert dict(mpl.rcParams) == before


def test_captions_are_wrapped_and_kept_whole():
    caption = "Question: fitting the released labels. " * 6
    figure, _ = plots.canvas(3, caption=caption, title="T")
    assert " ".join(figure.get_supxlabel().split()) == caption.strip()
    assert max(map(len, figure.get_supxlabel().splitlines())) <= 128
    wide, _ = plots.canvas(3, caption="WWW MMM " * 40, title="T")
    assert misplaced(wide)[0] == []


@pytest.mark.usefixtures("new_root")
def test_servers_are_counted_rare_values_summed_up_and_figures_draw_the_counts():
    rows = tuple(np.array(row) for row in ([0, 1, 2], [0, 1], [0]))
    servers = pd.DataFrame({"id": range(4), "category_clean": ["a", "a", "b", ""]})
    servers["language_tokens"] = ["Go, Rust", "Go", "", "C"]
    tasks = pd.DataFrame({"id": range(3), "language_tokens": ["Go", "Go", "C"], "subcategory_clean": ["x", "y", "y"]})
    toy = Dataset("toy", servers, tasks, relevance_from_lists(rows, 4), rows)
    assert plots.popularity(toy).tolist() == [3, 2, 1, 0]
    counts = plots.value_counts(toy.servers["language_tokens"], listed=True, most=2)
    assert counts.to_dict() == {"Go": 2, "C": 1, "1 others": 1}
    assert plots.value_counts(toy.servers["category_clean"]).to_dict() == {"a": 2, "b": 1}
    figure = plots.lists(toy, "caption")
    lengths, ranks, shares = figure.axes
    assert [bar.get_height() for bar in lengths.patches] == [1, 1, 1]
    assert list(ranks.get_lines()[0].get_ydata()) == [3, 2, 1]
    assert list(shares.get_lines()[0].get_ydata()) == pytest.approx([0, 50, 100 * 5 / 6, 100, 100])
    plots.save_figure(figure, "lists", "toy")
    attributes = plots.attributes(toy, "caption")
    assert [axes.get_title(loc="left") for axes in attributes.axes][2] == "Subcategory of tasks"
    assert [bar.get_width() for bar in attributes.axes[0].patches] == [2, 1]
    shares = pd.DataFrame({"planted": [0.7, 0.3], "drawn": [0.6, 0.4]}, index=["topic_match", "random"])
    mixture = plots.mixture(shares, "caption").axes[0]
    assert [bar.get_width() for bar in mixture.patches] == pytest.approx([70, 30, 60, 40])


def test_rows_curves_and_matrices_show_their_values_at_their_places():
    table = pd.DataFrame({"system": ["a", "b", "a"], "part": ["x", "x", "y"], "mean": [1.0, np.nan, 3.0]})
    table = table.assign(ci_low=table["mean"] - 1, ci_high=table["mean"] + 1, sd=0.5, k=[1, 2, 5])
    _, axes = plots.canvas(3, 3)
    looks = {"y": plots.Look("Y", "red", "s"), "x": plots.Look("X", face="white")}
    names = {"b": "B", "a": "A"}
    places = plots.forest(
        axes[0, 0], table, names=names, hue="part", looks=looks, dodge=0.2, spread="sd", zero=True, xlabel="value"
    )
    assert places == {"b": 0, "a": 1}
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes[0, 0].get_lines()[1:]}
    assert drawn["Y"] == [[3.0, 0.9]]
    assert drawn["X"][0] == [1.0, 1.1]
    assert [label.get_text() for label in axes[0, 0].get_yticklabels()] == ["B", "A"]
    assert axes[0, 0].yaxis_inverted()
    plots.lines(axes[0, 1], table, "k", interval=("ci_low", "ci_high"), hue="part", xlabel="k")
    assert [line.get_label() for line in axes[0, 1].get_lines()] == ["x", "y"]
    assert len(axes[0, 1].collections) == 2
    cells = pd.DataFrame([[0.5, np.nan], [0.05, 2.0]], index=["r", "s"], columns=["c", "d"])
    texts, scale = cells.map("{:g}".format), plots.steps([0, 0.1, 1, 10], ["white", "grey", "black"])
    plots.heat(axes[0, 2], cells, texts, bold=cells > 1, turn=35, **scale)
    shown = [(text.get_text(), text.get_position(), text.get_fontweight()) for text in axes[0, 2].texts]
    assert shown == [("0.5", (0.5, 0.5), "normal"), ("0.05", (0.5, 1.5), "normal"), ("2", (1.5, 1.5), "bold")]


def seen(ink, sight):
    """CIELAB of a colour as somebody sees it."""
    rgb = np.array(to_rgb(ink))
    linear = SIGHT[sight] @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(linear, 0, 1) / (0.95047, 1, 1.08883)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_every_configured_family_has_a_look_of_its_own():
    configured = {str(system.family) for system in sound_systems().values()}
    assert configured <= set(plots.FAMILIES), "a family of conf/system would be drawn as: other"
    looks = [*plots.FAMILIES.values(), plots.OTHER]
    assert len({kind.words for kind in looks}) == len({(kind.ink, kind.marker) for kind in looks}) == len(looks)


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_are_told_apart(sight):
    # The two greys stand apart by an empty area and by their markers.
    inks = {kind.ink for name, kind in plots.FAMILIES.items() if name != plots.ORACLE}
    distances = {(a, b): np.linalg.norm(seen(a, sight) - seen(b, sight)) for a, b in itertools.combinations(inks, 2)}
    # Okabe and Ito's own green and purple are 18 apart under deuteranopia.
    assert min(distances.values()) > 17


def test_legends_name_kinds_once_in_one_order_and_an_unknown_one_as_other():
    assert plots.marker_legend(["new", "trivial"])[1] == ["trivial (rules, popularity, chance)", "other"]
    kinds = ["trivial", "ablation", "supervision", "t2mrec", "trivial"]
    handles, labels = plots.marker_legend(kinds)
    words = ["T2MRec", "ablation of T2MRec", "T2MRec on other labels", "trivial (rules, popularity, chance)"]
    assert labels == words
    assert [handle.get_marker() for handle in handles] == ["d", "X", "P", "o"]
    assert plots.area_legend(kinds)[1] == [words[0], " or ".join(words[1:3]), words[3]]


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("heads", [{0}, {0, 2, 4, 6, 8}, {0, 1, 3}, {0, 5, 9}])
def test_no_head_is_the_last_of_a_column_and_without_heads_nothing_is_moved(heads, columns):
    assert plots.columned(7, (), columns) == list(range(7))
    for n in range(max(heads) + 2, 40):
        places = plots.columned(n, heads, columns)
        rows, over = divmod(len(places), columns)
        assert over == 0
        assert [place for place in places if place is not None] == list(range(n))
        assert not {places[end] for end in range(rows - 1, len(places), rows)} & heads
