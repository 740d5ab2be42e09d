"""The paper's case on its own data."""

from dataclasses import replace

import pytest

from study.advisor.agent.agent import Agent
from study.advisor.agent.claims import sections
from study.advisor.agent.conversation import Conversation
from study.advisor.agent.retrieval import Dense, Lexical
from study.data.dataset import relevance_from_lists

pytestmark = pytest.mark.mirror
# Recommended in section 6.4 of the paper for marketing captions of videos.
SUMMARIZER, CAPTIONS = 5592, 5581
REQUEST = "Generate captions for YouTube videos, for marketing; easy to adopt"


def test_the_papers_two_servers_are_recommended(task2mcp, private_cache):
    released = task2mcp.data
    # Encoding the catalogue takes minutes, so the two compete with every server about video and with 100 others.
    video = released.servers["description"].str.contains("video|youtube|caption|subtitle", case=False)
    chosen = released.servers[video | (released.servers["id"] % 56 == 0)].reset_index(drop=True)
    assert len(chosen) > 150
    part = replace(released, servers=chosen, relevance=relevance_from_lists(released.lists[:0], len(chosen)), lists=())
    talk = Conversation(Agent(part, retriever=Dense(part)))
    answer = talk.say(REQUEST).answer
    assert answer.ids[:2] == [CAPTIONS, SUMMARIZER]
    said = {claim.rule for claim in answer.recommendations[0].why}
    assert "why_preference" in said  # it asks for no API key
    compared = talk.say(f"compare id {SUMMARIZER} and {CAPTIONS}")
    assert {"prefer_words", "prefer_stars", "prefer_preference"} <= {claim.rule for claim in compared.claims}


def test_every_server_of_the_release_can_be_shown_and_its_words_are_known(task2mcp):
    agent = Agent(task2mcp.data, retriever=Lexical(task2mcp.data))
    about = agent.describe()
    assert (about["servers"], about["platforms"]) == (5642, ["Linux", "macOS", "Windows"])
    assert {"Python", "Go", "C", "R"} <= set(about["languages"])
    assert "mit" in about["licences"]
    spec = agent.read("captions for videos in Python").specification
    ids = [int(server) for server in agent.ids[::7]]
    context = agent.context(spec, ids, *agent.rank(spec))
    for server in ids:
        parts = sections(context, server)
        assert parts["why"]
        assert parts["adoption"]
