"""The chat page and its JSON interface. Everything is served from this machine; the page asks no other host."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from study.agent.agent import Agent
from study.agent.conversation import Conversation
from study.agent.feedback import Feedback
from study.agent.presentation import turn_data
from study.agent.sessions import Sessions
from study.agent.settings import Service
from study.errors import StudyError

log = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": "index.html",
    "/app.js": "app.js",
    "/cards.js": "cards.js",
    "/style.css": "style.css",
    "/icon.svg": "icon.svg",
}
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
UNKNOWN = 404, "this conversation is over", "start a new one"

Name = Annotated[str, Header(alias="X-Conversation", max_length=64)]


class Strict(BaseModel):
    """A request body without unknown keys."""

    model_config = ConfigDict(extra="forbid")


class Said(Strict):
    """A message of the developer."""

    text: StrictStr = Field(max_length=100_000)


class Edited(Strict):
    """Constraints as the chips state them; what is absent is empty."""

    languages: list[StrictStr] = Field([], max_length=100)
    unwanted_languages: list[StrictStr] = Field([], max_length=100)
    platforms: list[StrictStr] = Field([], max_length=100)
    licences: list[StrictStr] = Field([], max_length=100)
    unwanted_licences: list[StrictStr] = Field([], max_length=100)
    preferences: list[StrictStr] = Field([], max_length=100)
    official: StrictBool = False
    stars: StrictInt = 0
    domain: StrictStr = Field("", max_length=200)


class Judged(Strict):
    """What became of a recommended server; `answer` is the number of the answer that recommended it."""

    answer: StrictInt = Field(ge=1, le=2**53)
    kind: StrictStr = Field(max_length=20)
    server_id: StrictInt = Field(ge=0, le=2**53)
    detail: StrictStr = Field("", max_length=2_000)


class Guard:
    """Refuses foreign Host and Origin headers and long bodies, and adds the headers of `SAFETY` to every reply.

    A page of another site could otherwise reach this one through its visitor's browser (DNS rebinding, forgery).
    """

    def __init__(self, app: ASGIApp, hosts: list[str], body: int) -> None:
        self.app, self.body = app, body
        self.hosts = frozenset(name.strip("[]").lower() for name in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SAFETY)
            await send(message)

        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if urlsplit(f"//{host}").hostname not in self.hosts:
            return await problem(400, "this host is not served here")(scope, receive, safe)
        if origin is not None and urlsplit(origin).netloc != host:
            return await problem(403, "requests from other sites are refused")(scope, receive, safe)
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdecimal() or int(length) > self.body:
            return await problem(413, f"a request has at most {self.body} bytes and states its length")(
                scope, receive, safe
            )
        await self.app(scope, receive, safe)


def problem(status: int, reason: str, fix: str = "") -> JSONResponse:
    """A reply that says what is wrong."""
    return JSONResponse({"error": reason, "fix": fix}, status)


def create(agent: Agent, feedback: Feedback, service: Service, *, extra_host: str | None = None) -> FastAPI:
    """The application.

    Args:
        extra_host: a further Host header to answer, where the page is opened to a network.
    """
    # The interactive documentation would load its scripts from another host.
    app = FastAPI(title="T2MAgent", docs_url=None, redoc_url=None, openapi_url=None)
    sessions = Sessions(agent, service.sessions, service.session_minutes * 60)
    limits = agent.settings.limits

    def conversation(name: str) -> Conversation:
        found = sessions.find(name)
        if found is None:
            raise KeyError(name)
        return found

    for path, file in FILES.items():
        app.add_api_route(path, _file(PAGE / file), methods=["GET"])

    @app.post("/api/conversations")
    def begin() -> dict[str, Any]:
        return {"conversation": sessions.begin(), "catalogue": agent.describe()}

    @app.post("/api/messages")
    def say(body: Said, name: Name) -> dict[str, Any]:
        return turn_data(conversation(name).reply(body.text), limits)

    @app.post("/api/constraints")
    def edit(body: Edited, name: Name) -> dict[str, Any]:
        return turn_data(conversation(name).edit(body.model_dump()), limits)

    @app.post("/api/feedback")
    def judge(body: Judged, name: Name) -> dict[str, Any]:
        answer = conversation(name).answered(body.answer, body.server_id)
        rank = answer.ids.index(body.server_id) + 1
        return {
            "event": feedback.append(
                body.kind,
                body.server_id,
                answer.specification,
                rank=rank,
                system=answer.system,
                conversation=name,
                detail=body.detail,
            )
        }

    @app.exception_handler(StudyError)
    def known(request: Request, error: StudyError) -> JSONResponse:
        place = f"{error.column}: " if error.column else ""
        return problem(422, f"{place}{error.reason}", error.fix or "")

    @app.exception_handler(KeyError)
    def unknown(request: Request, error: KeyError) -> JSONResponse:
        return problem(*UNKNOWN)

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        # Places and reasons only: what was sent is not sent back.
        places = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
        return problem(422, "; ".join(places)[:500])

    hosts = [*service.hosts, *([extra_host] if extra_host else [])]
    app.add_middleware(Guard, hosts=hosts, body=service.body)
    return app


def _file(path: Path) -> Any:
    def send() -> FileResponse:
        return FileResponse(path)

    return send
