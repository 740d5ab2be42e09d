"""Results without files, for tests on hand-made values, and what must not overlap in a figure."""

from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
import pandas as pd

from study.analysis.report import plots
from study.analysis.report.results import Results

LONG_CAPTION = "Question: fitting the released labels. Protocol: cold (new tasks), 961 test tasks. Profile: laptop."


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
    handles = [handle for legend in figure.legends for handle in legend.legend_handles]
    found += [(f"marker of {handle.get_label()}", handle.get_window_extent()) for handle in handles]
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


def results_of(dataset: str, protocols: list[str], names: Iterable[str], **given: Any) -> Results:
    """Results of some systems whose titles are their names in capitals; what is not given is empty."""
    names = list(names)
    fields: dict[str, Any] = {"titles": {name: name.upper() for name in names}, "families": {}, "applies": {}}
    fields |= {name: pd.DataFrame() for name in ("metrics", "overall", "significance", "comparisons")}
    fields |= {"costs": pd.DataFrame(columns=["protocol", "system", "seeds", "rising", "parameters"])}
    return Results(dataset, dataset.title(), protocols, **(fields | given))


def means(rows: Iterable[tuple[str, str, str, float]]) -> dict[str, pd.DataFrame]:
    """The tables `metrics` and `overall` of one seed from (protocol, system, metric@10, value)."""
    cells = [(protocol, system, metric, 10, value) for protocol, system, metric, value in rows]
    table = pd.DataFrame(cells, columns=["protocol", "system", "metric", "k", "value"])
    return {"metrics": table, "overall": table.rename(columns={"value": "mean"})}
