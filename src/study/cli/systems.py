"""`study new`, `study check` and `study remove`: a system of one's own. Heavy imports stay inside the commands."""

from __future__ import annotations

from typing import Annotated

import typer

from study.errors import StudyError

Name = Annotated[str, typer.Argument(help="The system's name, which becomes that of its files.")]


def new(name: Name) -> None:
    """Write class and yaml of a system of your own, which runs as it stands: `study new my_system`."""
    from study.runner.own_system import new_system

    for path in new_system(name):
        typer.echo(path)
    typer.echo(f"edit both, then: study check {name}; study run system={name} dataset=task2mcp")


def check(name: Name) -> None:
    """Examine a system on toys, in seconds: yaml, shapes, NaN, leaks, determinism, and whether it learns them."""
    from rich.console import Console
    from rich.table import Table

    from study.runner.doctor import FAULT
    from study.runner.own_system import examine

    checks = list(examine(name))
    table = Table("what", "state", "found", "fix")
    for each in checks:
        table.add_row(*each)
    Console().print(table)
    if wrong := [each for each in checks if each.state == FAULT]:
        said = "; ".join(f"{each.what}: {each.found}" for each in wrong)
        raise StudyError(f"{name}: {said}", fix="; ".join(dict.fromkeys(each.fix for each in wrong)))


def remove(name: Name, yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed.")] = False) -> None:
    """List all that there is of a system of your own, class, yaml, runs, and with --yes remove it."""
    from study.runner.own_system import belongings
    from study.runner.own_system import remove as remove_all

    files, rows = belongings(name)
    for path in files:
        typer.echo(path)
    for dataset, protocol in rows:
        typer.echo(f"row of {dataset} under {protocol}")
    if not yes:
        raise StudyError("nothing was removed yet", fix=f"to remove what is listed: study remove {name} --yes")
    remove_all(name, files, rows)
    typer.echo("removed; study report makes the tables without it")
