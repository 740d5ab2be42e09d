"""The checkers of the paper's reliability module (section 6.3) for a language model's text: format, correctness, truth.

A sentence has support if it cites fields that are there, all its words but those of grammar and a few that join stand
in these fields, inflected at most, and no word that it shares with them is denied on one side alone. The request is no
support: what was asked for is not thereby offered. What fails is removed and counted. Sentences of rules need no check
when the agent runs; the tests hold the rules to the evidence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import replace

from study.agent.answer import Answer, Recommendation
from study.agent.claims import REQUEST, Claim, Context
from study.agent.specification import Vocabulary
from study.agent.text import WORD, content_words, phrase, root

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
MARKUP = re.compile(r"://|www\.|\]\(|<\w|`")
# Where the reach of a denial ends.
CLAUSE = re.compile(r"[.,;:!?()\n]|\bbut\b", re.I)
DENIAL = re.compile(
    r"\b(?:no|not|never|without|neither|nor|none|lacks?|lacking|cannot|hardly|barely|scarcely|rarely|seldom|unable|"
    r"fail(?:s|ed|ing)?\s+to|refus(?:es?|ed|ing)\s+to|exclud(?:es?|ed|ing)|except|instead of|rather than|far from|"
    r"non(?=-))\b|n['’]t\b",
    re.I,
)
# These deny what stands before them too: "an API key is not needed".
BACKWARDS = re.compile(r"not|never|cannot|hardly|barely|scarcely|rarely|seldom|excluded|n['’]t", re.I)
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


def supported(text: str, held: Mapping[str, str], context: Context, vocabulary: Vocabulary, share: float) -> bool:
    """Whether a sentence says no more than the cited fields do.

    Args:
        held: cited field -> its value.
        share: of the sentence's words, beside grammar and names of the cited fields, that must stand in the values, in
            [0, 1]; the others may only be joining words.
    """
    values = " \n ".join(held.values())
    if MARKUP.search(text):
        return False
    if not set(NUMBER.findall(text)) <= set(NUMBER.findall(values)):
        return False
    names = (name for kind in ("language", "platform", "licence") for name in vocabulary.names[kind].values())
    if any(_named(name, text) and not _named(name, values) for name in names):
        return False
    if any(phrase(word).search(text) and not phrase(word).search(values) for word in context.words.strong):
        return False
    if turned(text, values):
        return False
    # What names the cited field ("its licence is ...") says no more than its value does.
    free = {*context.words.grammar, *(word for name in held for word in context.words.cited[name])}
    words = [word for word in _words(text) if word not in free]
    present = set(map(root, _words(values)))
    found = sum(root(word) in present for word in words)
    known = all(root(word) in present or word in context.words.joining for word in words)
    return known and found > 0 and found >= share * len(words)


def _words(text: str) -> list[str]:
    """All words of a text in lower case, one-letter ones too."""
    return WORD.findall(unicodedata.normalize("NFKC", text).lower())


def _named(name: str, text: str) -> bool:
    """Whether a text holds a name; one of one letter counts as a capital alone, being an article or an initial else."""
    return any(len(name) > 1 or match[0].isupper() for match in phrase(name).finditer(text))


def denied(text: str) -> tuple[set[str], set[str]]:
    """The content words of a text that a denial reaches, and those that stand outside of any: their roots."""
    inside: set[str] = set()
    outside: set[str] = set()
    for clause in CLAUSE.split(text):
        spots = list(DENIAL.finditer(clause))
        near = [clause[spot.end() :].split()[:REACH] for spot in spots]
        near += [clause[: spot.start()].split()[-REACH:] for spot in spots if BACKWARDS.fullmatch(spot[0])]
        # "needs no key" denies the need.
        near += [clause[: spot.start()].split()[-1:] for spot in spots if spot[0].lower() == "no"]
        reached = {root(word) for words in near for word in content_words(" ".join(words)).values()}
        inside |= reached
        outside |= {root(word) for word in content_words(DENIAL.sub(" ", clause)).values()} - reached
    return inside, outside


def turned(text: str, held: str) -> bool:
    """Whether a sentence denies a word that `held` states, or states one that `held` only denies."""
    (said_no, said_yes), (held_no, held_yes) = denied(text), denied(held)
    return bool((said_yes & held_no) - held_yes or (said_no & held_yes) - held_no)


def truthful(claim: Claim, context: Context, vocabulary: Vocabulary, share: float) -> bool:
    """Whether a sentence of a language model traces to the evidence that it cites; `share` as for `supported`."""
    if len(claim.servers) != 1 or claim.servers[0] not in context.evidence:
        return False
    fields = context.evidence[claim.servers[0]].fields
    cited = [name for name in claim.fields if name != REQUEST]
    if not cited or not all(fields.get(name) and name in context.words.cited for name in cited):
        return False
    return supported(claim.text, {name: fields[name] for name in cited}, context, vocabulary, share)


def filtered(answer: Answer, rules: Answer, context: Context, vocabulary: Vocabulary, share: float) -> Answer:
    """`answer` without the model's sentences that are not truthful, which are counted in its checks.

    A server that loses every reason gets those of the answer that `rules` made.
    """
    claims = removed = 0
    reasons = {item.server_id: item.why for item in rules.recommendations}
    items: list[Recommendation] = []

    def kept(said: Iterable[Claim]) -> tuple[Claim, ...]:
        return tuple(claim for claim in said if truthful(claim, context, vocabulary, share))

    for item in answer.recommendations:
        why, tradeoffs = kept(item.why), kept(item.tradeoffs)
        claims += len(item.why) + len(item.tradeoffs)
        removed += len(item.why) + len(item.tradeoffs) - len(why) - len(tradeoffs)
        items.append(replace(item, why=why or reasons.get(item.server_id, ()), tradeoffs=tradeoffs))
    checks = replace(answer.checks, claims=claims, removed=removed)
    return replace(answer, recommendations=tuple(items), checks=checks)


def checked(
    answer: Answer, rules: Answer, context: Context, vocabulary: Vocabulary, *, top: int, share: float
) -> Answer:
    """`answer` in a language model's words if it passes the checkers, else that of the `rules` with what was wrong."""
    result = filtered(answer, rules, context, vocabulary, share)
    problems = format_problems(result, top) + correctness_problems(result, rules.ids)
    if not problems:
        return result
    return replace(rules, checks=replace(result.checks, problems=tuple(problems), fallback=True, author="template"))
