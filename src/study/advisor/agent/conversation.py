"""One conversation: a request, at most one question, answers, refinements, undo. It belongs to one developer."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from study.advisor.agent.agent import MOST_COMPARED, Agent, noted
from study.advisor.agent.answer import Answer, Turn
from study.advisor.agent.claims import Evidence
from study.advisor.agent.commands import Command, begins_with_verb, has_verb, parse_command, subjects, too_little
from study.advisor.agent.extraction import Extraction
from study.advisor.agent.short import start_text
from study.advisor.agent.specification import Specification, build, dropped, merged, without
from study.advisor.agent.text import quoted
from study.advisor.engine.request import understand
from study.errors import StudyError

EMPTY = "The last answer names no server."
# Characters of a message or a field that a sentence quotes.
QUOTED = 60
# So few content words beside a constraint are a refinement ("only official ones"), more are a new task.
FEW_WORDS = 2
UNCLEAR = (
    "I did not understand that as a question about the answer or a change of it; the answer stays. For another task "
    'say "new task: ...". About this one say a constraint such as "in Python" or "at least 100 stars", '
    '"compare 1 and 2", "set up 1" or "why 1".'
)
LEAVE = "A single server cannot be left out of an answer, which stays as it is; a constraint can be changed."
NO_START = "No registry that was synced here (study catalog sync) vouches for a way to start it."
QUESTIONS = {
    "intent": "What should the server help you do?",
    "language": "Which programming language should the server be written in?",
    "platform": "On which system should the server run?",
    "licence": "Which licence do you need?",
}


class NotThereError(StudyError):
    """A message speaks of a place or a server that is not there."""


@dataclass(frozen=True)
class State:
    """What a step may change, kept for undo: `said` led here, `readings` are of the messages since the last answer."""

    specification: Specification
    answer: Answer | None = None
    number: int = 0
    waiting: str = ""
    asked: bool = False
    readings: tuple[Extraction, ...] = ()
    said: str = ""


class Conversation:
    """One developer's conversation with an agent that others share. Messages are answered one after another."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.state = State(Specification())
        self.history: list[State] = []
        # The answers that a reader may still have before their eyes, by number.
        self.answers: dict[int, Answer] = {}
        self.count = 0
        self.message = ""
        # The server that was spoken of last: "it".
        self.focus: int | None = None
        self.lock = threading.Lock()

    def say(self, message: str) -> Turn:
        """The reply to a message. StudyError: an empty or oversized message, or one that asks for what is not there."""
        with self.lock:
            self.agent.require_readable(message)
            command = parse_command(message, self.agent.words, answered=self.state.answer is not None)
            self.message = message
            if command.kind == "thanks":
                return Turn("note", "You are welcome.", self.state.specification, number=self.state.number)
            if command.kind == "leave":
                return Turn("note", LEAVE, self.state.specification, number=self.state.number)
            if command.kind in ("compare", "setup", "why") and self.state.answer is not None:
                if not self.state.answer.ids and not command.ids:
                    return Turn("note", EMPTY, self.state.answer.specification, number=self.state.number)
                return (self._compare if command.kind == "compare" else self._single)(command, self.state.answer)
            actions = {"undo": self._undo, "open": self._open, "drop": self._drop, "say": self._understand}
            return actions[command.kind](command)

    def reply(self, message: str) -> Turn:
        """As `say`, but what is not there is said in a note. StudyError: an empty or oversized message."""
        try:
            return self.say(message)
        except NotThereError as error:
            return Turn("note", f"{error.reason[:1].upper()}{error.reason[1:]}.", self.state.specification)

    def edit(self, values: Mapping[str, Any]) -> Turn:
        """The reply after constraints were set as a form states them; the intent stays unless it is given. StudyError:
        an unknown field or value."""
        with self.lock:
            old = self.state.specification
            changed = build({"intent": old.intent, "open": old.open, **values}, self.agent.vocabulary)
            self.message = "the constraints as you set them"
            return self._go(changed, "I used the constraints as you set them.")

    def answered(self, number: int, server: int) -> Answer:
        """The answer of that number, which must recommend the server. StudyError: there is no such answer any more, or
        the server is not in it."""
        with self.lock:
            found = self.answers.get(number)
        if found is None:
            raise StudyError(f"answer {number} is not kept", column="answer", fix="ask again")
        if server not in found.ids:
            raise StudyError(f"server {server} is not in answer {number}", column="server_id")
        return found

    def _step(self, state: State) -> None:
        self.history.append(self.state)
        del self.history[: -self.agent.settings.limits["history"]]
        self.state, self.focus = replace(state, said=self.message), None

    def _undo(self, command: Command) -> Turn:
        if not self.history:
            return Turn("note", "There is nothing to take back.", self.state.specification)
        text = f"I took this back: {quoted(self.state.said, QUOTED)}."
        self.state, self.focus = self.history.pop(), None
        if self.state.answer is not None:
            return Turn("answer", text, self.state.specification, answer=self.state.answer, number=self.state.number)
        if self.state.waiting:
            return self._question(self.state.waiting, text)
        return Turn("note", f"{text} {QUESTIONS['intent']}", self.state.specification)

    def _open(self, command: Command) -> Turn:
        if command.constraints and self.state.waiting not in command.constraints:
            return self._drop(command)
        spec = self.state.specification
        if not self.state.waiting or self.state.waiting == "intent":
            return Turn("note", "Nothing was asked." if spec.intent else QUESTIONS["intent"], spec)
        return self._go(replace(spec, open=(*spec.open, self.state.waiting)), f"Any {self.state.waiting} will do.")

    def _drop(self, command: Command) -> Turn:
        if not self.state.specification.intent:
            return self._understand(replace(command, kind="say"))
        if command.constraints == (self.state.waiting,):
            return self._open(command)
        left = dropped(self.state.specification, command.constraints)
        return self._go(left, f"I dropped: {', '.join(command.constraints)}.")

    def _understand(self, command: Command) -> Turn:
        if not command.text.strip():
            self._step(State(Specification(), waiting="intent"))
            return self._question("intent", "")
        found = self.agent.read(command.text, self.state.waiting)
        old = self.state.specification
        said = found.specification
        stated = bool(said.constraints() or said.open)
        if found.ignored and not found.rest and not stated:
            return Turn("note", f"{_ignored(found)} Nothing was changed.", old)
        if found.released and len(found.rest) <= FEW_WORDS and not stated and old.intent:
            # A constraint need not hold any more.
            held = [name for name in found.released if getattr(old, name)]
            if held:
                return self._go(dropped(old, held), f"I dropped: {', '.join(held)}.", found)
            text = f"{', '.join(found.released)}: that was not asked for. Nothing was changed."
            return Turn("note", text, old, number=self.state.number)
        own = command.restart or stated or (command.add and found.rest)
        if self.state.answer is not None and not own and too_little(command.text, found, self.agent.words):
            wishes = understand(command.text, {}, self.agent.answering).wishes
            if wishes and not found.rest:
                # A wish alone is about the same task.
                return self._go(replace(old, intent=f"{old.intent}, {', '.join(wishes)}"), "", found)
            return Turn("note", UNCLEAR, old, number=self.state.number)
        if command.restart:
            return self._go(said, "A new task.", found) if found.rest else self._ask(said, found)
        # A theme is read from the words of a task; beside a word of doing it does not make a refinement.
        themed = set(said.constraints()) == {"domain"} and bool(found.rest)
        task = (themed and has_verb(command.text, self.agent.words)) or (
            len(found.rest) == FEW_WORDS and begins_with_verb(command.text, self.agent.words)
        )
        if task or len(found.rest) > FEW_WORDS or not old.intent or not (stated or self.state.waiting):
            if not found.rest:
                return self._ask(merged(old, said), found)
            more = command.add and bool(old.intent)
            kept = replace(merged(old, said, add=more), intent=f"{old.intent}; {said.intent}" if more else said.intent)
            text = "I kept your earlier constraints." if old.intent and old.constraints() else ""
            return self._go(kept, text, found)
        if self.state.waiting and not stated:
            # An answer that the vocabulary does not hold: search without it, and say so.
            spec = replace(old, open=(*old.open, self.state.waiting))
            options = ", ".join(self.agent.vocabulary.options(self.state.waiting)[:30])
            text = f"No server can be filtered by that {self.state.waiting}; known are {options}."
            return self._go(spec, text, found)
        return self._go(merged(old, said, add=command.add), "I changed the constraints.", found)

    def _ask(self, spec: Specification, read: Extraction | None) -> Turn:
        """Ask for a task. Constraints wait until it is there; an intent made of constraints alone is none."""
        self._step(State(replace(spec, intent=""), None, 0, "intent", self.state.asked, self._readings(read)))
        return self._question("intent", "")

    def _readings(self, read: Extraction | None) -> tuple[Extraction, ...]:
        """What was read since the last answer."""
        before = self.state.readings if self.state.waiting else ()
        return before if read is None else (*before, read)

    def _question(self, missing: str, before: str) -> Turn:
        spec = self.state.specification
        options = () if missing == "intent" else tuple(self.agent.options(spec, missing))
        return Turn("question", f"{before} {QUESTIONS[missing]}".strip(), spec, options)

    def _missing(self, spec: Specification) -> str:
        """The first essential constraint that is neither stated nor left open."""
        essential = self.agent.settings.essential
        return next((name for name in essential if without(spec, name) == spec and name not in spec.open), "")

    def _go(self, spec: Specification, before: str, read: Extraction | None = None) -> Turn:
        """Ask once if something essential is missing, else answer."""
        if not spec.intent.strip():
            return self._ask(spec, read)
        readings = self._readings(read)
        before = f"{before} {_ignored(read)}".strip() if read else before
        missing = self._missing(spec)
        if missing and not self.state.asked:
            self._step(State(spec, waiting=missing, asked=True, readings=readings))
            return self._question(missing, before)
        answer = self.agent.recommend(spec, checks=noted(*readings))
        self.count += 1
        self.answers[self.count] = answer
        self.answers.pop(self.count - self.agent.settings.limits["history"], None)
        self._step(State(spec, answer, self.count, asked=self.state.asked))
        return Turn("answer", f"{before} {summary(answer)}".strip(), spec, answer=answer, number=self.count)

    def _servers(self, answer: Answer, command: Command) -> list[int]:
        """Ids of the servers that a command names by place or id. NotThereError: there is no such place or server."""
        if missing := [place for place in command.places if place > len(answer.ids)]:
            raise NotThereError(f"the answer has {len(answer.ids)} servers, there is no number {missing[0]}")
        if unknown := [server for server in command.ids if server not in self.agent.row]:
            raise NotThereError(f"no server has the id {unknown[0]}")
        return list(dict.fromkeys([*command.ids, *(answer.ids[place - 1] for place in command.places)]))

    def _compare(self, command: Command, answer: Answer) -> Turn:
        """The named servers of the answer side by side; what the command names beyond them is said of each."""
        spec, number = answer.specification, self.state.number
        named = answer.ids[:MOST_COMPARED] if command.every else self._servers(answer, command)
        # "compare 2" means: with the best of the others.
        ids = named if len(named) > 1 else [*named, *(server for server in answer.ids if server not in named)][:2]
        if len(ids) < 2:
            return Turn("note", "There are no two servers to compare.", spec, number=number)
        respects = self.agent.extract(command.text).specification.preferences
        wanted = tuple(dict.fromkeys((*spec.preferences, *respects)))
        evidence, claims = self.agent.compare(replace(spec, preferences=wanted), ids)
        text = f"{len(ids)} servers compared." if claims else "The evidence shows no difference that matters."
        text = " ".join([text, *(_shown(self.agent, name, ids) for name in respects)])
        servers = tuple(evidence.values())
        return Turn("comparison", text, spec, number=number, claims=tuple(claims), evidence=servers)

    def _single(self, command: Command, answer: Answer) -> Turn:
        """How to set up a server, or what speaks for and against it; by default the one spoken of last, or the best."""
        spec, number = answer.specification, self.state.number
        known = answer.ids if self.focus is None else [self.focus]
        evidence, sections = self.agent.explain(spec, (self._servers(answer, command) or known)[0])
        self.focus = evidence.server_id
        stated = [_stated(evidence, name) for name in subjects(command.text, self.agent.words)]
        if command.kind == "setup":
            if "key" in command.text.lower() and not any(claim.rule == "adopt_key" for claim in sections["adoption"]):
                stated.append("Its description does not speak of an API key.")
            kind, text, claims = "setup", f"How to adopt {evidence.label}.", sections["adoption"]
        else:
            claims = [*sections["why"], *sections["tradeoff"]]
            kind, text = "reasons", f"What speaks for and against {evidence.label}."
        made = start_text(self.agent, evidence.server_id, command.text) if command.kind == "setup" else ""
        if command.kind == "setup" and not made:
            stated.append(NO_START)
        said = " ".join([text, *stated])
        return Turn(kind, said, spec, number=number, claims=tuple(claims), evidence=(evidence,), config=made)


