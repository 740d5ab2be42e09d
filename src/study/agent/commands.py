"""What a message asks for: undo, compare, set-up, reasons, dropping a constraint, or something to be understood."""

from __future__ import annotations

import re
from dataclasses import dataclass

ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5}
UNDO = re.compile(r"\s*(?:please\s+)?(?:undo|go back|revert|take (?:that|it) back)\b", re.I)
COMPARE = re.compile(r"\b(?:compar(?:e|ison)|differences?\s+between|versus|vs\.?)\b", re.I)
SETUP = re.compile(
    r"\b(?:set(?:ting)?[\s-]?up|install(?:ation|ing)?|configur(?:e|ation|ing)|deploy(?:ment|ing)?|"
    r"how (?:do|can|to|would) (?:I |we )?(?:use|run|start|adopt))\b", re.I,
)  # fmt: skip
WHY = re.compile(r"\s*(?:why|explain|what speaks for)\b", re.I)
ANY = re.compile(
    r"\s*(?:any(?: of them| language| one)?|either|no preference|no matter|(?:it )?does(?: not|n't) matter|don't care|"
    r"do not care|skip|whatever|none)\s*[.!]?\s*\Z", re.I,
)  # fmt: skip
DROP = re.compile(
    r"\b(?:drop|remove|forget|clear|ignore|lift|any)\s+(?:the\s+|all\s+|my\s+)?"
    r"(language|platform|system|licen[cs]e|official|stars?|domain|theme|preference)s?\b", re.I,
)  # fmt: skip
ADD = re.compile(r"\A\s*(?:also|or|and|plus)\b", re.I)
RESTART = re.compile(r"\A\s*(?:new (?:task|request)|start over|instead,? I (?:want|need))\s*[:,.]?\s*", re.I)
KINDS = {"system": "platform", "license": "licence", "star": "stars", "theme": "domain"}
# "1 and 3", "#2", "number 4", "the first"; an id is written "id 5581".
PLACE = re.compile(r"(?<![\w.])(?:#|number\s+|no\.\s*)?([1-9]\d?)(?![\w.]*\d)\b", re.I)
IDENTIFIER = re.compile(r"\bids?\s*[:#]?\s*(\d{1,9}(?:\s*(?:,|and|with|vs\.?)\s*\d{1,9})*)", re.I)


@dataclass(frozen=True)
class Command:
    """What is asked.

    Attributes:
        kind: undo, compare, setup, why, open (the question is left open), drop, or say (to be understood).
        places: places of the last answer that are meant, from 1.
        ids: server ids that are named.
        constraint: what is dropped.
        add: whether values are added to the constraints rather than taking their place.
        restart: whether a new task begins; `text` is the message without that word.
    """

    kind: str
    text: str
    places: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    constraint: str = ""
    add: bool = False
    restart: bool = False


def mentioned(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Places and ids that a text names, in order, without repeats."""
    ids = [int(number) for match in IDENTIFIER.finditer(text) for number in re.findall(r"\d+", match[1])]
    left = IDENTIFIER.sub(" ", text)
    spots = [(match.start(), int(match[1])) for match in PLACE.finditer(left)]
    spots += [
        (match.start(), rank) for word, rank in ORDINALS.items() for match in re.finditer(rf"\b{word}\b", left, re.I)
    ]
    return tuple(dict.fromkeys(place for _, place in sorted(spots))), tuple(dict.fromkeys(ids))


def parse(text: str, *, answered: bool) -> Command:
    """The command in a message.

    Args:
        answered: whether there is an answer to compare, explain or adopt; without one these words describe a task.
    """
    if UNDO.match(text):
        return Command("undo", text)
    if match := RESTART.match(text):
        return Command("say", text[match.end() :], restart=True)
    if ANY.match(text):
        return Command("open", text)
    if answered and len(text) <= 200:
        places, ids = mentioned(text)
        for kind, pattern in (("compare", COMPARE), ("setup", SETUP)):
            if pattern.search(text) and (places or ids or len(text.split()) <= 8):
                return Command(kind, text, places, ids)
        if WHY.match(text):
            return Command("why", text, places, ids)
    if match := DROP.search(text):
        kind = match[1].lower()
        kind = KINDS.get(kind, kind)
        return Command("drop", text, constraint="stars" if kind == "stars" else kind)
    return Command("say", text, add=ADD.match(text) is not None)
