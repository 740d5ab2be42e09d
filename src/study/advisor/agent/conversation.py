"""T2MAgent over a catalogue, and one conversation with it: a request, then what a form changes of its answer."""

from __future__ import annotations

import shlex
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from study.advisor.agent.language import SINGLE, Specification, Statement, Writer, Written, by_rules, evidence, template
from study.advisor.agent.text import plain, safe_link
from study.advisor.catalog import clients, store
from study.advisor.catalog.start import known_start, start
from study.advisor.engine import render
from study.advisor.engine.answer import Answer, Item, Options, ask
from study.advisor.engine.catalogue import Catalogue
from study.advisor.engine.intent.feedback import Event, FeedbackStore
from study.advisor.engine.limits import Limits, read_limits, task_and_limits
from study.advisor.saved.contract import Recommendation, require_request
from study.base.errors import StudyError, require_one_of

MOST, MOST_COMPARED = 20, 5
KEPT_TURNS = 20  # of a conversation
WORKED = {"accepted": None, "rejected": None, "worked": True, "failed": False}
SENTENCE, COMMAND = 110, 100  # characters of a sentence and of a start command on a small card
QUESTIONS = {
    "languages": "In which language should the server be written?",
    "place": "Should it run on your machine or be reached over the network?",
}
WORDS = {
    "why": "+ {text}",
    "tradeoff": "- {text}",
    "setup": "> {text}",
    "choice": "If you prefer “{text}”, take {server}",
    "workflow": "In your work, {server}: {text}",
    "limits": "Before you integrate {server}: {text}",
    "together": "{server} and {other} together: {text}",
}


class Question(NamedTuple):
    """What is asked back: a limit, and the values that the servers of the answer have."""

    limit: str
    text: str
    options: list[str]


@dataclass(frozen=True)
class Turn:
    """An answer of the agent: its servers, what is said of them, and at most one question."""

    specification: Specification
    answer: Answer
    written: Written
    problem: str  # why rules took the model's place; '' where they did not
    known: set[str]  # limits that words stated or opened, which are not asked for
    question: Question | None


