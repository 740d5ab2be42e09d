"""`study verify`: expected scores, and the paper's cells, beside the runs. Heavy imports stay inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from study.cli.overrides import configured


def verify(
    expected: Annotated[
        Path | None, typer.Option(help="File of expected scores (default: results/expected.yaml).")
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Every cell of the paper's tables beside ours, with its verdict.")
    ] = False,
) -> None:
    """Compare expected scores (results/expected.yaml) with the runs.

    Verdicts: OK, OKish (within twice the tolerance), FAIL or MISSING. Exits with code 1 if a score fails. With --paper:
    compare with the paper's printed numbers instead; a difference there is no failure.
    """
    if paper:
        from study.analysis.audit.verdicts import verify_paper

        typer.echo(verify_paper(configured(["dataset=task2mcp"])))
        return
    from study.analysis.report.expected import verify as stage

    verdicts, text = stage(expected)
    typer.echo(text)
    if "FAIL" in verdicts:
        raise typer.Exit(1)
