"""The checkers of the paper's reliability module (section 6.3): format, correctness, truthfulness.

A claim of a rule is true if its rule, run again on the evidence, says the same, and its sentence, read without the
rule, holds for the evidence (`study.agent.verifying`). A sentence of a language model has support if it cites fields
that are there, its numbers, names, links, strong words and enough of its other words stand in these fields or in the
request, and no word that it shares with them is denied on one side alone. What fails is removed and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from study.agent import comparing, verifying
from study.agent.answer import Answer, Recommendation, template
from study.agent.claims import REQUEST, Claim, Context
from study.agent.specification import Vocabulary
from study.agent.text import content_words, phrase

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
MARKUP = re.compile(r"://|www\.|\]\(|<\w|`")
MODEL_RULE = "llm"
# Where the reach of a denial ends.
CLAUSE = re.compile(r"[.,;:!?()\n]|\bbut\b", re.I)
DENIAL = re.compile(r"\b(?:no|not|never|without|neither|nor|none|lacks?|lacking|cannot)\b|n['’]t\b", re.I)
# These deny what stands before them too: "an API key is not needed".
BACKWARDS = re.compile(r"not|never|cannot|n['’]t", re.I)
# Words on either side that a denial reaches.
REACH = 5


def format_problems(answer: Answer, top: int) -> list[str]:
    """What is missing or out of place in an answer; empty if nothing."""
    items = answer.recommendations
    problems = []
    if len(items) > top:
        problems.append(f"{len(items)} servers, at most {top} were asked for")
    if [item.rank for item in items] != list(range(1, len(items) + 1)):
        problems.append("the places are not 1, 2, 3, ...")
    for item in items:
        missing = [name for name in ("why", "adoption") if not getattr(item, name)]
        if missing:
            problems.append(f"server {item.server_id} lacks {' and '.join(missing)}")
    return problems


def correctness_problems(answer: Answer, ids: list[int]) -> list[str]:
    """Where an answer differs from the shortlist `ids` that was ranked and filtered."""
    problems = []
    if answer.ids != ids:
        problems.append("its servers or their order differ from the shortlist")
    for item in answer.recommendations:
        if item.evidence.server_id != item.server_id:
            problems.append(f"server {item.server_id} carries another server's evidence")
    strangers = {server for claim in answer.claims() for server in claim.servers} - set(ids)
    if strangers:
        problems.append(f"it speaks of servers outside the shortlist: {sorted(strangers)}")
    return problems


def supported(text: str, values: Iterable[str], context: Context, vocabulary: Vocabulary, share: float) -> bool:
    """Whether a sentence says no more than the cited `values` and the request do.

    Args:
        share: of the sentence's content words that must stand in values or request, in [0, 1].
    """
    held = " \n ".join(values)
    allowed = f"{held} \n {context.specification.intent}"
    if MARKUP.search(text):
        return False
    if not set(NUMBER.findall(text)) <= set(NUMBER.findall(held)):
        return False
    names = (name for kind in ("language", "platform", "licence") for name in vocabulary.names[kind].values())
    # One-letter languages are also articles and initials.
    if any(phrase(name).search(text) and not phrase(name).search(held) for name in names if len(name) > 1):
        return False
    if any(phrase(word).search(text) and not phrase(word).search(allowed) for word in context.words.strong):
        return False
    if turned(text, held):
        return False
    words = content_words(text, frozenset(context.words.filler))
    present = content_words(allowed)
    return bool(words) and sum(word in present for word in words) >= share * len(words)


def denied(text: str) -> tuple[set[str], set[str]]:
    """The content words of a text that a denial reaches, and those that stand outside of any: singular forms."""
    inside: set[str] = set()
    outside: set[str] = set()
    for clause in CLAUSE.split(text):
        spots = list(DENIAL.finditer(clause))
        near = [clause[spot.end() :].split()[:REACH] for spot in spots]
        near += [clause[: spot.start()].split()[-REACH:] for spot in spots if BACKWARDS.fullmatch(spot[0])]
        reached = {word for words in near for word in content_words(" ".join(words))}
        inside |= reached
        outside |= set(content_words(clause)) - reached
    return inside, outside


def turned(text: str, held: str) -> bool:
    """Whether a sentence denies a word that `held` states, or states one that `held` only denies."""
    (said_no, said_yes), (held_no, held_yes) = denied(text), denied(held)
    return bool((said_yes & held_no) - held_yes or (said_no & held_yes) - held_no)


def truthful(claim: Claim, context: Context, vocabulary: Vocabulary, share: float) -> bool:
    """Whether a claim traces to the evidence that it cites."""
    if claim.rule != MODEL_RULE:
        return comparing.again(context, claim) and verifying.holds(context, claim)
    if len(claim.servers) != 1 or claim.servers[0] not in context.evidence:
        return False
    fields = context.evidence[claim.servers[0]].fields
    cited = [name for name in claim.fields if name != REQUEST]
    if not cited or not all(fields.get(name) for name in cited):
        return False
    return supported(claim.text, [fields[name] for name in cited], context, vocabulary, share)


def filtered(answer: Answer, context: Context, vocabulary: Vocabulary, share: float) -> Answer:
    """`answer` without the claims that are not truthful, which are counted in its checks.

    A server that loses every reason gets those of the rules.
    """
    total = len(answer.claims())

    def kept(claims: Iterable[Claim]) -> tuple[Claim, ...]:
        return tuple(claim for claim in claims if truthful(claim, context, vocabulary, share))

    def repaired(item: Recommendation) -> Recommendation:
        parts = {name: kept(getattr(item, name)) for name in ("why", "tradeoffs", "adoption")}
        return replace(item, **parts)  # type: ignore[arg-type]

    items = tuple(repaired(item) for item in answer.recommendations)
    result = replace(answer, recommendations=items, comparison=kept(answer.comparison),
                     composition=kept(answer.composition))  # fmt: skip
    removed = total - len(result.claims())
    if removed:
        result = replace(result, recommendations=tuple(_refilled(item, context) for item in items))
    checks = replace(answer.checks, claims=answer.checks.claims + total, removed=answer.checks.removed + removed)
    return replace(result, checks=checks)


def _refilled(item: Recommendation, context: Context) -> Recommendation:
    if item.server_id not in context.evidence or (item.why and item.adoption):
        return item
    parts = comparing.sections(context, item.server_id)
    return replace(item, why=item.why or tuple(parts["why"]), adoption=item.adoption or tuple(parts["adoption"]))


def checked(
    answer: Answer, context: Context, vocabulary: Vocabulary, *, ids: list[int], top: int, share: float
) -> Answer:
    """`answer` if it passes the checkers, else the template answer over the shortlist `ids`, with the reasons."""
    result = filtered(answer, context, vocabulary, share)
    problems = format_problems(result, top) + correctness_problems(result, ids)
    if not problems:
        return result
    items, comparison, composition = template(context, ids)
    checks = replace(result.checks, problems=tuple(problems), fallback=True, author="template")
    return replace(answer, recommendations=items, comparison=tuple(comparison), composition=tuple(composition),
                   checks=checks)  # fmt: skip
