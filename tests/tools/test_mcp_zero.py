"""Request blocks, routing, the needle grid and the loop: by hand and with a scripted agent."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.advisor.retrieval import route as routing
from study.advisor.retrieval.documents import Server, Tool, ToolCatalog
from study.advisor.retrieval.route import PAPER, Request, Router, Routing, best_servers, combine
from study.base.errors import StudyError
from study.tools import mcp_zero as experiments
from study.tools import request_log
from study.tools.collections.apibank import Call
from study.tools.discovery import hand_over
from study.tools.queries import QuerySet
from tests.tools.conftest import BLOCK

WHOLE = f"First {BLOCK.format('my files', 'read')} then {BLOCK.format('b', 'd: e')}"
OPEN = "<tool_assistant>\nserver: a\ntool: b"
MALFORMED = [OPEN, "<tool_assistant></tool_assistant>", "<tool_assistant>\ntool: b\nserver: a\n</tool_assistant>"]
MALFORMED += [f"<tool_assistant>\n{lines}\n</tool_assistant>" for lines in ("server: a", "server: \ntool: b")]
# An open block does not swallow the next.
REPLIES = [(WHOLE, "my files/read b/d: e", 0), (f"{OPEN}\n{BLOCK.format('c', 'd')}", "c/d", 1)]


@pytest.mark.parametrize(("reply", "expected", "malformed"), [*REPLIES, *((reply, "", 1) for reply in MALFORMED)])
def test_blocks_of_a_reply_and_malformed_ones(reply, expected, malformed):
    found = routing.parse_requests(reply)
    assert " ".join(f"{request.server}/{request.tool}" for request in found) == expected
    assert routing.count_malformed(reply) == malformed


@given(st.text(max_size=400))
def test_parsing_is_total(reply):
    assert routing.count_malformed(reply) >= 0
    assert all(request.server and request.tool for request in routing.parse_requests(reply))


def test_equation_one_is_clipped_and_routing_by_hand():
    s, t = np.array([0.5, -0.5, -0.5, 0.9], np.float32), np.array([0.8, -0.8, 0.8, 0.1], np.float32)
    np.testing.assert_allclose(routing.zero_score(s, t), [0.5 * 0.8 * 0.8, 0, 0, 0.9 * 0.1 * 0.9], rtol=1e-6)
    np.testing.assert_allclose(routing.zero_score(s, t, "sum"), [1.3, 0, 0.8, 1.0], rtol=1e-6)
    np.testing.assert_allclose(routing.zero_score(s, t, "product"), [0.4, 0, 0, 0.09], rtol=1e-5)
    servers, tools = np.array([[0.9, 0.5, 0.1]], np.float32), np.array([[0.2, 0.8, 1.0]], np.float32)
    of, expected = np.arange(3), [0.9 * 0.2 * 0.9, 0.5 * 0.8 * 0.8, -np.inf]
    assert combine(servers, tools, of, Routing(servers=2))[0].tolist() == pytest.approx(expected)
    absent = np.array([[-np.inf, 0.5, 0.1]], np.float32)
    assert np.isneginf(combine(absent, tools, of, Routing(servers=None))[0]).tolist() == [True, False, False]
    assert best_servers(np.array([[0.5, 0.5, 0.5]]), 1).tolist() == [[True, False, False]]
    for wrong in ({"servers": 0}, {"floor": -0.1}, {"floor": 1.0}):
        with pytest.raises(StudyError, match="not a routing"):
            Routing(**wrong)


def test_router_takes_the_better_of_description_and_summary(catalog, embedder):
    routers = [Router(catalog, Routing(matching=kind), embedder) for kind in ("description", "summary", "max")]
    described, summed, both = (own.server_scores(["send mail"]) for own in routers)
    np.testing.assert_allclose(both, np.maximum(described, summed))
    assert (described != summed).any()
    scores = Router(catalog, Routing(servers=1), embedder).scores([Request("mail", "write a file")])
    assert np.isfinite(scores[0]).tolist() == [False, False, True, True, False]
    whole = Router(catalog, Routing(score="tool", servers=None), embedder)
    assert whole.scores([Request("price", "send a mail")])[0].argmax() == 2


def test_a_server_unlike_the_request_does_not_hide_its_tools():
    servers, tools, of = (
        np.array([[-0.1, 0.2]], np.float32),
        np.array([[0.9, 0.3, 0.2]], np.float32),
        np.array([0, 0, 1]),
    )
    assert combine(servers, tools, of, replace(PAPER, servers=None))[0].tolist() == pytest.approx([0, 0, 0.2**3])
    floor = [0.05 * 0.9 * 0.9, 0.05 * 0.3 * 0.3, 0.2**3]
    assert combine(servers, tools, of, Routing())[0].tolist() == pytest.approx(floor)


def test_a_servers_name_is_part_of_its_text(embedder):
    servers = tuple(Server(name, name, "does things") for name in ("file", "map"))
    catalog = ToolCatalog("l", servers, (Tool(0, "a", "x"), Tool(1, "b", "x")))
    named, plain = (Router(catalog, Routing(matching="description", named=own), embedder) for own in (True, False))
    assert named.server_scores(["a map"])[0].argmax() == 1
    assert len(set(plain.server_scores(["a map"])[0].tolist())) == 1


def test_summaries_name_the_tools_and_are_cut(catalog):
    listed = "send: send a mail; write_file: write a mail to a file"
    assert routing.summaries(catalog)[1] == f"Mail. send mail Tools: {listed}"
    long = ToolCatalog("l", (Server("s", "S", "d"),), tuple(Tool(0, f"t{i}", "x" * 500 + "\nmore") for i in range(50)))
    assert len(routing.summaries(long)[0]) == len("S. d Tools: ") + 900
    assert "more" not in routing.summaries(long)[0]


def test_needle_grid_is_the_published_one_and_samples_group_tools_by_server(catalog):
    points = experiments.grid(2797)
    assert len(points) == 755
    assert len({size for size, _ in points}) == 44
    assert all(0 <= index < size for size, index in points)
    for seed in range(20):
        drawn = experiments.sample(catalog, 4, np.random.default_rng(seed))
        owners = catalog.server_of[drawn].tolist()
        assert len(set(drawn.tolist())) == 4
        assert len(dict.fromkeys(owners)) == sum(a != b for a, b in zip([None, *owners], owners, strict=False))
    assert experiments.sample(catalog, 99, np.random.default_rng(0)).tolist() == [0, 1, 2, 3, 4]


def test_needle_choice_looks_at_the_offer_only(catalog):
    servers, tools = np.array([0.9, 0.5, 0.1], np.float32), np.array([0.9, 0.8, 0.5, 0.4, 0.3], np.float32)
    for offered, chosen, routed in (([0, 2, 4], 0, Routing()), ([2, 3, 4], 2, Routing()), ([4], 4, Routing(servers=1))):
        found = experiments.first_choice(servers, tools, np.array(offered), catalog, routed, np.arange(5))
        assert found == chosen, offered


def test_foreign_words_for_the_same_tool(catalog):
    servers = Server("x", "Files MCP Server", "keeps files"), Server("y", "Mail", "")
    tools = Tool(0, "readFile", "opens and shows"), Tool(0, "write_file", "Write a file!"), Tool(1, "send", "posts")
    # write_file has the same words; Mail has no server text, so its name stands in.
    found = [(0, Request("keeps files", "opens and shows")), (2, Request("Mail", "posts"))]
    assert experiments.pairs(catalog, [ToolCatalog("o", servers, tools)]) == found
    # Near copies are not written apart.
    text = "Read the whole file at the given path and return its content as text."
    assert not experiments.independent(text, text.upper())
    assert not experiments.independent(text, text.replace("whole ", ""))
    assert experiments.independent(text, "Opens what lies there and shows it, line by line.")


def test_tools_of_all_requests():
    scores = np.array([[3, 2, 1, 0.0], [0, 3, 2, 1], [1, 0, 0, 2]], np.float32)
    handed = hand_over(scores, [0, 0, 2], 3, (1, 3))
    assert handed[1] == [[0, 1], [], [3]]
    assert [len(rows) for rows in request_log.same_number(scores, handed)[1]] == [2, 0, 1]


def test_api_bank_query_forms():
    call = Call("f:3", (("User", "hi"), ("API", "[A()] Response: {}"), ("AI", "ok"), ("User", "now")), 0, (0,), False)
    expected = {"last_user": "now", "user_lines": "hi\nnow", "last_two": "AI: ok\nUser: now"}
    expected["dialogue"] = "User: hi\nAI: ok\nUser: now"
    whole = "User: hi\nAPI: [A()] Response: {}\nAI: ok\nUser: now\nGenerate API Request:"
    for form, text in (expected | {"dialogue_with_api_lines": whole}).items():
        assert experiments.query(call, form) == text


def test_trials_of_one_target_and_calls_of_one_dialogue_share_a_group():
    trials = [experiments.Point(10, 3), experiments.Point(30, 3), experiments.Point(10, 4)]
    queries = experiments.trials_as_queries(trials, {3: Request("a", "b"), 4: Request("c", "d")})
    assert queries.ids == ("10:3", "30:3", "10:4")
    assert queries.groups == ("3", "3", "4")

    calls = [Call("f:1", (), 0, (0,), True), Call("f:3", (), 1, (0,), False), Call("g:1", (), 1, (1,), True)]
    assert experiments.queries_of(calls, ["x", "y", "z"]).groups == ("f", "f", "g")


def test_measures_of_the_log_by_hand(catalog):
    queries = QuerySet("q", ("a", "b"), ("x", "y"), (((2, 1),), ((4,),)), ("a", "b"))
    found = request_log.server_measures(np.array([[0.1, 0.2, 0.9], [0.9, 0.5, 0.1]], np.float32), catalog, queries)
    # The first label is served by the servers 0 and 1, of which 1 is ranked second; the other server is third.
    assert found["mrr"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert (found["hit_rate@1"], found["hit_rate@3"]) == (0, 1)
    ranked = np.array([[1, 2, 3, 9], [4, 5, 6, 9], [7, 8, -1, -1]])
    found = request_log.agreement(ranked, [(1, 3, 5), (6,), ()])
    assert found == {"requests": 3, "same_first": pytest.approx(1 / 3), "jaccard@3": pytest.approx((2 / 4 + 1 / 3) / 3)}
    queries = QuerySet("r", ("a", "b"), ("x", "y"), (((2,),), ((4,),)), ("a", "b"))
    table = request_log.executed({"own": np.array([[2, 1, 0], [0, 1, 4]])}, queries, 5).iloc[0]
    assert (table["requests"], table["hit_rate@1"], table["hit_rate@3"]) == (2, 0.5, 1)
