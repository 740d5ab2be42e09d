"""Views that answer to a reader: Vega-Lite specifications, drawn by JupyterLab and by the site without another host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt
import pandas as pd
from IPython.display import display

from study.analysis.report import plots

MIME = "application/vnd.vegalite.v5+json"
ALL = "all"
SHIFT = 0.012  # points move by up to this much, so that equal values of several tasks are seen
BELOW = alt.Legend(orient="bottom", columns=3, labelLimit=0)
SIGNS = {"up": plots.ORANGE, "equal": plots.GREY, "across": plots.BLUE}


def _chart(table: pd.DataFrame) -> alt.Chart:
    """A chart over a table, which stands in the specification as CSV."""
    text = table.to_csv(index=False)
    return alt.Chart(alt.InlineData(values=text, format=alt.CsvDataFormat(type="csv")))


def _list(name: str, options: Iterable[str], value: str, words: str = "", **labels: Any) -> alt.Parameter:
    """A list that the reader chooses a value from."""
    bound = alt.binding_select(options=list(options), name=f"{words or name} ", **labels)
    made: alt.Parameter = alt.param(name=name, value=value, bind=bound)
    return made


def _colour(field: str, title: str, inks: Mapping[str, str]) -> alt.Color:
    scale = alt.Scale(domain=[*inks], range=[*inks.values()])
    return alt.Color(f"{field}:N", title=title, legend=BELOW, scale=scale)


def head_to_head(
    values: pd.DataFrame, about: pd.DataFrame, search: str, titles: Mapping[str, str], start: tuple[str, str]
) -> alt.VConcatChart:
    """Task by task, any two systems; the reader picks both, and which tasks.

    Args:
        values: a measure in [0, 1], one row per task id, one column per system.
        about: what the tasks are chosen by, same rows: a list of its values for each column.
        search: the column of `about` that is searched for letters instead.
        titles: of the systems.
        start: the systems across and up at first.
    """
    chosen, labels = about.columns.drop(search), [titles[str(name)] for name in values]
    pick = [
        _list(name, map(str, values), first, labels=labels) for name, first in zip(("across", "up"), start, strict=True)
    ]
    pick += [_list(f"only_{column}", [ALL, *sorted(about[column].unique())], ALL, column) for column in chosen]
    pick.append(alt.param(name="letters", value="", bind=alt.binding(input="search", name=f"{search} contains ")))
    wanted = [f"(only_{column} == '{ALL}' || only_{column} == datum.{column})" for column in chosen]
    wanted.append(f"indexof(lower(datum.{search}), lower(letters)) >= 0")
    kept = (
        _chart(about.join(values.round(4)).rename_axis("task").reset_index())
        .transform_filter(" && ".join(wanted))
        .transform_calculate(_a="toNumber(datum[across])", _b="toNumber(datum[up])")
        .transform_calculate(
            _side="datum._b > datum._a ? 'up' : datum._b < datum._a ? 'across' : 'equal'",
            _shift=f"(toNumber(datum.task) * 0.618 % 1 - 0.5) * {2 * SHIFT}",
        )
        .transform_calculate(_x="datum._a + datum._shift", _y="datum._b - datum._shift")
    )
    scale = alt.Scale(domain=[-SHIFT, 1 + SHIFT], nice=False)
    exact = [alt.Tooltip("_a:Q", title="across"), alt.Tooltip("_b:Q", title="up")]
    points = kept.mark_circle(size=40, opacity=0.6).encode(
        x=alt.X("_x:Q", scale=scale, title="across"),
        y=alt.Y("_y:Q", scale=scale, title="up"),
        color=_colour("_side", "better", SIGNS),
        tooltip=["task:N", *(f"{column}:N" for column in about), *exact],
    )
    ends = alt.Chart(alt.InlineData(values=[{"_x": 0, "_y": 0}, {"_x": 1, "_y": 1}]))
    diagonal = ends.mark_line(color=plots.GREY, strokeDash=[4, 4]).encode(x="_x:Q", y="_y:Q")
    counts = (
        kept.transform_calculate(_above="datum._side == 'up' ? 1 : 0", _below="datum._side == 'across' ? 1 : 0")
        .transform_aggregate(_tasks="count()", _a="mean(_a)", _b="mean(_b)", _above="sum(_above)", _below="sum(_below)")
        .transform_calculate(
            _words="datum._tasks + ' tasks. Mean across ' + format(datum._a, '.4f') + ', up ' + format(datum._b, '.4f')"
            " + '. Better across: ' + datum._below + ', up: ' + datum._above"
        )
        .mark_text(align="left", fontSize=12)
        .encode(text="_words:N", x=alt.value(0))
    )
    square = (diagonal + points).properties(width=420, height=420)
    both: alt.VConcatChart = alt.vconcat(counts.properties(width=420, height=20), square)
    chosen_by: alt.VConcatChart = both.add_params(*pick).configure_view(stroke=None)
    return chosen_by


def quality_against_cost(
    table: pd.DataFrame, qualities: Mapping[str, str], costs: Mapping[str, str], least: float
) -> alt.Chart:
    """One point per system, its name on hover; the reader picks the quality and the cost.

    Args:
        table: columns system, title and family, and those of `qualities` and `costs`, NaN where not measured.
        qualities, costs: column -> what it is called.
        least: costs below are drawn as this.
    """
    looks = {family: plots.look(family) for family in table["family"].unique()}
    kinds = {found.words: found.ink for found in looks.values()}
    kind = [looks[family].words for family in table["family"]]
    choices = {"quality": qualities, "cost": costs}
    pick = [_list(name, found, next(iter(found)), labels=[*found.values()]) for name, found in choices.items()]
    made: alt.Chart = (
        _chart(table[["system", "title", *qualities, *costs]].assign(kind=kind).round(5))
        .transform_filter("datum[quality] != '' && datum[cost] != ''")
        .transform_calculate(good="toNumber(datum[quality])", spent=f"max(toNumber(datum[cost]), {least})")
        .mark_point(filled=True, size=70)
        .encode(
            x=alt.X("spent:Q", scale=alt.Scale(type="log"), title="cost"),
            y=alt.Y("good:Q", title="NDCG@10"),
            color=_colour("kind", "kind", kinds),
            tooltip=["title:N", "system:N", "good:Q", "spent:Q"],
        )
        .properties(width=420, height=320)
        .add_params(*pick)
    )
    return made


def surface(trials: pd.DataFrame, quality: str, start: tuple[str, str]) -> alt.Chart:
    """One point per trial of a search, darker where better; the reader picks the two settings that place it.

    Args:
        trials: one row per trial, a column per setting as it is called, and `quality`.
        start: the settings across and up at first.
    """
    settings, sides = list(trials.columns.drop(quality)), ("across", "up")
    pick = [_list(f"setting_{side}", settings, first, side) for side, first in zip(sides, start, strict=True)]
    axis = alt.Scale(zero=False, padding=12)
    made: alt.Chart = (
        _chart(trials.round(5))
        .transform_calculate(_x="toNumber(datum[setting_across])", _y="toNumber(datum[setting_up])")
        .mark_circle(size=110, stroke="black", strokeWidth=0.5, opacity=1)
        .encode(
            x=alt.X("_x:Q", scale=axis, title="across"),
            y=alt.Y("_y:Q", scale=axis, title="up"),
            color=alt.Color(f"{quality}:Q", legend=alt.Legend(orient="bottom"), scale=alt.Scale(scheme="blues")),
            tooltip=[alt.Tooltip(f"{quality}:Q"), *(f"{name}:Q" for name in settings)],
        )
        .properties(width=420, height=420)
        .add_params(*pick)
    )
    return made


def rows(chart: alt.TopLevelMixin) -> str:
    """The CSV that a view reads."""
    return next(found for found in chart.to_dict()["datasets"].values() if isinstance(found, str))


def show(chart: alt.TopLevelMixin, words: str) -> None:
    """Display a view; `words` say what it shows where no program draws it."""
    display({MIME: chart.to_dict(), "text/plain": words}, raw=True)  # type: ignore[no-untyped-call]
