"""Sentences of the rules: with generated evidence each rule speaks exactly when it should, and what it says is true."""

import re
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from study.advisor.agent import claims
from study.advisor.agent.agent import Agent
from study.advisor.agent.claims import Context, Evidence, sections, shown_fields
from study.advisor.agent.retrieval import Lexical
from study.advisor.agent.settings import Setup, Words, read_conf
from study.advisor.agent.specification import Specification
from study.advisor.agent.text import STOP_WORDS, content_words, stem
from tests.advisor.agent.conftest import catalogue
from tests.advisor.agent.messages import MESSAGES, named_ids

WORDS, SETUP, MEDIAN = read_conf(Words), read_conf(Setup), 12.0
TEXTS = ("name", "description", "tools")
ASKED = ("captions", "video", "postgres", "queries", "charts")
POOL = (*ASKED, "caption", "videos", "chart", "fast", "local", "docker", "for", "of", "API key", "no API key", "mail")
COLUMNS = dict.fromkeys(["author", "origin", "web_url", "category_clean", "subcategory_clean"], "x")
COLUMNS["watching_count"] = 1


def several(values, most=2):
    return st.lists(st.sampled_from(values), max_size=most, unique=True)


SERVERS = st.fixed_dictionaries(
    {
        "name": several(POOL).map(" ".join),
        "description": several(POOL, 5).map(" ".join),
        "tools": several(POOL).map(", ".join),
        "language_tokens": several(["Python", "Go", "Klingon", "Dockerfile"]).map(", ".join),
        "system_tokens": several(["Linux", "macOS"]).map(", ".join),
        "license_clean": st.sampled_from(["", "mit", "gpl-3.0", "other"]),
        "official": st.sampled_from(["official", "non-official"]),
        "activity": st.integers(0, 1),
        "stars_count": st.sampled_from([0, 1, 9, 11, 12, 13, 30, 40, 4000]),
        "url": st.sampled_from(["", "https://github.com/a/b", "https://example.org/a/b", "javascript:alert(1)"]),
    }
)
REQUESTS = st.builds(
    Specification,
    st.just("x"),
    languages=several(["Python", "Go"]).map(tuple),
    platforms=several(["Linux", "Windows"]).map(tuple),
    licences=several(["mit", "gpl-3.0"]).map(tuple),
    preferences=several(["latency", "privacy", "adoption"]).map(tuple),
)


def context_of(spec, servers):
    evidence, asked = {}, {stem(word): word for word in ASKED}
    for number, server in enumerate(servers, start=11):
        scores = {"rank": float(number), "total": 1 / number}
        evidence[number] = Evidence(number, shown_fields(COLUMNS | server), scores)
    return Context(spec, asked, WORDS, SETUP, MEDIAN, dict.fromkeys(asked, 3), 10, evidence)


def held(fields):
    """Words of the request that a server's texts hold, plurals alike."""
    words = {word.removesuffix("s") for word in re.split("[^a-z]+", " ".join(fields[n] for n in TEXTS).lower())}
    return {stem(word) for word in ASKED if stem(word) in words | {f"{word}s" for word in words}}


def quoted(claim):
    """Words that a sentence quotes."""
    return {stem(word) for word in re.findall('"([a-z]+)"', claim.text)}


def cues(fields, preference):
    """Whether a server's own words speak for a preference."""
    shown = WORDS.preferences[preference]["shown"]
    return any(re.search(rf"\b{cue}\b", fields[name].lower()) for cue in shown for name in TEXTS)


def values(fields, name):
    return set(fields[name].split(", ")) - {""}


WHEN = {
    "why_words": lambda s, f: held(f),
    "why_language": lambda s, f: set(s.languages) & values(f, "languages"),
    "why_platform": lambda s, f: set(s.platforms) & values(f, "platforms"),
    "why_licence": lambda s, f: f["licence"] in s.licences,
    "why_official": lambda s, f: f["official"] == "official",
    "why_preference": lambda s, f: any(cues(f, name) for name in s.preferences),
    "why_followed": lambda s, f: int(f["stars"]) > MEDIAN,
    "why_rank": lambda s, f: True,
    "less_words": lambda s, f: len(held(f)) < len(ASKED),
    "less_licence": lambda s, f: f["licence"] != "mit",
    "less_platform": lambda s, f: s.platforms and not f["platforms"],
    "less_preference": lambda s, f: any(not cues(f, name) for name in s.preferences),
    "less_followed": lambda s, f: int(f["stars"]) < MEDIAN,
    "less_active": lambda s, f: f["activity"] == "0",
    "adopt_code": lambda s, f: True,
    "adopt_language": lambda s, f: values(f, "languages") & {"Python", "Go"},
    "adopt_docker": lambda s, f: "Dockerfile" in values(f, "languages"),
    "adopt_key": lambda s, f: re.search(r"\bapi key\b", f["description"].lower()),
    "adopt_client": lambda s, f: True,
}


