"""The `study judge` commands. Heavy imports stay inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from study.base.registry import require_choice
from study.cli.shared import print_table

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Use the judged collection; docs/judged-card.md says how judgements are added.",
)


def _require_known(dataset: str) -> str:
    require_choice("dataset", dataset)
    return dataset


Data = Annotated[str, typer.Option("--dataset", help="Whose collection.", callback=_require_known)]
DATASET = "task2mcp"


@app.command()
def pool() -> None:
    """Ask every method of conf/usefulness/open.yaml over the open catalogue, and lay out what is to be judged.

    The topics are the requests of conf/recommend/requests.yaml. Pairs that were judged stay as they are.
    """
    from study.analysis.usefulness import open_catalogue
    from study.judging.store import read_table

    path = open_catalogue.make_pool()
    counts = read_table("open", "pool")["round"].value_counts()
    typer.echo(f"pool in {path} ({', '.join(f'round {number}: {count} pairs' for number, count in counts.items())})")


@app.command()
def evaluate(
    dataset: Data = DATASET,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 if a file differs.")] = False,
) -> None:
    """Compute agreement, scores and label precision, and write them with the qrels and the Croissant description."""
    from study.judging import verify as committed

    if check:
        verdicts = committed.verify(dataset)
        print_table(verdicts)
        raise typer.Exit(int((verdicts["verdict"] != "OK").any()))
    tables = committed.write_all(dataset)
    print_table(tables["tables/agreement.csv"])
    print_table(tables["tables/scores.csv"].query("metric in ['ndcg@10', 'precision@5', 'core_precision@5', 'mrr@10']"))


@app.command()
def submit(
    run: Annotated[Path, typer.Argument(help="A run file in TREC's form: task_id Q0 server_id rank score tag.")],
    dataset: Data = DATASET,
) -> None:
    """Score a run of your own on the collection: NDCG@10 with interval and bounds, holes, version."""
    from study.judging import exchange
    from study.judging.collection import Collection

    print_table(exchange.submitted(Collection.load(dataset), run))


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Where to write; the text there belongs to the data set.")],
    dataset: Data = DATASET,
) -> None:
    """Write qrels, pooled runs in TREC's form, texts for the package ir_datasets, and sheets for judges."""
    from study.judging import exchange
    from study.judging.collection import Collection

    typer.echo(f"{len(exchange.export(Collection.load(dataset), folder))} files in {folder}")
