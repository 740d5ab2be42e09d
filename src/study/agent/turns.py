"""What the agent says in one turn, and the turns that speak about servers of an answer: comparison, set-up, reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace

from study.agent.agent import MOST_COMPARED, Agent
from study.agent.answer import Answer
from study.agent.claims import Claim
from study.agent.commands import Command
from study.agent.evidence import Evidence
from study.agent.followups import subjects
from study.agent.specification import Specification
from study.agent.text import quoted
from study.errors import StudyError

EMPTY = "The last answer names no server."
# Characters of a message or a field that a sentence quotes.
QUOTED = 60


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


class NotThereError(StudyError):
    """A message speaks of a place or a server that is not there."""


def servers(agent: Agent, answer: Answer, command: Command) -> list[int]:
    """Ids of the servers that a command names by place or id.

    Raises:
        NotThereError: there is no such place or server.
    """
    for place in command.places:
        if place > len(answer.ids):
            raise NotThereError(f"the answer has {len(answer.ids)} servers, there is no number {place}")
    for server in command.ids:
        if server not in agent.row:
            raise NotThereError(f"no server has the id {server}")
    return list(dict.fromkeys([*command.ids, *(answer.ids[place - 1] for place in command.places)]))


def compared(agent: Agent, answer: Answer, command: Command) -> Turn:
    """The named servers of an answer side by side; what the command names beyond them is said of each.

    Raises:
        NotThereError: there is no such place or server.
    """
    if not answer.ids and not command.ids:
        return Turn("note", EMPTY, answer.specification)
    named = answer.ids[:MOST_COMPARED] if command.every else servers(agent, answer, command)
    # "compare 2" means: with the best of the others.
    ids = named if len(named) > 1 else [*named, *(server for server in answer.ids if server not in named)][:2]
    if len(ids) < 2:
        return Turn("note", "There are no two servers to compare.", answer.specification)
    respects = agent.extract(command.text).specification.preferences
    wanted = tuple(dict.fromkeys((*answer.specification.preferences, *respects)))
    evidence, claims = agent.compare(replace(answer.specification, preferences=wanted), ids)
    text = f"{len(ids)} servers compared." if claims else "The evidence shows no difference that matters."
    text = " ".join([text, *(shown(agent, name, ids) for name in respects)])
    return Turn("comparison", text, answer.specification, claims=tuple(claims), evidence=tuple(evidence.values()))


def shown(agent: Agent, preference: str, ids: list[int]) -> str:
    """What the servers' own words say about a preference."""
    having = [server for server in ids if agent.shows[preference][agent.row[server]]]
    if len(having) == len(ids):
        return f"The own words of all of them speak for {preference}."
    if having:
        return f"The own words of id {', id '.join(map(str, having))} alone speak for {preference}."
    return f"The data says nothing about the {preference} of any of them."


def single(agent: Agent, answer: Answer, command: Command, focus: int | None) -> Turn:
    """How to set up one server, or what speaks for and against it.

    Args:
        focus: the server that is meant where none is named; by default the best.

    Raises:
        NotThereError: there is no such place or server.
    """
    if not answer.ids and not command.ids:
        return Turn("note", EMPTY, answer.specification)
    known = answer.ids if focus is None else [focus]
    evidence, sections = agent.explain(answer.specification, (servers(agent, answer, command) or known)[0])
    said = [stated(evidence, name) for name in subjects(command.text, agent.cues)]
    if command.kind == "setup":
        if "key" in command.text.lower() and not any(claim.rule == "adopt_key" for claim in sections["adoption"]):
            said.append("Its description does not speak of an API key.")
        text = " ".join([f"How to adopt {evidence.label}.", *said])
        return Turn("setup", text, answer.specification, claims=tuple(sections["adoption"]), evidence=(evidence,))
    text = " ".join([f"What speaks for and against {evidence.label}.", *said])
    return Turn(
        "reasons", text, answer.specification, claims=(*sections["why"], *sections["tradeoff"]), evidence=(evidence,)
    )


def stated(evidence: Evidence, name: str) -> str:
    """What a field of the catalogue says, in a sentence."""
    value, label = evidence.fields[name], name.replace("_", " ")
    return f"In the catalogue, {label}: {quoted(value, QUOTED)}." if value else f"The catalogue states no {label}."
