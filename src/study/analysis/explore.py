"""Views that answer to a reader: Vega-Lite specifications, drawn by JupyterLab and by the site without another host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd
from IPython.display import display

from study.analysis.report.plots import BLUE, GREY, ORANGE, look

MIME = "application/vnd.vegalite.v5+json"
ALL = "all"
SHIFT = 0.012  # points move by up to this much, so that equal values of several tasks are seen
BELOW = alt.Legend(orient="bottom", columns=3, labelLimit=0)
SIGNS = {"up": ORANGE, "equal": GREY, "across": BLUE}


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
    names = list(values.columns)
    options: Any = {"options": names, "labels": [titles[name] for name in names]}
    across, up = (
        alt.param(name=name, value=first, bind=alt.binding_select(name=f"{name} ", **options))
        for name, first in zip(("across", "up"), start, strict=True)
    )
    lists = [
        alt.param(name=f"only_{column}", value=ALL, bind=alt.binding_select(options=[ALL, *found], name=f"{column} "))
        for column in about.columns.drop(search)
        if (found := sorted(about[column].unique()))
    ]
    letters = alt.param(name="letters", value="", bind=alt.binding(input="search", name=f"{search} contains "))
    wanted = [f"(only_{c} == '{ALL}' || only_{c} == datum.{c})" for c in about.columns.drop(search)]
    wanted.append(f"indexof(lower(datum.{search}), lower(letters)) >= 0")
    text = about.join(values.round(4)).rename_axis("task").reset_index().to_csv(index=False)
    kept = (
        alt.Chart(alt.InlineData(values=text, format=alt.CsvDataFormat(type="csv")))
        .transform_filter(" && ".join(wanted))
        .transform_calculate(_a="toNumber(datum[across])", _b="toNumber(datum[up])")
        .transform_calculate(
            _side="datum._b > datum._a ? 'up' : datum._b < datum._a ? 'across' : 'equal'",
            _shift=f"(toNumber(datum.task) * 0.618 % 1 - 0.5) * {2 * SHIFT}",
        )
        .transform_calculate(_x="datum._a + datum._shift", _y="datum._b - datum._shift")
    )
    scale = alt.Scale(domain=[-SHIFT, 1 + SHIFT], nice=False)
    points = kept.mark_circle(size=40, opacity=0.6).encode(
        x=alt.X("_x:Q", scale=scale, title="across"),
        y=alt.Y("_y:Q", scale=scale, title="up"),
        color=alt.Color(
            "_side:N", title="better", legend=BELOW, scale=alt.Scale(domain=[*SIGNS], range=[*SIGNS.values()])
        ),
        tooltip=[
            "task:N",
            *(f"{column}:N" for column in about),
            alt.Tooltip("_a:Q", title="across"),
            alt.Tooltip("_b:Q", title="up"),
        ],
    )
    ends = alt.Chart(alt.InlineData(values=[{"_x": 0, "_y": 0}, {"_x": 1, "_y": 1}]))
    diagonal = ends.mark_line(color=GREY, strokeDash=[4, 4]).encode(x="_x:Q", y="_y:Q")
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
    both: alt.VConcatChart = (
        alt.vconcat(counts.properties(width=420, height=20), square)
        .add_params(across, up, *lists, letters)
        .configure_view(stroke=None)
    )
    return both


def quality_against_cost(
    table: pd.DataFrame, qualities: Mapping[str, str], costs: Mapping[str, str], least: float
) -> alt.Chart:
    """One point per system, its name on hover; the reader picks the quality and the cost.

    Args:
        table: columns system, title and family, and those of `qualities` and `costs`, NaN where not measured.
        qualities, costs: column -> what it is called.
        least: costs below are drawn as this.
    """
    looks = {family: look(family) for family in table["family"].unique()}
    kinds = {found.words: found.ink for found in looks.values()}
    kind = [looks[family].words for family in table["family"]]
    data = table[["system", "title", *qualities, *costs]].assign(kind=kind)
    pick = {
        name: alt.param(
            name=name,
            value=next(iter(found)),
            bind=alt.binding_radio(options=[*found], labels=[*found.values()], name=f"{name} "),
        )
        for name, found in {"quality": qualities, "cost": costs}.items()
    }
    made: alt.Chart = (
        alt.Chart(alt.InlineData(values=data.round(5).to_csv(index=False), format=alt.CsvDataFormat(type="csv")))
        .transform_filter("datum[quality] != '' && datum[cost] != ''")
        .transform_calculate(good="toNumber(datum[quality])", spent=f"max(toNumber(datum[cost]), {least})")
        .mark_point(filled=True, size=70)
        .encode(
            x=alt.X("spent:Q", scale=alt.Scale(type="log"), title="cost"),
            y=alt.Y("good:Q", title="NDCG@10"),
            color=alt.Color(
                "kind:N", title="kind", legend=BELOW, scale=alt.Scale(domain=[*kinds], range=[*kinds.values()])
            ),
            tooltip=["title:N", "system:N", "good:Q", "spent:Q"],
        )
        .properties(width=420, height=320)
        .add_params(*pick.values())
    )
    return made


def surface(trials: pd.DataFrame, quality: str, start: tuple[str, str]) -> alt.Chart:
    """One point per trial of a search, darker where better; the reader picks the two settings that place it.

    Args:
        trials: one row per trial, a column per setting as it is called, and `quality`.
        start: the settings across and up at first.
    """
    settings = list(trials.columns.drop(quality))
    across, up = (
        alt.param(name=f"setting_{name}", value=first, bind=alt.binding_select(options=settings, name=f"{name} "))
        for name, first in zip(("across", "up"), start, strict=True)
    )
    text = trials.round(5).to_csv(index=False)
    axis = alt.Scale(zero=False, padding=12)
    made: alt.Chart = (
        alt.Chart(alt.InlineData(values=text, format=alt.CsvDataFormat(type="csv")))
        .transform_calculate(_x="toNumber(datum[setting_across])", _y="toNumber(datum[setting_up])")
        .mark_circle(size=110, stroke="black", strokeWidth=0.5, opacity=1)
        .encode(
            x=alt.X("_x:Q", scale=axis, title="across"),
            y=alt.Y("_y:Q", scale=axis, title="up"),
            color=alt.Color(f"{quality}:Q", legend=alt.Legend(orient="bottom"), scale=alt.Scale(scheme="blues")),
            tooltip=[alt.Tooltip(f"{quality}:Q"), *(f"{name}:Q" for name in settings)],
        )
        .properties(width=420, height=420)
        .add_params(across, up)
    )
    return made


def rows(chart: alt.TopLevelMixin) -> str:
    """The CSV that a view reads."""
    return next(found for found in chart.to_dict()["datasets"].values() if isinstance(found, str))


def show(chart: alt.TopLevelMixin, words: str) -> None:
    """Display a view; `words` say what it shows where no program draws it."""
    display({MIME: chart.to_dict(), "text/plain": words}, raw=True)  # type: ignore[no-untyped-call]
