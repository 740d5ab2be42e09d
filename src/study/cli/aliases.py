"""The words of a command line: earlier spellings, each with today's, and words that are no UTF-8."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from study.errors import StudyError, printable

COMMANDS = {
    "agent load": "agent load-test",
    "audit protocols": "audit run --part protocols",
    "audit verify": "verify --paper",
    "best": "usefulness run --part",
    "embedding": "ablation --embedding",
    "evaluate": "report --evaluate",
    "judge agreement": "judge evaluate",
    "judge check": "judge collect --check",
    "judge packets": "judge batches",
    "judge topics": "judge pool",
    "judge verify": "judge evaluate --check",
    "rerank stuffing": "usefulness run --dataset synthetic --part stuffing",
    "tools flow call": "tools call",
    "tools flow normalise": "tools index --marketplace",
    "tools flow synthesise": "tools synthesise",
    "tools intent compare": "tools feedback --compare",
    "tools intent metrics": "tools feedback",
    "tools intent recommend": "tools recommend",
    "tools intent record": "tools feedback",
    "tools intent tune": "tools feedback --tune",
    "tools report": "tools run --part report",
    "useful": "usefulness run --part",
}
OPTIONS = {"--reading": "--pass"}
PARTS = {
    "faults": "reference_bugs",
    "label-steps": "label_steps",
    "probes": "navigational",
    "wordings": "prompt_templates",
}


def todays_words(words: Sequence[str]) -> list[str]:
    """The words of a command line with today's spellings."""
    for length in (3, 2, 1):
        if (today := COMMANDS.get(" ".join(words[:length]))) is not None:
            words = [*today.split(), *words[length:]]
            break
    words = [OPTIONS.get(word, word) for word in words]
    return [PARTS.get(word, word) if before == "--part" else word for before, word in pairwise(["", *words])]


def require_utf8(words: Sequence[str]) -> None:
    """Raise `StudyError` for the first argument whose bytes are no UTF-8; Python passes them on as lone surrogates."""
    for place, word in enumerate(words, start=1):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            readable = word.encode(errors="surrogateescape").decode(errors="replace")
            raise StudyError(
                f"argument {place} is not UTF-8: {printable(readable)!r}",
                fix="set the terminal to UTF-8 and write it again",
            ) from error
