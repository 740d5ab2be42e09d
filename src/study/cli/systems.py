"""`study new`, `study check` and `study remove`: a system of one's own. Heavy imports stay inside the commands."""

from __future__ import annotations

from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(help="The system's name, which becomes that of its files.")]


def new(name: Name) -> None:
    """Write class and yaml of a system of your own, which runs."""
    from study.runner.own_system import new_system

    typer.echo("\n".join(map(str, new_system(name))))
    typer.echo(f"edit both, then: study check {name}; study run system={name} dataset=task2mcp")


def check(name: Name) -> None:
    """Examine a system on toys, in seconds (a model of RecBole, trained in processes of its own, in minutes).

    Yaml, shapes, NaN, leaks, determinism, resuming, and what it learns.
    """
    from study.config.compose import load
    from study.runner.own_system import examine
    from study.search.tune import first_point

    for line in examine(name):
        typer.echo(line)
    if (system := load([f"system={name}"]).system).search:
        first_point(load([f"system={name}", *([f"protocol={system.tuned}"] if system.tuned else [])]))
        typer.echo("search space: holds the present values")


def remove(name: Name, yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed.")] = False) -> None:
    """List all that there is of a system or a sweep, and remove it (--yes)."""
    from study.runner.own_system import remove_system

    typer.echo("\n".join(remove_system(name, really=yes)))
    typer.echo(
        "removed; study report makes the tables without it" if yes else f"to remove it: study remove {name} --yes"
    )
