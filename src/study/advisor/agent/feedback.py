"""What developers did with recommended servers, and training pairs made from it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict

import pandas as pd

from study.advisor.agent.answer import Answer
from study.advisor.engine.intent.feedback import Event, FeedbackStore
from study.errors import require_one_of

KINDS = ("accepted", "rejected", "worked", "failed")
GOOD = frozenset({"accepted", "worked"})
WORKED = {"worked": True, "failed": False}


def note(
    store: FeedbackStore, answer: Answer, kind: str, server_id: int, *, conversation: str, detail: str, words: bool
) -> int:
    """Record one event of one of the `KINDS` about a server of an answer and return the event's number.

    The name `conversation`, which opens the conversation, is hashed, and so is the request; `words`: keep it as well.
    StudyError: an unknown kind, a long detail, or a file that cannot be written.
    """
    require_one_of(kind, "feedback", KINDS, column="kind")
    request = json.dumps(asdict(answer.specification), sort_keys=True)
    event = Event(
        store.hashed(conversation)[:16],
        store.hashed(request),
        tuple(map(str, answer.ids)),
        str(server_id),
        WORKED.get(kind),
        finished=time.time(),
        kind=kind,
        system=answer.system,
        words=request if words else "",
        detail=detail.encode("utf-8", "replace").decode(),
    )
    return store.append(event)


def training_pairs(events: Iterable[Event]) -> pd.DataFrame:
    """Every accepted server of a request paired with every rejected one of the same request and conversation; -1 where
    none was rejected. The last event about a server counts. Of a request whose words were not kept, they are empty."""
    requests: dict[tuple[str, str], dict[str, Event]] = {}
    for event in events:
        if event.kind and event.selected is not None:
            known = requests.setdefault((event.agent, event.query), {})
            known.pop(event.selected, None)
            known[event.selected] = event
    rows = []
    for (conversation, request), last in requests.items():
        words = next((event.words for event in last.values() if event.words), "")
        wanted = json.loads(words) if words else {"intent": "", "languages": [], "domain": ""}
        said = (conversation, request, wanted["intent"], ", ".join(wanted["languages"]), wanted["domain"])
        bad = [int(server) for server, event in last.items() if event.kind not in GOOD] or [-1]
        rows += [(*said, int(yes), no) for yes, event in last.items() if event.kind in GOOD for no in bad]
    columns = ["conversation", "request", "intent", "language", "domain", "positive_id", "negative_id"]
    return pd.DataFrame(rows, columns=columns)
