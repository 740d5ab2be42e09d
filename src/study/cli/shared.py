"""What the commands share: options, and how they print."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from study.base.errors import printable

if TYPE_CHECKING:
    import pandas as pd

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Task = Annotated[str, typer.Argument(help="What is to be done, in words.")]
ENDPOINT = "OpenAI-compatible endpoint, e.g. http://localhost:8000/v1."
Url = Annotated[str | None, typer.Option(help=ENDPOINT)]
Model = Annotated[str, typer.Option(help="Name of the model there.")]
Transport = Annotated[str, typer.Option(help="stdio or streamable-http.")]
TRANSPORTS = ("stdio", "streamable-http")
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="For streamable-http: port.")]


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_foreign(value: Any) -> None:
    """Print what strangers wrote as JSON in ASCII, which drives no terminal."""
    typer.echo(json.dumps(value, indent=2))


def print_table(table: pd.DataFrame) -> None:
    """Print a table, numbers with three decimals."""
    typer.echo(table.to_string(index=False, float_format="{:.3f}".format))


def say(*lines: str, err: bool = False) -> None:
    """Print lines without control characters."""
    for line in lines:
        typer.echo(printable(line), err=err)


def warn(problems: Iterable[str]) -> None:
    """Print warnings to the error stream."""
    say(*(f"warning: {problem}" for problem in problems), err=True)
