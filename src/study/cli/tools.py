"""`study tools`: index catalogues of MCP tools, find, call and serve tools, run the tool-level experiments."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option, Typer, echo

from study.base import paths
from study.base.errors import StudyError, printable, require_one_of
from study.base.settings import read_yaml
from study.cli.shared import Json, Model, Port, Task, Transport, Url, print_json, print_table, say

if TYPE_CHECKING:
    from study.advisor.engine.intent.feedback import FeedbackStore
    from study.advisor.gateway.gateway import Gateway
    from study.advisor.gateway.loop import Trajectory
    from study.advisor.retrieval.documents import ToolCatalog
    from study.advisor.retrieval.route import Chat

app = Typer(no_args_is_help=True, help="Find, call and compare tools of MCP servers.")
Configs = Annotated[list[Path] | None, Option(help="Start the servers of MCP client configurations.")]
Allow = Annotated[list[str] | None, Option(help="Only these tools: patterns of SERVER__TOOL.")]
Deny = Annotated[list[str] | None, Option(help="Never these tools: patterns of SERVER__TOOL.")]
Catalogue = Annotated[str | None, Option(help="An indexed one: livemcpbench, ... (default: mine, if indexed).")]
# The catalogue of a user's own servers, unless another name is given, and that of several published ones.
OWN, MERGED = "mine", "merged"
T2MREC = "t2mrec"  # the method that asks the paper's model for servers
CANDIDATES = 10  # the nearest tools, among which one is chosen


def catalogue_file(catalogue: str) -> Path:
    """Where the index of a catalogue is kept (never committed)."""
    if not catalogue.replace("-", "").replace("_", "").isalnum():
        raise StudyError(f"not a catalogue name: {catalogue!r}", fix="use letters, digits, - and _")
    return paths.root() / "data" / "tools" / f"{catalogue}.json"


def default_catalogue() -> str:
    """The catalogue that answers: the user's own servers once they are indexed, else LiveMCPBench's."""
    return OWN if catalogue_file(OWN).is_file() else "livemcpbench"


def indexed(catalogue: str) -> ToolCatalog:
    """An indexed catalogue."""
    from study.advisor.retrieval.documents import load_catalog

    return load_catalog(catalogue_file(catalogue))


def feedback_store(catalogue: str) -> FeedbackStore:
    """The feedback about the tools of a catalogue (never committed)."""
    from study.advisor.engine.intent.feedback import feedback_of

    return feedback_of(f"tools-{catalogue}")


@app.command()
def index(
    catalogue: Annotated[list[str] | None, Option(help="Published (livemcpbench, mcptools, ...), or your own.")] = None,
    mcp_config: Configs = None,
    document: Annotated[list[str] | None, Option(help="template (default), name_desc, desc, server.")] = None,
    timeout: Annotated[float, Option(min=0.1, help="Seconds that each server has to answer.")] = 30.0,
) -> None:
    """Index tools so that `find` can search them: published collections (default livemcpbench) or running MCP servers.

    Several catalogues become `merged`, in which servers with equal lists of tool descriptions are one. Running servers
    make the catalogue `mine`; a server that does not answer keeps its last good list.
    """
    from study.advisor.encoders.choose import quick_embedder
    from study.advisor.retrieval.documents import save_catalog
    from study.advisor.retrieval.index import Settings, ToolIndex
    from study.advisor.retrieval.merge import merge_catalogs
    from study.advisor.retrieval.route import Router

    names = list(dict.fromkeys(catalogue or [])) or [OWN if mcp_config else "livemcpbench"]
    name = names[0] if len(names) == 1 else MERGED
    if mcp_config and len(names) > 1:
        raise StudyError("running servers make one catalogue", fix="give --catalogue once")
    if name != OWN or not mcp_config:  # one's own servers need nothing of the study
        from study.tools.collections import PUBLISHED, published_catalog
    if mcp_config:
        if name != OWN and name in PUBLISHED:
            raise StudyError(f"{name!r} is a published catalogue", fix=f"give yours another name: --catalogue {OWN}")
        tools = live_catalog(name, mcp_config, timeout)
    elif len(names) == 1:
        tools = published_catalog(name)
    else:
        merged = merge_catalogs(MERGED, [published_catalog(n) if n in PUBLISHED else indexed(n) for n in names])
        tools, listings = merged.catalog, len(merged.entity_of)
        echo(f"{listings} listings, {len(tools.servers)} entities, {len(merged.groups())} groups")
    embedder = quick_embedder()
    for form in document or ["template"]:
        _ = ToolIndex(tools, Settings(document=form), embedder).vectors.distinct
    for vectors in Router(tools, embedder=embedder).server_vectors:
        _ = vectors.distinct
    save_catalog(catalogue_file(name), tools)
    echo(f"{len(tools.servers)} servers, {len(tools.tools)} tools in {catalogue_file(name)}")


def live_catalog(name: str, configs: list[Path], timeout: float) -> ToolCatalog:
    """The catalogue of the servers that answer, or did before; the outcome of each is printed."""
    from study.advisor.catalog import checks
    from study.advisor.gateway import live
    from study.advisor.gateway.client_config import read_config

    before = indexed(name) if catalogue_file(name).is_file() else None
    endpoints = read_config(*configs)
    listings = asyncio.run(live.list_all(endpoints, timeout))
    checks.note(live.starts(endpoints, listings))
    tools, cleaning = live.build(name, listings, before=before)
    earlier = {server.id: f"kept from {server.listed}" for server in tools.servers if server.problem}
    for listing in listings:
        problem = f"{earlier.get(listing.name, 'left out')}: {listing.problem}"
        remark = f" ({listing.remark})" if listing.remark else ""
        say(f"{listing.name}: {f'{len(listing.tools)} tools{remark}' if listing.problem is None else problem}")
    for row in cleaning[cleaning["rows"] > 0].itertuples():
        say(f"cleaning: {row.rule}: {row.rows} ({row.table}, {row.action})")
    if all(tools.servers[tool.server].problem for tool in tools.tools):
        raise StudyError("no server gave a tool", file=configs[0], fix="see the outcome of each server above")
    echo(", ".join(f"{count} {kind}" for kind, count in live.changes(before, tools).items()))
    return tools


@app.command()
def serve(
    mcp_config: Configs = None,
    catalogue: Annotated[str | None, Option(help="Also find the tools of this indexed catalogue.")] = None,
    allow: Allow = None,
    deny: Deny = None,
    transport: Transport = "stdio",
    port: Port = None,
) -> None:
    """Run an MCP server through which a host finds and calls the tools of your servers, with four tools in all.

    Your servers start when they are needed, and end with this program. Every call is noted (`study tools run
    --catalogue mine --part feedback`).
    """
    from study.advisor.gateway.server import make_server
    from study.advisor.gateway.server import run as run_server
    from study.advisor.gateway.view import serve_settings

    if not mcp_config and catalogue is None:
        raise StudyError("there is nothing to serve", fix="give --mcp-config FILE, or --catalogue NAME to find only")
    run_server(make_server(gateway(mcp_config, catalogue, allow, deny)), transport, port or serve_settings().port)


def gateway(
    configs: list[Path] | None, catalogue: str | None, allow: list[str] | None, deny: list[str] | None
) -> Gateway:
    """What serves a user's servers (and finds the tools of a published catalogue), with their feedback."""
    from study.advisor.gateway.client_config import read_config
    from study.advisor.gateway.gateway import Gateway
    from study.advisor.gateway.view import serve_settings
    from study.advisor.retrieval.documents import save_catalog

    settings, file = serve_settings(), catalogue_file(OWN)
    settings = replace(settings, allow=tuple(allow or settings.allow), deny=(*settings.deny, *(deny or ())))
    return Gateway(
        read_config(*configs) if configs else [],
        settings,
        before=indexed(OWN) if configs and file.is_file() else None,
        published=None if catalogue is None else indexed(catalogue),
        store=feedback_store(OWN),
        save=partial(save_catalog, file),
        say=lambda text: say(*text.splitlines(), err=True),
    )