def _ignored(read: Extraction) -> str:
    """A sentence on what no filter can do, '' for nothing."""
    phrases = ", ".join(f'"{phrase}"' for phrase in read.ignored)
    return f"I left out {phrases}: only a least number of stars can be asked for." if phrases else ""


def summary(answer: Answer) -> str:
    """One or two sentences on what was found and filtered."""
    notes = "".join(f" {note[:1].upper()}{note[1:]}." for note in answer.notes)
    if not answer.fits:
        return (
            f"Nothing in this catalogue fits.{notes} Say what is to be done, with the product's name if there is one."
        )
    count = len(answer.recommendations)
    text = (
        f"{count} server{'' if count == 1 else 's'} for you." if count else "No server that fits meets all constraints."
    )
    removed = [f"{item.wanted} ({item.in_pool} of the best-ranked removed)" for item in answer.removals if item.in_pool]
    if removed:
        text += f" Filters: {'; '.join(removed)}."
    if answer.relax:
        constraint, left = answer.relax[0]
        text += f" Without the constraint on {constraint}, {left} would be left."
    return text + notes


def _shown(agent: Agent, preference: str, ids: list[int]) -> str:
    """What the servers' own words say about a preference."""
    having = [server for server in ids if agent.shows[preference][agent.row[server]]]
    if len(having) == len(ids):
        return f"The own words of all of them speak for {preference}."
    if having:
        return f"The own words of id {', id '.join(map(str, having))} alone speak for {preference}."
    return f"The data says nothing about the {preference} of any of them."


def _stated(evidence: Evidence, name: str) -> str:
    """What a field of the catalogue says, in a sentence."""
    value, label = evidence.fields[name], name.replace("_", " ")
    return f"In the catalogue, {label}: {quoted(value, QUOTED)}." if value else f"The catalogue states no {label}."
