"""`study agent`: ask in the terminal, serve the page, run the MCP server. Heavy imports stay inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer, echo

from study.base.errors import printable
from study.cli.shared import Json, Port, Top, Transport, print_json, warn

if TYPE_CHECKING:
    from study.advisor.agent.conversation import Agent
    from study.advisor.engine.intent.feedback import FeedbackStore

app = Typer(no_args_is_help=True, help="Ask T2MAgent: terminal, page, MCP server.")
Catalog = Annotated[list[str] | None, Option(help="open, mine or task2mcp, as for `study recommend`; several.")]
Data = Annotated[str | None, Option("--dataset", help="Whose saved model answers instead.")]
Method = Annotated[str | None, Option("--method", help="Saved system, such as t2mrec (default: the first).")]
Url = Annotated[str | None, Option("--url", help="A language model: local:qwen, or http://.../v1.")]
Model = Annotated[str, Option("--model", help="For --url: the endpoint's name of the model.")]
Host = Annotated[str | None, Option(help="Address to listen on (default: this machine alone).")]


def _agent(catalog: list[str] | None, dataset: str | None, method: str | None, url: str | None, model: str) -> Agent:
    from study.advisor.agent.conversation import Agent
    from study.advisor.engine.catalogue import load

    writer = None
    if url:
        from study.advisor.agent.language import Writer
        from study.advisor.llm.settings import connect  # the client of an endpoint takes a second to load

        writer = Writer(*connect(url, model))
    return Agent(load(catalog, dataset, method), writer)


def _store(agent: Agent) -> FeedbackStore:
    """The feedback about a catalogue."""
    from study.advisor.engine.intent.feedback import feedback_of

    return feedback_of(agent.catalogue.name.replace(" ", "-"))


@app.command()
def ask(
    request: Annotated[str, Argument(help='What is to be done, and limits: "..., in Python, MIT licence".')],
    catalog: Catalog = None,
    dataset: Data = None,
    method: Method = None,
    k: Top = None,
    url: Url = None,
    model: Model = "",
    as_json: Json = False,
    outcome: Annotated[str, Option(help="Note what became of a server of this answer, e.g. worked=5581.")] = "",
    detail: Annotated[str, Option(help="For --outcome: what happened, in a few words.")] = "",
    keep_words: Annotated[bool, Option("--keep-words", help="For --outcome: keep the request, too.")] = False,
) -> None:
    """Answer one request: `study agent ask "captions for marketing videos, in TypeScript, MIT licence"`.

    The servers are those of `study recommend`, with why, what speaks against each, how to start it and when to prefer
    which. --outcome notes accepted=ID, rejected=ID, worked=ID or failed=ID instead.
    """
    from study.advisor.agent.conversation import in_words
    from study.advisor.engine import render

    agent = _agent(catalog, dataset, method, url, model)
    turn = agent.answer(request, top=k)
    if outcome:
        kind, _, name = outcome.partition("=")
        ids = {str(one): one for one in (agent.name(item.server) for item in turn.answer.items)}
        noted = agent.note(_store(agent), turn, kind, ids.get(name, name), "terminal", detail, words=keep_words)
        what = f"{'with' if keep_words else 'without'} the request's words"
        return echo(f"event {noted}: {kind}, id {printable(name)}; kept on this machine, {what}")
    warn(turn.answer.warnings)
    if as_json:
        return print_json(agent.data(turn))
    items = turn.answer.items
    lines = render.text(agent.catalogue, turn.answer)
    for part, statement in turn.written.response.items():
        of_server = "   " if part[-1:].isdigit() and part[0] in "ts" else ""
        lead = f"{statement.server}. " if part.startswith("why") else of_server
        lines.append(f"{lead}{in_words(part, statement, items)} [{statement.field}]")
    if turn.question:
        lines.append(f"{turn.question.text} {', '.join(turn.question.options)}: add it after a comma")
    if url:
        failed = f"; rules answered: {turn.problem}" if turn.problem else ""
        lines.append(f"words: {turn.written.author}, {turn.written.attempts} replies{failed}")
    return echo(printable("\n".join(lines), keep="\n"))


@app.command()
def serve(
    catalog: Catalog = None,
    dataset: Data = None,
    method: Method = None,
    url: Url = None,
    model: Model = "",
    host: Host = None,
    port: Annotated[int | None, Option(min=0, max=65535, help="Port; 0 takes a free one.")] = None,
) -> None:
    """Serve the chat page on this machine; stop it with Ctrl-C."""
    from study.advisor import serving
    from study.advisor.agent import page

    service = page.Service.read()
    host = serving.concrete(service.host if host is None else host)
    with serving.listening(host, service.port if port is None else port) as bound:
        agent = _agent(catalog, dataset, method, url, model)
        web = page.create_app(agent, _store(agent), service, extra_host=host)
        url_of_page = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
        servers = f"{len(agent.catalogue.model.servers)} servers of {agent.catalogue.name}"
        echo(f"T2MAgent on {url_of_page} ({servers}); Ctrl-C stops it")
        serving.serve(web, bound)


@app.command()
def mcp(
    catalog: Catalog = None,
    dataset: Data = None,
    method: Method = None,
    transport: Transport = "stdio",
    host: Host = None,
    port: Port = None,
) -> None:
    """Run the MCP server, for Claude Desktop, VS Code or any MCP client."""
    from study.advisor.agent import mcp as agent_mcp
    from study.advisor.agent import page
    from study.advisor.engine.catalogue import require

    service = page.Service.read()
    # What is wrong with the call itself is said now; the agent is made at the first request.
    require(catalog, dataset, method)
    server = agent_mcp.server(agent_mcp.lazy(lambda: _agent(catalog, dataset, method, None, "")))
    if transport == "stdio":
        return server.run("stdio")
    from study.advisor.serving import concrete, listening

    host = concrete(service.host if host is None else host)
    with listening(host, port or service.mcp_port) as bound:
        return server.serve(bound, agent_mcp.only(host, service.hosts))