@app.command()
def loop(
    task: Task,
    mcp_config: Configs = None,
    url: Annotated[str | None, Option(help="Another endpoint than conf/llm/local, or local:NAME.")] = None,
    model: Annotated[str, Option(help="Name of the model there.")] = "qwen",
    allow: Allow = None,
    deny: Deny = None,
    dry: Annotated[bool, Option("--dry", help="Only name the tools that the model asks for; call none.")] = False,
    catalogue: Catalogue = None,
    as_json: Json = False,
) -> None:
    """Let a model do a task with your servers: it asks for tools, calls them, and answers (MCP-Zero, with calls).

    The calls are real: name with --allow what it may use. The trajectory is added to
    data/tools/mine.trajectories.jsonl, in the form of MCP-Flow. With --dry it only asks for tools of an indexed
    catalogue (--catalogue), and no server is started.
    """
    from study.advisor.engine import render
    from study.advisor.gateway.loop import keep_trajectory, loop_settings, run_loop
    from study.advisor.llm.client import Client
    from study.advisor.llm.settings import endpoint_settings

    settings = loop_settings()
    client = Client(url, mode="off") if url else replace(endpoint_settings("local"), mode="off").client(None)
    ask = partial(client.chat, model, temperature=0, max_tokens=settings.tokens)
    if not (mcp_config or dry):
        raise StudyError("there are no servers to call", fix="give --mcp-config FILE, or --dry to call none")
    servers = gateway(mcp_config, None if mcp_config else catalogue or default_catalogue(), allow, deny)
    servers.store = None if dry else servers.store  # a search that no call may follow teaches nothing

    async def work() -> Trajectory:
        async with servers:
            return await run_loop(task, servers, ask, settings, partial(say, err=True), dry=dry)

    done, file = asyncio.run(work()), catalogue_file(OWN).with_suffix(".trajectories.jsonl")
    ended = "answered" if done.finished else f"stopped after {done.rounds} replies"
    facts = f"{ended}; {done.malformed} malformed blocks, {done.tokens} tokens"
    if dry:
        tools = render.tools_data(servers.view.catalog, [servers.view.row(tool["name"]) for tool in done.tools])
        print_json(tools) if as_json else say(*map(render.tool_line, tools))
        return say(f"{facts}. {done.final_response}", err=True)
    keep_trajectory(file, done, model)
    say(f"{facts}, {sum('function_call' in step for step in done.steps)} calls; kept in {file}", err=True)
    return print_json(asdict(done)) if as_json else say(done.final_response)


