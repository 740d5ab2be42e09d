"""`study new`, `study check` and `study remove`: a system of one's own. Heavy imports stay inside the commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from study.errors import StudyError

if TYPE_CHECKING:
    from study.runner.doctor import Check

Name = Annotated[str, typer.Argument(help="The system's name, which becomes that of its files.")]


def show_checks(checks: Iterable[Check]) -> list[Check]:
    """Print checks as a table. Returns: the faults."""
    from rich.console import Console
    from rich.table import Table

    from study.runner.doctor import FAULT, OK

    table, shown = Table("what", "state", "found", "fix"), list(checks)
    for each in shown:
        table.add_row(*each[:3], "" if each.state == OK else each.fix)
    Console().print(table)
    return [each for each in shown if each.state == FAULT]


def new(name: Name) -> None:
    """Write class and yaml of a system of your own, which runs."""
    from study.runner.own_system import new_system

    typer.echo("\n".join(map(str, new_system(name))))
    typer.echo(f"edit both, then: study check {name}; study run system={name} dataset=task2mcp")


def check(name: Name) -> None:
    """Examine a system on toys, in seconds.

    Yaml, shapes, NaN, leaks, determinism, and whether it learns them.
    """
    from study.runner.own_system import examine

    if wrong := show_checks(examine(name)):
        said = "; ".join(f"{each.what}: {each.found}" for each in wrong)
        raise StudyError(f"{name}: {said}", fix="; ".join(dict.fromkeys(each.fix for each in wrong)))


def remove(name: Name, yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed.")] = False) -> None:
    """List all that there is of a system, and remove it (--yes)."""
    from study.runner import own_system

    files, rows = own_system.belongings(name)
    typer.echo("\n".join([*map(str, files), *(f"row of {dataset} under {protocol}" for dataset, protocol in rows)]))
    if not yes:
        raise StudyError("nothing was removed yet", fix=f"to remove what is listed: study remove {name} --yes")
    own_system.remove(name, files, rows)
    typer.echo("removed; study report makes the tables without it")
