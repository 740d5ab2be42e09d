"""The chat page and its JSON interface. Everything is served from this machine; the page asks no other host."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from cachetools import TTLCache
from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import Field, PositiveFloat, PositiveInt, StrictInt, StrictStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from study.advisor.agent.conversation import Agent, Conversation, Turn, in_words
from study.advisor.agent.language import SINGLE
from study.advisor.engine.intent.feedback import FeedbackStore
from study.advisor.engine.limits import Limits
from study.advisor.strict import Strict
from study.base import paths
from study.base.errors import StudyError
from study.base.settings import read_settings

log = logging.getLogger(__name__)
PAGE = Path(__file__).parent / "static"
SAFETY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
Name = Annotated[str, Header(alias="X-Conversation", max_length=64)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Identifier = Annotated[StrictInt, Field(ge=0, le=2**53)] | Annotated[StrictStr, Field(max_length=200)]


@dataclass(frozen=True)
class Service:
    """``conf/agent/service.yaml``, where every key is explained."""

    host: str
    port: Port
    mcp_port: Port
    sessions: PositiveInt
    session_minutes: PositiveFloat
    body: PositiveInt
    hosts: list[str]
    keep_words: bool

    @classmethod
    def read(cls) -> Service:
        """The file, checked. StudyError: names file, key and fix."""
        return read_settings(cls, paths.conf() / "agent" / "service.yaml")


class Utterance(Strict):
    """A message of the developer."""

    text: StrictStr = Field(max_length=100_000)


class Chosen(Strict):
    """Servers to compare."""

    server_ids: list[Identifier] = Field(max_length=20)


class Installed(Strict):
    """A server to start, and for which client."""

    server_id: Identifier
    client: StrictStr = Field("json", max_length=40)


class Judged(Strict):
    """What became of a recommended server; `answer` is the number of the answer that recommended it."""

    answer: StrictInt = Field(ge=1, le=2**53)
    kind: StrictStr = Field(max_length=20)
    server_id: Identifier
    detail: StrictStr = Field("", max_length=2_000)


class Sessions:
    """The last `most` conversations in memory; each is dropped after some unused `seconds`, the oldest first."""

    def __init__(self, agent: Agent, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.agent = agent
        self.conversations: TTLCache[str, Conversation] = TTLCache(most, seconds, clock)
        self.lock = threading.Lock()

    def begin(self) -> str:
        """Start a conversation; returns its name, which nobody can guess."""
        name = secrets.token_urlsafe(24)
        with self.lock:
            self.conversations[name] = Conversation(self.agent)
        return name

    def find(self, name: str) -> Conversation | None:
        """The conversation of that name, None if there is none any more."""
        with self.lock:
            conversation = self.conversations.pop(name, None)
            if conversation is not None:
                self.conversations[name] = conversation  # its time begins again
            return conversation


class Guard:
    """Refuses foreign Host and Origin headers and long bodies, and adds the headers of `SAFETY` to every reply. A page
    of another site could otherwise reach this one through its visitor's browser (DNS rebinding, forgery)."""

    def __init__(self, app: ASGIApp, hosts: list[str], body: int) -> None:
        self.app, self.body = app, body
        self.hosts = frozenset(name.strip("[]").lower() for name in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        begun = False

        async def safe(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                MutableHeaders(scope=message).update(SAFETY)
            await send(message)

        try:
            await (self.refused(Headers(scope=scope)) or self.app)(scope, receive, safe)
        except Exception:  # said here, so that this answer, too, has the headers
            log.exception("a request failed")
            if begun:
                raise
            await problem(500, "the program failed", "see its messages in the terminal")(scope, receive, safe)

    def refused(self, headers: Headers) -> JSONResponse | None:
        """What is answered in the application's place; None for what it may read."""
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            named, site = urlsplit(f"//{host}").hostname, urlsplit(origin or "").netloc
        except ValueError:  # an open bracket
            return problem(400, "no name of a host")
        if named not in self.hosts:
            return problem(400, "this host is not served here")
        if origin is not None and site != host:
            return problem(403, "requests from other sites are refused")
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdecimal() or int(length) > self.body:
            return problem(413, f"a request has at most {self.body} bytes and states its length")
        return None


def problem(status: int, reason: str, fix: str = "") -> JSONResponse:
    """A reply that says what is wrong."""
    return JSONResponse({"error": reason, "fix": fix}, status)


def create_app(agent: Agent, feedback: FeedbackStore, service: Service, *, extra_host: str | None = None) -> FastAPI:
    """The application; `extra_host`: a further Host header to answer, where the page is opened to a network."""
    # The interactive documentation would load its scripts from another host.
    app = FastAPI(title="T2MAgent", docs_url=None, redoc_url=None, openapi_url=None)
    sessions = Sessions(agent, service.sessions, service.session_minutes * 60)

    def conversation(name: str) -> Conversation:
        if (talk := sessions.find(name)) is None:
            raise HTTPException(404, "this conversation is over")
        return talk

    @app.post("/api/conversations")
    def begin() -> dict[str, Any]:
        return {"conversation": sessions.begin(), "catalogue": agent.about}

    def turn_data(talk: Conversation, turn: Turn) -> dict[str, Any]:
        """A turn for the page: cards, and what is said of each."""
        items, notes = turn.answer.items, [*turn.answer.warnings, *turn.answer.notes]
        cards = [agent.brief(item) | {"said": []} for item in items]
        data: dict[str, Any] = {"statements": []}
        for part, one in turn.written.response.items():
            where = cards[one.server - 1]["said"] if part.split()[0] in SINGLE else data["statements"]
            where.append({"text": in_words(part, one, items), "field": one.field})
        data |= {"number": talk.number, "servers": cards, "notes": notes, "fits": turn.answer.fits}
        data |= {"left_out": turn.answer.left_out, "author": turn.written.author, "problem": turn.problem}
        question = turn.question and turn.question._asdict()
        return data | {"question": question, "limits": turn.answer.limits.model_dump()}

    @app.post("/api/messages")
    def say(body: Utterance, name: Name) -> dict[str, Any]:
        talk = conversation(name)
        return turn_data(talk, talk.say(body.text))

    @app.post("/api/limits")
    def revise(body: Limits, name: Name) -> dict[str, Any]:
        talk = conversation(name)
        return turn_data(talk, talk.revise(body))

    @app.post("/api/regenerate")
    def regenerate(name: Name) -> dict[str, Any]:
        talk = conversation(name)
        return turn_data(talk, talk.regenerate())

    @app.post("/api/compare")
    def compare(body: Chosen, name: Name) -> dict[str, Any]:
        return agent.compare(conversation(name).last.answer.request, body.server_ids)

    @app.post("/api/install")
    def install(body: Installed, name: Name) -> dict[str, Any]:
        conversation(name)
        return agent.install(body.server_id, body.client)

    @app.post("/api/feedback")
    def judge(body: Judged, name: Name) -> dict[str, Any]:
        outcome = body.kind, body.server_id, name, body.detail
        return {"event": conversation(name).judge(feedback, body.answer, *outcome, words=service.keep_words)}

    @app.exception_handler(StudyError)
    def refuse_input(request: Request, error: StudyError) -> JSONResponse:
        prefix = f"{error.column}: " if error.column else ""
        return problem(422, f"{prefix}{error.reason}", error.fix or "")

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail), "start a new one" if error.status_code == 404 else "")

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        # Places and reasons only: what was sent is not sent back.
        places = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
        return problem(422, "; ".join(places)[:500])

    hosts = [*service.hosts, *([extra_host] if extra_host else [])]
    app.add_middleware(Guard, hosts=hosts, body=service.body)
    app.mount("/", StaticFiles(directory=PAGE, html=True))
    return app
