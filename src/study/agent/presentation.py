"""Turns and answers as plain data for the page and the MCP server, and as text for terminals and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from study.agent.answer import Answer, claim_data, data, evidence_data
from study.agent.claims import Claim
from study.agent.conversation import Turn
from study.agent.evidence import Evidence
from study.agent.text import escape_markdown, plain

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
        texts: False leaves out sentences and names; ids, scores, rules and fields stay (for data without a licence).
    """
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
            lines += [f"- *{title}*: {claim_line(claim, texts)}" for claim in claims]
    extra = [*turn.answer.comparison, *turn.answer.composition] if turn.answer else list(turn.claims)
    if extra:
        lines.append("\n**Options side by side**\n" if turn.answer else "")
        lines += [f"- {claim_line(claim, texts)}" for claim in extra]
    return "\n".join(lines)


def claim_line(claim: Claim, texts: bool) -> str:
    """A claim and the fields that it rests on; without texts the name of its rule and the servers."""
    said = escape_markdown(claim.text) if texts else f"{escape_markdown(claim.rule)}, servers {list(claim.servers)}"
    return f"{said} *[{', '.join(map(escape_markdown, claim.fields))}]*"


def joined(value: Any) -> str:
    """The value of a constraint in words."""
    return ", ".join(value) if isinstance(value, tuple) else str(value)
