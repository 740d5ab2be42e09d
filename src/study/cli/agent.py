"""`study agent`: ask in the terminal, serve the page, run the MCP server, export feedback."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from study.cli.shared import TRANSPORTS, Json, Port, Transport, print_json
from study.errors import StudyError, printable, require_file, require_one_of

if TYPE_CHECKING:
    from study.advisor.agent.agent import Agent
    from study.advisor.agent.answer import Answer

app = typer.Typer(no_args_is_help=True, help="Ask T2MAgent: terminal, page, MCP server.")
Data = Annotated[str | None, typer.Option("--dataset", help="Whose servers (default: task2mcp).")]
Retriever = Annotated[
    str | None, typer.Option(help="useful, field_dense, minilm, tfidf or t2mrec (default: conf/agent/agent.yaml).")
]
Host = Annotated[str | None, typer.Option(help="Address to listen on (default: this machine alone).")]


def prepared(dataset: str | None) -> str:
    """The data set to use: the chosen one, else Task2MCP. StudyError: an unknown name, or Task2MCP is not prepared."""
    from study.advisor.saved import saved
    from study.config.registry import require_choice

    require_choice("dataset", dataset or saved.DATASET)
    if dataset is None:
        saved.require_real_data()
    return dataset or saved.DATASET


def _agent(dataset: str | None, retriever: str | None) -> Agent:
    from study.advisor.saved import ahead, saved

    chosen = prepared(dataset)
    ahead.read_ahead(chosen, *(saved.USEFUL if retriever in (None, "useful") else (retriever,)))
    from study.advisor.agent.agent import Agent

    return Agent.load(chosen, retriever=retriever)


def _note(agent: Agent, answer: Answer, outcome: str, detail: str, words: bool) -> None:
    """Note what became of a recommended server, such as ``worked=5581``."""
    from study.advisor.agent.feedback import KINDS, note
    from study.advisor.engine.intent.feedback import feedback_of

    kind, _, server = outcome.partition("=")
    known = ", ".join(map(str, answer.ids))
    if not server.isdecimal() or int(server) not in answer.ids:
        fix = f"KIND=ID with one of {', '.join(KINDS)}, and one of the ids {known}"
        raise StudyError(f"{outcome!r:.80} names no server of this answer", column="--outcome", fix=fix)
    how: Any = {"conversation": "terminal", "detail": detail, "words": words}
    event = note(feedback_of(agent.data.name), answer, kind, int(server), **how)
    kept = "with the request's words" if words else "without the request's words"
    typer.echo(f"event {event}: {kind}, id {server}; kept on this machine, {kept}")


@app.command()
def ask(
    request: Annotated[str, typer.Argument(help="What is to be done, in words; constraints too.")],
    dataset: Data = None,
    retriever: Retriever = None,
    explain: Annotated[bool, typer.Option("--explain", help="Reasons, trade-offs and scores, with sources.")] = False,
    as_json: Json = False,
    outcome: Annotated[str, typer.Option(help="Note what became of a server of this answer, e.g. worked=5581.")] = "",
    detail: Annotated[str, typer.Option(help="For --outcome: what happened, in a few words.")] = "",
    keep_words: Annotated[
        bool, typer.Option("--keep-words", help="For --outcome: keep the request itself, too.")
    ] = False,
) -> None:
    """Answer one request: `study agent ask "captions for marketing videos, in TypeScript, MIT licence"`.

    With --outcome accepted=ID, rejected=ID, worked=ID or failed=ID it notes what became of a server instead.
    """
    from study.advisor.agent.agent import noted
    from study.advisor.agent.answer import answer_data

    agent = _agent(dataset, retriever)
    reading = agent.read(request)
    answer = agent.recommend(reading.specification, checks=noted(reading))
    if outcome:
        return _note(agent, answer, outcome, detail, keep_words)
    if as_json:
        return print_json(answer_data(answer, agent.settings.limits))
    from study.advisor.agent.conversation import summary

    lines = [summary(answer)]
    if not explain:
        from study.advisor.agent.short import found
        from study.advisor.engine import render

        shown = found(agent, answer)
        lines += render.lines(shown, render.width())
        lines += filter(None, [" · ".join(filter(None, [render.ages(shown), render.install_hint(shown)]))])
        return typer.echo(printable("\n".join(lines), keep="\n"))
    for item in answer.recommendations:
        lines.append(f"\n{item.rank}. {item.evidence.label}  score {item.evidence.scores['total']:.3f}")
        for mark, claims in (("+", item.why), ("-", item.tradeoffs), (">", item.adoption)):
            lines += [f"   {mark} {claim.text} [{', '.join(claim.fields)}]" for claim in claims]
    lines += ["", *(claim.text for claim in (*answer.comparison, *answer.composition))]
    return typer.echo(printable("\n".join(lines), keep="\n"))


@app.command()
def serve(
    dataset: Data = None,
    retriever: Retriever = None,
    host: Host = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = None,
) -> None:
    """Serve the chat page on this machine; stop it with Ctrl-C."""
    import uvicorn

    from study.advisor.agent import address, web
    from study.advisor.agent.settings import Service, read_conf
    from study.advisor.engine.intent.feedback import feedback_of

    service = read_conf(Service)
    host = address.concrete(service.host if host is None else host)
    with address.listening(host, service.port if port is None else port) as bound:
        agent = _agent(dataset, retriever)
        page = web.create_app(agent, feedback_of(agent.data.name), service, extra_host=host)
        url = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
        typer.echo(f"T2MAgent on {url} ({agent.data.n_servers} servers of {agent.data.name}); Ctrl-C stops it")
        settings = uvicorn.Config(page, log_level="warning", access_log=False, server_header=False, ws="none")
        uvicorn.Server(settings).run(sockets=[bound])


@app.command()
def mcp(
    dataset: Data = None,
    retriever: Retriever = None,
    transport: Transport = "stdio",
    host: Host = None,
    port: Port = None,
) -> None:
    """Run the MCP server, for Claude Desktop, VS Code or any MCP client."""
    require_one_of(transport, "transport", TRANSPORTS)
    from study import paths
    from study.advisor.agent import mcp_server
    from study.advisor.agent.agent import Agent
    from study.advisor.agent.retrieval import require_retriever
    from study.advisor.agent.settings import Service, Settings, read_conf

    service, chosen = read_conf(Service), prepared(dataset)
    # What is wrong with the call itself is said now; the agent is made at the first request.
    require_retriever(retriever or read_conf(Settings).retriever)
    servers, fix = paths.prepared(chosen) / "servers.parquet", f"run: study prepare dataset={chosen}"
    require_file(servers, fix, "the data set is not prepared")
    made = mcp_server.server(mcp_server.Lazy(lambda: Agent.load(chosen, retriever=retriever)))
    if transport == "stdio":
        return made.run("stdio")
    from study.advisor.agent import address

    host, port = address.concrete(service.host if host is None else host), port or service.mcp_port
    with address.listening(host, port):
        pass  # a taken port is said before the server starts
    guard = mcp_server.only(host, service.hosts)
    return made.run("streamable-http", host=host, port=port, transport_security=guard)


@app.command()
def export(
    target: Annotated[Path, typer.Argument(help="File to write: .parquet or .jsonl.")],
    dataset: Data = None,
    events: Annotated[bool, typer.Option("--events", help="All events rather than training pairs.")] = False,
) -> None:
    """Write the feedback as training pairs (request, positive server, negative server)."""
    import pandas as pd

    from study.advisor.agent.feedback import training_pairs
    from study.advisor.engine.intent.feedback import feedback_of
    from study.files import write_parquet, write_text

    found = feedback_of(prepared(dataset)).events()
    table = pd.DataFrame(map(asdict, found)) if events else training_pairs(found)
    if target.suffix == ".parquet":
        write_parquet(target, table)
    elif target.suffix == ".jsonl":
        write_text(target, table.to_json(orient="records", lines=True, force_ascii=False))
    else:
        raise StudyError("unknown kind of file", file=target, fix="end its name in .parquet or .jsonl")
    typer.echo(f"{len(table)} rows in {target}", file=sys.stderr)
