"""`study tools`: index catalogues of MCP tools, find and call tools, run the tool-level experiments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from study.base import paths
from study.base.errors import StudyError, printable, require_one_of
from study.base.settings import read_yaml
from study.cli.shared import Json, Model, Task, Url, print_json, print_table, say
from study.cli.tool_catalogues import (
    Catalogue,
    catalogue_file,
    default_catalogue,
    feedback_store,
    index,
    indexed,
    loop,
    serve,
)

if TYPE_CHECKING:
    from study.advisor.retrieval.route import Chat

app = typer.Typer(no_args_is_help=True, help="Find, call and compare tools of MCP servers.")
T2MREC = "t2mrec"  # the method that asks the paper's model for servers
CANDIDATES = 10  # the nearest tools, among which one is chosen

for _command in (index, serve, loop):
    app.command()(_command)


@app.command()
def find(
    query: Task,
    catalogue: Catalogue = None,
    k: Annotated[
        int | None, typer.Option("-k", "--top", min=1, help="How many tools (default: 5, or what the budget takes).")
    ] = None,
    method: Annotated[str, typer.Option(help="dense, bm25, tfidf, hybrid, routed, intent or t2mrec.")] = "dense",
    servers: Annotated[int | None, typer.Option(min=1, help="How many servers --by names (default: 5).")] = None,
    by: Annotated[str | None, typer.Option(help="What names servers first: a stage of conf/tools/router.yaml.")] = None,
    budget: Annotated[int | None, typer.Option(min=1, help="Tokens of tool definitions to hand over.")] = None,
    document: Annotated[str, typer.Option(help="Of a tool: name_desc, desc, template or server.")] = "template",
    decompose: Annotated[bool, typer.Option(help="Search for the parts of the query too.")] = False,
    server: Annotated[list[str] | None, typer.Option(help="Only tools of these servers: names with * and ?.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only of servers with this category or source.")] = None,
    context: Annotated[Path | None, typer.Option(help="JSON for --method intent: who asks, what tools need.")] = None,
    as_json: Json = False,
) -> None:
    """Search tools for a task: `study tools find "turn a word document into a PDF" --json`.

    Methods: `routed` is MCP-Zero's two stages, `intent` learns from earlier uses, `t2mrec` asks for servers first, then
    for their tools. A request block (`<tool_assistant>server: ... tool: ...</tool_assistant>`) is routed, too.
    """
    from study.advisor.engine import render
    from study.advisor.engine.answer import ask
    from study.advisor.engine.intent.recommender import Context, read_context
    from study.advisor.engine.tools import INTENT, ToolOptions, Tools
    from study.advisor.retrieval.index import matching

    by = by or (T2MREC if method == T2MREC else "minilm" if servers else None)
    name, method = catalogue or default_catalogue(), "dense" if method == T2MREC else method
    stage = None
    if by:
        stages = read_yaml(paths.conf() / "tools" / "router.yaml")["stages"]
        able = [key for key, value in stages.items() if value["system"] != "oracle"]
        require_one_of(by, "server stage", able, column="--by")
        from study.tools.router import server_stage  # needs the whole study

        stage = server_stage(by)
    store = feedback_store(name) if method == INTENT else None
    asks, needs = read_context(context) if context else (Context(), None)
    tools_of = indexed(name)
    tools = Tools(tools_of, document=document, store=store, requirements=needs)
    among, first = matching(tools_of, server or (), tag or ()), k or (None if budget else 5)
    answer = ask(tools, query, ToolOptions(first, method, decompose, among, servers or 5, stage, budget, asks))
    handed = [item for item in answer.items if item.whole]
    listed = render.tools_data(tools_of, [item.row for item in handed], [item.score for item in handed])
    chosen = [(tools_of.servers[row], score) for row, score in answer.servers]
    if as_json and (by or budget):
        kept = [{"id": server.id, "name": server.name, "score": round(score, 4)} for server, score in chosen]
        return print_json({"servers": kept, "tokens": answer.tokens, "budget": budget, "tools": listed})
    if as_json:
        return print_json(listed)
    if chosen:
        say(f"servers: {', '.join(f'{server.name} ({score:.3f})' for server, score in chosen)}")
    for line, item in zip(map(render.tool_line, listed), handed, strict=True):
        typer.echo(printable(f"{line}  ({item.why})") if item.why else line)
    return typer.echo(f"{answer.tokens} of {budget} tokens") if budget else None


@app.command()
def call(instruction: Task, catalogue: Catalogue = None, url: Url = None, model: Model = "gpt-4o") -> None:
    """Name one tool with its arguments (MCP-Flow): by trained parts, or by a model where --url is given.

    `missing` names required parameters for which the instruction holds no value. The first call learns from MCP-Flow,
    which takes minutes; later ones read what was learned.
    """
    from study.advisor.encoders.choose import quick_embedder
    from study.advisor.retrieval.index import Settings, ToolIndex
    from study.tools import language_model
    from study.tools.flow import learned

    tools = indexed(catalogue or default_catalogue())
    near, _ = ToolIndex(tools, Settings(document="name_desc"), quick_embedder()).search(instruction, CANDIDATES)
    if url is not None:
        chosen = language_model.ask_for_call(chat(url, model), tools, instruction, near.tolist())
    else:
        chosen = learned.call_tool(tools, instruction, near, say=lambda text: typer.echo(text, err=True))
    if chosen is None:
        raise StudyError("the model's reply is no call of a given tool", fix="ask again, or another model")
    tool, missing = tools.tools[chosen.tool], learned.missing(tools, chosen)
    answer = {"server": tools.servers[tool.server].name, "name": tool.name, "arguments": dict(chosen.arguments)}
    say(json.dumps(answer | {"missing": missing}, ensure_ascii=False))


@app.command()
def synthesise(
    catalogue: Catalogue = None,
    tools: Annotated[int, typer.Option(min=1, help="How many tools of the catalogue, sampled at random.")] = 10,
    url: Url = None,
    model: Model = "gpt-4o",
) -> None:
    """Make instructions with calls for tools of a catalogue: by templates, or by a model where --url is given."""
    import numpy as np

    from study.tools.flow import synthesis
    from study.tools.flow.settings import flow_settings

    flow, catalog = flow_settings(), indexed(catalogue or default_catalogue())
    how, seed = flow.synthesis, flow.seeds[0]
    sampled = np.random.default_rng(seed).permutation(len(catalog.tools))[:tools].tolist()
    writer = synthesis.Templates(how, seed) if url is None else synthesis.ModelWriter(chat(url, model))
    samples, _ = synthesis.synthesise(catalog, sampled, writer, number=how.per_tool, depth=how.depth)
    for sample in samples:
        name = catalog.tools[sample.tool].name
        typer.echo(json.dumps({"instruction": sample.text, "tool": name, "arguments": sample.arguments}))


@app.command()
def export(
    format_: Annotated[str, typer.Option("--format", help="openai (messages) or sharegpt (LLaMA-Factory).")] = "openai",
    trajectories: Annotated[Path | None, typer.Option(help="JSON lines of trajectories instead of samples.")] = None,
    tools: Annotated[int, typer.Option(min=1, help="Tools on offer in every sample, the right one among them.")] = 10,
) -> None:
    """Print MCP-Flow's samples, or trajectories, as JSON lines for programs that fine-tune a language model."""
    import numpy as np

    from study.tools.collections import load_collection
    from study.tools.flow import finetuning as forms
    from study.tools.flow import samples
    from study.tools.flow.settings import flow_settings

    require_one_of(format_, "format", forms.FORMATS)
    if trajectories is not None:
        conversations = iter(forms.read_trajectories(trajectories))
    else:
        loaded = load_collection("mcpflow")
        own, _ = samples.load_samples(paths.raw("mcpflow"), loaded)
        conversations = forms.from_samples(loaded.catalog, own, tools, np.random.default_rng(flow_settings().seeds[0]))
    for line in forms.exported(conversations, format_):
        typer.echo(line)


