"""What the agent answers and says in one turn. `study.agent.presentation` makes JSON and Markdown of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from study.agent.claims import Claim, Context, Evidence, sections
from study.agent.specification import Removal, Specification


@dataclass(frozen=True)
class Checks:
    """What is known of a language model's part in an answer.

    Attributes:
        claims: sentences of a language model that were checked; `removed` of them had no support and were left out.
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


def template(context: Context, ids: list[int]) -> tuple[Recommendation, ...]:
    """Recommendations by the rules alone; `ids` are the servers of the context, best first."""
    return tuple(
        Recommendation(
            rank, server, context.evidence[server], *(tuple(part) for part in sections(context, server).values())
        )
        for rank, server in enumerate(ids, start=1)
    )


@dataclass(frozen=True)
class Turn:
    """What the agent says.

    Attributes:
        kind: question, answer, comparison, setup, reasons, or note.
        message: one or two sentences for the reader.
        specification: what is understood so far.
        options: for a question, values to choose from; any other text is welcome.
        answer: for an answer.
        number: of the answer that the turn shows or speaks about, counted from 1 in a conversation; 0 for none.
        claims, evidence: for a comparison, set-up or reasons.
    """

    kind: str
    message: str
    specification: Specification
    options: tuple[str, ...] = ()
    answer: Answer | None = None
    number: int = 0
    claims: tuple[Claim, ...] = ()
    evidence: tuple[Evidence, ...] = ()
