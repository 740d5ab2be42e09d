"""What developers did with recommended servers, noted in the one store of feedback."""

from __future__ import annotations

import time
from collections.abc import Sequence

from study.advisor.engine.intent.feedback import Event, FeedbackStore
from study.base.errors import StudyError, require_one_of

WORKED = {"accepted": None, "rejected": None, "worked": True, "failed": False}


def note(
    store: FeedbackStore,
    request: str,
    answer_ids: Sequence[int | str],
    kind: str,
    server_id: int | str,
    *,
    conversation: str,
    detail: str,
    words: bool,
    system: str,
) -> int:
    """Record that a recommended server was accepted, rejected, worked or failed; returns the event's number.

    The name `conversation`, which opens the conversation, is hashed, and so is the request; `words`: keep it as well.
    StudyError: an unknown kind, a server that was not shown, a long detail, or a file that cannot be written.
    """
    require_one_of(kind, "feedback", tuple(WORKED), column="kind")
    if server_id not in answer_ids:
        fix = f"one of: {', '.join(map(str, answer_ids))}"
        raise StudyError(f"server {str(server_id)[:80]!r} is not in the answer", column="server_id", fix=fix)
    event = Event(
        store.hashed(conversation)[:16],
        store.hashed(request),
        tuple(map(str, answer_ids)),
        str(server_id),
        WORKED[kind],
        finished=time.time(),
        kind=kind,
        system=system,
        words=request if words else "",
        detail=detail.encode("utf-8", "replace").decode(),
    )
    return store.append(event)
