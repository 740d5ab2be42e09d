"""`study tools`: index catalogues of MCP tools, find and call tools, keep feedback, run the tool-level experiments."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from study import paths
from study.advisor.engine.tool_answers import as_line, listed, search
from study.cli.shared import ENDPOINT, Json, Model, Task, Url, print_json, print_table, say
from study.cli.tool_catalogues import catalogue_file, feedback_store, index, indexed, loop, opened, serve
from study.errors import StudyError, require_one_of

if TYPE_CHECKING:
    from study.advisor.retrieval.route import Chat

app = typer.Typer(no_args_is_help=True, help="Find, call and compare tools of MCP servers.")
Catalogue = Annotated[str, typer.Option(help="An indexed catalogue: livemcpbench, mcptools, ..., or your own.")]
Top = Annotated[int, typer.Option("-k", "--top", min=1, help="How many tools.")]
Names = Annotated[list[str] | None, typer.Option(help="May be given several times.")]
Experiment = Annotated[str | None, typer.Option(help="Name of a running comparison of the configured variants.")]
CANDIDATES = 10  # the nearest tools, among which one is chosen

for _command in (index, serve, loop):
    app.command()(_command)


@app.command()
def find(
    query: Task,
    catalogue: Catalogue = "livemcpbench",
    k: Top = 5,
    mode: Annotated[str, typer.Option(help="dense, bm25, tfidf, hybrid, or routed (MCP-Zero's two stages).")] = "dense",
    document: Annotated[
        str, typer.Option(help="Form of the documents: name_desc, desc, template, server.")
    ] = "template",
    decompose: Annotated[bool, typer.Option(help="Search for the parts of the query too.")] = False,
    server: Annotated[list[str] | None, typer.Option(help="Only tools of these servers: names with * and ?.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only of servers with this category or source.")] = None,
    as_json: Json = False,
) -> None:
    """Search tools for a task: `study tools find "turn a word document into a PDF" --json`."""
    from study.advisor.retrieval.vectors import matching

    with opened(catalogue) as (found, embedder):
        among = matching(found, server or (), tag or ())
        answers = search(found, query, k, mode, document, decompose, among=among, embedder=embedder)
    show_tools(answers, as_json)


@app.command()
def route(
    task: Task,
    catalogue: Catalogue = "livemcpbench",
    by: Annotated[str, typer.Option(help="Server stage of conf/tools/router.yaml.")] = "minilm",
    servers: Annotated[int | None, typer.Option(min=1, help="How many servers stay; default: as configured.")] = None,
    budget: Annotated[int, typer.Option(min=1, help="Tokens of tool definitions to hand over.")] = 2000,
    as_json: Json = False,
) -> None:
    """Choose servers for a task first, then their tools within a budget of tokens."""
    from study.tools import router

    keep = servers or router.router_settings().default_servers
    with opened(catalogue) as (found, embedder):
        routed = router.route_task(found, task, stage=by, keep=keep, budget=budget, embedder=embedder)
    tools, chosen = listed(found, routed.tools, routed.scores), [(found.servers[row], s) for row, s in routed.servers]
    if as_json:
        kept = [{"id": server.id, "name": server.name, "score": round(score, 4)} for server, score in chosen]
        return print_json({"servers": kept, "tokens": routed.tokens, "budget": budget, "tools": tools})
    say(f"servers: {', '.join(f'{server.name} ({score:.3f})' for server, score in chosen) or 'all'}")
    show_tools(tools, as_json=False)
    return typer.echo(f"{routed.tokens} of {budget} tokens")


@app.command()
def request(
    task: Task,
    url: Annotated[str, typer.Option(help=ENDPOINT)],
    model: Model,
    catalogue: Catalogue = "livemcpbench",
    cassette: Annotated[Path | None, typer.Option(help="File of recorded replies; not with --mode off.")] = None,
    mode: Annotated[str, typer.Option(help="replay (never connects), record, or off (keeps nothing).")] = "replay",
    k: Top = 3,
    as_json: Json = False,
) -> None:
    """Let a model ask for the tools that it needs, request by request (MCP-Zero), and name what it was given."""
    from study.advisor.llm.client import Client
    from study.advisor.retrieval.route import Router, chat_with, gather_tools

    client = Client(url, mode=mode, cassette=cassette)  # type: ignore[arg-type]  # the client refuses unknown modes
    with opened(catalogue) as (found, embedder):
        router = Router(found, embedder=embedder)
        chain = gather_tools(task, router, chat_with(client, model), k=k)
    show_tools(listed(found, chain.tools), as_json)
    ended = "finished" if chain.finished else f"stopped after {chain.rounds} rounds"
    facts = f"{len(chain.requests)} requests, {chain.malformed} malformed, {chain.tokens} tokens, {ended}"
    say(f"{facts}. {chain.answer}", err=True)


@app.command()
def call(
    instruction: Task,
    catalogue: Catalogue = "livemcpbench",
    url: Url = None,
    model: Model = "gpt-4o",
) -> None:
    """Name one tool with its arguments (MCP-Flow): by trained parts, or by a model where --url is given.

    `missing` names required parameters for which the instruction holds no value. The first call learns from MCP-Flow,
    which takes minutes; later ones read what was learned.
    """
    from study.advisor.retrieval.index import Settings, ToolIndex
    from study.tools.flow import language_model as flow_model
    from study.tools.flow import learned

    with opened(catalogue) as (found, embedder):
        near, _ = ToolIndex(found, Settings(document="name_desc"), embedder).search(instruction, CANDIDATES)
    if url is not None:
        made = flow_model.ask_for_call(chat(url, model), found, instruction, near.tolist())
    else:
        made = learned.call_tool(found, instruction, near, say=lambda text: typer.echo(text, err=True))
    if made is None:
        raise StudyError("the model's reply is no call of a given tool", fix="ask again, or another model")
    tool, missing = found.tools[made.tool], learned.missing(found, made)
    answer = {"server": found.servers[tool.server].name, "name": tool.name, "arguments": dict(made.arguments)}
    say(json.dumps(answer | {"missing": missing}, ensure_ascii=False))


@app.command()
def synthesise(
    catalogue: Catalogue = "livemcpbench",
    tools: Annotated[int, typer.Option(min=1, help="How many tools of the catalogue, drawn at random.")] = 10,
    url: Url = None,
    model: Model = "gpt-4o",
) -> None:
    """Make instructions with calls for tools of a catalogue: by templates, or by a model where --url is given."""
    import numpy as np

    from study.tools.flow import synthesis
    from study.tools.flow.settings import flow_settings

    flow, found = flow_settings(), indexed(catalogue)
    how, seed = flow.synthesis, flow.seeds[0]
    drawn = np.random.default_rng(seed).permutation(len(found.tools))[:tools].tolist()
    writer = synthesis.Templates(how, seed) if url is None else synthesis.ModelWriter(chat(url, model))
    made, _ = synthesis.synthesise(found, drawn, writer, number=how.per_tool, depth=how.depth)
    for sample in made:
        name = found.tools[sample.tool].name
        typer.echo(json.dumps({"instruction": sample.text, "tool": name, "arguments": sample.arguments}))


@app.command()
def export(
    format_: Annotated[str, typer.Option("--format", help="openai (messages) or sharegpt (LLaMA-Factory).")] = "openai",
    trajectories: Annotated[
        Path | None, typer.Option(help="JSON lines of trajectories instead of MCP-Flow's samples.")
    ] = None,
    tools: Annotated[int, typer.Option(min=1, help="Tools on offer in every sample, the right one among them.")] = 10,
    output: Annotated[Path | None, typer.Option(help="File; default: printed.")] = None,
) -> None:
    """Write MCP-Flow's samples, or trajectories, as JSON lines for programs that fine-tune a language model."""
    import numpy as np

    from study.files import write_text
    from study.tools.collections.published import load_collection
    from study.tools.flow import export as forms
    from study.tools.flow import samples
    from study.tools.flow.settings import flow_settings

    require_one_of(format_, "format", forms.FORMATS)
    if trajectories is not None:
        found = forms.read_trajectories(trajectories)
    else:
        loaded = load_collection("mcpflow")
        own, _ = samples.load_samples(paths.raw("mcpflow"), loaded)
        found = forms.from_samples(loaded.catalog, own, tools, np.random.default_rng(flow_settings().seeds[0]))
    lines = forms.exported(found, format_)
    if output is not None:
        return write_text(output, "".join(f"{line}\n" for line in lines))
    for line in lines:
        typer.echo(line)
    return None


