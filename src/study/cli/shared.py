"""What the commands share: options, overrides of the configuration, and how they print."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Exit, Option, echo

from study.base.errors import StudyError, printable
from study.base.registry import GROUPS, choices, folder_of

if TYPE_CHECKING:
    import pandas as pd
    from omegaconf import DictConfig

Overrides = Annotated[
    list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Hydra overrides, e.g. dataset=task2mcp")
]
Top = Annotated[int | None, Option("-k", "--top", help="How many servers (default: 5, or all of fewer).")]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Task = Annotated[str, Argument(help="What is to be done, in words.")]
Url = Annotated[str | None, Option(help="OpenAI-compatible endpoint, e.g. http://localhost:8000/v1.")]
Model = Annotated[str, Option(help="Name of the model there.")]
Transport = Annotated[Literal["stdio", "streamable-http"], Option()]
Port = Annotated[int | None, Option(min=1, max=65535, help="For streamable-http: port.")]


def load_configuration(
    overrides: list[str] | None, reads: Collection[str] = (*GROUPS, "config"), *, trains: bool = False
) -> DictConfig:
    """The configuration; ``GROUP=?`` prints what a group offers, systems by folder, and ends the command.

    `reads`: the groups that a command reads beside the profile, and `config` for the keys that stand alone. `trains`:
    it heeds `trainer`. An override that would change nothing is refused.
    """
    from study.config.compose import load
    from study.runner.devices import on_trainer

    for group in (group for group in (*GROUPS, "trainer", "logger") if f"{group}=?" in (overrides or [])):
        kind = folder_of if group == "system" else lambda _, group=group: group
        for folder, names in groupby(sorted(choices(group), key=kind), kind):
            echo(fill(" ".join(names), 100, initial_indent=f"{folder:9} ", subsequent_indent=" " * 10))
        raise Exit
    config = load(overrides)
    groups = (*GROUPS, "trainer", "logger")
    for word in overrides or []:
        key = word.lstrip("+~").partition("=")[0]
        group = first if (first := key.partition(".")[0]) in groups else "config"
        if group not in (*reads, "profile", *(["trainer"] if trains else [])):
            file = f"{group}/{config[group].name}" if "." in key and group in GROUPS else "config"
            fix = f"leave it out; to change it for good, edit conf/{file}.yaml"
            raise StudyError(f"{word!r} has no effect here", column=key, fix=fix)
    return on_trainer(config) if trains else config


def print_json(value: Any, *, ascii_only: bool = False) -> None:
    """Print a value as JSON, `ascii_only` or not."""
    echo(json.dumps(value, indent=2, ensure_ascii=ascii_only))


def print_table(table: pd.DataFrame) -> None:
    """Print a table, numbers with three decimals."""
    echo(table.to_string(index=False, float_format="{:.3f}".format))


def print_wide(*tables: Any) -> None:
    """Print tables of `rich`."""
    from rich.console import Console

    from study.analysis.report.tables import WIDTH

    for table in tables:
        Console(width=WIDTH).print(table)


def say(*lines: str, err: bool = False) -> None:
    """Print lines without control characters."""
    for line in lines:
        echo(printable(line), err=err)


def warn(problems: Iterable[str]) -> None:
    """Print warnings to the error stream."""
    say(*(f"warning: {problem}" for problem in problems), err=True)
