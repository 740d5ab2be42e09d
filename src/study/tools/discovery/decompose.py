"""Splitting a query that needs several servers into its sub-tasks (the remedy that the paper's section 6.2 proposes).

Rules, not a language model: sentences, list items, and clauses joined by words of sequence. Each part must be able to
stand as a query of its own, so short splinters stay with their neighbour.
"""

from __future__ import annotations

import re

# Ends of sentences and items; then words that begin a further step.
BORDER = re.compile(
    r"(?<=[.!?;。！？；])\s+|\n+|\s*(?:^|\s)[-*•]\s+|\s+(?:and then|then|after that|afterwards|finally|also)\s+", re.I
)
# A conjunction counts as a border only before a verb that commands.
COMMAND = re.compile(
    r",?\s+and\s+(?=(?:add|analy[sz]e|book|calculate|check|commit|compare|convert|create|delete|download|extract|fetch|"
    r"find|generate|get|list|make|open|plot|post|read|save|schedule|search|send|show|store|summari[sz]e|translate|"
    r"update|upload|write)\b)",
    re.I,
)
MIN_WORDS = 3
MAX_PARTS = 8
# A query longer than this is mostly data pasted into it.
MAX_CHARACTERS = 4_000


def decompose(query: str) -> list[str]:
    """The query itself, followed by its parts where it has two or more; at most `MAX_PARTS` parts."""
    parts: list[str] = []
    for piece in BORDER.split(query[:MAX_CHARACTERS]):
        for clause in COMMAND.split(piece or ""):
            text = clause.strip(" ,;")
            if not text:
                continue
            if parts and (len(text.split()) < MIN_WORDS or len(parts[-1].split()) < MIN_WORDS):
                parts[-1] = f"{parts[-1]} {text}"
            else:
                parts.append(text)
    return [query, *parts[:MAX_PARTS]] if len(parts) > 1 else [query]
