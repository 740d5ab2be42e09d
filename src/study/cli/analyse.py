"""`study analyse`: run the analyses of the study, by group or by name."""

from __future__ import annotations

from typing import Annotated

import typer


def analyse(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GROUP[/NAME]]... [KEY=VALUE]...", help="What to run, and Hydra overrides: audit dataset=task2mcp"
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--list", help="Print all analyses with their questions instead.")] = False,
) -> None:
    """Make the tables of the analyses, by group or name.

    `study analyse audit usefulness/steps dataset=task2mcp`

    A group runs all of its analyses but the slow ones, which are run by name; without a group, all groups run. A slow
    one that was stopped goes on. Tables go to `results/DATASET`, each group's to a folder, with a record beside them.
    """
    from study.analysis.framework import all_analyses, run_analyses

    if every:
        for name, entry in all_analyses().items():
            typer.echo(f"{name}{' (slow)' if entry.slow else ''}: {entry.question}")
        return
    from study.cli.overrides import configured

    names = [word for word in words or [] if "=" not in word]
    config = configured([word for word in words or [] if "=" in word], ["dataset"])
    for path in run_analyses(names, config):
        typer.echo(path)
