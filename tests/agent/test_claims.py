"""Sentences of the rules: what tells servers apart is true of each of them, and false sentences are found."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.agent import checks, claims, comparing, verifying
from study.agent.claims import Claim
from study.agent.specification import Specification

SHARE = 0.6


def texts(claims):
    return [claim.text for claim in claims]


def test_comparison_and_composition(agent):
    answer = agent.recommend(Specification("captions and summary of videos"))
    assert set(answer.ids[:3]) == {11, 12, 17}
    together = answer.composition[0].text
    assert 'adds "' in together
    assert (
        "Together they mention 3 of the 3 words of your request; no single server here mentions more than 2."
        in together
    )
    _, claims = agent.compare(answer.specification, [12, 11])
    assert any("120 stars against 3" in text for text in texts(claims))
    assert any("must be official" in text for text in texts(claims))
    assert any('"captions" matters' in text for text in texts(claims))


def brute_force(evidence, word):
    """Whether one of the words of a server's texts is `word`, plurals alike; for texts in ASCII."""
    held = re.split("[^a-z]+", " ".join(evidence.fields[name] for name in claims.DESCRIPTIVE).lower())
    return word.removesuffix("s") in {other.removesuffix("s") for other in held}


REQUESTS = [
    "captions and summary of videos",
    "captions for videos without an API key",
    "query a local postgres database offline",
    "send mail and plot charts from tables",
    "explain transcripts, subtitles and captions of videos",
]


@given(st.sampled_from(REQUESTS), st.permutations([11, 12, 13, 14, 15, 16, 17]), st.integers(2, 7))
def test_what_tells_servers_apart_is_true_of_every_one_of_them(agent, text, order, count):
    ids = order[:count]
    spec = Specification(text, preferences=("latency", "privacy", "adoption"))
    ranked, scores = agent.rank(spec)
    context = agent.context(spec, ids, ranked, scores)
    made = [*comparing.compare(context), *comparing.composition(context)]
    assert len({claim.text for claim in made}) == len(made)
    for claim in made:
        assert checks.truthful(claim, context, agent.vocabulary, SHARE), claim
    divided = [claim for claim in made if claim.rule == "prefer_words"]
    for claim in divided:
        sides = claim.text.split("matter")
        having, rest = ([int(found) for found in re.findall(r"id (\d+)", side)] for side in sides)
        assert sorted([*having, *rest]) == sorted(ids)
        for word in re.findall('"([a-z]+)"', claim.text):
            assert [server for server in ids if brute_force(context.evidence[server], word)] == [
                server for server in ids if server in having
            ]


def test_two_servers_are_named_together_only_if_no_single_one_mentions_as_much(agent):
    spec = Specification("captions for videos, summarise transcripts")
    ranked, scores = agent.rank(spec)

    def together(ids):
        return comparing.composition(agent.context(spec, ids, ranked, scores))

    # 12 mentions videos, summarise and transcripts; 11 adds captions. 16 and 15 mention nothing.
    assert together([11, 12])[0].servers == (12, 11)
    assert together([16, 12, 15]) == []
    # 11 and 17 mention the same words; together with 12 three of three are beyond any one.
    assert together([11, 17]) == []
    one = Specification("captions for videos")
    ranked, scores = agent.rank(one)
    # Server 12 with any other covers both words, but 11 does so alone.
    assert comparing.composition(agent.context(one, [12, 11, 16], ranked, scores)) == []


LIES = {
    "shared": lambda true: lambda context, evidence: {} if evidence.server_id == 11 else true(context, evidence),
    "shown_cues": lambda true: lambda context, evidence, name: {} if evidence.server_id == 17 else {"fast": "name"},
}


@pytest.mark.parametrize("name", LIES)
def test_a_rule_that_errs_is_found_although_it_agrees_with_itself(agent, monkeypatch, name):
    spec = Specification("captions for videos, summarise transcripts", preferences=("latency",))
    lie = LIES[name](getattr(claims, name))
    for module in (claims, comparing):
        monkeypatch.setattr(module, name, lie)
    ranked, scores = agent.rank(spec)
    context = agent.context(spec, [11, 12, 17], ranked, scores)
    made = [
        *comparing.compare(context),
        *comparing.composition(context),
        *comparing.sections(context, 11)["why"],
        *comparing.sections(context, 11)["tradeoff"],
    ]
    false = [claim for claim in made if not verifying.holds(context, claim)]
    assert false
    assert all(comparing.again(context, claim) for claim in false)
    answer = agent.recommend(spec)
    assert answer.checks.removed > 0
    assert not any(claim in answer.claims() for claim in false)


