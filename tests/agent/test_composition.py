"""Two servers are named together only if each brings a part of its own: a rare word of the request, or two words."""

from dataclasses import replace

import pytest

from study.agent import comparing, verifying
from study.agent.agent import Agent
from study.agent.retrieval import Lexical
from study.agent.specification import Specification

FILLER = [
    (number, f"Helper {number}", "Manage project data and share reports", "Python", "mit", "", 1, "non-official", "")
    for number in range(100, 160)
]
ROWS = [
    (1, "Crawler", "Crawl pages with a browser", "Python", "mit", "", 5, "non-official", ""),
    (2, "Charts", "Draw charts and manage data", "Python", "mit", "", 5, "non-official", ""),
    (3, "Crawl Helper", "Crawl pages, share reports, manage a project", "Python", "mit", "", 5, "non-official", ""),
    (4, "Sharing", "Share data", "Python", "mit", "", 5, "non-official", ""),
    *FILLER,
]


@pytest.fixture(scope="module")
def large(make_catalogue):
    data = make_catalogue(ROWS, name="large")
    return Agent(data, retriever=Lexical(data))


def context(agent, text, ids):
    spec = Specification(text)
    ranked, scores = agent.rank(spec)
    return agent.context(spec, ids, ranked, scores)


def pair(agent, text, ids):
    return [claim.servers for claim in comparing.composition(context(agent, text, ids))]


def test_rarity_is_counted_in_the_catalogue(large):
    found = context(large, "crawl pages, draw charts, manage data", [1, 2])
    # 60 fillers and servers 2 and 3 say "manage"; 60, 2 and 4 say "data"; "charts" stands in one server's texts twice.
    assert found.mentioned == {"crawl": 2, "page": 2, "draw": 1, "chart": 1, "manage": 62, "data": 62}
    assert found.rare == 10
    assert large.wording.rare(10_000) == 10_000 * large.wording.rare_share


@pytest.mark.parametrize(
    ("text", "ids", "servers"),
    [
        # 1 brings crawl and pages, 2 brings charts, a rare word.
        ("crawl pages and draw charts", [1, 2], [(1, 2)]),
        ("crawl pages into charts", [1, 2], [(1, 2)]),
        # "data" alone is too common to run a second server for.
        ("crawl pages of data", [1, 4], []),
        # Two common words are a part: share and data.
        ("crawl pages, share data", [1, 4], [(1, 4)]),
        # Both sides have a common word only.
        ("manage data", [3, 4], []),
        # 3 mentions everything by itself.
        ("crawl pages, share reports", [1, 3], []),
    ],
)
def test_common_words_make_no_pair(large, text, ids, servers):
    assert pair(large, text, ids) == servers


def test_of_several_pairs_the_one_with_rare_words_is_named(large):
    # 4 mentions "share" and "data"; 2 mentions "data", "draw" and "charts", and the last two are rare.
    assert pair(large, "crawl pages, share data, draw charts", [1, 4, 2]) == [(2, 1)]


def test_a_pair_of_a_common_word_does_not_hold(large):
    found = context(large, "crawl pages of data", [1, 4])
    lenient = replace(found, rare=float("inf"))
    (claim,) = comparing.composition(lenient)
    assert verifying.holds(lenient, claim)
    assert not verifying.holds(found, claim)


def test_words_weigh_by_rarity(large):
    found = context(large, "crawl pages, manage data", [1, 2])
    assert comparing.weight(found, ["crawl"]) == pytest.approx(1 / 3)
    assert comparing.weight(found, ["crawl", "data"]) == pytest.approx(1 / 3 + 1 / 63)
    assert comparing.own_part(found, ["crawl"], ["data"])
    assert not comparing.own_part(found, ["data"], ["crawl"])
    assert not comparing.own_part(found, ["crawl"], ["crawl"])
