"""`study recommend`: the servers for a task. Heavy imports stay inside, so that it starts fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from study.base.errors import StudyError
from study.cli.shared import Json, Task, print_json, warn


def recommend(
    task: Task,
    language: Annotated[str, typer.Option(help="Programming language, whatever the request says.")] = "",
    theme: Annotated[str, typer.Option(help="Application domain of the task.")] = "",
    category: Annotated[str, typer.Option(help="Category of the task, where known.")] = "",
    subcategory: Annotated[str, typer.Option(help="Subcategory within --category, where known.")] = "",
    k: Annotated[
        int | None,
        typer.Option("-k", "--top", help="How many servers to name (default: 5, or all of a smaller catalogue)."),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Whose saved model to use (default: task2mcp).")] = None,
    system: Annotated[
        str | None,
        typer.Option(
            help="Which saved system answers (default: the first of field_dense_mpnet, field_dense and t2mrec)."
        ),
    ] = None,
    catalog: Annotated[
        list[str] | None,
        typer.Option(
            help="open (default once it is synced): `study catalog`; mine: your own servers; task2mcp. "
            "May be repeated: one ranking over all."
        ),
    ] = None,
    verified: Annotated[
        bool, typer.Option("--verified", help="Only servers of the open catalogue that a source vouches for.")
    ] = False,
    prior: Annotated[
        bool, typer.Option("--prior/--no-prior", help="Let stars, official and verified decide among about equal ones.")
    ] = True,
    explain: Annotated[
        bool, typer.Option("--explain", help="The scores and their parts, also where nothing fits.")
    ] = False,
    as_json: Json = False,
    check: Annotated[
        bool, typer.Option("--check", help="Ask npm and pip whether the packages of the answers are there.")
    ] = False,
    rerank: Annotated[
        str | None,
        typer.Option(
            help="Another look at the first 20 servers: llm (a language model grades them; minutes), or distilled (a "
            "linear model that learned such grades; at once; docs/usefulness.md)."
        ),
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option(
            help="TASK is a folder of parquet files with a column text; answer them into this folder, by Ray."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes of --batch.")] = 1,
) -> None:
    """Name MCP servers for a task, with evidence.

    `study recommend "read a PDF and extract all tables" -k 5`

    `field_dense` ranks servers by usefulness and reads the words of the request; `--system t2mrec` is the paper's
    method, which also reads language, theme and category. Once `study catalog sync` has run, servers come from the open
    catalogue unless --dataset, --system or --catalog task2mcp asks for the data set's; `study install ID` starts one.
    """
    if batch is not None:
        from study.advisor.engine.answer import FIRST
        from study.advisor.engine.batch import ATTRIBUTES, answer_files
        from study.advisor.saved import saved

        idle: dict[str, Any] = dict(zip(ATTRIBUTES, (language, category, subcategory, theme), strict=True))
        idle |= {"catalog": catalog, "verified": verified, "no-prior": not prior, "explain": explain, "json": as_json}
        idle |= {"check": check, "rerank": rerank}
        if named := [f"--{name}" for name, value in idle.items() if value]:
            fix = f"leave it out; a file may have the columns {', '.join(ATTRIBUTES)}"
            raise StudyError(f"--batch takes no {' and no '.join(named)}", column=named[0], fix=fix)
        chosen_dataset, chosen = saved.choose(dataset, system)
        from study.runner.cluster import started  # needs the whole study, which a wrong name should not bring

        how: Any = {
            "dataset": chosen_dataset,
            "system": chosen,
            "k": k or FIRST,
            "workers": workers,
            "started": started,
        }
        done = answer_files(Path(task), batch, **how)
        return typer.echo(f"{sum(each['texts'] for each in done)} requests answered by {chosen} in {batch}")
    from study.advisor.engine import render
    from study.advisor.engine.answer import Options, ask
    from study.advisor.engine.catalogue import load

    attributes = {"language": language, "category": category, "subcategory": subcategory, "theme": theme}
    options = Options(k, attributes, verified=verified, prior=prior, unfit=explain, check=check, rerank=rerank)
    asked = load(catalog, dataset, system)
    answer = ask(asked, task, options)
    if note := asked.instead(system):
        typer.echo(note, err=True)
    warn(answer.warnings)
    if as_json:
        return print_json(render.data(asked, answer, attributes))
    for line in render.text(asked, answer, render.width()):
        typer.echo(line)
    if (explain or rerank) and answer.items:
        found = [item.server for item in answer.items]
        render.show_scores(found, title="scores", caption=answer.caption)
    return None
