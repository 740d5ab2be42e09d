"""The `study audit` commands. Heavy imports stay inside the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from study.errors import require_one_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Examine the paper's numbers and the released labels. Tables go to results/DATASET/audit, those of the part "
    "robustness to results/DATASET/robustness. `study audit run` makes all parts except the long ones. A stopped long "
    "part goes on.",
)
# Part -> what it shows, in an order in which each part finds what it reads.
PARTS = {
    "consistency": "can printed rows be means over the stated tasks",
    "protocols": "all systems under all protocols of the grid, and which protocol gives the printed rows",
    "inference": "only the tables of protocols, from the runs that exist",
    "verdicts": "each printed cell beside ours",
    "reproduction": "how near the row T2MRec comes to the authors' program, by the measures of repro_eval",
    "rq1": "how near each protocol comes to each row of Table 3",
    "labels": "order and repetition in the released lists",
    "provenance": "where each label comes from",
    "leakage": "test tasks with a near-duplicate in training",
    "rules": "what the score of the attribute counts rests on",
    "task_quality": "do the parts of a task fit together",
    "robustness": "does the order of systems survive other choices",
    "reference_bugs": "what bugs of reference programs give",
    "codebooks": "how evenly semantic identifiers use their codes",
    "prompt_templates": "one model asked in all prompt templates",
}
# Parts that train or run systems for longer than a few minutes.
LONG = ("protocols", "robustness", "codebooks", "prompt_templates")
AFTER = ("inference", "rq1")  # read what `protocols` runs
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Hydra overrides, e.g. dataset=task2mcp")
]


@app.callback()
def audit() -> None:
    """The audit of the data and of the paper's numbers."""


def functions() -> dict[str, Callable[[DictConfig], list[Path]]]:
    """Part -> the function that makes its tables and returns their paths."""
    from study.analysis.audit import (
        consistency,
        labels,
        protocols,
        provenance,
        reproduction,
        robustness,
        rq1,
        systems,
        tasks,
        verdicts,
    )

    return {
        "consistency": consistency.compute,
        "protocols": protocols.compute,
        "inference": protocols.compute_inference,
        "verdicts": verdicts.compute,
        "reproduction": reproduction.compute,
        "rq1": rq1.compute,
        "labels": labels.compute,
        "provenance": provenance.compute,
        "leakage": tasks.compute_leakage,
        "rules": systems.compute_rules,
        "task_quality": tasks.compute_quality,
        "robustness": robustness.compute,
        "reference_bugs": systems.compute_bugs,
        "codebooks": systems.compute_codebooks,
        "prompt_templates": systems.compute_templates,
    }


@app.command()
def run(
    overrides: Overrides = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help="Only this part, any number of times: "
            f"{'; '.join(f'{part} ({about})' for part, about in PARTS.items())}.",
        ),
    ] = None,
) -> None:
    """Make the tables of the audit: `study audit run --part consistency dataset=task2mcp`.

    Without `--part`: all parts, but for those that run systems for long (protocols, robustness, codebooks,
    prompt_templates), and inference and rq1, which read the first of them.
    """
    from study.config.compose import load

    chosen = list(part or PARTS)
    if not part:
        chosen = [name for name in chosen if name not in (*LONG, *AFTER)]
    for name in chosen:
        require_one_of(name, "part", PARTS)
    makers, config = functions(), load(overrides)
    for name in chosen:
        for path in makers[name](config):
            typer.echo(path)
