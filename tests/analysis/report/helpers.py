"""What must not overlap in a figure, and where it lies."""

import matplotlib as mpl

from study.analysis.report import plots

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
