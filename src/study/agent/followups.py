"""Questions about the servers of an answer that use no word of command: "does it need a key?", "which is better?".

They are told from new tasks by their grammar: before the servers that are meant stand only empty words and words about
servers, and nothing that makes the servers part of a task ("connect 2 databases").
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from study.agent.commands import EMPTY, IDENTIFIER, ORDINALS, PLACE, RESPECT, SERVER, TOP, Command, mentioned
from study.agent.extraction import Extraction
from study.agent.lexicon import Reading
from study.agent.text import WORD, root

# Stands for servers that are meant without being named.
IT = "\2"
NAMED = (
    re.compile(rf"\b(?:the\s+)?(?:{'|'.join(ORDINALS)})(?:\s+(?:one|server|option|recommendation))?\b", re.I),
    PLACE,
)
PRONOUN = re.compile(
    r"\b(?:it|(?:which|this|that)\s+one|(?:this|that)(?:\s+server)?|(?:which|any|one)\s+of\s+(?:them|these|those)|"
    r"them|they|these|those)\b",
    re.I,
)
WORDS = re.compile(rf"[{SERVER}{IT}]|[^\s{SERVER}{IT}.,;:!?]+")
# "connect 1 to Claude": after the servers something may follow that says to what.
ONWARD = re.compile(rf"{RESPECT.pattern}|to|from|into|than|inside|via|through")


def marked(text: str) -> list[str]:
    """The words of a message in lower case, servers that are meant as marks."""
    found = IDENTIFIER.sub(f" {SERVER} ", text.replace("’", "'"))
    found = TOP.sub(f" {SERVER} ", found)
    for pattern in NAMED:
        found = pattern.sub(f" {SERVER} ", found)
    return WORDS.findall(PRONOUN.sub(f" {IT} ", found).lower())


def about(text: str, cues: Reading) -> Command | None:
    """The command in a question about the servers of the answer, None if it is none."""
    words = marked(text)
    known = {*cues.about, *cues.setup, *cues.choosing, *cues.leaving, *cues.subjects}

    def empty(part: Sequence[str]) -> bool:
        return all(word in (SERVER, IT) or word in known or EMPTY.fullmatch(word) for word in part)

    chosen = any(word in cues.choosing for word in words)
    if not any(word in (SERVER, IT) for word in words):
        asks = bool(words) and words[0] in ("which", "what") and chosen and empty(words)
        return Command("compare", text, every=True) if asks else None
    named = SERVER in words
    last = max(place for place, word in enumerate(words) if word == SERVER) if named else words.index(IT)
    before, after = words[:last], words[last + 1 :]
    if not empty(before):
        return None
    if named:
        goes_on = all(map(EMPTY.fullmatch, after)) or ONWARD.fullmatch(after[0]) or after[0] in cues.setup
        # "is 1 still maintained?" may go on as it likes, "how do I connect 2 databases?" may not.
        if not goes_on and words[0] not in cues.auxiliaries and not (words[0] in cues.questions and empty(after)):
            return None
    elif words[0] == IT:
        # "it must be fast" is a wish, "which one is best" a question.
        if not (chosen and empty(after)):
            return None
    elif words[0] not in cues.questions or (after and after[0] in cues.impersonal):
        return None
    places, ids = mentioned(text)
    return Command(_kind(words, chosen, cues), text, places, ids, every=not named and chosen)


def _kind(words: list[str], chosen: bool, cues: Reading) -> str:
    if words[0] in cues.leaving or (words[0] in ("do", "please") and set(words) & set(cues.leaving)):
        return "leave"
    if chosen:
        return "compare"
    return "setup" if set(words) & set(cues.setup) else "why"


def subjects(text: str, cues: Reading) -> list[str]:
    """Fields of the evidence that a question is about."""
    return list(dict.fromkeys(cues.subjects[word] for word in marked(text) if word in cues.subjects))


def vague(text: str, found: Extraction, cues: Reading) -> bool:
    """Whether a message that states no constraint is too little for a new task: a few words without a word of doing."""
    known = {*cues.about, *cues.setup, *cues.choosing, *cues.leaving, *cues.subjects}
    content = [word for word in found.rest.values() if word not in known]
    if not content:
        return True
    # "remove Docker" speaks of the answer, "remove Docker images" may be a task.
    few = len(found.rest) <= cues.few_words
    if _first(text) in cues.leaving and (len(content) < 2 or (few and not begins_doing(text, cues))):
        return True
    return few and not does(text, cues)


def does(text: str, cues: Reading) -> bool:
    """Whether a message holds a word of doing."""
    return any(root(word) in cues.done for word in WORD.findall(text.lower()))


def begins_doing(text: str, cues: Reading) -> bool:
    """Whether a message begins with a word of doing, as tasks do."""
    return root(_first(text)) in cues.done


def _first(text: str) -> str:
    found = WORD.search(text.lower())
    return found[0] if found else ""
