"""`study recommend`: the servers for a task. Heavy imports stay inside, so that it starts fast."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from study.errors import StudyError, printable, require_one_of
from study.recommend.contract import Recommendation, SavedModel, show_recommendations

if TYPE_CHECKING:
    import pandas as pd


def recommend(
    task: Annotated[str, typer.Argument(help="What is to be done, in words.")],
    language: Annotated[str, typer.Option(help="Programming language that the task asks for.")] = "",
    theme: Annotated[str, typer.Option(help="Application domain of the task.")] = "",
    category: Annotated[str, typer.Option(help="Category of the task, where known.")] = "",
    subcategory: Annotated[str, typer.Option(help="Subcategory within --category, where known.")] = "",
    k: Annotated[int, typer.Option("-k", "--top", help="How many servers to name.")] = 5,
    dataset: Annotated[str | None, typer.Option(help="Whose saved model to use (default: task2mcp).")] = None,
    system: Annotated[
        str | None, typer.Option(help="Which saved system answers (default: field_dense if exported, else t2mrec).")
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(help="open (default once it is synced): `study catalog`; mine: your own servers; task2mcp."),
    ] = None,
    verified: Annotated[
        bool, typer.Option("--verified", help="Only servers of the open catalogue that a source vouches for.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON instead of a table.")] = False,
    rerank: Annotated[
        str | None,
        typer.Option(help="llm: a language model grades the first 20 servers (docs/language-model.md); takes minutes."),
    ] = None,
) -> None:
    """Name MCP servers for a task: `study recommend "read a PDF and extract all tables" -k 5`.

    `field_dense` ranks servers by usefulness and reads the words of the request; `--system t2mrec` is the paper's
    method, which also reads language, theme and category. Once `study catalog sync` has run, servers come from the open
    catalogue unless --dataset, --system or --catalog task2mcp asks for the data set's; `study install ID` starts one.
    """
    from dataclasses import asdict

    from study.catalog.trust import in_words, trust
    from study.recommend import catalogue, saved

    if catalog is not None:
        require_one_of(catalog, "catalogue", [*catalogue.NAMES, "task2mcp"], column="--catalog")
        if (dataset or system) and catalog in catalogue.NAMES:
            raise StudyError(
                f"--catalog {catalog} has no other data set or system", fix="leave out --dataset and --system"
            )
        dataset = dataset or ("task2mcp" if catalog == "task2mcp" else None)
    elif dataset is None and system is None and catalogue.synced():
        catalog = "open"
    model: SavedModel
    servers: pd.DataFrame | None = None
    found: Sequence[Recommendation]
    if catalog in catalogue.NAMES:
        chosen_dataset, chosen = f"catalogue {catalog}", catalogue.SYSTEM
        model, servers = catalogue.load(catalog)
    else:
        chosen_dataset, chosen = saved.choose(dataset, system)
        model = saved.load_saved_model(chosen_dataset, chosen)
    attributes = {"language": language, "category": category, "subcategory": subcategory, "theme": theme}
    if rerank not in (None, "llm"):
        raise StudyError(f"unknown re-ranker {rerank!r}", column="--rerank", fix="use llm")
    depth = k
    if rerank:
        from study.recommend import grading

        grader, depth = grading.Grader.configured(), max(k, grading.DEPTH)
    if verified:
        if servers is None:
            fix = "run: study catalog sync --source toolsdk"
            raise StudyError("--verified is for the open catalogue", column="--verified", fix=fix)
        found = catalogue.only_vouched(model.recommend(task, **attributes, k=len(servers)), servers)[:depth]
        if not found:
            raise StudyError("no source vouches for any of these servers", column="--verified", fix="leave it out")
    else:
        found = model.recommend(task, **attributes, k=depth)
    warnings = model.warnings(task, **attributes)
    caption = model.caption
    if rerank:
        found = grading.graded(grader, task, found)[:k]
        named = ", ".join(sorted(grader.client.usage.models)) or grader.model
        # The hash is in the JSON answer.
        caption = f"score: grade by {printable(named).split('@')[0]} + score of {model.title}, both from 0 to 1"
    if system is None and chosen != saved.PREFERRED[0]:
        typer.echo(
            f"note: {chosen} answers, since {saved.PREFERRED[0]} was not exported "
            f"({saved.how_to_save(chosen_dataset, saved.PREFERRED[0])})",
            err=True,
        )
    for warning in warnings:
        typer.echo(f"warning: {printable(warning)}", err=True)
    if as_json:
        answer = {"task": task, **attributes, "dataset": chosen_dataset, "system": chosen, "warnings": warnings}
        answer |= {"reranked_by": named} if rerank else {}
        rows = [asdict(item) for item in found]
        if servers is not None:
            for row in rows:
                server = servers.loc[row["server_id"]].to_dict()
                row |= {"server_id": server["id"], "trust": trust(server)}
        typer.echo(json.dumps(answer | {"recommendations": rows}, indent=2, ensure_ascii=False))
        return
    invented = "" if chosen_dataset == saved.DATASET else " (INVENTED SERVERS, none of them exists)"
    show_recommendations(found, title=f"{model.title} on {chosen_dataset}{invented}: {task}", caption=caption)
    if servers is not None:
        for item in found:
            server = servers.loc[item.server_id].to_dict()
            typer.echo(printable(f"{item.rank:>3} {server['id']}  [{in_words(trust(server))}]"))
        typer.echo("start one: study install ID --client NAME")
