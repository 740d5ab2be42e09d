"""One conversation: a request, at most one question, answers, refinements, undo. It belongs to one developer."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from study.agent.agent import Agent, noted
from study.agent.answer import Answer
from study.agent.claims import Claim
from study.agent.commands import Command, parse
from study.agent.constraints import dropped
from study.agent.evidence import Evidence
from study.agent.extraction import Extraction
from study.agent.specification import Specification, build, merged
from study.errors import StudyError

# So few content words beside a constraint are a refinement ("only official ones"), more are a new task.
FEW_WORDS = 2
EMPTY = "The last answer names no server."
QUESTIONS = {
    "intent": "What should the server help you do?",
    "language": "Which programming language should the server be written in?",
    "platform": "On which system should the server run?",
    "licence": "Which licence do you need?",
}


@dataclass(frozen=True)
class Turn:
    """What the agent says.

    Attributes:
        kind: question, answer, comparison, setup, reasons, or note.
        message: one or two sentences for the reader.
        specification: what is understood so far.
        options: for a question, values to choose from; any other text is welcome.
        answer: for an answer.
        number: of the answer that the turn shows or speaks about, counted from 1 in a conversation; 0 for none.
        claims, evidence: for a comparison, set-up or reasons.
    """

    kind: str
    message: str
    specification: Specification
    options: tuple[str, ...] = ()
    answer: Answer | None = None
    number: int = 0
    claims: tuple[Claim, ...] = ()
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True)
class State:
    """What a step may change, kept for undo; `readings` are of the messages since the last answer."""

    specification: Specification
    answer: Answer | None = None
    number: int = 0
    waiting: str = ""
    asked: bool = False
    readings: tuple[Extraction, ...] = ()


class Conversation:
    """One developer's conversation with the agent. Messages are answered one after another.

    Args:
        agent: shared by all conversations.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.state = State(Specification())
        self.history: list[State] = []
        # The answers that a reader may still have before their eyes, by number.
        self.answers: dict[int, Answer] = {}
        self.count = 0
        self.lock = threading.Lock()

    def say(self, message: str) -> Turn:
        """The reply to a message.

        Raises:
            StudyError: an empty or oversized message, or one that asks for what is not there.
        """
        with self.lock:
            if not message.strip():
                raise StudyError("the message is empty", fix="say what is to be done, or what should change")
            limit = self.agent.settings.limits["request"]
            if len(message) > limit:
                raise StudyError(f"the message has {len(message)} characters, at most {limit} are read")
            command = parse(message, answered=self.state.answer is not None)
            actions = {"undo": self._undo, "compare": self._compare, "setup": self._single, "why": self._single,
                       "open": self._open, "drop": self._drop, "say": self._understand}  # fmt: skip
            return actions[command.kind](command)

    def edit(self, values: Mapping[str, Any]) -> Turn:
        """The reply after constraints were set as a form states them; the intent stays unless it is given.

        Raises:
            StudyError: an unknown field or value.
        """
        with self.lock:
            longest = self.agent.settings.limits["request"]
            old = self.state.specification
            changed = build({"intent": old.intent, "open": old.open, **values}, self.agent.vocabulary, longest=longest)
            return self._go(changed, "I used the constraints as you set them.")

    def answered(self, number: int, server: int) -> Answer:
        """The answer of that number, which must recommend the server.

        Raises:
            StudyError: there is no such answer any more, or the server is not in it.
        """
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
        self.state = state

    def _undo(self, command: Command) -> Turn:
        if not self.history:
            return Turn("note", "There is nothing to take back.", self.state.specification)
        self.state = self.history.pop()
        text = "I took the last step back."
        if self.state.answer is not None:
            return Turn("answer", text, self.state.specification, answer=self.state.answer, number=self.state.number)
        if self.state.waiting:
            return self._question(self.state.waiting, text)
        return Turn("note", f"{text} {QUESTIONS['intent']}", self.state.specification)

    def _open(self, command: Command) -> Turn:
        if command.constraint not in ("", self.state.waiting):
            return self._drop(command)
        if not self.state.waiting or self.state.waiting == "intent":
            return Turn("note", QUESTIONS["intent"] if not self.state.specification.intent else "Nothing was asked.",
                        self.state.specification)  # fmt: skip
        spec = self.state.specification
        return self._go(replace(spec, open=(*spec.open, self.state.waiting)), f"Any {self.state.waiting} will do.")

    def _drop(self, command: Command) -> Turn:
        if not self.state.specification.intent:
            return self._understand(replace(command, kind="say"))
        if command.constraint == self.state.waiting:
            return self._open(command)
        return self._go(dropped(self.state.specification, command.constraint), f"I dropped: {command.constraint}.")

    def _understand(self, command: Command) -> Turn:
        if not command.text.strip():
            self._step(State(Specification(), waiting="intent"))
            return self._question("intent", "")
        found = self.agent.read(command.text)
        old = self.state.specification
        said = found.specification
        stated = bool(said.constraints() or said.open)
        if found.ignored and not found.rest and not stated:
            return Turn("note", f"{_ignored(found)} Nothing was changed.", old)
        begins = command.restart or not old.intent
        if not begins:
            begins = len(found.rest) > FEW_WORDS or not (stated or self.state.waiting)
        if command.restart:
            return self._go(said, "A new task.", found) if found.rest else self._ask("intent", said, found)
        if begins:
            if not found.rest:
                return self._ask("intent", merged(old, said), found)
            more = command.add and bool(old.intent)
            kept = replace(merged(old, said, add=more), intent=f"{old.intent}; {said.intent}" if more else said.intent)
            text = "I kept your earlier constraints." if old.intent and old.constraints() else ""
            return self._go(kept, text, found)
        if self.state.waiting and not stated:
            # An answer that the vocabulary does not hold: search without it, and say so.
            spec = replace(old, open=(*old.open, self.state.waiting))
            options = ", ".join(self.agent.vocabulary.options(self.state.waiting)[:30])
            return self._go(
                spec, f"No server can be filtered by that {self.state.waiting}; known are {options}.", found
            )
        return self._go(merged(old, said, add=command.add), "I changed the constraints.", found)

    def _ask(self, missing: str, spec: Specification, read: Extraction | None = None) -> Turn:
        # Constraints without a task wait until the task is there; an intent made of constraints alone is none.
        self._step(replace(self.state, specification=replace(spec, intent=""), waiting="intent", answer=None, number=0,
                           readings=self._readings(read)))  # fmt: skip
        return self._question(missing, "")

    def _readings(self, read: Extraction | None) -> tuple[Extraction, ...]:
        """What was read since the last answer."""
        before = self.state.readings if self.state.waiting else ()
        return before if read is None else (*before, read)

    def _question(self, missing: str, before: str) -> Turn:
        spec = self.state.specification
        options = self.agent.options(spec, missing) if missing != "intent" else []
        return Turn("question", f"{before} {QUESTIONS[missing]}".strip(), spec, options=tuple(options))

    def _missing(self, spec: Specification) -> str:
        """The first essential constraint that is neither stated nor left open."""
        stated = {"language": (*spec.languages, *spec.unwanted_languages), "platform": spec.platforms,
                  "licence": (*spec.licences, *spec.unwanted_licences)}  # fmt: skip
        return next((name for name in self.agent.settings.essential if not stated[name] and name not in spec.open), "")

    def _go(self, spec: Specification, before: str, read: Extraction | None = None) -> Turn:
        """Ask once if something essential is missing, else answer."""
        if not spec.intent.strip():
            return self._ask("intent", spec, read)
        readings = self._readings(read)
        before = f"{before} {_ignored(read)}".strip() if read else before
        missing = self._missing(spec)
        if missing and not self.state.asked:
            self._step(State(spec, waiting=missing, asked=True, readings=readings))
            return self._question(missing, before)
        answer = self.agent.recommend(spec, checks=noted(*readings))
        self.count += 1
        self.answers[self.count] = answer
        for old in list(self.answers)[: -self.agent.settings.limits["history"]]:
            del self.answers[old]
        self._step(State(spec, answer, self.count, asked=self.state.asked))
        return Turn("answer", f"{before} {summary(answer)}".strip(), spec, answer=answer, number=self.count)

    def _servers(self, command: Command) -> list[int]:
        answer = self.state.answer
        assert answer is not None
        for place in command.places:
            if place > len(answer.ids):
                raise StudyError(f"the answer has {len(answer.ids)} servers, there is no number {place}")
        return list(dict.fromkeys([*command.ids, *(answer.ids[place - 1] for place in command.places)]))

    def _compare(self, command: Command) -> Turn:
        answer = self.state.answer
        assert answer is not None
        if not answer.ids and not command.ids:
            return Turn("note", EMPTY, answer.specification)
        named = self._servers(command)
        # "compare 2" means: with the best of the others.
        ids = named if len(named) > 1 else [*named, *(server for server in answer.ids if server not in named)][:2]
        if len(ids) < 2:
            return Turn("note", "There are no two servers to compare.", answer.specification)
        evidence, claims = self.agent.compare(answer.specification, ids)
        text = f"{len(ids)} servers compared." if claims else "The evidence shows no difference that matters."
        return Turn("comparison", text, answer.specification, number=self.state.number, claims=tuple(claims),
                    evidence=tuple(evidence.values()))  # fmt: skip

    def _single(self, command: Command) -> Turn:
        answer = self.state.answer
        assert answer is not None
        if not answer.ids and not command.ids:
            return Turn("note", EMPTY, answer.specification)
        servers = self._servers(command) or answer.ids[:1]
        evidence, sections = self.agent.explain(answer.specification, servers[0])
        if command.kind == "setup":
            return Turn("setup", f"How to adopt {evidence.label}.", answer.specification, number=self.state.number,
                        claims=tuple(sections["adoption"]), evidence=(evidence,))  # fmt: skip
        text = f"What speaks for and against {evidence.label}."
        return Turn("reasons", text, answer.specification, number=self.state.number,
                    claims=(*sections["why"], *sections["tradeoff"]), evidence=(evidence,))  # fmt: skip


def _ignored(read: Extraction) -> str:
    """A sentence on what no filter can do, '' for nothing."""
    phrases = ", ".join(f'"{phrase}"' for phrase in read.ignored)
    return f"I left out {phrases}: only a least number of stars can be asked for." if phrases else ""


def summary(answer: Answer) -> str:
    """One or two sentences on what was found and filtered."""
    count = len(answer.recommendations)
    text = f"{count} server{'' if count == 1 else 's'} for you." if count else "No server meets all constraints."
    removed = [f"{item.wanted} ({item.in_pool} of the best-ranked removed)" for item in answer.removals if item.in_pool]
    if removed:
        text += f" Filters: {'; '.join(removed)}."
    if answer.relax:
        constraint, left = answer.relax[0]
        text += f" Without the constraint on {constraint}, {left} would be left."
    return text
