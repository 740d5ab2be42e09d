"""What a message asks for: undo, compare, set-up, reasons, dropping a constraint, or something to be understood.

A word of command inside a new task ("compare prices", "deploy to a cloud", "undo commits") is no command: apart from
the command, the servers that are meant, and words without content, nothing may stand before them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5}
POLITE = r"(?:please\s+|can you\s+|could you\s+|now\s+)?"
END = r"(?:,?\s*(?:please|again|now))?\s*[.!?]*\s*\Z"
UNDO = re.compile(
    rf"\s*{POLITE}(?:(?:undo|revert)(?:\s+(?:that|it|this|(?:the|my)\s+last(?:\s+(?:step|change|message))?|last|step))?|"
    rf"go back(?:\s+(?:one|a)\s+step)?|take (?:that|it|this) back){END}",
    re.I,
)
CONSTRAINT = r"(languages?|platforms?|systems?|licen[cs]es?|official|stars?|domains?|themes?|preferences?)"
ARTICLES = r"(?:the\s+|all\s+|my\s+|any\s+)*"
DROP = re.compile(
    rf"\s*{POLITE}(?:(?:drop|remove|forget|clear|ignore|lift|without)\s+{ARTICLES}"
    rf"(?:(?:constraints?|filters?|limits?)\s+(?:on|for|of)\s+(?:the\s+)?)?|(?:in\s+|for\s+)?any\s+){CONSTRAINT}"
    rf"(?:(?:\s*,\s*|\s*,?\s+(?:and|or)\s+){ARTICLES}{CONSTRAINT})*"
    rf"(?:\s+(?:constraints?|filters?|limits?|(?:is|are)\s+(?:fine|ok|okay|good)|will do|works?))?{END}",
    re.I,
)
ANY = re.compile(
    r"\s*(?:(?:no|nope|any|all|every|either|none)(?:\s+of\s+(?:them|these|those))?"
    rf"(?:\s+(?:one|preferences?|matter|idea|{CONSTRAINT}(?:\s+preferences?)?))?"
    r"(?:\s+(?:is|are)\s+(?:fine|ok|okay|good)|\s+(?:will do|works|goes))?|"
    r"(?:it\s+|that\s+)?(?:does(?: not|n['’]?t)|doesnt)\s+matter|"
    r"(?:i\s+)?(?:do not|don['’]?t|dont)\s+(?:care|mind|know)|"
    r"(?:i['’]?m\s+|i am\s+)?(?:not sure|unsure|undecided|open)|"
    r"anything|whatever|skip|you (?:choose|decide|pick)|up to you)"
    rf"{END}",
    re.I,
)
ADD = re.compile(r"\A\s*(?:also|or|and|plus)\b", re.I)
RESTART = re.compile(
    r"\A\s*(?:new (?:task|request)\s*(?:[:,.]|\Z)|start over\b|instead,? I (?:want|need)\b)\s*[:,.]?\s*", re.I
)
RESET = re.compile(
    rf"\s*{POLITE}(?:reset(?:\s+(?:it|everything|all|the (?:conversation|search)))?|"
    rf"(?:undo|clear|forget|revert|drop)\s+(?:it\s+)?(?:everything|all)|"
    rf"start (?:again|afresh|from scratch)){END}",
    re.I,
)
KINDS = {"system": "platform", "license": "licence", "star": "stars", "theme": "domain"}

# "1 and 3", "#2", "number 4", "the first"; an id is written "id 5581".
PLACE = re.compile(r"(?<![\w.])(?:#|number\s+|no\.\s*)?([1-9]\d?)(?![\w.]*\d)\b", re.I)
IDENTIFIER = re.compile(r"\bids?\s*[:#]?\s*(\d{1,9}(?:\s*(?:,|and|with|vs\.?)\s*\d{1,9})*)", re.I)
TOP = re.compile(r"\b(?:top|first|best)\s+([2-5]|two|three|four|five)\b", re.I)
COUNTS = {"two": 2, "three": 3, "four": 4, "five": 5}
ORDINAL = re.compile(rf"\b(?:{'|'.join(ORDINALS)})\b", re.I)
COMMANDS = {
    "compare": re.compile(
        r"\b(?:compar(?:e|ison|ing)(?:\s+(?:of|between))?|differences?(?:\s+between)?|versus|vs)\b", re.I
    ),
    "setup": re.compile(
        r"\b(?:set(?:ting)?[\s-]?up|set\s+(?:it|this|that|them)\s+up|install(?:ation|ing)?|configur(?:e|ation|ing)|"
        r"deploy(?:ment|ing)?|how (?:do|can|to|would|should) (?:I |we )?(?:use|run|start|adopt))\b",
        re.I,
    ),
    "why": re.compile(r"\b(?:why|explain|what speaks (?:for|against))\b", re.I),
}
# Words around a command and its servers that add nothing to it.
EMPTY = re.compile(
    r"a|an|all|and|are|at|be|better|best|between|both|by|can|could|do|does|five|for|four|give|how|i|in|"
    r"instructions|is|it|it's|its|let|let's|listed|me|my|need|not|of|on|one|ones|option|options|or|place|"
    r"please|recommended|server|servers|should|show|side|so|steps|table|tell|than|that|the|their|them|"
    r"then|there|these|they|this|those|three|to|top|two|us|use|want|we|what|what's|which|with|would|you|your|[&+/–-]"
)
# After the servers something may follow that says in what respect: "compare 1 and 3 for marketing".
RESPECT = re.compile(r"about|against|as|because|by|concerning|for|if|in|on|regarding|under|when|where|with")
# The marks that stand for a command and for a server.
COMMAND, SERVER = "\0", "\1"
LONGEST = 200


@dataclass(frozen=True)
class Command:
    """What is asked.

    Attributes:
        kind: undo, compare, setup, why, open (the question is left open), drop, leave (a server shall go), or say (to
            be understood).
        places: places of the last answer that are meant, from 1.
        ids: server ids that are named.
        every: whether all servers of the answer are meant.
        constraints: what is dropped, or left open by its name; none for the one that was asked for.
        add: whether values are added to the constraints rather than taking their place.
        restart: whether a new task begins; `text` is the message without that word.
    """

    kind: str
    text: str
    places: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    every: bool = False
    constraints: tuple[str, ...] = ()
    add: bool = False
    restart: bool = False


def mentioned(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Places and ids that a text names, in order, without repeats."""
    ids = [int(number) for match in IDENTIFIER.finditer(text) for number in re.findall(r"\d+", match[1])]
    left = IDENTIFIER.sub(" ", text)
    if match := TOP.search(left):
        count = COUNTS.get(match[1].lower()) or int(match[1])
        return tuple(range(1, count + 1)), tuple(dict.fromkeys(ids))
    spots = [(match.start(), int(match[1])) for match in PLACE.finditer(left)]
    spots += [(match.start(), ORDINALS[match[0].lower()]) for match in ORDINAL.finditer(left)]
    return tuple(dict.fromkeys(place for _, place in sorted(spots))), tuple(dict.fromkeys(ids))


