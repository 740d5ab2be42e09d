"""`study recommend`: the servers for a task. Heavy imports stay inside, so that it starts fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option, echo

from study.base.errors import StudyError
from study.cli.shared import Json, Task, Top, print_json, warn


def recommend(
    task: Task,
    language: Annotated[str, Option(help="Programming language, whatever the request says.")] = "",
    theme: Annotated[str, Option(help="Application domain of the task.")] = "",
    category: Annotated[str, Option(help="Category of the task, where known.")] = "",
    subcategory: Annotated[str, Option(help="Subcategory within --category, where known.")] = "",
    k: Top = None,
    dataset: Annotated[str | None, Option(help="Whose saved model to use (default: task2mcp).")] = None,
    system: Annotated[str | None, Option(help="A saved system (default: the best for usefulness).")] = None,
    catalog: Annotated[list[str] | None, Option(help="open (default once synced), mine (your own), task2mcp.")] = None,
    verified: Annotated[bool, Option("--verified", help="Only servers that a source vouches for.")] = False,
    prior: Annotated[bool, Option(help="Stars, official and verified decide among about equal ones.")] = True,
    explain: Annotated[bool, Option("--explain", help="Scores and their parts, also where nothing fits.")] = False,
    as_json: Json = False,
    check: Annotated[bool, Option("--check", help="Ask npm and pip whether the packages are there.")] = False,
    rerank: Annotated[str | None, Option(help="Grade the first 20 again: llm (minutes), distilled (at once).")] = None,
    batch: Annotated[Path | None, Option(help="TASK is a folder of parquet files; answer into this one.")] = None,
    workers: Annotated[int, Option(min=1, help="Processes of --batch, by Ray.")] = 1,
) -> None:
    """Name MCP servers for a task, with evidence.

    `study recommend "read a PDF and extract all tables" -k 5`. `field_dense` ranks by usefulness and reads the words
    of the request; `--system t2mrec` is the paper's method, which also reads language, theme and category. Once
    `study catalog sync` has run, servers come from the open catalogue unless --dataset, --system or --catalog task2mcp
    asks for the data set's; `study install ID` starts one.
    """
    attributes = {"language": language, "category": category, "subcategory": subcategory, "theme": theme}
    if batch is not None:
        from study.advisor.engine.answer import FIRST
        from study.advisor.engine.batch import answer_files
        from study.advisor.saved import saved

        idle: dict[str, Any] = attributes | {"catalog": catalog, "verified": verified, "no-prior": not prior}
        idle |= {"explain": explain, "json": as_json, "check": check, "rerank": rerank}
        if given := [f"--{name}" for name, value in idle.items() if value]:
            fix = f"leave it out; a file may have the columns {', '.join(attributes)}"
            raise StudyError(f"--batch takes no {' and no '.join(given)}", column=given[0], fix=fix)
        chosen, name = saved.choose(dataset, system)
        from study.runner.cluster import start_ray  # needs the whole study, which a wrong name should not bring

        how: Any = {"dataset": chosen, "system": name, "k": k or FIRST, "workers": workers, "started": start_ray}
        return echo(f"{answer_files(Path(task), batch, **how)} requests answered by {name} in {batch}")
    from study.advisor.engine import render
    from study.advisor.engine.answer import Options, ask
    from study.advisor.engine.catalogue import load

    options = Options(k, attributes, verified=verified, prior=prior, unfit=explain, check=check, rerank=rerank)
    catalogue = load(catalog, dataset, system)
    answer = ask(catalogue, task, options)
    warn(answer.warnings)
    if as_json:
        return print_json(render.data(catalogue, answer, attributes))
    echo("\n".join(render.text(catalogue, answer)))
    if (explain or rerank) and answer.items:
        render.show_scores([item.server for item in answer.items], title="scores", caption=answer.caption)
    return None
