"""Turns and answers as plain data for the page and the MCP server, and as text for terminals and notebooks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from study.agent.answer import Answer, claim_data, data, evidence_data
from study.agent.claims import DESCRIPTIVE, Claim
from study.agent.evidence import Evidence
from study.agent.text import escape_markdown, plain
from study.agent.turns import Turn

# Rules whose sentences hold words of the request and of this project, numbers and ids; names stand between “ and ”
# before an id, and can be taken out.
OWN_WORDS = frozenset(
    {
        "why_words",
        "why_language",
        "why_platform",
        "why_licence",
        "why_official",
        "why_preference",
        "why_followed",
        "why_rank",
        "less_words",
        "less_platform",
        "less_preference",
        "less_followed",
        "less_active",
        "adopt_language",
        "adopt_docker",
        "adopt_client",
        "prefer_words",
        "prefer_preference",
        "prefer_stars",
        "prefer_licence",
        "prefer_official",
        "compose",
    }
)
LABEL = re.compile(r"“[^”]*” \((id \d+)\)")
# Fields that a comparison shows side by side.
COMPARED = ("languages", "platforms", "licence", "stars", "official", "category", "activity")


def evidence_card(evidence: Evidence, limits: Mapping[str, int]) -> dict[str, Any]:
    """A server outside an answer: id, name, quoted description, evidence."""
    return {
        "server_id": evidence.server_id,
        "name": plain(evidence.fields["name"], limits["name"]),
        "description": plain(evidence.fields["description"], limits["excerpt"]),
        "evidence": evidence_data(evidence),
    }


def comparison_table(evidence: list[Evidence]) -> list[dict[str, Any]]:
    """One row per compared field: its values in the order of the servers, '' where the catalogue says nothing."""
    return [{"field": name, "values": [item.fields[name] for item in evidence]} for name in COMPARED]


def turn_data(turn: Turn, limits: Mapping[str, int]) -> dict[str, Any]:
    """A turn as plain data."""
    return {
        "kind": turn.kind,
        "message": turn.message,
        "specification": asdict(turn.specification),
        "options": list(turn.options),
        "answer": answer_data(turn.answer, limits) if turn.answer else None,
        "number": turn.number,
        "claims": [claim_data(claim) for claim in turn.claims],
        "servers": [evidence_card(item, limits) for item in turn.evidence],
        "table": comparison_table(list(turn.evidence)) if turn.kind == "comparison" else [],
    }


def answer_data(answer: Answer, limits: Mapping[str, int]) -> dict[str, Any]:
    """An answer as plain data."""
    return data(answer, excerpt=limits["excerpt"], name=limits["name"])


def markdown(turn: Turn, limits: Mapping[str, int], *, texts: bool = True) -> str:
    """A turn in Markdown that shows strangers' characters as they stand.

    Args:
        texts: False leaves out names, descriptions and sentences that could quote them, for data without a licence;
            ids, scores, and sentences made of the request's words, numbers and this project's words stay.
    """
    shown = [item.evidence for item in turn.answer.recommendations] if turn.answer else turn.evidence
    # Even a word of the request is left out where it is a whole name.
    hidden = None if texts else {item.fields[name] for item in shown for name in DESCRIPTIVE if item.fields[name]}
    lines = [escape_markdown(turn.message) if texts else f"*{turn.kind}*"]
    if turn.options:
        lines.append(f"Options: {', '.join(map(escape_markdown, turn.options))}.")
    stated = {key: value for key, value in turn.specification.constraints().items() if value}
    if stated:
        lines.append(
            "Constraints: " + escape_markdown("; ".join(f"{key} = {joined(value)}" for key, value in stated.items()))
        )
    for item in turn.answer.recommendations if turn.answer else ():
        name = f" {escape_markdown(plain(item.evidence.fields['name'], limits['name']))}" if texts else ""
        scores = ", ".join(f"{key} {value:.3f}" for key, value in item.evidence.scores.items() if key != "rank")
        lines.append(f"\n**{item.rank}\\. [id {item.server_id}]{name}** ({scores})\n")
        for title, claims in (("why", item.why), ("trade-off", item.tradeoffs), ("adoption", item.adoption)):
            lines += [f"- *{title}*: {claim_line(claim, hidden)}" for claim in claims]
    extra = [*turn.answer.comparison, *turn.answer.composition] if turn.answer else list(turn.claims)
    if extra:
        lines.append("\n**Options side by side**\n" if turn.answer else "")
        lines += [f"- {claim_line(claim, hidden)}" for claim in extra]
    return "\n".join(lines)


def claim_line(claim: Claim, hidden: Collection[str] | None) -> str:
    """A claim and the fields that it rests on.

    Args:
        hidden: texts of strangers that may not be shown; the sentence is then told without names, or, where it could
            quote a stranger, only its rule and servers. None where everything may be shown.
    """
    said = claim.text
    if hidden is not None:
        said = LABEL.sub(r"\1", said)
        if claim.rule not in OWN_WORDS or any(text in said for text in hidden):
            said = f"{claim.rule}, servers {list(claim.servers)}"
    return f"{escape_markdown(said)} *[{', '.join(map(escape_markdown, claim.fields))}]*"


def joined(value: Any) -> str:
    """The value of a constraint in words."""
    return ", ".join(value) if isinstance(value, tuple) else str(value)
