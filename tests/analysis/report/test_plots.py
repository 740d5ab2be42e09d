"""Figures: equal bytes, small files, whole captions, and the figures of a data set."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
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
