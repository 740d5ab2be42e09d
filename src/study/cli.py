"""The `study` command. Heavy imports stay inside the commands, so that `study recommend` starts fast."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from study.errors import StudyError
from study.judging.cli import app as judging
from study.tools.cli import app as tools

if TYPE_CHECKING:
    from omegaconf import DictConfig

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Reproduce T2MRec: fetch and prepare data, run systems, report, verify, recommend.\n\n"
    "Every stage takes Hydra overrides: `dataset=task2mcp protocol=warm system=tfidf profile=smoke`, or any key of "
    "`conf/`, such as `system.model.training.epochs=20`. Start with `make repro`.",
)
app.add_typer(judging, name="judge")
app.add_typer(tools, name="tools")
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Hydra overrides, e.g. dataset=task2mcp")
]


def _load(overrides: list[str] | None) -> DictConfig:
    from study.config import load

    return load(overrides)


@app.command()
def fetch(overrides: Overrides = None) -> None:
    """Bring the raw files of a data set into data/raw (or generate them, for `synthetic`)."""
    from study.pipeline.data import fetch as stage

    typer.echo(f"raw files in {stage(_load(overrides))}")


@app.command()
def prepare(overrides: Overrides = None) -> None:
    """Check and clean the raw files; count every change in results/DATASET/tables/cleaning.csv."""
    from study.pipeline.data import prepare as stage

    typer.echo(f"prepared tables in {stage(_load(overrides))}")


@app.command()
def split(overrides: Overrides = None) -> None:
    """Split the prepared data for every protocol of the data set."""
    from study.pipeline.data import split as stage

    typer.echo(f"splits in {stage(_load(overrides))}")


@app.command()
def tune(overrides: Overrides = None) -> None:
    """Choose a system's hyper-parameters on validation: `study tune system=task_knn tuning.trials=12`."""
    from study.pipeline.tune import tune as stage

    typer.echo(f"sweep in {stage(_load(overrides))}")


@app.command()
def run(overrides: Overrides = None) -> None:
    """Fit a system with every seed and measure it on the test part: `study run system=tfidf protocol=warm`."""
    from study.pipeline.run import run as stage

    typer.echo(f"per-task values in {stage(_load(overrides)).per_task}")


@app.command()
def evaluate(overrides: Overrides = None) -> None:
    """Compute the per-task values of all runs of a data set again from their top tens. Trains nothing."""
    from study.pipeline.evaluate import evaluate as stage

    typer.echo(f"{len(stage(_load(overrides)))} per-task files written")


@app.command()
def report(overrides: Overrides = None) -> None:
    """Redo the tables of a data set from its runs, and print the overall table. Trains nothing."""
    from study.pipeline.report import report as stage

    typer.echo((stage(_load(overrides)) / "overall.md").read_text(encoding="utf-8"))


@app.command()
def show(overrides: Overrides = None) -> None:
    """Print the overall table that `report` made."""
    from study import paths

    path = paths.tables(_load(overrides).dataset.name) / "overall.md"
    if not path.exists():
        raise StudyError("there is no table yet", file=path, fix="run: make repro")
    typer.echo(path.read_text(encoding="utf-8"))


@app.command()
def verify(
    expected: Annotated[
        Path | None, typer.Option(help="File of expected scores (default: results/expected.yaml).")
    ] = None,
) -> None:
    """Compare results/expected.yaml with the runs: OK, OKish (within twice the tolerance), FAIL or MISSING.

    Ends with exit code 1 if a score fails.
    """
    from study.pipeline.verify import verify as stage

    verdicts, text = stage(expected)
    typer.echo(text)
    if "FAIL" in verdicts:
        raise typer.Exit(1)


@app.command()
def plan() -> None:
    """Rewrite plan.yaml, the list of runs that dvc.yaml loops over, from conf/."""
    from study.pipeline.plan import write

    typer.echo("plan.yaml was rewritten" if write() else "plan.yaml is up to date")


@app.command()
def export(overrides: Overrides = None) -> None:
    """Train T2MRec once and save it for `study recommend` (safetensors and JSON, in models/)."""
    from study.pipeline.export import export as stage

    typer.echo(f"model in {stage(_load(overrides))}")


@app.command()
def notebooks(overrides: Overrides = None) -> None:
    """Execute the notebooks of a data set into results/DATASET/notebooks, figures into figures/DATASET."""
    from study.pipeline.notebooks import execute_all

    for path in execute_all(_load(overrides).dataset.name):
        typer.echo(path)


@app.command()
def bench(overrides: Overrides = None) -> None:
    """Measure training, evaluation and one recommendation against the machine's limits (efficiency.csv)."""
    from study.pipeline.bench import bench as stage

    typer.echo(stage(_load(overrides)))


@app.command()
def recommend(
    task: Annotated[str, typer.Argument(help="What is to be done, in words.")],
    language: Annotated[str, typer.Option(help="Programming language that the task asks for.")] = "",
    theme: Annotated[str, typer.Option(help="Application domain of the task.")] = "",
    category: Annotated[str, typer.Option(help="Category of the task, where known.")] = "",
    k: Annotated[int, typer.Option("-k", "--top", help="How many servers to name.")] = 5,
    dataset: Annotated[
        str | None, typer.Option(help="Whose saved model to use (default: task2mcp if exported, else synthetic).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON instead of a table.")] = False,
) -> None:
    """Name MCP servers for a task: `study recommend "read a PDF and extract all tables" --language Python -k 5`."""
    from dataclasses import asdict

    from study.recommend import Recommender, folder_of

    if dataset is None:
        dataset = "task2mcp" if (folder_of("task2mcp") / "model.json").exists() else "synthetic"
    found = Recommender.load(folder_of(dataset)).recommend(task, language=language, theme=theme, category=category, k=k)
    if as_json:
        answer = {"task": task, "language": language, "dataset": dataset, "system": "t2mrec"}
        typer.echo(
            json.dumps(answer | {"recommendations": [asdict(item) for item in found]}, indent=2, ensure_ascii=False)
        )
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(printable(f"T2MRec on {dataset}: {task}")),
        caption="score: fused score of an anchor, centroid similarity of an expansion",
    )
    for heading in ("#", "server", "score", "semantic", "structural", "stage", "repository"):
        table.add_column(
            heading, overflow="fold", justify="right" if heading in ("#", "score", "semantic", "structural") else "left"
        )
    for item in found:
        # Text, not str: a server's name is a stranger's text and must not be read as markup.
        numbers = (f"{value:.3f}" for value in (item.score, item.semantic, item.structural))
        table.add_row(str(item.rank), Text(printable(item.name)), *numbers, item.stage, Text(printable(item.url)))
    Console().print(table)


def printable(text: str) -> str:
    """`text` without control characters, which could drive the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def main() -> None:
    """Run the command line; a problem that the user can mend ends with its explanation and exit code 2."""
    # Libraries announce what they load; only the study's own messages and everybody's warnings are shown.
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for name in ("study", "baselines"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # sets its own level when it is imported, unless it has one
    try:
        app()
    except StudyError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; the same command goes on from here\n")
        sys.exit(130)
