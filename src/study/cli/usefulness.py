"""`study usefulness`: how the ranking by usefulness was chosen, and what it is worth. Heavy imports stay inside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from study.errors import require_one_of

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(
    no_args_is_help=True,
    help="The ranking by usefulness: how it was chosen, what it is worth. Results in results/task2mcp/usefulness.",
)
PROFILE = "laptop"  # how much the stuffed systems train
PARTS = ("choose", "compare", "navigational", "calibration", "steps", "pareto")
# transfer and known_items need the larger encoder, open the catalogue that was judged.
LONG = (
    "curves",
    "label_steps",
    "latency",
    "stuffing",
    "contribution",
    "answering",
    "grades",
    "distilled",
    "transfer",
    "known_items",
    "open",
)


@app.callback()
def usefulness() -> None:
    """The ranking by usefulness."""


@app.command()
def run(
    part: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join((*PARTS, *LONG))}; may be repeated. Default: all but the last eleven."),
    ] = None,
    dataset: Annotated[
        str, typer.Option(help="Data set of stuffing, contribution and grades; all other parts use task2mcp.")
    ] = "task2mcp",
) -> None:
    """Compute tables of `field_dense`: the choice, comparisons on judged topics, other benchmarks, calibration, cost.

    Settings are in conf/usefulness, where every key is explained.
    """
    for name in part or ():
        require_one_of(name, "part", (*PARTS, *LONG))
    from study.analysis.usefulness.parts import run_part

    for name in part or PARTS:
        for table in OWN[name](dataset) if name in OWN else run_part(name):
            typer.echo(table.to_string(index=False, float_format="{:.3f}".format))


def _answering(dataset: str) -> Iterable[pd.DataFrame]:
    """When `study recommend` says that nothing fits, and what its prior costs."""
    from study.analysis.usefulness.answering import measure

    return measure()


def _contribution(dataset: str) -> Iterable[pd.DataFrame]:
    """What a language model adds to T2MRec's pools: asks it, or replays; hours."""
    import pandas as pd

    from study.analysis.usefulness.contribution import measure

    return [pd.read_csv(measure(dataset))]


def _grades(dataset: str) -> Iterable[pd.DataFrame]:
    """Grades of the local language model beside the judge's, and as a re-ranker; hours, unless all are there."""
    from study.analysis.usefulness.grades import measure

    return measure(dataset)


def _distilled(dataset: str) -> Iterable[pd.DataFrame]:
    """A linear model that learns the language model's grades, as a re-ranker; a minute, with the grades in git."""
    from study.analysis.usefulness.distilled import measure

    return measure(dataset)


def _stuffing(dataset: str) -> Iterable[pd.DataFrame]:
    """How far keyword stuffing carries a server in each system of conf/reranking/stuffing.yaml; a stop costs little."""
    import pandas as pd

    from study.analysis.report.plots import save_figure
    from study.analysis.usefulness.figures import keyword_stuffing
    from study.analysis.usefulness.stuffing import measure
    from study.config.compose import sound_systems

    table = pd.read_csv(measure(dataset, PROFILE))
    titles = {name: str(system.title) for name, system in sound_systems().items()}
    save_figure(keyword_stuffing(table, titles, f"Data: {dataset}. Profile: {PROFILE}."), "keyword_stuffing", dataset)
    return [table]


# Parts that train systems or need more than the data set, which the stage of all others does not depend on.
OWN = {
    "stuffing": _stuffing,
    "contribution": _contribution,
    "answering": _answering,
    "grades": _grades,
    "distilled": _distilled,
}
