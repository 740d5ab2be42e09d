"""The `study judge` commands. Heavy imports stay inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, Typer, echo

from study.base.errors import StudyError
from study.base.registry import require_choice
from study.cli.shared import print_table

app = Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Build and use the judged collection.\n\n"
    "The order: `pool`, `batches` (pass 1, 2, then 3), `collect`, `evaluate`. `submit` scores a run of your own.",
)


def _require_known(dataset: str) -> str:
    require_choice("dataset", dataset)
    return dataset


Data = Annotated[str, Option("--dataset", help="Whose collection.", callback=_require_known)]
DATASET = "task2mcp"


@app.command()
def pool(
    dataset: Data = DATASET, again: Annotated[list[str] | None, Option("--again", help="Run this system again.")] = None
) -> None:
    """Draw the topics, run the systems of conf/judging/pool.yaml for them, and lay out what is to be judged.

    With `--dataset open`, the topics are the requests of conf/recommend/requests.yaml, and what answers them over the
    open catalogue is in conf/usefulness/open.yaml; everything runs again.
    """
    from study.analysis.usefulness import open_catalogue
    from study.judging import pools, store

    if dataset == "open":
        path = open_catalogue.make_pool()
    else:
        pools.draw_topics(dataset)
        path = pools.make_pool(dataset, again=tuple(again or ()))
    table = store.read_table(dataset, "pool")
    counts = ", ".join(f"round {number}: {count} pairs" for number, count in table["round"].value_counts().items())
    echo(f"pool in {path} ({counts})")


@app.command()
def batches(
    number: Annotated[str, Option("--pass", help="1, 2, 3, again, language-1, umbrela, ... (see above).")],
    dataset: Data = DATASET,
) -> None:
    """Write the batches of one annotation pass for a judge.

    Passes: 1, 2, 3, `again` (5 % of all pairs once more), `language-1`, `language-2` (language and system), or a check:
    `umbrela` (another form), `need-1`, `need-2` (another definition of the need), `decoys` (altered cards).
    """
    from study.judging.workflow import write_batches

    folder = write_batches(dataset, number)
    echo(f"batches in {folder}; answers go to {folder / 'answers'}")


@app.command()
def collect(
    folder: Annotated[Path, Argument(help="Folder of a round, with pass-1, pass-2 and, later, pass-3.")],
    name: Annotated[str, Option("--judge", help="Which model judged, as stored.")] = "",
    dataset: Data = DATASET,
    check: Annotated[bool, Option("--check", help="Only say how far the pass in FOLDER is.")] = False,
) -> None:
    """Check the answers of a round and write judgements.csv."""
    from study.judging import workflow

    if check:
        return print_table(workflow.progress(folder))
    if not name:
        raise StudyError("the judge has no name", fix="name the model that judged: --judge NAME")
    rows = workflow.collect(dataset, folder, judge=name)
    waiting = f"; {int(rows['final'].isna().sum())} wait for a third pass" if "grade_3" in rows else ""
    return echo(f"{len(rows)} pairs{waiting}")


@app.command()
def evaluate(
    dataset: Data = DATASET,
    check: Annotated[bool, Option("--check", help="Write nothing; exit code 1 if a file differs.")] = False,
) -> None:
    """Compute agreement, scores and label precision, and write them with the qrels and the Croissant description."""
    from study.judging import verify as committed

    if check:
        verdicts = committed.verify(dataset)
        print_table(verdicts)
        raise Exit(int((verdicts["verdict"] != "OK").any()))
    tables = committed.write_all(dataset)
    print_table(tables["agreement"])
    print_table(tables["scores"].query("metric in ['ndcg@10', 'precision@5', 'core_precision@5', 'mrr@10']"))


@app.command()
def submit(
    run: Annotated[Path, Argument(help="A run file in TREC's form: task_id Q0 server_id rank score tag.")],
    dataset: Data = DATASET,
) -> None:
    """Score a run of your own on the collection: NDCG@10 with interval and bounds, holes, leaderboard lines."""
    from study.judging import exchange
    from study.judging.collection import Collection

    scores = exchange.submitted(Collection.load(dataset), run)
    print_table(scores)
    echo("\n".join(exchange.leaderboard_line({**row}) for row in scores.to_dict("records")))


@app.command()
def export(
    folder: Annotated[Path, Argument(help="Where to write; the text there belongs to the data set.")],
    dataset: Data = DATASET,
) -> None:
    """Write qrels, the pooled runs in TREC's form, and the topics' and servers' text for the package ir_datasets."""
    from study.judging import exchange
    from study.judging.collection import Collection

    echo(f"{len(exchange.export(Collection.load(dataset), folder))} files in {folder}")
