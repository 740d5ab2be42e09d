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


def docs(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail where a page is old.")] = False,
) -> None:
    """Write README and the pages of docs from docs/src, with every number read from its table."""
    from study.analysis.report.pages import render, stale
    from study.base import paths
    from study.base.files import write_text

    pages = render()
    for path in (old := stale(pages)):
        if not check:
            write_text(path, pages[path])
        typer.echo(f"{path.relative_to(paths.root())} {'is not what docs/src gives' if check else 'written'}")
    typer.echo(f"{len(pages) - len(old)} of {len(pages)} pages are as they should be")
    if check and old:
        raise typer.Exit(1)