class Agent:
    """T2MAgent over one catalogue, shared by conversations. `writer`: a language model, None for rules alone."""

    def __init__(self, catalogue: Catalogue, writer: Writer | None = None) -> None:
        self.catalogue, self.writer = catalogue, writer

    def answer(
        self,
        request: str,
        *,
        limits: Limits | None = None,
        stated: Limits | None = None,
        top: int | None = None,
        again: bool = False,
        settled: Iterable[str] = (),
    ) -> Turn:
        """The answer to a request. `limits`: in place of those that the request states; `stated`: win over them.
        `again`: words that quote the fields alone. `settled`: limits that are not asked for. StudyError: as
        `engine.answer.ask`."""
        require_request(request, Options(top).first(self.catalogue), len(self.catalogue.model.servers))
        specification, problem = by_rules(request, stated), ""
        rules = task_and_limits(request).limits
        if limits is not None:
            specification = specification.model_copy(update=limits.model_dump())
        elif self.writer and read_limits(request).text.strip():
            try:
                read = self.writer.read(request)[0]
                # What the rules read stands: a model may add limits of which they read nothing.
                both = read.limits().with_(rules).with_(stated or Limits())
                specification = read.model_copy(update=both.model_dump())
            except StudyError as error:
                problem = error.reason
        answer = ask(self.catalogue, request, Options(top, limits=specification.limits()))
        cards = [evidence(item) for item in answer.items]
        written = Written(template(specification.objective, cards))
        if self.writer and cards:
            try:
                written = self.writer.write(specification, cards, quote=again)
            except StudyError as error:
                problem = problem or error.reason
        known = {*settled, *(stated.model_fields_set if stated else ()), *rules.model_fields_set}
        return Turn(specification, answer, written, problem, known, question(answer, known))

    def name(self, server: Recommendation) -> int | str:
        """A server's id as `study recommend` names it."""
        identifier: int | str = self.catalogue.row(server).get("id", server.server_id)
        return identifier

    @cached_property
    def rows(self) -> dict[int | str, int]:
        """Id -> row of the model's servers."""
        table = self.catalogue.table
        names = self.catalogue.model.servers["id"] if table is None else table["id"]
        return {(int(name) if table is None else str(name)): row for row, name in enumerate(names)}

    def find(self, server_id: int | str) -> Item:
        """A server by id, without a rank (0) and a score. StudyError: there is none of that id."""
        if (row := self.rows.get(server_id)) is None:
            reason = f"no server has the id {str(server_id)[:80]!r}"
            raise StudyError(reason, column="server_id", fix="take one of an answer")
        card: dict[Any, Any] = self.catalogue.model.servers.iloc[row].to_dict()
        server = Recommendation.of(0, card, 0.0, {})
        return Item(server, self.catalogue.facts(server))

    def compare(self, request: str, server_ids: Sequence[int | str]) -> dict[str, Any]:
        """Servers side by side, and where the decision turns between them. StudyError: an unknown id."""
        if not 2 <= len({*server_ids}) == len(server_ids) <= MOST_COMPARED:
            raise StudyError(f"not 2 to {MOST_COMPARED} different servers", column="server_ids", fix="choose others")
        items = [self.find(server_id) for server_id in server_ids]
        cards = [evidence(item) for item in items]
        response = template(by_rules(request).objective, cards)
        fields = [name for name in dict.fromkeys(key for card in cards for key in card) if name != "name"]
        table = [{"field": name, "values": [card.get(name, "") for card in cards]} for name in fields]
        several = {part: one for part, one in response.items() if part.split()[0] not in SINGLE}
        servers = [self.brief(item) for item in items]
        return {"servers": servers, "table": table, "statements": self.statement_data(several, items)}

    def explain(self, request: str, server_id: int | str, stated: Limits | None = None) -> dict[str, Any]:
        """What speaks for and against one server, with its fields and, where it is among the first `MOST` of the
        answer, its place there and the parts of its score. `stated`: as in `answer`. StudyError: an unknown id."""
        specification = by_rules(request, stated)
        items = ask(self.catalogue, request, Options(min(MOST, len(self.rows)), limits=specification.limits())).items
        item = next((item for item in items if self.name(item.server) == server_id), None) or self.find(server_id)
        ranked = {"score": item.server.score, "parts": dict(item.server.parts)} if item.server.rank else {}
        card = evidence(item)
        statements = self.statement_data(template(specification.objective, [card]), [item])
        return self.brief(item) | ranked | {"evidence": card, "statements": statements}

    def install(self, server_id: int | str, client: str = "json") -> dict[str, Any]:
        """How a server is started, and its entry for a client of ``conf/catalog/clients.yaml``. StudyError: an unknown
        server or client, or no source says how to start it."""
        kind, facts = clients.client(client), self.find(server_id).facts
        if not facts.id:
            sync = "run: study catalog sync --source toolsdk --source docker"
            fix = "see its repository" if store.current() else sync
            raise StudyError(f"no source says how to start server {server_id}", column="server_id", fix=fix)
        server = store.find(facts.id, store.read(store.required(), "servers"))
        try:
            way, pinned = start(server), True
        except StudyError:  # nobody vouches for it, or nobody names a version
            fallback = known_start(server)
            if fallback is None:
                raise
            way, pinned = fallback, False
        return {
            "id": facts.id,
            "start": shlex.join([way.command, *way.args]) if way.command else way.url,
            "version_pinned": pinned,
            "vouched_by": list(way.vouched),
            "fill_in": list(way.fill),
            "optional": list(way.optional),
            "warning": ", ".join(render.warned(facts)),
            "checked": facts.checked,
            "config": {kind.key: {clients.entry_name(way.id): kind.entry(way)}},
        }

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the catalogue holds, and which values limits may take."""
        cards: list[dict[Any, Any]] = self.catalogue.model.servers.to_dict("records")
        all_facts = [self.catalogue.facts(Recommendation.of(0, card, 0.0, {})) for card in cards]
        return {
            "catalogue": self.catalogue.name,
            "system": self.catalogue.system,
            "servers": len(all_facts),
            "official": sum(bool(facts.official) for facts in all_facts),
            "with_start": sum(bool(facts.start) for facts in all_facts),
            "languages": most_common((facts.language for facts in all_facts), 60),
            "licences": most_common((facts.licence for facts in all_facts), 60),
            "themes": list(self.catalogue.themes),
            "clients": list(clients.known_clients()),
            "model": bool(self.writer),
        }

    def brief(self, item: Item) -> dict[str, Any]:
        """A server as plain data of about 300 bytes; what is not known is left out."""
        server, facts = item.server, item.facts
        row = {
            "rank": server.rank or None,
            "server_id": self.name(server),
            "name": plain(server.name, 60),
            "warning": ", ".join(render.warned(facts)),
            "does": plain(facts.does, SENTENCE),
            "stars": facts.stars,
            "licence": facts.licence,
            "official": facts.official,
            "language": facts.language,
            "start": plain(facts.start, COMMAND),
            "checked": plain(facts.checked, COMMAND),
            "url": "" if facts.start else safe_link(server.url) or "",
        }
        return {name: value for name, value in row.items() if value != "" and value is not None and value is not False}

    def short(self, turn: Turn) -> dict[str, Any]:
        """An answer as plain data of at most 2 KB for five servers."""
        data: dict[str, Any] = {"servers": [self.brief(item) for item in turn.answer.items]}
        data |= {} if turn.answer.fits else {"fits": False}
        data |= {"left_out": turn.answer.left_out} if turn.answer.left_out else {}
        said = {"warnings": turn.answer.warnings, "notes": turn.answer.notes}
        return data | {name: [plain(text, 200) for text in texts] for name, texts in said.items() if texts}

    def data(self, turn: Turn) -> dict[str, Any]:
        """An answer as plain data: as `study recommend --json`, with what is said of its servers."""
        return render.data(self.catalogue, turn.answer, {}) | {
            "specification": turn.specification.model_dump(),
            "author": turn.written.author,
            "attempts": turn.written.attempts,
            "refused": dict(Counter(refusal.check for attempt in turn.written.refused for refusal in attempt)),
            "problem": turn.problem,
            "question": turn.question and turn.question._asdict(),
            "statements": self.statement_data(turn.written.response, turn.answer.items),
        }

    def statement_data(self, response: Mapping[str, Statement], items: Sequence[Item]) -> list[dict[str, Any]]:
        """Statements as plain data, each with the servers and the field that it rests on."""
        return [
            {
                "part": part.split()[0],
                "servers": [self.name(items[rank - 1].server) for rank in (one.server, one.other) if rank],
                "text": in_words(part, one, items),
                "field": one.field,
            }
            for part, one in response.items()
        ]

    def note(
        self, store: FeedbackStore, turn: Turn, kind: str, server_id: int | str, talk: str, detail: str, *, words: bool
    ) -> int:
        """Note that a server of an answer was accepted, rejected, worked or failed; returns the event's number.

        The name `talk`, which opens the conversation, is hashed, and so is the request; `words`: keep it as
        well. StudyError: an unknown kind, a server that was not shown, a long detail, or a file that cannot be written.
        """
        require_one_of(kind, "feedback", tuple(WORKED), column="kind")
        ids, request = [self.name(item.server) for item in turn.answer.items], turn.answer.request
        if server_id not in ids:
            fix = f"one of: {', '.join(map(str, ids))}"
            raise StudyError(f"server {str(server_id)[:80]!r} is not in the answer", column="server_id", fix=fix)
        about: Any = {"kind": kind, "system": self.catalogue.system, "words": request if words else ""}
        asked = store.hashed(talk)[:16], store.hashed(request), tuple(map(str, ids))
        event = Event(*asked, str(server_id), WORKED[kind], finished=time.time(), detail=detail, **about)
        return store.append(event)


def most_common(values: Iterable[str], most: int | None = None) -> list[str]:
    """The values that are not empty among the `most` frequent ones, most frequent first."""
    return [value for value, _ in Counter(values).most_common(most) if value]


def question(answer: Answer, known: set[str]) -> Question | None:
    """The first limit that is neither set nor among the `known` ones and that would change the answer."""
    for limit, fact in (("languages", "language"), ("place", "place")):
        options = most_common(getattr(item.facts, fact) for item in answer.items)
        settled = limit in known or getattr(answer.limits, limit) or answer.limits.unwanted_languages
        if not settled and len(options) > 1:
            return Question(limit, QUESTIONS[limit], options)
    return None


def in_words(part: str, statement: Statement, items: Sequence[Item]) -> str:
    """A statement for a reader."""
    every = [plain(item.server.name, 60) for item in items]

    def named(rank: int) -> str:
        alone = every.count(every[rank - 1]) == 1
        return every[rank - 1] if alone else f"{every[rank - 1]} (number {items[rank - 1].server.rank})"

    server, other = named(statement.server), named(statement.other or statement.server)
    return WORDS[part.split()[0]].format(text=statement.text, server=server, other=other)


@dataclass
class Conversation:
    """One developer's conversation with an agent that others share. Requests are answered one after another."""

    agent: Agent
    turns: dict[int, Turn] = field(default_factory=dict)  # by number; the last `KEPT_TURNS`
    number: int = 0
    has_asked: bool = False  # whether its one question was put
    lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, message: str) -> Turn:
        """The answer to a request; a message that is nothing but limits changes those of the last one."""
        read = read_limits(message)
        with self.lock:
            if self.turns and message.strip() and not read.text.strip():
                return self._anew(self.last.answer.limits.with_(read.limits), read.limits.model_fields_set)
            return self._add(self.agent.answer(message))

    def revise(self, limits: Limits) -> Turn:
        """The last request within other limits."""
        with self.lock:
            return self._anew(limits)

    def regenerate(self) -> Turn:
        """The last answer in other words."""
        with self.lock:
            return self._anew(self.last.answer.limits, again=True)

    def _anew(self, limits: Limits, settled: Iterable[str] = (), *, again: bool = False) -> Turn:
        request, known = self.last.answer.request, self.last.known.union(settled)
        return self._add(self.agent.answer(request, limits=limits, again=again, settled=known))

    @property
    def last(self) -> Turn:
        """The last answer. StudyError: nothing was asked."""
        if not self.turns:
            raise StudyError("nothing was asked yet", fix="say what is to be done")
        return self.turns[self.number]

    def _add(self, turn: Turn) -> Turn:
        if self.has_asked:
            turn = replace(turn, question=None)
        self.has_asked = self.has_asked or turn.question is not None
        self.number += 1
        self.turns[self.number] = turn
        self.turns.pop(self.number - KEPT_TURNS, None)
        return turn

    def judge(self, store: FeedbackStore, number: int, *outcome: Any, words: bool) -> int:
        """`Agent.note` for the answer of that number. StudyError: there is no such answer any more, or as there."""
        if (turn := self.turns.get(number)) is None:
            raise StudyError(f"answer {number} is not kept", column="answer", fix="ask again")
        return self.agent.note(store, turn, *outcome, words=words)
