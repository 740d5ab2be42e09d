"""What the server over many servers does: find tools, describe them, call them, and keep the index in step."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio
from cachetools import LRUCache
from mcp_types import CallToolResult, TextContent

from study.advisor.encoders.choose import Embedder, quick_embedder
from study.advisor.engine.answer import ask
from study.advisor.engine.intent.feedback import Event, FeedbackStore
from study.advisor.engine.intent.recommender import Context
from study.advisor.engine.tools import INTENT, ToolOptions
from study.advisor.gateway import live
from study.advisor.gateway.arguments import Checker
from study.advisor.gateway.children import Pool, SessionOverError
from study.advisor.gateway.client_config import Endpoint
from study.advisor.gateway.connection import ConnectionFailedError, Listing
from study.advisor.gateway.view import ServeSettings, View
from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.index import matching
from study.advisor.retrieval.route import Request
from study.base.errors import StudyError, require_one_of

FINDS = 20  # answers of `find` that are remembered per host, to know what a called tool was shown for
HOSTS = 1_000  # hosts of which that is remembered
NEXT = 3  # tools that often came after a found one, at most


@dataclass
class Find:
    """What a host was shown."""

    event: Event  # without an outcome
    used: bool = False  # whether a call followed


class Finds(LRUCache[str, deque[Find]]):
    """The last `FINDS` answers of each of the last `HOSTS` hosts (a host chooses its own name). `dropped`: is told of
    each that is no longer remembered."""

    def __init__(self, dropped: Callable[[Find], None]) -> None:
        super().__init__(HOSTS)
        self.dropped = dropped

    def add(self, find: Find) -> None:
        """Remember what a host was shown."""
        finds = self.setdefault(find.event.agent, deque())
        finds.append(find)
        if len(finds) > FINDS:
            self.dropped(finds.popleft())

    def popitem(self) -> tuple[str, deque[Find]]:
        """Forget the host that asked longest ago."""
        host, finds = super().popitem()
        for find in finds:
            self.dropped(find)
        return host, finds


class Gateway:
    """The tools of a user's servers, and what a published catalogue adds to be found.

    `before`: what these servers listed before. `save`: keeps a new state of it. `store`: takes one event per call.
    `say`: tells a person what was found.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        settings: ServeSettings,
        *,
        before: ToolCatalog | None = None,
        published: ToolCatalog | None = None,
        save: Callable[[ToolCatalog], None] | None = None,
        store: FeedbackStore | None = None,
        say: Callable[[str], None] = print,
        embedder: Embedder | None = None,
    ) -> None:
        self.endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self.settings, self.published, self.save, self.store = settings, published, save, store
        self.say, self.shown_tokens = say, 0  # tokens of what the host sees in the place of all
        self.embedder = embedder or quick_embedder()
        listed = [live.as_listing(before, row) for row in range(len(before.servers))] if before else []
        listings = {(one.name, one.program): one for one in listed}
        keys = [(endpoint.name, endpoint.program) for endpoint in endpoints]
        self.listings = {key[0]: listings[key] for key in keys if key in listings}
        self.pool = Pool(endpoints, settings, self.take)
        self.checker = Checker(settings.check_seconds, settings.argument_characters)
        self.finds = Finds(self._unused)
        self.ranking = asyncio.Lock()  # one question at a time
        self.changing = asyncio.Lock()
        self.view = self._view(self._own_catalog(), warm=False)

    def _own_catalog(self) -> ToolCatalog:
        return live.build("mine", self.listings.values())[0]

    def _view(self, own_catalog: ToolCatalog, *, warm: bool = True) -> View:
        """The state of the tools; `warm`: with everything that a search needs."""
        view = View(own_catalog, self.published, self.settings, self.embedder, self.store)
        if warm and view.catalog.tools:
            view.tools.index().scores(["warm"], store=False)
            if self.settings.ranking == INTENT:
                _ = view.tools.recommender
        return view

    async def __aenter__(self) -> Gateway:
        self.starting = asyncio.create_task(self._start())
        return self

    async def _start(self) -> None:
        """Load what a search needs, and ask the servers of which nothing is known yet."""
        self.view = await asyncio.to_thread(self._view, self._own_catalog())
        unknown = [name for name in self.endpoints if name not in self.listings]
        outcome = await self.refresh(unknown) if unknown else {"problems": {}}
        self.say(self.summary(outcome["problems"]))

    async def ready(self) -> None:
        """Wait until the tools are known. A host may ask before, and must not wait for its first greeting."""
        await asyncio.shield(self.starting)

    async def __aexit__(self, *error: object) -> None:
        # A cancelled host must not stop the end of what was started for it.
        with anyio.CancelScope(shield=True):
            self.starting.cancel()
            await asyncio.wait([self.starting])
            await self.pool.close()
            await self.checker.close()
            while self.finds:
                self.finds.popitem()

    def summary(self, problems: Mapping[str, str]) -> str:
        """What was found, in a line for a person."""
        tools, tokens = self.view.catalog.tools, self.view.tools.tokens.sum()
        servers = len({tool.server for tool in tools})
        seen = f"; the host sees {self.shown_tokens} instead" if self.shown_tokens else ""
        found = f"{len(tools)} tools of {servers} servers have {tokens} tokens of definitions{seen}"
        return "\n".join([*(f"{name}: {problem}" for name, problem in problems.items()), found])

    async def refresh(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Ask servers (default: all) for their tools again. Returns what changed, and each failed one's problem."""
        for name in names or ():
            require_one_of(name, "server", self.endpoints)
        endpoints = [self.endpoints[name] for name in names or self.endpoints]
        listings = await live.list_all(endpoints, self.settings.start_seconds)
        counts = await self.take(*listings)
        return counts | {"problems": {one.name: problem for one in listings if (problem := one.problem or one.remark)}}

    async def take(self, *listings: Listing) -> dict[str, int]:
        """Put new listings into the index; equal ones, known by their hash, change nothing."""
        async with self.changing:
            for listing in listings:
                if listing.problem is None:  # of a server that fails, what it listed before stays
                    self.listings[listing.name] = listing
            before, after = self.view.own_catalog, self._own_catalog()
            if after.fingerprint() != before.fingerprint():
                self.view = await asyncio.to_thread(self._view, after)
                if self.save is not None and after.tools:
                    self.save(after)
            return live.changes(before, after)

    async def find(
        self,
        host: str,
        request: str | Request,
        k: int | None,
        budget: int | None,
        servers: Sequence[str] = (),
        tags: Sequence[str] = (),
    ) -> dict[str, Any]:
        """The best tools for a task, or for a request that names a server and a tool in words; `servers`, `tags`: only
        of these (`matching`). Definitions are given down the ranking while they fit into `budget` tokens; of the others
        name and summary."""
        await self.ready()
        view = self.view
        settings, intent = self.settings, self.settings.ranking == INTENT
        if not view.catalog.tools and (view.own_catalog.tools or self.published):
            raise StudyError("no tool is allowed", fix="patterns of allowed and denied tools are for SERVER__TOOL")
        if not view.catalog.tools:
            raise StudyError("there are no tools yet", fix="call `refresh`, which says what is wrong with the servers")
        how: Any = {"among": matching(view.catalog, servers, tags), "budget": budget or settings.budget}
        options = ToolOptions(k or settings.k, INTENT if intent else "dense", context=Context(host), **how)
        async with self.ranking:
            answer = await asyncio.to_thread(ask, view.tools, request, options)
        rows = [item.row for item in answer.items]
        tools = [view.entry(item.row, whole=item.whole) | {"score": round(item.score, 3)} for item in answer.items]
        words = request if isinstance(request, str) else " ".join(request)
        words, keys = self.store.hashed(words) if self.store else "", tuple(view.keys[row] for row in rows)
        factors = tuple(tuple(item.factors.values()) for item in answer.items if item.factors)
        known: Any = {"factors": factors, "experiment": settings.experiment if factors else None}
        self.finds.add(Find(Event(host, words, keys, asked=time.time(), **known)))
        tokens = {"definitions here": answer.tokens, "of all tools": int(view.tools.tokens.sum())}
        chains = view.tools.recommender.chains if intent and rows else None
        after = [view.names[row] for row in chains.next_of(rows[0], NEXT)] if chains else []  # as the log says
        return {"tools": tools, "tokens": tokens} | ({"often_next": after} if after else {})

    def describe(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """The whole definitions of tools by name."""
        return [self.view.entry(self.view.row(name), whole=True) for name in names]

    async def call(self, host: str, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call a tool of a user's server, after a check of the arguments. Every call is noted in the feedback store.
        Raises StudyError: no such tool, arguments that do not fit, or a server that fails."""
        row = self.view.row(name)
        owner, key = self.view.owners[row], self.view.keys[row]
        if not owner:
            server = self.view.catalog.servers[self.view.catalog.tools[row].server]
            fix = f"add {server.name} to your servers to use it"
            raise StudyError(f"{name!r:.100} is known from a catalogue; none of your servers has it", fix=fix)
        success, started, began = None, time.time(), time.perf_counter()
        try:
            for again in (False, True):
                child = await self.pool.child(owner)
                async with child.using() as connection:
                    # Its server may have listed another schema just now.
                    tool = self.view.catalog.tools[self.view.row(name)]
                    await self.checker.check(arguments, tool.schema)
                    success, began = False, time.perf_counter()
                    try:
                        result = await child.call(connection, tool.name, arguments)
                        break
                    except SessionOverError:
                        if again:
                            raise
            success = not result.is_error
            return limited(result, self.settings.result_characters)
        except ConnectionFailedError as error:
            success, fix = False, "call again, which starts it anew, or use another"
            raise StudyError(f"server {owner}: {error}", fix=fix) from error
        finally:
            self._note(host, key, success, started, (time.perf_counter() - began) * 1000)

    def _note(self, host: str, key: str, success: bool | None, started: float, milliseconds: float) -> None:
        if self.store is None:
            return
        recent = reversed(self.finds.get(host, ()))
        match = next((find for find in recent if key in find.event.shown), Find(Event(host, "", asked=started)))
        match.used, latency = True, None if success is None else milliseconds
        now = max(time.time(), match.event.asked or 0.0)
        self.store.append(replace(match.event, selected=key, success=success, finished=now, latency_ms=latency))
        if self.settings.ranking == INTENT and success is not None:
            self.view.tools.recommender.used(host, key)

    def _unused(self, find: Find) -> None:
        """Note a search that no call followed."""
        if self.store is not None and not find.used:
            self.store.append(find.event)


def limited(result: CallToolResult, characters: int) -> CallToolResult:
    """A result as it is, or what of it fits: texts are cut, other parts left out, and a last text says so."""
    left, cut, blocks = characters, 0, []
    for block in result.content:
        size = len(block.model_dump_json())
        if size <= left:
            blocks.append(block)
            left -= size
            continue
        if isinstance(block, TextContent):
            text = block.text[:left]
            blocks.append(TextContent(type="text", text=text))
            size, left = len(block.text) - len(text), 0
        cut += size
    structured = result.structured_content
    size = len(json.dumps(structured, default=str)) if structured is not None else 0
    if size > left:
        structured, cut = None, cut + size
    if cut:
        note = f"[left out: {cut} characters of the result, as {characters} may be returned]"
        blocks.append(TextContent(type="text", text=note))
    return CallToolResult(content=blocks, structured_content=structured, is_error=result.is_error)
