"""The `study judge` commands. Heavy imports stay inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from study.errors import StudyError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Build and use the judged collection: topics, pool, packets, collect, agreement, evaluate. "
    "`study judge --task ID` shows a blind pool and takes your own grades from the keyboard.",
)
Data = Annotated[str, typer.Option("--dataset", help="Whose collection.")]
DATASET = "task2mcp"


@app.callback(invoke_without_command=True)
def judge(
    context: typer.Context,
    task: Annotated[int | None, typer.Option("--task", help="A topic's id: grade its pool by hand.")] = None,
    name: Annotated[str, typer.Option("--judge", help="Whose grades these are (file name).")] = "person",
    dataset: Data = DATASET,
) -> None:
    """Grade one topic by hand, or choose a command."""
    if context.invoked_subcommand is not None:
        return
    if task is None:
        raise StudyError("nothing to do", fix="name a topic, study judge --task ID, or a command (study judge --help)")
    from study.judging.by_hand import grade_topic

    typer.echo(f"grades in {grade_topic(dataset, task, judge=name)}")


@app.command()
def topics(dataset: Data = DATASET) -> None:
    """Draw the topics into topics.csv."""
    from study.judging.topics import make

    typer.echo(f"topics in {make(dataset)}")


@app.command()
def pool(
    dataset: Data = DATASET,
    again: Annotated[list[str] | None, typer.Option("--again", help="Run this system again.")] = None,
) -> None:
    """Run the systems of conf/judging/pool.yaml for the topics and lay out what is to be judged."""
    from study.judging import pools, store

    path = pools.make(dataset, again=tuple(again or ()))
    table = store.read(dataset, "pool")
    counts = ", ".join(f"round {number}: {count} pairs" for number, count in table["round"].value_counts().items())
    typer.echo(f"pool in {path} ({counts})")


@app.command()
def packets(
    reading: Annotated[str, typer.Option("--reading", help="1, 2, 3, or `again` (5 % of all pairs once more).")],
    size: Annotated[int, typer.Option("--size", min=1, help="Tasks per packet.")] = 8,
    dataset: Data = DATASET,
) -> None:
    """Write the packets of one reading for a judge."""
    from study.judging.packets import packets as write

    folder = write(dataset, int(reading) if reading.isdecimal() else reading, size)
    typer.echo(f"packets in {folder}; answers go to {folder / 'answers'}")


@app.command()
def check(folder: Annotated[Path, typer.Argument(help="Folder of a reading.")]) -> None:
    """Say how far a reading is and what is wrong with its answers."""
    from study.judging.collecting import progress

    typer.echo(progress(folder).to_string(index=False))


@app.command()
def collect(
    folder: Annotated[Path, typer.Argument(help="Folder of a round, with reading-1, reading-2 and, later, reading-3.")],
    name: Annotated[str, typer.Option("--judge", help="Which model judged, as stored.")],
    dataset: Data = DATASET,
) -> None:
    """Check the answers of a round and write judgements.csv."""
    from study.judging.collecting import collect as stage

    rows = stage(dataset, folder, judge=name)
    typer.echo(f"{len(rows)} pairs; {int(rows['final'].isna().sum())} wait for a third reading")


@app.command()
def agreement(dataset: Data = DATASET) -> None:
    """Weighted kappa of the two readings, overall, per round and per subcategory; drift."""
    from study.judging.agreement import tables
    from study.judging.verify import write

    found = tables(dataset)
    write(dataset, found)
    typer.echo(found["tables/agreement.csv"].to_string(index=False, float_format="{:.3f}".format))


@app.command()
def evaluate(dataset: Data = DATASET) -> None:
    """Score every run by the judgements; grade the labels; write qrels and the Croissant description."""
    from study.judging import publish
    from study.judging.verify import tables, write

    found = tables(dataset)
    write(dataset, found)
    publish.write(dataset)
    scores = found["tables/scores.csv"]
    shown = scores[scores["metric"].isin(["ndcg@10", "precision@5", "core_precision@5", "mrr@10"])]
    typer.echo(shown.to_string(index=False, float_format="{:.3f}".format))


@app.command()
def verify(dataset: Data = DATASET) -> None:
    """Compute every committed number of the collection again; ends with exit code 1 if one differs."""
    from study.judging.verify import verify as check_all

    found = check_all(dataset)
    typer.echo(found.to_string(index=False))
    if (found["verdict"] != "OK").any():
        raise typer.Exit(1)