@app.command()
def find(
    query: Task,
    catalogue: Catalogue = None,
    k: Annotated[int | None, Option("-k", "--top", min=1, help="How many tools (default: 5, or the budget's).")] = None,
    method: Annotated[str, Option(help="dense, bm25, tfidf, hybrid, routed, intent or t2mrec.")] = "dense",
    servers: Annotated[int | None, Option(min=1, help="How many servers --by names (default: 5).")] = None,
    by: Annotated[str | None, Option(help="What names servers first: a stage of conf/tools/router.yaml.")] = None,
    budget: Annotated[int | None, Option(min=1, help="Tokens of tool definitions to hand over.")] = None,
    document: Annotated[str, Option(help="Of a tool: name_desc, desc, template or server.")] = "template",
    decompose: Annotated[bool, Option(help="Search for the parts of the query too.")] = False,
    server: Annotated[list[str] | None, Option(help="Only tools of these servers: names with * and ?.")] = None,
    tag: Annotated[list[str] | None, Option(help="Only of servers with this category or source.")] = None,
    context: Annotated[Path | None, Option(help="JSON for --method intent: who asks, what tools need.")] = None,
    as_json: Json = False,
) -> None:
    """Search tools for a task: `study tools find "turn a word document into a PDF" --json`.

    Methods: `routed` is MCP-Zero's two stages (also for a request block, `<tool_assistant>...</tool_assistant>`),
    `intent` learns from earlier uses, `t2mrec` asks for servers first, then for their tools.
    """
    from study.advisor.engine import render
    from study.advisor.engine.answer import ask
    from study.advisor.engine.intent.recommender import Context, read_context
    from study.advisor.engine.tools import INTENT, METHODS, ToolOptions, Tools
    from study.advisor.retrieval.index import matching

    require_one_of(method, "search method", (*METHODS, T2MREC))
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
        echo(printable(f"{line}  ({item.why})") if item.why else line)
    return echo(f"{answer.tokens} of {budget} tokens") if budget else None