@app.command()
def finetune(
    samples: Annotated[Path, typer.Argument(help="What `study tools export --format openai` wrote.")],
    model: Annotated[str, typer.Option(help="Language model: a folder, or a name on Hugging Face's hub.")],
    output: Annotated[Path, typer.Option(help="New folder for the adapter.")],
) -> None:
    """Train a LoRA adapter for a language model on exported samples (make setup LORA=1; a GPU)."""
    from study.tools.flow.lora import finetune, lora_settings

    facts = finetune(samples, model, output, lora_settings())
    losses = facts["losses"]
    sizes = f"{facts['sequences']} sequences ({facts['too_long']} too long), {len(losses)} steps"
    say(f"{sizes}, loss {losses[0]:.3f} to {losses[-1]:.3f}; adapter in {output}")


@app.command()
def recommend(
    query: Task,
    catalogue: Catalogue = "livemcpbench",
    agent: Annotated[str, typer.Option(help="Who asks.")] = "",
    k: Top = 5,
    language: Names = None,
    system: Names = None,
    needs: Annotated[Path | None, typer.Option(help="JSON: tool key -> permissions, services, languages.")] = None,
    permission: Names = None,
    service: Names = None,
    experiment: Experiment = None,
) -> None:
    """Rank tools by meaning and by what earlier uses taught; the parts of each score are shown.

    The last line (error stream) is an event: give it to `study tools feedback` with what came of it.
    """
    from study.advisor.engine.intent.context import Context, read_requirements
    from study.advisor.engine.intent.recommender import IntentRecommender

    stated = [None if names is None else frozenset(names) for names in (permission, service, language, system)]
    how: dict[str, Any] = {"requirements": read_requirements(needs) if needs else None, "experiment": experiment}
    with opened(catalogue) as (searched, embedder):
        store = feedback_store(catalogue)
        ranked = IntentRecommender(searched, store=store, embedder=embedder, **how)
        found = ranked.recommend(query, Context(agent, *stated), k)
    for rank, item in enumerate(found, start=1):
        say(f"{rank:>2}  {item.score:.3f}  {item.key}  ({item.why})")
    asked = {"agent": agent, "query": store.hashed(query), "asked": time.time(), "experiment": experiment}
    table = [list(item.factors.values()) for item in found]
    typer.echo(json.dumps(asked | {"shown": [item.key for item in found], "factors": table}), err=True)


