"""The `study audit` commands. Heavy imports stay inside the commands."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from study.errors import StudyError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Examine the paper's numbers and the released labels. Every part writes tables to results/DATASET/audit; "
    "`study audit run` makes all of them except the long ones, which go on where they were stopped.",
)
# Part -> the module whose `compute(config)` makes it and what it shows, in an order in which each finds what it reads.
PARTS = {
    "consistency": ("consistency_tables", "can printed rows be means over the stated tasks"),
    "protocols": ("protocols", "all systems under all protocols of the grid"),
    "inference": ("protocols_inference", "which protocol gives the printed rows"),
    "verdicts": ("verdicts", "each printed cell beside ours"),
    "labels": ("labels", "order and repetition in the released lists"),
    "provenance": ("provenance", "where each label comes from"),
    "leakage": ("leakage", "test tasks that training has in other words"),
    "rules": ("rules", "what the rule baseline's score rests on"),
    "task_quality": ("task_quality", "do the parts of a task fit together"),
    "robustness": ("robustness", "does the order of systems survive other choices"),
    "faults": ("faults", "what faults of reference programs give"),
    "codebooks": ("codebooks", "how evenly semantic identifiers use their codes"),
    "wordings": ("wordings", "one model asked in all wordings"),
}
# Parts that train or run systems for longer than a few minutes.
LONG = ("protocols", "robustness", "codebooks", "wordings")
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Hydra overrides, e.g. dataset=task2mcp")
]


def make(part: str, overrides: list[str] | None) -> list[Path]:
    """Compute one part; returns the files it wrote."""
    from study.config.compose import load

    if part not in PARTS:
        raise StudyError(f"unknown part {part!r}", fix=f"one of: {', '.join(PARTS)}")
    written: list[Path] = import_module(f"study.analysis.audit.{PARTS[part][0]}").compute(load(overrides))
    return written


@app.command()
def run(
    overrides: Overrides = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help="Only this part, any number of times: "
            f"{'; '.join(f'{part} ({about})' for part, (_, about) in PARTS.items())}.",
        ),
    ] = None,
) -> None:
    """Make the tables of the audit: `study audit run --part consistency dataset=task2mcp`.

    Without `--part`: all parts, but for those that run systems for long (protocols, robustness, codebooks, wordings)
    and inference, which reads the first of them. Tables go to `results/DATASET/audit`.
    """
    for name in part or [name for name in PARTS if name not in LONG and name != "inference"]:
        for path in make(name, overrides):
            typer.echo(path)


@app.command()
def protocols(overrides: Overrides = None) -> None:
    """Run the grid of conf/audit/protocols.yaml (long, resumable) and infer which protocol gives the paper's rows."""
    for path in make("protocols", overrides):
        typer.echo(path)


@app.command()
def verify(overrides: Overrides = None) -> None:
    """Print every cell of the paper beside ours under each protocol, with its verdict: `study verify --paper`."""
    from study.analysis.audit.verdicts import verify_paper
    from study.config.compose import load

    typer.echo(verify_paper(load(overrides or ["dataset=task2mcp"])))
