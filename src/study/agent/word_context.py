"""Which words may stand on either side of a name that is also an ordinary word ("go", "c", "rust", "windows")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from study.agent.lexicon import Reading
from study.agent.settings import Words

# What ends a clause after a name: "in go, with tests", "in c/c++".
MARKS = r"\s*(?:\Z|[,;:!?)/&]|\.(?!\w))"

# Before and after what stands by itself.
APART = re.compile(r"[,;:.(]\s*\Z")
ENDED = re.compile(MARKS)


def _any(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(set(words), key=len, reverse=True))


@dataclass(frozen=True)
class Bounds:
    """Patterns for the words before and after a name."""

    cue: re.Pattern[str]
    follows: re.Pattern[str]
    leads: re.Pattern[str]
    ends: re.Pattern[str]

    @classmethod
    def of(cls, words: Words, cues: Reading) -> Bounds:
        """From the word lists of ``conf/agent``."""
        after = {*words.connectors, *words.after, *cues.reply} - set(cues.no_end)
        led = {*words.before, *words.connectors, *words.filler, *cues.reply, *cues.strong}
        return cls(
            re.compile(rf"(?:\A|\W)(?:{_any(cues.strong)})\s+(?:only\s+)?\Z", re.I),
            re.compile(rf"{MARKS}|\s+(?:{_any(after)})\b", re.I),
            re.compile(rf"(?:\A|[,;:(.!?/&]|(?:\A|\W)(?:{_any(led)}))\s*\Z", re.I),
            re.compile(rf"{MARKS}|\s+(?:{_any([*words.after, *cues.reply, *cues.ends])})\b", re.I),
        )

    def strong(self, head: str, tail: str) -> bool:
        """Whether a cue stands right before a name and nothing that would make it another word right after it."""
        return bool(self.cue.search(head) and self.follows.match(tail))

    def apart(self, name: str, head: str, tail: str) -> bool:
        """Whether a name in its own spelling stands between marks: "I changed my mind, Go"; letters may be initials."""
        return len(name) > 1 and bool(APART.search(head) and ENDED.match(tail))

    def alone(self, head: str, tail: str, joined: bool = False) -> bool:
        """Whether a name stands by itself: "go", "go please", "I'd like Go"; not "go to the page", "c section".

        Args:
            joined: to a name before it, so that `head` says nothing.
        """
        return bool((joined or self.leads.search(head)) and self.ends.match(tail))