def commanded(text: str, pattern: re.Pattern[str]) -> bool:
    """Whether a text is a command about servers and no task that holds the same word.

    It is one if an id is named; if nothing with content is left beside the command and the places; or if the places
    come right after the command and what follows them begins like a respect ("for", "if", ...).
    """
    if not pattern.search(text):
        return False
    if IDENTIFIER.search(text):
        return True
    marked = pattern.sub(f" {COMMAND} ", text)
    for servers in (TOP, ORDINAL, PLACE):
        marked = servers.sub(f" {SERVER} ", marked)
    words = re.findall(rf"[{COMMAND}{SERVER}]|[^\s{COMMAND}{SERVER}.,;:!?]+", marked.lower().replace("’", "'"))
    end = max((place + 1 for place, word in enumerate(words) if word == SERVER), default=0)
    before, after = words[:end] or words, words[end:] if end else []
    if not all(word in (COMMAND, SERVER) or EMPTY.fullmatch(word) for word in before):
        return False
    if not after or RESPECT.fullmatch(after[0]):
        return True
    return all(word == COMMAND or EMPTY.fullmatch(word) for word in after)


def parse(text: str, *, answered: bool) -> Command:
    """The command in a message.

    Args:
        answered: whether there is an answer to compare, explain or adopt; without one these words describe a task.
    """
    if RESET.fullmatch(text):
        return Command("say", "", restart=True)
    if UNDO.fullmatch(text):
        return Command("undo", text)
    if match := RESTART.match(text):
        return Command("say", text[match.end() :], restart=True)
    if DROP.fullmatch(text):
        return Command("drop", text, constraints=_constraints(text))
    if match := ANY.fullmatch(text):
        return Command("open", text, constraints=_constraints(match[1] or ""))
    if answered and len(text) <= LONGEST:
        for kind, pattern in COMMANDS.items():
            if commanded(text, pattern):
                return Command(kind, text, *mentioned(text))
    return Command("say", text, add=ADD.match(text) is not None)


def _constraints(text: str) -> tuple[str, ...]:
    names = (word.lower() for word in re.findall(rf"\b{CONSTRAINT}\b", text, re.I))
    singular = (name if name == "stars" else name.removesuffix("s") for name in names)
    return tuple(dict.fromkeys(KINDS.get(name, name) for name in singular))