@app.command()
def call(instruction: Task, catalogue: Catalogue = None, url: Url = None, model: Model = "gpt-4o") -> None:
    """Name one tool with its arguments (MCP-Flow): by trained parts, or by a model where --url is given.

    `missing` names required parameters without a value in the instruction. The first call learns for minutes.
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
        chosen = learned.call_tool(tools, instruction, near, say=lambda text: echo(text, err=True))
    if chosen is None:
        raise StudyError("the model's reply is no call of a given tool", fix="ask again, or another model")
    tool, missing = tools.tools[chosen.tool], learned.missing(tools, chosen)
    answer = {"server": tools.servers[tool.server].name, "name": tool.name, "arguments": dict(chosen.arguments)}
    say(json.dumps(answer | {"missing": missing}, ensure_ascii=False))


@app.command()
def synthesise(
    catalogue: Catalogue = None,
    tools: Annotated[int, Option(min=1, help="How many tools of the catalogue, sampled at random.")] = 10,
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
        echo(json.dumps({"instruction": sample.text, "tool": name, "arguments": sample.arguments}))


@app.command()
def export(
    form: Annotated[Literal["openai", "sharegpt"], Option("--format", help="sharegpt: LLaMA-Factory.")] = "openai",
    trajectories: Annotated[Path | None, Option(help="JSON lines of trajectories instead of samples.")] = None,
    tools: Annotated[int, Option(min=1, help="Tools on offer in every sample, the right one among them.")] = 10,
) -> None:
    """Print MCP-Flow's samples, or trajectories, as JSON lines for programs that fine-tune a language model."""
    import numpy as np

    from study.tools.collections import load_collection
    from study.tools.flow import finetuning as forms
    from study.tools.flow import samples
    from study.tools.flow.settings import flow_settings

    if trajectories is not None:
        conversations = iter(forms.read_trajectories(trajectories))
    else:
        loaded = load_collection("mcpflow")
        own = samples.load_samples(loaded)
        conversations = forms.from_samples(loaded.catalog, own, tools, np.random.default_rng(flow_settings().seeds[0]))
    for line in forms.exported(conversations, form):
        echo(line)


@app.command()
def finetune(
    samples: Annotated[Path, Argument(help="What `study tools export --format openai` printed.")],
    model: Annotated[str, Option(help="Language model: a folder, or a name on Hugging Face's hub.")],
    output: Annotated[Path, Option(help="New folder for the adapter.")],
) -> None:
    """Train a LoRA adapter for a language model on exported samples (make setup LORA=1; a GPU)."""
    from study.tools.flow.finetuning import finetune, lora_settings

    facts = finetune(samples, model, output, lora_settings())
    losses = facts["losses"]
    sizes = f"{facts['sequences']} sequences ({facts['too_long']} too long), {len(losses)} steps"
    say(f"{sizes}, loss {losses[0]:.3f} to {losses[-1]:.3f}; adapter in {output}")


@app.command()
def run(
    catalogue: Annotated[str, Option(help="Collection, or scaling, intent, router.")] = "livemcpbench",
    part: Annotated[str, Option(help="all (but latency), latency, llm, report or feedback.")] = "all",
) -> None:
    """Run the experiments of a collection and redo its tables in results/.

    Collections: livemcpbench, mcptools, mcpflow, apibank, mcptoolbench; `scaling`, `intent` and `router` use
    livemcpbench. The part `feedback` prints what the recorded uses of a catalogue's tools say, and writes nothing.
    """
    from study.tools.experiments import run_experiment

    if part == "feedback":
        return show_feedback(catalogue)
    return say(f"results in {paths.results(run_experiment(catalogue, part))}")


def show_feedback(catalogue: str) -> None:
    """Print how tools were used, every variant of a running comparison against the control (may be looked at after
    every use), and the weights that fit the uses best."""
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
        echo(f"\ncomparison {experiment}")
        print_table(intent.compare_variants(observed, how))
    uses = intent.lessons(events)
    weights = intent.tune(uses, settings.variants[CONTROL], settings.tuning)
    count = sum(bool(len(own)) for own in uses)
    few = f"; fewer than {intent.FEW}: they fit single uses, do not use them" if count < intent.FEW else ""
    shown = {name: round(value, 4) for name, value in by_factor(weights).items()}
    echo(f"\nweights by {count} successful uses that tell something{few}\n{json.dumps(shown)}")


def chat(url: str, model: str) -> Chat:
    """A model at an endpoint, at temperature 0; nothing of what it says is kept."""
    from study.advisor.llm.client import Client

    return partial(Client(url, mode="off").chat, model, temperature=0)