@given(REQUESTS, SERVERS)
def test_a_rule_about_one_server_speaks_exactly_when_its_evidence_is_there(spec, server):
    context = context_of(spec, [server])
    fields = context.evidence[11].fields
    said = {claim.rule: claim for claims in sections(context, 11).values() for claim in claims}
    assert set(said) == {rule for rule, speaks in WHEN.items() if speaks(spec, fields)}
    for claim in said.values():
        assert claim.servers == (11,)
        assert set(claim.fields) <= {*fields, "request", "rank", "total", "conf/agent/setup.yaml"}
    if "why_words" in said:
        assert quoted(said["why_words"]) == held(fields)
        of = [name for name in TEXTS if held(dict.fromkeys(TEXTS, "") | {name: fields[name]})]
        assert [name for name in TEXTS if name in said["why_words"].fields] == of
    if "less_words" in said and held(fields):
        assert quoted(said["less_words"]) == {stem(word) for word in ASKED} - held(fields)
    for rule in {"why_followed", "less_followed"} & set(said):
        assert f"It has {fields['stars']} star" in said[rule].text
    for rule in ("why_language", "why_platform"):
        assert rule not in said or all(f" {name}" in said[rule].text for name in WHEN[rule](spec, fields))
    for preference in spec.preferences:
        rule = "why_preference" if cues(fields, preference) else "less_preference"
        assert preference in said[rule].text
    assert ("git clone" in said["adopt_code"].text) == ("github.com" in fields["repository_link"])
    assert "javascript:" not in said["adopt_code"].text


@given(REQUESTS, st.lists(SERVERS, min_size=2, max_size=5))
def test_what_tells_servers_apart_is_true_of_every_one_of_them(spec, servers):
    context = context_of(spec, servers)
    fields = {server: evidence.fields for server, evidence in context.evidence.items()}
    made = claims.compare(context)
    assert len({claim.text for claim in made}) == len(made)
    for claim in made:
        # Each sentence names every server once: those to prefer, then all others.
        assert sorted(claim.servers) == sorted(named_ids(claim.text)) == sorted(fields)
        if claim.rule == "prefer_language":
            continue
        having = named_ids(re.split(" if | for ", claim.text)[0])
        rest = [server for server in fields if server not in having]
        assert having
        assert rest
        words, said = quoted(claim), [name for name in spec.preferences if name in claim.text]
        has = {
            "prefer_words": lambda f, words=words: words & held(f),
            "prefer_preference": lambda f, said=said: any(cues(f, name) for name in said),
            "prefer_licence": lambda f: f["licence"],
            "prefer_official": lambda f: f["official"] == "official",
        }
        if claim.rule == "prefer_stars":
            more = min(int(fields[server]["stars"]) for server in having)
            less = max(int(fields[server]["stars"]) for server in rest)
            assert more >= 3 * max(1, less)
            assert re.search(rf"\b{more} stars against (at most )?{less} ", claim.text)
        else:
            assert having == [server for server in fields if has[claim.rule](fields[server])]
    rules = [claim.rule for claim in made]
    assert ("prefer_licence" in rules) == (len({bool(f["licence"]) for f in fields.values()}) == 2)
    assert ("prefer_official" in rules) == (len({f["official"] for f in fields.values()}) == 2)


@given(st.lists(SERVERS, min_size=2, max_size=5))
def test_two_servers_are_named_together_only_if_no_single_one_mentions_as_much(servers):
    context = context_of(Specification("x"), servers)
    covers = {server: held(evidence.fields) for server, evidence in context.evidence.items()}
    single = max(map(len, covers.values()))
    pairs = [(a, b) for a, b in combinations(covers.values(), 2) if a - b and b - a]
    most = max((len(a | b) for a, b in pairs), default=0)
    made = claims.composition(context)
    assert bool(made) == (most > single)
    for claim in made:
        union = covers[claim.servers[0]] | covers[claim.servers[1]]
        assert len(union) == most
        assert f"mention {most} of the {len(ASKED)} words" in claim.text
        assert f"more than {single}." in claim.text


# A catalogue large enough for common words.
PLAIN = ("Python", "mit", "", 5, "non-official", "")
ROWS = [
    (1, "Crawler", "Crawl pages with a browser", *PLAIN),
    (2, "Charts", "Draw charts and manage data", *PLAIN),
    (3, "Crawl Helper", "Crawl pages, share reports, manage a project", *PLAIN),
    (4, "Sharing", "Share data", *PLAIN),
    *((number, f"Helper {number}", "Manage project data and share reports", *PLAIN) for number in range(100, 160)),
]


@pytest.fixture(scope="module")
def of_request():
    data = catalogue(ROWS, name="large")
    agent = Agent(data, retriever=Lexical(data))
    return lambda text, ids: agent.context(Specification(text), ids, *agent.rank(Specification(text)))


def test_rarity_is_counted_in_the_catalogue(of_request):
    found = of_request("crawl pages, draw charts, manage data", [1, 2])
    # 60 fillers and servers 2 and 3 say "manage"; 60, 2 and 4 say "data"; "charts" stands in one server's texts twice.
    assert found.mentioned == {"crawl": 2, "page": 2, "draw": 1, "chart": 1, "manage": 62, "data": 62}
    assert found.rare == 10
    assert claims.weight(found, ["crawl", "data"]) == pytest.approx(1 / 3 + 1 / 63)


@pytest.mark.parametrize(("text", "ids", "pair"), MESSAGES["pairs"])
def test_common_words_make_no_pair(of_request, text, ids, pair):
    made = claims.composition(of_request(text, ids))
    assert [list(claim.servers) for claim in made] == ([pair] if pair else [])


def test_stop_words_are_those_of_scikit_learn():
    assert STOP_WORDS == ENGLISH_STOP_WORDS


def test_a_word_is_counted_in_every_server_that_mentions_it(agent):
    counts = Counter(word for text, _ in agent.lowered for word in content_words(text))
    assert len(counts) > 20
    for word in [*counts, "xylophone"]:
        assert agent.mentioning(word) == counts[word]
