"""Figures: the numbers that are drawn, equal bytes, and texts that are not read as markup."""

import base64
import io
import xml.etree.ElementTree as ET

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from study import paths
from study.analysis.report import colours, data_plots, plots
from study.data.dataset import Dataset, relevance_from_lists


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def summary():
    return pd.DataFrame(
        {
            "system": ["best", "ceiling", "floor"],
            "title": ["Best $x_{", "Ceiling", "Floor & <b>"],
            "family": ["t2mrec", "ceiling", "new"],
            "mean": [0.5, 0.4, 0.1],
            "sd": [0.02, np.nan, 0.0],
            "low": [0.45, 0.3, 0.05],
            "high": [0.55, 0.5, 0.2],
        }
    )


def lines(axes):
    return [(line.get_xdata(), line.get_ydata()) for line in axes.get_lines()]


def test_overall_draws_means_intervals_and_deviations(summary):
    figure = plots.overall({"ndcg@10": summary, "recall@10": summary.iloc[::-1]}, "caption")
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == summary["title"].tolist()
    drawn = [(list(map(float, np.atleast_1d(x))), float(np.atleast_1d(y)[0])) for x, y in lines(left)]
    assert ([0.45, 0.55], 3.0) in drawn
    assert ([0.48, 0.52], 3.0) in drawn
    assert ([0.5], 3.0) in drawn
    # One seed has no deviation: interval and mean only.
    assert sum(y == 2.0 for _, y in drawn) == 2
    assert left.get_xlabel() == "NDCG@10 (0 to 1)"
    # The second metric keeps the order of the first.
    assert {float(np.atleast_1d(y)[0]) for x, y in lines(right) if np.allclose(x, 0.5)} == {3.0}


def test_kinds_of_systems_are_named_under_what_shows_them_in_colour(summary):
    legend = ["T2MRec", "reads the answers", "other"]
    figure = plots.overall({"ndcg@10": summary}, LONG_CAPTION)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == legend
    assert misplaced(figure) == ([], [])
    drawn = {line.get_marker() for line in figure.axes[0].get_lines()} - {"None", None}
    assert drawn == {handle.get_marker() for handle in figure.legends[0].legend_handles}
    values = {title: pd.Series([0.1, 0.9]) for title in summary["title"]}
    families = dict(zip(summary["title"], summary["family"], strict=True))
    figure = plots.per_task_distribution(values, families | {"Not drawn": "dense"}, "ndcg@10", LONG_CAPTION)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == legend
    assert misplaced(figure) == ([], [])
    faces = [box.get_facecolor() for box in figure.axes[0].patches][::-1]
    assert faces == [handle.get_facecolor() for handle in figure.legends[0].legend_handles]


def test_saved_twice_gives_equal_bytes_without_a_date(summary, root):
    written = []
    for name in ("first", "second"):
        path = plots.save_figure(
            plots.overall({"ndcg@10": summary}, "Question: fitting the released labels."), name, "toy"
        )
        written.append((path.read_bytes(), path.with_suffix(".svg").read_bytes()))
    assert written[0] == written[1]
    assert path == paths.figures("toy") / "second.png"
    assert b"<dc:date>" not in written[0][1]
    ET.fromstring(written[0][1])
    with Image.open(path) as image:
        assert "Software" not in image.info
        assert image.width == pytest.approx(plots.WIDTH * plots.STYLE["savefig.dpi"], abs=1)
        assert len(np.unique(np.asarray(image.convert("L")))) > 20


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


def test_style_does_not_leak(summary):
    before = dict(mpl.rcParams)
    plots.save_figure(plots.overall({"ndcg@10": summary}, "caption"), "figure", "toy")
    assert dict(mpl.rcParams) == before


def test_titles_are_never_read_as_mathematics(summary):
    # "$x_{" alone is no formula; with a second dollar it would be an error or a formula.
    hostile = summary.assign(title=["$\\frac{1}$", "$$", "a $b$ c"])
    figure = plots.overall({"ndcg@10": hostile}, "caption")
    plots.save_figure(figure, "figure", "toy")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == hostile["title"].tolist()
    assert not any(label.get_parse_math() for label in figure.axes[0].get_yticklabels())