@app.command()
def finetune(
    samples: Annotated[Path, typer.Argument(help="What `study tools export --format openai` printed.")],
    model: Annotated[str, typer.Option(help="Language model: a folder, or a name on Hugging Face's hub.")],
    output: Annotated[Path, typer.Option(help="New folder for the adapter.")],
) -> None:
    """Train a LoRA adapter for a language model on exported samples (make setup LORA=1; a GPU)."""
    from study.tools.flow.finetuning import finetune, lora_settings

    facts = finetune(samples, model, output, lora_settings())
    losses = facts["losses"]
    sizes = f"{facts['sequences']} sequences ({facts['too_long']} too long), {len(losses)} steps"
    say(f"{sizes}, loss {losses[0]:.3f} to {losses[-1]:.3f}; adapter in {output}")


@app.command()
def run(
    catalogue: Annotated[str, typer.Option(help="Collection, or scaling, intent, router.")] = "livemcpbench",
    part: Annotated[str, typer.Option(help="all (but latency), latency, llm, report or feedback.")] = "all",
) -> None:
    """Run the experiments of a collection and redo its tables in results/.

    Collections: livemcpbench, mcptools, mcpflow, apibank, mcptoolbench. `scaling`, `intent` and `router` use the tasks
    of livemcpbench and write to its results folder. Parts: only times, what a language model does, or the tables;
    `feedback` prints what the recorded uses of the catalogue's tools say, and writes nothing.
    """
    from study.tools.experiments import run_experiment

    if part == "feedback":
        return show_feedback(catalogue)
    say(f"results in {paths.results(run_experiment(catalogue, part))}")
    return None


def show_feedback(catalogue: str) -> None:
    """Print click-through rate, success rate, time to success, satisfaction and coverage; every variant of a running
    comparison against the control (may be looked at after every use); and the weights that fit the uses best."""
    from study.advisor.engine.intent.recommender import by_factor
    from study.advisor.engine.intent.settings import CONTROL, intent_settings
    from study.advisor.retrieval.documents import tool_keys
    from study.tools import intent

    settings, events = intent_settings(), feedback_store(catalogue).events()
    keys = tool_keys(indexed(catalogue)) if catalogue_file(catalogue).is_file() else ()
    print_table(intent.online_metrics(events, keys))
    how = settings.comparison
    for experiment in sorted({event.experiment for event in events if event.experiment}):
        observed = intent.outcomes(events, list(settings.variants), experiment, how.uses_per_agent)
        typer.echo(f"\ncomparison {experiment}")
        print_table(intent.compare_variants(observed, how))
    uses = intent.lessons(events)
    weights = intent.tune(uses, settings.variants[CONTROL], settings.tuning)
    count = sum(bool(len(own)) for own in uses)
    few = f"; fewer than {intent.FEW}: they fit single uses, do not use them" if count < intent.FEW else ""
    shown = {name: round(value, 4) for name, value in by_factor(weights).items()}
    typer.echo(f"\nweights by {count} successful uses that tell something{few}\n{json.dumps(shown)}")


def chat(url: str, model: str) -> Chat:
    """A model at an endpoint, at temperature 0; nothing of what it says is kept."""
    from study.advisor.llm.client import Client

    client = Client(url, mode="off")
    return lambda messages: client.chat(model, messages, temperature=0)
