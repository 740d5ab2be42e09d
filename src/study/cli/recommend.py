"""`study recommend`: the servers for a task. Heavy imports stay inside, so that it starts fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from study.advisor.saved.contract import Recommendation, SavedModel, show_recommendations
from study.cli.shared import Json, Task, print_json, say, warn
from study.errors import StudyError, printable, require_one_of

if TYPE_CHECKING:
    import pandas as pd

    from study.advisor.engine.answering import Answered
    from study.advisor.engine.facts import Facts, Shelf

_SYNC = "run: study catalog sync --source toolsdk"
# How often --check asks for further servers in the place of missing ones.
_ROUNDS = 5


def recommend(
    task: Task,
    language: Annotated[str, typer.Option(help="Programming language that the task asks for.")] = "",
    theme: Annotated[str, typer.Option(help="Application domain of the task.")] = "",
    category: Annotated[str, typer.Option(help="Category of the task, where known.")] = "",
    subcategory: Annotated[str, typer.Option(help="Subcategory within --category, where known.")] = "",
    k: Annotated[int, typer.Option("-k", "--top", help="How many servers to name.")] = 5,
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
    from study.advisor.catalog.start import known_start
    from study.advisor.engine import answering
    from study.advisor.engine.facts import Shelf
    from study.advisor.saved import ahead, saved
    from study.advisor.saved import open_catalogue as catalogue
    from study.advisor.saved.settings import Answering

    if batch is not None:
        from study.advisor.engine.batch import ATTRIBUTES, answer_files

        idle: dict[str, Any] = dict(zip(ATTRIBUTES, (language, category, subcategory, theme), strict=True))
        idle |= {"catalog": catalog, "verified": verified, "no-prior": not prior, "explain": explain, "json": as_json}
        idle |= {"check": check, "rerank": rerank}
        if named := [f"--{name}" for name, value in idle.items() if value]:
            fix = f"leave it out; a file may have the columns {', '.join(ATTRIBUTES)}"
            raise StudyError(f"--batch takes no {' and no '.join(named)}", column=named[0], fix=fix)
        chosen_dataset, chosen = saved.choose(dataset, system)
        done = answer_files(Path(task), batch, dataset=chosen_dataset, system=chosen, k=k, workers=workers)
        return typer.echo(f"{sum(each['texts'] for each in done)} requests answered by {chosen} in {batch}")
    names = _catalogues(catalog, dataset, system)
    model: SavedModel
    servers: pd.DataFrame | None = None
    if names:
        chosen_dataset, chosen = f"catalogue {' and '.join(names)}", catalogue.SYSTEM
        model, servers = catalogue.load(*names)
    else:
        chosen_dataset, chosen = saved.choose(dataset or (saved.DATASET if catalog else None), system)
        ahead.read_ahead(chosen_dataset, chosen)
        model = saved.load_saved_model(chosen_dataset, chosen)
        ahead.wait()
    attributes = {"language": language, "category": category, "subcategory": subcategory, "theme": theme}
    depth = k
    if rerank is not None:
        from study.advisor.saved import grading

        require_one_of(rerank, "--rerank", ("llm", "distilled"))
        grader: grading.Opinion = (
            grading.Grader.configured() if rerank == "llm" else grading.DistilledGrader.kept(saved.DATASET, model)
        )
        depth = max(k, grading.DEPTH)
    if verified and servers is None:
        raise StudyError("--verified is for the open catalogue", column="--verified", fix=_SYNC)
    shelf = Shelf.here(servers) if names or chosen_dataset == saved.DATASET else Shelf(None, None)

    def facts_of(item: Recommendation) -> Facts:
        if servers is None:
            return shelf.of_task2mcp(item.server_id, item.name, item.description)
        return shelf.of_catalogue(item.server_id)

    def is_verified(item: Recommendation) -> bool:
        row: dict[Any, Any] = {} if servers is None else servers.loc[item.server_id].to_dict()
        # A package that is known to be missing starts nothing.
        return bool(row) and catalogue.vouched(row) and known_start(row) is not None

    how_to_answer: dict[str, Any] = {"k": depth, "attributes": attributes, "with_prior": prior, "unfit": explain}
    how_to_answer["keep"] = is_verified if verified else None
    answers = partial(answering.answer, model, task, facts_of, Answering.read(), **how_to_answer)
    answered, unasked = _asked(answers, shelf, again=verified) if check else (answers(), [])
    caption = model.caption
    extra: dict[str, Any] = {}
    if rerank:
        known = {one.item.server_id: one for one in answered.found}
        ordered = grading.graded(grader, task, [one.item for one in answered.found])[:k]
        answered = replace(answered, found=tuple(replace(known[item.server_id], item=item) for item in ordered))
        # The hash is in the JSON answer.
        graded_by = f"{grader.weight:g} x grade by {printable(grader.named).split('@')[0]}"
        caption = f"score: {graded_by} + score of {model.title}, both from 0 to 1"
        extra = {"reranked_by": grader.named}
    warnings = [*model.warnings(task, **attributes), *unasked]
    if system is None and chosen == saved.PREFERRED[-1]:
        how = saved.how_to_save(chosen_dataset, saved.DEFAULT)
        typer.echo(f"note: {chosen} answers, since {saved.DEFAULT} was not exported ({how})", err=True)
    warn(warnings)
    if as_json:
        front = {"task": task, **attributes, "dataset": chosen_dataset, "system": chosen, "warnings": warnings, **extra}
        return print_json(front | _as_data(answered, servers))
    real = servers is not None or chosen_dataset == saved.DATASET
    title = f"{model.title} on {chosen_dataset}{'' if real else ' (INVENTED SERVERS, none of them exists)'}"
    return _show(answered, title, caption, len(model.servers), explain=explain or rerank is not None)


def _asked(answers: Callable[[], Answered], shelf: Shelf, *, again: bool) -> tuple[Answered, list[str]]:
    """An answer with what npm and pip say today of its servers' packages, and what they could not be asked.

    `again`: whether servers that have turned out to be missing give way to others, which are asked for in turn.
    """
    from study.advisor.catalog import checks

    if shelf.catalogue is None:
        raise StudyError("--check is for the open catalogue", column="--check", fix=_SYNC)
    seen: set[str] = set()
    problems: list[str] = []
    answered = answers()
    for _ in range(_ROUNDS if again else 1):
        new = {one.facts.id for one in answered.found} - {"", *seen}
        if not new:
            break
        seen |= new
        servers = shelf.catalogue[shelf.catalogue["id"].isin(new)].to_dict("records")
        problems += [problem.reason for problem in checks.ask_all(checks.packages_of(servers))]
        answered = answers()
    return answered, problems


def _catalogues(catalog: Sequence[str] | None, dataset: str | None, system: str | None) -> list[str]:
    """The catalogues that answer; none where a saved model of a data set does."""
    from study.advisor.saved import open_catalogue as catalogue
    from study.advisor.saved import saved

    if not catalog:
        return ["open"] if dataset is None and system is None and catalogue.synced() else []
    for name in catalog:
        require_one_of(name, "catalogue", catalogue.NAMES, column="--catalog")
    if set(catalog) == {saved.DATASET}:
        return []
    if dataset or system:
        reason = f"--catalog {' and '.join(catalog)} has no other data set or system"
        raise StudyError(reason, fix="leave out --dataset and --system")
    return list(dict.fromkeys(catalog))


def _as_data(answered: Answered, servers: pd.DataFrame | None) -> dict[str, Any]:
    """The answer as plain data; a server of the catalogue is named by its id there."""
    from study.advisor.catalog.trust import trust

    rows = []
    for one in answered.found:
        row = asdict(one.item) | {"facts": asdict(one.facts), "same": list(one.same)}
        if servers is not None:
            server: Mapping[Any, Any] = servers.loc[one.item.server_id].to_dict()
            row |= {"server_id": server["id"], "trust": trust(server)}
        rows.append(row)
    said = {"understood": asdict(answered.understood), "notes": list(answered.notes), "fits": answered.fits}
    said |= {"closeness": answered.closeness, "left_out": answered.left_out}
    return said | {"recommendations": rows}


def _show(answered: Answered, title: str, caption: str, size: int, *, explain: bool) -> None:
    from study.advisor.engine import listing

    typer.echo(f"{title}, {size:,} servers")
    say(*(f"note: {note}" for note in answered.notes))
    if answered.left_out:
        nothing = "" if answered.fits else "Nothing that is verified fits. "
        typer.echo(f"{nothing}--verified leaves out {answered.left_out} servers that fit.")
    elif not answered.fits:
        advice = "Say what is to be done, with the name of the product if there is one."
        typer.echo(f"Nothing in this catalogue fits. {advice}")
    if not answered.found:
        return
    below = filter(None, (listing.ages(answered.found), listing.install_hint(answered.found)))
    for line in (*listing.lines(answered.found, listing.width()), *below):
        typer.echo(line)
    if explain:
        show_recommendations([one.item for one in answered.found], title="scores", caption=caption)
