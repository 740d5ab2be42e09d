"""An answer in short: a line or two for each server, a small card for another agent, and how a server is started."""

from __future__ import annotations

import json
import shlex
from typing import Any

from study.advisor.agent.agent import Agent
from study.advisor.agent.answer import Answer
from study.advisor.agent.text import plain
from study.advisor.catalog import clients, store
from study.advisor.catalog.start import known_start, start
from study.advisor.engine.answer import Item
from study.advisor.engine.render import warned
from study.advisor.saved.contract import Recommendation
from study.errors import StudyError

# Characters of a sentence and of a start command on a small card.
SENTENCE, COMMAND = 110, 100


def found(agent: Agent, answer: Answer) -> list[Item]:
    """The servers of an answer with what is said of each in a line."""
    shown = []
    for item in answer.recommendations:
        fields, scores = item.evidence.fields, dict(item.evidence.scores)
        total = scores.pop("total")
        server = {"id": item.server_id, "name": fields["name"], "url": fields["repository_link"]}
        server |= {"description": fields["description"], "language": fields["languages"]}
        shown.append(Item(Recommendation.of(item.rank, server, total, scores), agent.facts(item.server_id)))
    return shown


def brief(agent: Agent, answer: Answer) -> dict[str, Any]:
    """An answer as plain data of about 300 bytes a server; what is not known is left out."""
    rows = []
    for one in found(agent, answer):
        facts = one.facts
        row = {
            "rank": one.server.rank,
            "server_id": one.server.server_id,
            "name": plain(one.server.name, 60),
            "warning": ", ".join(warned(facts)),
            "does": plain(facts.does, SENTENCE),
            "stars": facts.stars,
            "licence": facts.licence,
            "official": facts.official,
            "language": facts.language,
            "start": plain(facts.start, COMMAND),
            "checked": plain(facts.checked, COMMAND),
            "url": "" if facts.start else one.server.url,
        }
        rows.append({name: value for name, value in row.items() if value not in ("", None, False)})
    removed = [f"{item.wanted}: {item.removed} removed" for item in answer.removals if item.removed]
    said = {"notes": [plain(note, 200) for note in answer.notes], "filters": removed}
    fits = {} if answer.fits else {"fits": False}
    return {"servers": rows, **fits, **{name: value for name, value in said.items() if value}}


def start_data(agent: Agent, server_id: int, client: str) -> dict[str, Any]:
    """How a recommended server is started, and its entry for a client (a name of ``conf/catalog/clients.yaml``).

    Raises StudyError: an unknown server or client, or no source says how to start it.
    """
    clients.client(client)
    agent.require_known(server_id)
    facts = agent.facts(server_id)
    if not facts.id:
        synced = store.current() is not None
        reason = f"no source says how to start server {server_id}"
        fix = "see its repository" if synced else "run: study catalog sync --source toolsdk --source docker"
        raise StudyError(reason, column="server_id", fix=fix)
    server = store.find(facts.id, store.read(store.required(), "servers"))
    try:
        way, pinned = start(server), True
    except StudyError:  # nobody vouches for it, or nobody names a version
        known = known_start(server)
        if known is None:
            raise
        way, pinned = known, False
    kind = clients.client(client)
    return {
        "id": facts.id,
        "start": shlex.join([way.command, *way.args]) if way.command else way.url,
        "version_pinned": pinned,
        "vouched_by": list(way.vouched),
        "fill_in": list(way.fill),
        "optional": list(way.optional),
        "warning": ", ".join(warned(facts)),
        "checked": facts.checked,
        "config": {kind.key: {clients.entry_name(way.id): kind.entry(way)}},
    }


def start_text(agent: Agent, server_id: int, request: str = "") -> str:
    """`start_data` for a reader, for the client that the request names: the command, what to fill in, and the entry.
    Empty where no source says how to start the server."""
    words = request.lower().replace(" ", "-")
    client = next((name for name in clients.known_clients() if name in words), "json")
    try:
        made = start_data(agent, server_id, client)
    except StudyError:
        return ""
    lines = [f"Warning: {made['warning']}"] if made["warning"] else []
    lines.append(f"Start: {made['start']}")
    if not made["version_pinned"]:
        lines.append("No source names a version; `study install` pins the latest.")
    if made["fill_in"]:
        lines.append(f"Fill in: {', '.join(made['fill_in'])}")
    return "\n".join([*lines, json.dumps(made["config"], indent=2)])
