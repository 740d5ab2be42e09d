"""`study usefulness`: how the ranking by usefulness was chosen, and what it is worth. Heavy imports stay inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from study.errors import StudyError

app = typer.Typer(
    no_args_is_help=True,
    help="The ranking by usefulness: how it was chosen, what it is worth. Results in results/task2mcp/best.",
)
old = typer.Typer(hidden=True, help="Old spellings: study best PART, study useful PART.")
PARTS = ("choose", "compare", "transfer", "navigational", "calibration", "diversity", "steps", "pareto")
LONG = ("curves", "label-steps", "latency")


@app.callback()
def usefulness() -> None:
    """The ranking by usefulness."""


@app.command()
def run(
    part: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join((*PARTS, *LONG))}; may be repeated. Default: all but the last three."),
    ] = None,
) -> None:
    """Compute tables of `best`: the choice, comparisons on judged topics, other benchmarks, calibration, cost.

    Settings are in conf/usefulness, where every key is explained.
    """
    if unknown := set(part or ()) - {*PARTS, *LONG}:
        raise StudyError(f"there is no part {min(unknown)!r}", fix=f"one of: {', '.join((*PARTS, *LONG))}")
    from study.analysis.usefulness.parts import run_part

    for name in part or PARTS:
        for table in run_part(name):
            typer.echo(table.to_string(index=False, float_format="{:.3f}".format))


def _alias(part: str) -> Callable[[], None]:
    def call() -> None:
        run([part])

    return call


for _part in (*PARTS, *LONG):
    old.command(_part)(_alias(_part))
old.command("probes")(_alias("navigational"))
