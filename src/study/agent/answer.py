"""The answer: recommendations, comparison, composition, and what was filtered; plain data, ready for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from study.agent import comparing
from study.agent.claims import Claim, Context
from study.agent.constraints import Removal
from study.agent.evidence import LINKS, Evidence, source
from study.agent.specification import Specification


@dataclass(frozen=True)
class Checks:
    """What the checkers found.

    Attributes:
        claims: claims that were checked; `removed` of them had no support and were left out.
        problems: what was wrong with the form or the servers of a language model's answer.
        fallback: whether the template answer took its place.
        reading: why rules read the request although there is a language model; '' where it did, or there is none.
        dropped: values of the language model's reading that the vocabulary does not hold, and that were left out.
        author: ``template`` or the name of the language model whose sentences stand in the answer.
    """

    claims: int = 0
    removed: int = 0
    problems: tuple[str, ...] = ()
    fallback: bool = False
    reading: str = ""
    dropped: int = 0
    author: str = "template"


@dataclass(frozen=True)
class Recommendation:
    """One recommended server with everything that is said of it."""

    rank: int
    server_id: int
    evidence: Evidence
    why: tuple[Claim, ...]
    tradeoffs: tuple[Claim, ...]
    adoption: tuple[Claim, ...]


@dataclass(frozen=True)
class Answer:
    """The answer to one specification.

    Attributes:
        specification: what was understood.
        system: the retriever that ranked.
        recommendations: best first.
        comparison, composition: statements about several servers.
        removals: what each hard constraint removed; `kept` servers met all of them.
        relax: (constraint, servers left without it), if too few are left.
    """

    specification: Specification
    system: str
    recommendations: tuple[Recommendation, ...]
    comparison: tuple[Claim, ...] = ()
    composition: tuple[Claim, ...] = ()
    removals: tuple[Removal, ...] = ()
    kept: int = 0
    relax: tuple[tuple[str, int], ...] = ()
    checks: Checks = field(default_factory=Checks)

    @property
    def ids(self) -> list[int]:
        """Ids of the recommended servers, best first."""
        return [item.server_id for item in self.recommendations]

    def claims(self) -> list[Claim]:
        """Every claim of the answer."""
        single = [claim for item in self.recommendations for claim in (*item.why, *item.tradeoffs, *item.adoption)]
        return [*single, *self.comparison, *self.composition]


def template(context: Context, ids: list[int]) -> tuple[tuple[Recommendation, ...], list[Claim], list[Claim]]:
    """Recommendations, comparison and composition by the rules alone; `ids` are the servers of the context."""
    items = tuple(
        Recommendation(rank, server, context.evidence[server], *(tuple(part) for part in parts.values()))
        for rank, server in enumerate(ids, start=1)
        for parts in (comparing.sections(context, server),)
    )
    return items, comparing.compare(context), comparing.composition(context)


def evidence_data(evidence: Evidence) -> dict[str, Any]:
    """Fields with values and sources, links apart (they are checked addresses), and the score with its parts."""
    fields = [
        {"field": name, "value": value, "source": source(name)}
        for name, value in evidence.fields.items()
        if value and name not in LINKS
    ]
    links = [
        {"field": name, "url": evidence.fields[name], "source": source(name)} for name in LINKS if evidence.fields[name]
    ]
    return {"fields": fields, "links": links, "scores": dict(evidence.scores)}


def claim_data(claim: Claim) -> dict[str, Any]:
    """A claim with the sources of its fields in words."""
    return {
        "text": claim.text,
        "rule": claim.rule,
        "servers": list(claim.servers),
        "sources": [source(name) for name in claim.fields],
    }


def recommendation_data(item: Recommendation, excerpt: int, name: int) -> dict[str, Any]:
    """A recommendation as plain data; the author's own description is quoted up to `excerpt` characters."""
    from study.agent.text import plain

    return {
        "rank": item.rank,
        "server_id": item.server_id,
        "name": plain(item.evidence.fields["name"], name),
        "description": plain(item.evidence.fields["description"], excerpt),
        **{key: [claim_data(claim) for claim in getattr(item, key)] for key in ("why", "tradeoffs", "adoption")},
        "evidence": evidence_data(item.evidence),
    }


def data(answer: Answer, *, excerpt: int, name: int) -> dict[str, Any]:
    """The answer as plain data for the page, the MCP server and `--json`."""
    return {
        "specification": asdict(answer.specification),
        "system": answer.system,
        "recommendations": [recommendation_data(item, excerpt, name) for item in answer.recommendations],
        "comparison": [claim_data(claim) for claim in answer.comparison],
        "composition": [claim_data(claim) for claim in answer.composition],
        "removals": [asdict(item) for item in answer.removals],
        "kept": answer.kept,
        "relax": [{"constraint": constraint, "left": left} for constraint, left in answer.relax],
        "checks": asdict(answer.checks),
    }