def test_per_task_distribution_counts_the_zeros():
    values = {"A": pd.Series([0, 0, 0.5, 1.0]), "B": pd.Series([0.0, np.nan, 0, 0])}
    figure = plots.per_task_distribution(values, {"A": "lexical", "B": "floor"}, "ndcg@10", "caption")
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts[:2] == ["100%", "50%"]  # from below: B, whose undefined task does not count, then A
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["B", "A"]


def test_win_tie_loss_adds_up():
    rows = pd.DataFrame(
        {
            "system": ["a", "b"],
            "reference": "t",
            "metric": "ndcg@10",
            "n": [10, 10],
            "wins": [1, 6],
            "ties": [2, 0],
            "losses": [7, 4],
            "difference": [-0.2, 0.1],
        }
    )
    axes = plots.win_tie_loss(rows, {"a": "A", "b": "B", "t": "T"}, "caption").axes[0]
    widths = [[bar.get_width() for bar in container] for container in axes.containers]
    assert widths == [[10, 60], [20, 0], [70, 40]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B"]
    assert axes.containers[2][0].get_x() == pytest.approx(30)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["better than T", "equal", "worse than T"]


def test_paper_dots_places_every_value():
    paper = {"paper": pd.Series({"recall@5": 0.6, "ndcg@10": 0.7})}
    ours = {"ours": pd.Series({"recall@5": 0.1, "ndcg@10": 0.2})}
    axes = plots.paper_dots(paper, ours, "caption").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["NDCG@10", "Recall@5"]
    drawn = {
        line.get_label(): (list(line.get_xdata()), np.round(line.get_ydata()).tolist()) for line in axes.get_lines()
    }
    assert drawn["paper"] == ([0.6, 0.7], [1, 0])
    assert drawn["ours"] == ([0.1, 0.2], [1, 0])
    assert [line.get_markerfacecolor() == "white" for line in axes.get_lines()] == [True, False]


def test_cost_quality_draws_unmeasurable_times_at_the_resolution():
    costs = pd.DataFrame(
        {
            "title": ["A", "B"],
            "family": ["lexical", "ceiling"],
            "quality": [0.2, 0.4],
            "tasks": [100, 100],
            "seconds_fit": [0.0, 2.0],
            "milliseconds_per_task": [0.0, 5.0],
        }
    )
    figure = plots.cost_quality(costs, "caption")
    fit, rank = ({line.get_label(): float(line.get_xdata()[0]) for line in axes.get_lines()} for axes in figure.axes)
    assert fit == {"A": 0.001, "B": 2.0}
    assert rank == {"A": pytest.approx(0.01), "B": 5.0}
    assert figure.axes[0].get_xscale() == "log"


def costs_of(n, family=None):
    """`n` systems with names of the usual lengths and times over eight powers of ten."""
    kinds = ["t2mrec", "ablation", "ablation", "dense", "floor", "ceiling", "lexical", "hybrid"]
    rng = np.random.default_rng(n)
    return pd.DataFrame(
        {
            "title": [f"System {i}" + " (reads the answers)" * (i % 7 == 0) for i in range(n)],
            "family": [family or kinds[i % len(kinds)] for i in range(n)],
            "quality": rng.uniform(0, 0.7, n),
            "tasks": 100,
            "seconds_fit": 10 ** rng.uniform(-4, 4, n),
            "milliseconds_per_task": 10 ** rng.uniform(-1, 2.5, n),
        }
    )


def boxes(figure):
    """Named boxes of what must not overlap, in pixels: entries, numbers and titles of axes, title and caption."""
    with mpl.rc_context(plots.STYLE):
        figure.canvas.draw()
    width, height = figure.bbox.width, figure.bbox.height
    texts = [*figure.texts]
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            texts += [axis.label, *(text for text in ticks if text.get_visible())]
    texts += [text for legend in figure.legends for text in legend.get_texts()]
    found = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    found += [
        (f"marker of {handle.get_label()}", handle.get_window_extent())
        for legend in figure.legends
        for handle in legend.legend_handles
    ]
    found += [("panel", panel.get_window_extent()) for panel in figure.axes]
    return found, width, height


def misplaced(figure):
    """What lies outside the figure, and every pair that overlaps (half a pixel of rounding is let pass)."""
    found, width, height = boxes(figure)
    outside = [name for name, box in found if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height]
    overlapping = [
        (one, other)
        for i, (one, a) in enumerate(found)
        for other, b in found[:i]
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 0.5 and min(a.y1, b.y1) - max(a.y0, b.y0) > 0.5
    ]
    return outside, overlapping


LONG_CAPTION = "Question: fitting the released labels. Protocol: cold (new tasks), 961 test tasks. Profile: laptop."


@pytest.mark.parametrize("caption", [LONG_CAPTION, "Short."])
@pytest.mark.parametrize("n", [1, 2, 26, 40, 45])
def test_everything_beside_the_points_has_a_place_of_its_own(n, caption):
    costs = costs_of(n)
    figure = plots.cost_quality(costs, caption)
    assert misplaced(figure) == ([], [])
    (legend,) = figure.legends
    ranked = costs.sort_values("quality", ascending=False)
    entries = []
    for family, kind in colours.FAMILIES.items():
        own = ranked.loc[ranked["family"] == family, "title"].tolist()
        entries += [(kind.words, "bold"), *((title, "normal") for title in own)] if own and family != "ablation" else []
    assert [(t.get_text(), t.get_fontweight()) for t in legend.get_texts() if t.get_text()] == entries
    lowest = min(box.y0 for name, box in boxes(figure)[0] if name in set(costs["title"]))
    caption_box = next(box for name, box in boxes(figure)[0] if name == figure.get_supxlabel())
    assert lowest > caption_box.y1
    for panel in figure.axes:
        low, high = panel.get_xlim()
        assert sum(low <= place <= high for place in panel.get_xticks()) >= 2


def test_ablations_are_left_out_in_so_many_words():
    costs = costs_of(8)
    for left_out in (("ablation",), ()):
        figure = plots.cost_quality(costs, "caption", leave_out=left_out)
        drawn = {line.get_label() for line in figure.axes[0].get_lines()}
        assert drawn == set(costs.loc[~costs["family"].isin(left_out), "title"])
        assert ("Left out: ablation of T2MRec." in " ".join(figure.get_supxlabel().split())) == bool(left_out)


def test_a_tuned_system_has_the_shape_of_the_untuned_one_which_is_open():
    titles = ["A", "B (tuned)", "B", "A (tuned)", "C"]
    figure = plots.cost_quality(costs_of(5, "graph").assign(title=titles), "caption")
    look = {line.get_label(): (line.get_marker(), line.get_markerfacecolor()) for line in figure.axes[0].get_lines()}
    ink = colours.colour("graph")
    assert look["A"] == (look["A (tuned)"][0], "none")
    assert look["B"] == (look["B (tuned)"][0], "none")
    assert {look[title][1] for title in ("A (tuned)", "B (tuned)", "C")} == {ink}
    assert len({marker for marker, _ in look.values()}) == 3
    assert "Open marker: a system at its own settings" in " ".join(figure.get_supxlabel().split())
    assert "Open" not in plots.cost_quality(costs_of(5), "caption").get_supxlabel()


def test_systems_too_close_together_are_drawn_once_more_enlarged():
    near = costs_of(45).assign(quality=[0.9, *np.linspace(0.6, 0.5, 30), *np.linspace(0.3, 0, 14)])
    near.loc[0, "family"] = "ceiling"
    figure = plots.cost_quality(near, LONG_CAPTION, leave_out=())
    assert misplaced(figure) == ([], [])
    everything, enlarged = ({line.get_label() for line in panel.get_lines()} for panel in figure.axes[:2])
    assert everything == set(near["title"])
    systems = near[near["family"] != "ceiling"].nlargest(len(near), "quality")["title"]
    assert enlarged == set(systems.iloc[: (len(systems) + 1) // 2])
    assert figure.axes[1].get_ylim()[0] > 0.4
    assert "Right: the better half" in figure.get_supxlabel()
    apart = near.assign(quality=np.linspace(0.9, 0, 45))
    assert len(plots.cost_quality(apart, LONG_CAPTION).axes) == 2
    assert len(plots.cost_quality(near.iloc[:20], LONG_CAPTION, leave_out=()).axes) == 2


def test_long_names_take_fewer_columns():
    costs = costs_of(9).assign(title=[f"{i} " + "a system with a rather long name, " * 2 for i in range(9)])
    assert misplaced(plots.cost_quality(costs, LONG_CAPTION)) == ([], [])


def test_the_check_of_places_can_fail():
    figure = plots.cost_quality(costs_of(40), LONG_CAPTION)
    (legend,) = figure.legends
    legend.set_bbox_to_anchor((0.01, 0.0), figure.transFigure)
    assert misplaced(figure)[1]
    legend.set_bbox_to_anchor((0.6, 0.1), figure.transFigure)
    assert misplaced(figure)[0]


def test_close_times_still_have_numbers_on_their_axis():
    costs = costs_of(2).assign(seconds_fit=[0.365, 0.398], milliseconds_per_task=[2.1, 2.1])
    figure = plots.cost_quality(costs, "caption")
    assert misplaced(figure) == ([], [])
    for panel in figure.axes:
        low, high = panel.get_xlim()
        assert sum(low <= place <= high for place in panel.get_xticks()) >= 2


@pytest.mark.parametrize("family", ["collaborative", None])
def test_no_two_systems_look_alike(family):
    costs = costs_of(45, family)
    costs.loc[3, "title"] = costs.loc[11, "title"] + " (tuned)"
    figure = plots.cost_quality(costs, "caption", leave_out=())
    for panel in figure.axes:
        drawn = [
            (line.get_marker(), line.get_fillstyle(), line.get_color(), line.get_markerfacecolor() == "none")
            for line in panel.get_lines()
        ]
        assert len(set(drawn)) == len(drawn) == 45


def test_the_caption_says_where_seconds_come_from():
    said = " ".join(plots.cost_quality(costs_of(2), "caption").get_supxlabel().split())
    assert "from the runs' records, and not all runs were made on a quiet machine (docs/reproducibility.md)" in said


def test_captions_are_wrapped_and_kept_whole():
    caption = "Question: fitting the released labels. " * 6
    figure, _ = plots.canvas(3, caption=caption, title="T")
    assert " ".join(figure.get_supxlabel().split()) == caption.strip()
    assert max(map(len, figure.get_supxlabel().splitlines())) <= 128
    wide, _ = plots.canvas(3, caption="WWW MMM " * 40, title="T")
    assert misplaced(wide)[0] == []


@pytest.fixture
def toy():
    rows = tuple(np.array(row) for row in ([0, 1, 2], [0, 1], [0]))
    servers = pd.DataFrame(
        {"id": range(4), "language_tokens": ["Go, Rust", "Go", "", "C"], "category_clean": ["a", "a", "b", ""]}
    )
    tasks = pd.DataFrame({"id": range(3), "language_tokens": ["Go", "Go", "C"], "subcategory_clean": ["x", "y", "y"]})
    return Dataset("toy", servers, tasks, relevance_from_lists(rows, 4), rows)


def test_popularity_counts_tasks_per_server(toy):
    assert data_plots.popularity(toy).tolist() == [3, 2, 1, 0]


def test_value_counts_splits_lists_and_sums_up_the_rest(toy):
    counts = data_plots.value_counts(toy.servers["language_tokens"], listed=True, most=2)
    assert counts.to_dict() == {"Go": 2, "C": 1, "1 others": 1}
    assert data_plots.value_counts(toy.servers["category_clean"]).to_dict() == {"a": 2, "b": 1}


def test_data_figures_draw_the_counts(toy):
    figure = data_plots.lists(toy, "caption")
    lengths, ranks, shares = figure.axes
    assert [bar.get_height() for bar in lengths.patches] == [1, 1, 1]
    assert list(ranks.get_lines()[0].get_ydata()) == [3, 2, 1]
    assert list(shares.get_lines()[0].get_ydata()) == pytest.approx([0, 50, 100 * 5 / 6, 100, 100])
    plots.save_figure(figure, "lists", "toy")
    attributes = data_plots.attributes(toy, "caption")
    assert [axes.get_title(loc="left") for axes in attributes.axes][2] == "Subcategory of tasks"
    assert [bar.get_width() for bar in attributes.axes[0].patches] == [2, 1]
    shares = pd.DataFrame({"planted": [0.7, 0.3], "drawn": [0.6, 0.4]}, index=["topic_match", "random"])
    mixture = data_plots.mixture(shares, "caption").axes[0]
    assert [bar.get_width() for bar in mixture.patches] == pytest.approx([70, 30, 60, 40])
