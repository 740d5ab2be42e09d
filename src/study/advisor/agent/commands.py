"""What a message asks for: undo, compare, set-up, reasons, dropping a constraint, or something to be understood.

A word of command in a new task ("compare prices", "undo commits") is no command: nothing may stand beside the command
but the servers that are meant and words without content. Questions about an answer ("which is better?") are told from
tasks in the same way: nothing makes the servers part of a task ("connect 2 databases").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from study.advisor.agent.extraction import Extraction
from study.advisor.agent.settings import Words
from study.advisor.agent.text import WORD, root

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
THANKS = re.compile(
    r"\s*(?:(?:ok|okay|great|perfect|cool|nice)[\s,.!]*)?(?:many\s+|a lot of\s+)?(?:thanks|thank\s+you|thx|cheers)"
    r"(?:\s+(?:a lot|very much|so much|for (?:that|this|your help)))?[\s.!]*\Z",
    re.I,
)
KINDS = {"system": "platform", "license": "licence", "star": "stars", "theme": "domain"}

# "1 and 3", "#2", "number 4"; an id is written "id 5581".
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
        r"\b(?:set(?:ting)?[\s-]?up|set\s+(?:it|this|that|them)\s+up|install(?:ation|ing)?|config(?:s|ure|uration|uring)?|"
        r"deploy(?:ment|ing)?|how (?:do|can|to|would|should) (?:I |we )?(?:use|run|start|adopt))\b",
        re.I,
    ),
    "why": re.compile(r"\b(?:why|explain|what speaks (?:for|against))\b", re.I),
}
# The marks that stand for a command and for a server.
COMMAND, SERVER = "\0", "\1"
LONGEST = 200


@dataclass(frozen=True)
class Command:
    """What is asked."""

    # undo, compare, setup, why, open (the question is left open), drop, leave (a server shall go), thanks,
    # say (anything else)
    kind: str
    text: str
    places: tuple[int, ...] = ()  # of the last answer, from 1
    ids: tuple[int, ...] = ()  # that are named
    every: bool = False  # whether all servers of the answer are meant
    constraints: tuple[str, ...] = ()  # what is dropped, or left open by its name; none for the one that was asked for
    add: bool = False  # whether values are added to the constraints rather than taking their place
    restart: bool = False  # whether a new task begins; `text` is the message without that word


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


def is_command(text: str, pattern: re.Pattern[str], lists: Words) -> bool:
    """Whether a text is a command about servers and no task that holds the same word. It is one if an id is named; if
    nothing with content is left beside the command and the places; or if the places come right after the command and
    what follows them begins like a respect ("for", "if", ...)."""
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
    empty = {COMMAND, *lists.empty}
    if not {SERVER, *empty}.issuperset(before):
        return False
    return not after or after[0] in lists.respect or empty.issuperset(after)


def parse_command(text: str, lists: Words, *, answered: bool) -> Command:
    """The command in a message. `answered`: whether there is an answer to compare, explain or adopt; without one these
    words describe a task."""
    if THANKS.fullmatch(text):
        return Command("thanks", text)
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
            if is_command(text, pattern, lists):
                return Command(kind, text, *mentioned(text))
    about = question_about(text, lists) if answered else None
    return about or Command("say", text, add=ADD.match(text) is not None)


def _constraints(text: str) -> tuple[str, ...]:
    names = (word.lower().removesuffix("s") for word in re.findall(rf"\b{CONSTRAINT}\b", text, re.I))
    return tuple(dict.fromkeys(KINDS.get(name, name) for name in names))


# Stands for servers that are meant without being named.
IT = "\2"
ONE = re.compile(rf"\b(?:the\s+)?(?:{'|'.join(ORDINALS)})(?:\s+(?:one|server|option|recommendation))?\b", re.I)
PRONOUN = re.compile(
    r"\b(?:it|(?:which|this|that)\s+one|(?:this|that)(?:\s+server)?|(?:which|any|one)\s+of\s+(?:them|these|those)|"
    r"them|they|these|those)\b",
    re.I,
)
WORDS = re.compile(rf"[{SERVER}{IT}]|[^\s{SERVER}{IT}.,;:!?]+")


def marked(text: str) -> list[str]:
    """The words of a message in lower case, servers that are meant as marks."""
    found = text.replace("’", "'")
    for pattern in (IDENTIFIER, TOP, ONE, PLACE):
        found = pattern.sub(f" {SERVER} ", found)
    return WORDS.findall(PRONOUN.sub(f" {IT} ", found).lower())


def question_about(text: str, lists: Words) -> Command | None:
    """The command in a question about the servers of the answer, None if it is none."""
    words = marked(text)

    def empty(part: Sequence[str]) -> bool:
        return {SERVER, IT, *lists.of_answers, *lists.empty}.issuperset(part)

    chosen = any(word in lists.choosing for word in words)
    if not any(word in (SERVER, IT) for word in words):
        asks = bool(words) and words[0] in ("which", "what") and chosen and empty(words)
        return Command("compare", text, every=True) if asks else None
    named = SERVER in words
    last = max(place for place, word in enumerate(words) if word == SERVER) if named else words.index(IT)
    before, after = words[:last], words[last + 1 :]
    if not empty(before):
        return None
    if named:
        goes_on = set(lists.empty).issuperset(after) or after[0] in (*lists.respect, *lists.onward, *lists.setup)
        # "is 1 still maintained?" may go on as it likes, "how do I connect 2 databases?" may not.
        if not goes_on and words[0] not in lists.auxiliaries and not (words[0] in lists.questions and empty(after)):
            return None
    elif words[0] == IT:
        # "it must be fast" is a wish, "which one is best" a question.
        if not (chosen and empty(after)):
            return None
    elif words[0] not in lists.questions or (after and after[0] in lists.impersonal):
        return None
    leaves = words[0] in lists.leaving or (words[0] in ("do", "please") and set(words) & set(lists.leaving))
    sets_up = "setup" if set(words) & set(lists.setup) else "why"
    kind = "leave" if leaves else "compare" if chosen else sets_up
    return Command(kind, text, *mentioned(text), every=not named and chosen)


def subjects(text: str, lists: Words) -> list[str]:
    """Fields of the evidence that a question is about."""
    return list(dict.fromkeys(lists.subjects[word] for word in marked(text) if word in lists.subjects))


def too_little(text: str, found: Extraction, lists: Words) -> bool:
    """Whether a message that states no constraint is too little for a new task: a few words without a verb."""
    content = [word for word in found.rest.values() if word not in lists.of_answers]
    if not content:
        return True
    # "remove Docker" speaks of the answer, "remove Docker images" may be a task.
    few = len(found.rest) <= lists.few_words
    if _first(text) in lists.leaving and (len(content) < 2 or (few and not begins_with_verb(text, lists))):
        return True
    return few and not has_verb(text, lists)


def has_verb(text: str, lists: Words) -> bool:
    """Whether a message holds a word of doing."""
    return any(root(word) in lists.verbs for word in WORD.findall(text.lower()))


def begins_with_verb(text: str, lists: Words) -> bool:
    """Whether a message begins with a word of doing, as tasks do."""
    return root(_first(text)) in lists.verbs


def _first(text: str) -> str:
    return next(iter(WORD.findall(text.lower())), "")
