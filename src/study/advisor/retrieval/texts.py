"""Texts of tools and queries: documents (Semantic Tool Discovery, section 3.1.1), sub-tasks, token counts.

Tokens are those of the WordPiece of all-MiniLM-L6-v2, whose vocabulary ships in its package. Counts of other
tokenizers differ by a factor that hardly depends on the tools; the shares reported here do not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from study.advisor.arrays import IntArray
from study.advisor.encoders.sentence import folder_of
from study.advisor.retrieval.documents import Server, Tool, ToolCatalog
from study.base.errors import require_one_of


def template(server: Server, tool: Tool) -> str:
    """The paper's template; its line "Capabilities" is left out, as nothing published expands a description."""
    listed = "; ".join(f"{parameter.name}: {parameter.description}" for parameter in tool.parameters)
    return f"Tool: {tool.name}\nPurpose: {tool.description}\nParameters: {listed}"


TEMPLATES: dict[str, Callable[[Server, Tool], str]] = {
    "name_desc": lambda server, tool: f"{tool.name}: {tool.description}",
    "desc": lambda server, tool: tool.description or tool.name,
    "template": template,
    "server": lambda server, tool: f"{server.name}. {server.description} {tool.name}: {tool.description}",
}


def documents(catalog: ToolCatalog, form: str, limit: int | None = None) -> list[str]:
    """The document of every tool, shape (n_tools,). `form`: a key of `TEMPLATES`. `limit`: cut the tool's description
    after so many characters."""
    require_one_of(form, "document form", TEMPLATES)
    tools = (replace(tool, description=tool.description[:limit]) for tool in catalog.tools)
    return [TEMPLATES[form](catalog.servers[tool.server], tool) for tool in tools]


# Ends of sentences and items; then words that begin a further step.
BORDER = re.compile(
    r"(?<=[.!?;。！？；])\s+|\n+|\s*(?:^|\s)[-*•]\s+|\s+(?:and then|then|after that|afterwards|finally|also)\s+", re.I
)
# Verbs that command.
VERB = re.compile(
    r"(?:add|analy[sz]e|archive|book|calculate|check|commit|compare|convert|copy|create|delete|deploy|download|draft|"
    r"edit|e-?mail|export|extract|fetch|find|forward|generate|get|import|list|mail|make|merge|move|notify|open|plot|"
    r"post|print|publish|push|read|remove|rename|save|schedule|search|send|share|show|store|summari[sz]e|sync|"
    r"translate|turn|update|upload|write)\b",
    re.I,
)
# A conjunction counts as a border only before one of them.
COMMAND = re.compile(rf",?\s+and\s+(?={VERB.pattern})", re.I)
# Something of one domain that goes to a service with a name: "Commit the database schema changes to GitHub".
TRANSFER = re.compile(
    r"((?i:commit|copy|export|move|post|publish|push|save|send|share|store|sync|upload|write)) "
    r"(.+) ((?:in|into|on|to) (?:[A-Z]\w*)(?: [A-Z]\w*){0,2})[.!]?"
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
            if text and parts and (_short(text) or _short(parts[-1])):
                parts[-1] = f"{parts[-1]} {text}"
            elif text:
                parts.append(text)
    parts = [part for whole in parts for part in _domains(whole)]
    return [query, *parts[:MAX_PARTS]] if len(parts) > 1 else [query]


def _short(text: str) -> bool:
    """Whether a part says too little alone; a verb with its object ("email it") does not."""
    words = text.split()
    return len(words) < MIN_WORDS and not (len(words) == MIN_WORDS - 1 and VERB.match(text))


def _domains(text: str) -> list[str]:
    """What is transferred, and the transfer, where the first has words enough to search for."""
    match = TRANSFER.fullmatch(text)
    if match is None or len(match[2].split()) < MIN_WORDS:
        return [text]
    return [match[2], f"{match[1]} {match[3]}"]


@cache
def _tokenizer() -> Any:
    tokenizer = Tokenizer.from_file(str(folder_of("minilm") / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encoded(texts: Sequence[str]) -> list[tuple[str, Any]]:
    """Each text as UTF-8 can hold it, and its tokens without special ones."""
    clean = [text.encode("utf-8", "replace").decode() for text in texts]
    return list(zip(clean, _tokenizer().encode_batch(clean, add_special_tokens=False), strict=True))


def count_tokens(texts: Sequence[str]) -> IntArray:
    """Tokens of each text without special ones, shape (len(texts),)."""
    return np.array([len(tokens.ids) for _, tokens in encoded(texts)], dtype=np.int64)


def definition_tokens(catalog: ToolCatalog) -> IntArray:
    """Tokens of each tool's definition, the JSON of name, description and parameters, shape (n_tools,)."""
    return count_tokens([json.dumps(tool.definition(), ensure_ascii=False) for tool in catalog.tools])
