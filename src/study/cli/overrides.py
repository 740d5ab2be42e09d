"""Hydra overrides on the command line."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from study.base.errors import StudyError
from study.base.registry import GROUPS, choices, folder_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Hydra overrides, e.g. dataset=task2mcp")
]
Replace = Annotated[
    bool,
    typer.Option(
        "--replace",
        help="Replace results that were made under another profile, as in "
        "`study run system=tfidf profile=full --replace` after one under laptop.",
    ),
]


def configured(
    overrides: list[str] | None, reads: Collection[str] | None = None, *, trains: bool = False, logs: bool = False
) -> DictConfig:
    """The configuration; ``GROUP=?`` prints what a group offers, systems by folder, and ends the command. `reads`: the
    groups that a command reads, if few. `trains`, `logs`: it heeds `trainer` and `logger`. An override that would
    change nothing is refused."""
    from study.config.compose import load
    from study.runner.devices import on_trainer

    for group in (group for group in (*GROUPS, "trainer", "logger") if f"{group}=?" in (overrides or [])):
        kind = folder_of if group == "system" else lambda _, group=group: group
        for folder, names in groupby(sorted(choices(group), key=kind), kind):
            typer.echo(fill(" ".join(names), 100, initial_indent=f"{folder:9} ", subsequent_indent=" " * 10))
        raise typer.Exit
    config, heeds = load(overrides), {"trainer": trains, "logger": logs}
    for word in overrides or []:
        key = word.lstrip("+~").partition("=")[0]
        group = key.partition(".")[0]
        if not heeds.get(group, True) if reads is None else group not in (*reads, "profile"):
            file = f"{group}/{config[group].name}" if "." in key and group in GROUPS else "config"
            fix = f"leave it out; to change it for good, edit conf/{file}.yaml"
            raise StudyError(f"{word!r} has no effect here", column=key, fix=fix)
    return on_trainer(config) if trains else config