FALSE = [
    ("prefer_words", 'Prefer “A” (id 11) if "captions" matters: id 12 does not mention it.'),  # 17 is left out
    ("prefer_words", 'Prefer “A” (id 11) if "captions" matters: id 12 and id 17 do not mention it.'),
    ("prefer_words", 'Prefer “A” (id 11) or “id 17” (id 12) if "captions" matters: id 17 does not mention it.'),
    ("prefer_words", 'Prefer “A” (id 11) or “B” (id 17) if "podcasts" matters: id 12 does not mention it.'),
    (
        "prefer_stars",
        "Prefer “B” (id 12) if a larger following matters: 121 stars against at most 3 (id 11 and id 17).",
    ),
    (
        "prefer_stars",
        "Prefer “B” (id 11) if a larger following matters: 3 stars against at most 120 (id 12 and id 17).",
    ),
    (
        "prefer_licence",
        "Prefer “A” (id 11) if you need a stated licence: the catalogue states none for id 12 and id 17.",
    ),
    ("prefer_official", "Prefer “A” (id 11) if it must be official: id 12 and id 17 are not marked so."),
    (
        "prefer_preference",
        "Prefer “A” (id 11) for latency: its own words speak for it, those of id 12 and id 17 do not.",
    ),
    ("prefer_language", "Main languages: Go for id 11 and id 17; Python for id 12. Prefer what you can maintain."),
    (
        "compose",
        '“A” (id 11) covers "captions" and "videos"; “B” (id 17) adds "transcripts". Together they mention '
        "3 of the 4 words of your request; no single server here mentions more than 2.",
    ),
    ("why_words", 'Its description mentions "transcripts" of your request.'),
    ("why_words", 'Its name mentions "videos" of your request.'),
    ("why_followed", "It has 3 stars; half of the catalogue has at most 7."),
    ("why_official", "The catalogue marks it as official."),
    ("why_language", "It is written in TypeScript, as you asked."),
    ("why_licence", "Its licence is mit, as you asked."),
    ("why_preference", 'Its own words speak for what you prefer (latency: "fast").'),
    ("why_rank", "By score it stands at place 1 of the whole catalogue (9.000)."),
    ("less_words", 'Nothing in its name, description or tool list mentions "captions".'),
    ("less_words", "None of its descriptive fields shares a word with your request; it was found by similarity alone."),
    ("less_licence", "The catalogue states no licence: ask before you use or change it."),
    ("less_licence", "gpl-3.0 is a copyleft licence: it can bind what you build on it."),
    ("less_active", "Its activity is 0 in the catalogue."),
    ("less_followed", "It has 2 stars, less than half of the catalogue (median 7)."),
    ("adopt_code", "Get the code: git clone https://github.com/example/other"),
    ("adopt_docker", "A Dockerfile is part of it."),
    ("adopt_key", "Its description speaks of an API key: “… videos with an API key …” Check what the README asks for."),
]


@pytest.mark.parametrize(("rule", "text"), FALSE, ids=[f"{rule} {number}" for number, (rule, _) in enumerate(FALSE)])
def test_false_sentences_do_not_hold(agent, rule, text):
    spec = Specification("captions for videos, summarise transcripts", preferences=("latency",))
    ranked, scores = agent.rank(spec)
    context = agent.context(spec, [11, 12, 17], ranked, scores)
    assert not verifying.holds(context, Claim("why", rule, text, (11,), ()))


@pytest.mark.parametrize(
    ("said", "held", "other"),
    [
        ("It requires an API key.", "works without an API key", True),
        ("An API key is needed.", "an API key is not needed", True),
        ("It does not need a key.", "needs a key", True),
        ("It needs no key.", "no key needed, works offline", False),
        ("Works offline.", "no key needed, works offline", False),
        ("It doesn't store data.", "stores data; never sends mail", True),
        ("It sends mail.", "stores data; never sends mail", True),
        ("It sends mail.", "never sends spam; sends mail", False),
    ],
)
def test_a_denied_word_is_not_stated_and_a_stated_one_not_denied(said, held, other):
    assert checks.turned(said, held) == other
