"""Figures: equal bytes, small files, whole captions, and the figures of a data set."""

import base64
import io
import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from study import paths
from study.analysis.report import plots
from study.data.dataset import Dataset, relevance_from_lists
from tests.analysis.report.helpers import misplaced

pytestmark = pytest.mark.usefixtures("new_root")


def test_saved_twice_gives_equal_bytes_without_a_date_and_leaks_no_style():
    before, written = dict(mpl.rcParams), []
    for name in ("first", "second"):
        figure, axes = plots.canvas(2.0, caption="Question: fitting the released labels.", title="T")
        axes[0, 0].plot([0, 1], [1, 0])
        path = plots.save_figure(figure, name, "toy")
        written.append((path.read_bytes(), path.with_suffix(".svg").read_bytes()))
    assert written[0] == written[1]
    assert path == paths.figures("toy") / "second.png"
    assert b"<dc:date>" not in written[0][1]
    ET.fromstring(written[0][1])
    with Image.open(path) as image:
        assert "Software" not in image.info
        assert image.width == pytest.approx(plots.WIDTH * plots.STYLE["savefig.dpi"], abs=1)
        assert len(np.unique(np.asarray(image.convert("L")))) > 20
    assert dict(mpl.rcParams) == before


def test_the_last_bit_of_a_layout_changes_no_byte():
    """A frame a little further right gets another name from matplotlib, and the same one here."""
    drawn = []
    for left in (0.1, np.nextafter(0.1, 1)):
        figure = Figure()
        figure.add_axes((left, 0.1, 0.5, 0.5)).plot([0, 1], [1, 0])
        raw = io.StringIO()
        with mpl.rc_context(plots.STYLE):
            figure.savefig(raw, format="svg", metadata={"Date": None})
        drawn.append(raw.getvalue())
    assert drawn[0] != drawn[1]
    assert plots.shorter(drawn[0]) == plots.shorter(drawn[1])
    names = set(re.findall(r'<clipPath id="(\w+)"', plots.shorter(drawn[0])))
    assert names == set(re.findall(r"url\(#(\w+)\)", plots.shorter(drawn[0])))


def test_places_in_a_drawing_are_cut_to_hundredths_and_nothing_else_is():
    drawn = '<g>\n   <path d="M 1.23456 -7.0 \nL 1e-05 2.999"/>\n <text x="0.125" dx="0.125">0.12345 of 2</text>\n</g>'
    assert plots.shorter(drawn) == (
        '<g>\n<path d="M 1.23 -7.0 \nL 1e-05 2.99"/>\n<text x="0.12" dx="0.125">0.12345 of 2</text>\n</g>'
    )


def test_a_large_picture_within_a_drawing_has_a_palette_and_still_shows_the_same():
    rng = np.random.default_rng(1)

    def drawing(size: int) -> str:
        pixels = np.full((size, size, 4), (255, 255, 255, 0), dtype=np.uint8)
        pixels[rng.random((size, size)) < 0.5] = (0, 114, 178, 255)
        picture = io.BytesIO()
        Image.fromarray(pixels).save(picture, format="PNG", compress_level=0)
        return f'<image xlink:href="data:image/png;base64,\n{base64.b64encode(picture.getvalue()).decode()}"/>'

    def shown(svg: str) -> Image.Image:
        return Image.open(io.BytesIO(base64.b64decode(svg.split("base64,")[1].split('"')[0])))

    small, large = drawing(20), drawing(200)
    packed = plots.shorter(large)
    assert plots.shorter(small) == small
    assert len(packed) < len(large) / 5
    assert shown(packed).mode == "P"
    assert np.array_equal(np.asarray(shown(packed).convert("RGBA")), np.asarray(shown(large)))
    assert plots.shorter(packed) == packed


def test_captions_are_wrapped_and_kept_whole():
    caption = "Question: fitting the released labels. " * 6
    figure, _ = plots.canvas(3, caption=caption, title="T")
    assert " ".join(figure.get_supxlabel().split()) == caption.strip()
    assert max(map(len, figure.get_supxlabel().splitlines())) <= 128
    wide, _ = plots.canvas(3, caption="WWW MMM " * 40, title="T")
    assert misplaced(wide)[0] == []


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
