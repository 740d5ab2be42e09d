"""The figure of costs, on hand-made tables."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.overall import compute_cost
from tests.analysis.report.helpers import LONG_CAPTION, boxes, misplaced


def costs_of(n):
    """`n` systems with names of the usual lengths and times over eight powers of ten."""
    rng = np.random.default_rng(n)
    titles = [f"System {i}" + " (reads the answers)" * (i % 7 == 0) for i in range(n)]
    costs = pd.DataFrame({"title": titles, "quality": rng.uniform(0, 0.7, n), "seeds": 3, "rising": 1})
    times = {"seconds_fit": 10 ** rng.uniform(-4, 4, n), "milliseconds_per_task": 10 ** rng.uniform(-1, 2.5, n)}
    return costs.assign(**times)


def test_cost_quality_draws_unmeasurable_times_at_the_resolution():
    rows = pd.DataFrame({"title": ["A", "B"], "quality": [0.2, 0.4], "seconds_fit": [0.0, 2.0], "seeds": 3})
    figure = compute_cost.cost_quality(rows.assign(milliseconds_per_task=[0.0, 5.0], rising=[2, 1]), "caption")
    fit, rank = ({line.get_label(): float(line.get_xdata()[0]) for line in axes.get_lines()} for axes in figure.axes)
    assert fit == {"A †": 0.001, "B": 2.0}
    assert rank == {"A †": pytest.approx(0.001), "B": 5.0}
    assert figure.axes[0].get_xscale() == "log"


def test_the_best_marker_lies_inside_however_alike_the_systems_are():
    for quality in (np.linspace(0.79, 0.82, 9), np.linspace(0, 0.7, 9), np.zeros(9)):
        panel = compute_cost.cost_quality(costs_of(9).assign(quality=quality), "caption").axes[0]
        low, high = panel.get_ylim()
        assert low == 0
        assert quality.max() <= 0.97 * high


LONG = {"title": [f"{i} " + "a system with a rather long name, " * 2 for i in range(9)]}
CLOSE = {"seconds_fit": [0.365, 0.398], "milliseconds_per_task": [2.1, 2.1]}


@pytest.mark.parametrize("caption", [LONG_CAPTION, "Short."])
@pytest.mark.parametrize(("n", "changes"), [(1, {}), (13, {}), (9, LONG), (2, CLOSE)], ids=str)
def test_everything_beside_the_points_has_a_place_of_its_own_and_no_two_systems_look_alike(n, changes, caption):
    costs = costs_of(n).assign(**changes)
    figure = compute_cost.cost_quality(costs, caption)
    assert misplaced(figure) == ([], [])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == costs["title"].tolist()
    lowest = min(box.y0 for name, box in boxes(figure)[0] if name in set(costs["title"]))
    caption_box = next(box for name, box in boxes(figure)[0] if name == figure.get_supxlabel())
    assert lowest > caption_box.y1
    for panel in figure.axes:
        low, high = panel.get_xlim()
        assert sum(low <= place <= high for place in panel.get_xticks()) >= 2
        assert len({(line.get_marker(), line.get_color()) for line in panel.get_lines()}) == n


def test_the_check_of_places_can_fail():
    figure = compute_cost.cost_quality(costs_of(12), LONG_CAPTION)
    (legend,) = figure.legends
    legend.set_bbox_to_anchor((0.01, 0.0), figure.transFigure)
    assert misplaced(figure)[1]
    legend.set_bbox_to_anchor((0.9, 0.1), figure.transFigure)
    assert misplaced(figure)[0]
