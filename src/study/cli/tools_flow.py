"""The `study tools flow` commands: normalise marketplace records, synthesise instructions, call a tool."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from study.errors import StudyError

if TYPE_CHECKING:
    from study.tools.flow.endpoint import Chat

app = typer.Typer(no_args_is_help=True, help="MCP-Flow: normalise, synthesise, call.")
Catalogue = Annotated[str, typer.Option(help="An indexed catalogue (study tools index).")]
Url = Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint whose model does it.")]
Model = Annotated[str, typer.Option(help="Name of the model there.")]


@app.command()
def normalise(
    records: Annotated[Path, typer.Argument(help="JSON list of marketplace records.")],
    market: Annotated[str | None, typer.Option(help="Marketplace of all records; default: as each says.")] = None,
) -> None:
    """Write marketplace records in one form, one JSON object a line, without secrets."""
    from study.data.raw_files import read_text
    from study.tools.flow import marketplace

    try:
        value = json.loads(read_text(records))
    except (ValueError, RecursionError) as error:
        raise StudyError(f"not valid JSON ({error})", file=records, fix="give a JSON list of records") from error
    if not isinstance(value, list):
        raise StudyError("not a list", file=records, fix="give a JSON list of records")
    found, problems = marketplace.normalise(value, market)
    for listing in found:
        typer.echo(json.dumps(asdict(listing), ensure_ascii=True))
    typer.echo("; ".join(f"{count} left out: {name}" for name, count in problems.items()) or "all kept", err=True)


@app.command()
def synthesise(
    catalogue: Catalogue = "livemcpbench",
    tools: Annotated[int, typer.Option(min=1, help="How many tools of the catalogue, drawn at random.")] = 10,
    url: Url = None,
    model: Model = "gpt-4o",
) -> None:
    """Make instructions with calls for tools of a catalogue; by templates, or by a model where an endpoint is given."""
    import numpy as np

    from study.cli.tools import place
    from study.tools.catalogues import catalog as catalogs
    from study.tools.flow import endpoint, settings, synthesis

    flow, found = settings.load(), catalogs.load(place(catalogue))
    how = flow.synthesis
    drawn = np.random.default_rng(flow.seeds[0]).permutation(len(found.tools))[:tools].tolist()
    writer: synthesis.Writer = synthesis.Templates(how.openings, how.rewrites, how.values, flow.seeds[0], how.quoted)
    if url is not None:
        writer = endpoint.ModelWriter(chat(url, model))
    made, _ = synthesis.synthesise(found, drawn, writer, number=how.per_tool, depth=how.depth)
    for sample in made:
        name = found.tools[sample.tool].name
        typer.echo(json.dumps({"instruction": sample.text, "tool": name, "arguments": sample.arguments}))


@app.command()
def call(
    instruction: Annotated[str, typer.Argument(help="What is to be done, in words.")],
    catalogue: Catalogue = "livemcpbench",
    candidates: Annotated[int, typer.Option(min=1, help="Tools among which is chosen; the nearest ones.")] = 10,
    url: Url = None,
    model: Model = "gpt-4o",
) -> None:
    """Name one tool with arguments: by the selector and copier trained on MCP-Flow, or by a model at an endpoint.

    `missing` names required parameters for which the instruction holds no value. The first call learns from MCP-Flow,
    which takes minutes; later ones read what was learned.
    """
    from study.cli.tools import place
    from study.tools.answers import printable
    from study.tools.catalogues import catalog as catalogs
    from study.tools.discovery.index import Settings, ToolIndex
    from study.tools.flow import calling, endpoint

    found = catalogs.load(place(catalogue))
    near, _ = ToolIndex(found, Settings(document="name_desc")).search(instruction, candidates)
    made = (
        endpoint.call(chat(url, model), found, instruction, near.tolist())
        if url is not None
        else calling.call(found, instruction, near, say=lambda text: typer.echo(text, err=True))
    )
    if made is None:
        raise StudyError("the model's reply is no call of a given tool", fix="ask again, or another model")
    tool = found.tools[made.tool]
    answer = {
        "server": found.servers[tool.server].name,
        "name": tool.name,
        "arguments": dict(made.arguments),
        "missing": calling.missing(found, made),
    }
    typer.echo(printable(json.dumps(answer, ensure_ascii=False)))


def chat(url: str, model: str) -> Chat:
    """The chat of an endpoint; nothing of it is kept."""
    from study.llm.client import Client
    from study.tools.mcp_zero.loop import chat_with

    return chat_with(Client(url, mode="off"), model)