@app.command()
def feedback(
    event: Annotated[str | None, typer.Argument(help="What `recommend` wrote to the error stream.")] = None,
    selected: Annotated[str | None, typer.Option(help="Key of the tool that was used; leave out for none.")] = None,
    success: Annotated[bool | None, typer.Option("--success/--failure", help="Whether it worked.")] = None,
    latency_ms: Annotated[float | None, typer.Option(min=0, help="Milliseconds that the tool took.")] = None,
    rating: Annotated[float | None, typer.Option(min=0, help="From 0 to 5.")] = None,
    compare: Experiment = None,
    tune: Annotated[bool, typer.Option("--tune", help="Learn weights for conf/tools/intent.yaml.")] = False,
    catalogue: Catalogue = "livemcpbench",
) -> None:
    """Record what came of a recommendation; without an event, show what the recorded feedback says.

    Shown are click-through rate, success rate, time to success, satisfaction and coverage of the catalogue; with
    --compare every variant of a comparison against the control (may be looked at after every use); with --tune the
    weights that fit the uses best.
    """
    from study.advisor.engine.intent.ranking import by_factor
    from study.advisor.engine.intent.settings import CONTROL, intent_settings
    from study.advisor.retrieval.documents import tool_keys
    from study.tools import intent as learning

    settings = intent_settings()
    store = feedback_store(catalogue, rating_scale=settings.ranking.rating_scale)
    if event is not None:
        outcome = {"selected": selected, "success": success, "latency_ms": latency_ms, "rating": rating}
        try:
            told = json.loads(event) | {"finished": time.time()} | outcome
        except (ValueError, TypeError, RecursionError) as error:
            fix = "paste what `study tools recommend` printed last"
            raise StudyError(f"the event is not a JSON object ({error})", fix=fix) from error
        store.append(store.event(told, "the event"))
        return None
    events = store.events()
    if tune:
        uses = learning.lessons(events)
        weights = learning.tune(uses, settings.variants[CONTROL], settings.tuning)
        count = sum(bool(len(own)) for own in uses)
        typer.echo(f"{count} successful uses tell something")
        if count < learning.FEW:
            typer.echo(f"fewer than {learning.FEW}: these weights fit single uses, do not use them", err=True)
        return typer.echo(json.dumps({name: round(value, 4) for name, value in by_factor(weights).items()}))
    known = tool_keys(indexed(catalogue)) if catalogue_file(catalogue).is_file() else ()
    shown = learning.online_metrics(events, known)
    if compare is not None:
        how = settings.comparison
        observed = learning.outcomes(events, list(settings.variants), compare, how.uses_per_agent)
        shown = learning.compare_variants(observed, how)
    return print_table(shown)


@app.command()
def run(
    catalogue: Annotated[str, typer.Option(help="Collection, or scaling, intent, router.")] = "livemcpbench",
    part: Annotated[
        str,
        typer.Option(
            help="all, latency (only the times), llm (only what a language model does) or report (only the tables)."
        ),
    ] = "all",
) -> None:
    """Run the experiments of a collection and redo its tables in results/.

    Collections: livemcpbench, mcptools, mcpflow, apibank, mcptoolbench. `scaling`, `intent` and `router` use the tasks
    of livemcpbench and write to its results folder.
    """
    from study.tools.experiments import run_experiment

    collection = run_experiment(catalogue, part)
    if part != "latency":
        typer.echo((paths.tables(collection) / "overall.md").read_text(encoding="utf-8"))


def chat(url: str, model: str) -> Chat:
    """A model at an endpoint; nothing of what it says is kept."""
    from study.advisor.llm.client import Client
    from study.advisor.retrieval.route import chat_with

    return chat_with(Client(url, mode="off"), model)


def show_tools(answers: list[dict[str, Any]], as_json: bool) -> None:
    """Print tools for a person, or as JSON with their schemas."""
    if as_json:
        return print_json(answers)
    for answer in answers:
        typer.echo(as_line(answer))
    return None
