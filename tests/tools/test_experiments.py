"""Searches, requests, needles, API-Bank and the router by hand; result files and the tables made from them."""

import json
from dataclasses import replace
from itertools import count

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from study.advisor.retrieval.documents import Server, Tool, ToolCatalog
from study.advisor.retrieval.index import Settings, ToolIndex
from study.advisor.retrieval.route import Request, Router, Routing
from study.advisor.retrieval.texts import definition_tokens
from study.base import paths
from study.base.errors import StudyError
from study.data.dataset import Dataset, relevance_from_lists
from study.data.splits import Split
from study.evaluation import metrics
from study.evaluation.statistics import bootstrap_interval, cluster_interval, compare_all, randomisation
from study.tools import discovery, experiments, mcp_zero, results, router
from study.tools.collections import ApiCall
from study.tools.queries import QuerySet, credit
from study.tools.router import Stage
from tests.toy_tools import listing

QUERIES = QuerySet("q", ("a", "b"), ("x", "y"), (((0, 3), (1,)), ((4,),)), ("g", "g"))
TOOLS = np.array([[0.1, 0.9, 0.8, 0.3, 0.7]], np.float32)
GOOD = results.measure(np.array([[0, 1, 2], [4, 0, 1]]), QUERIES, 5, ks=(1, 2))
POOR = results.measure(np.array([[2, 0, 1], [0, 1, 2]]), QUERIES, 5, ks=(1, 2))


def array(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ((("a",), ("x",), (((1, 2), (2,)),), ("g",)), "overlap"),
        ((("a",), (), (), ()), "different length"),
        ((("a", "a"), ("x", "y"), (((1,),), ((2,),)), ("g", "g")), "repeats an id"),
    ],
)
def test_query_sets_are_checked(columns, reason):
    with pytest.raises(StudyError, match=reason):
        QuerySet("q", *columns)


@given(st.data())
def test_credit_finds_each_label_at_its_best_tool(data):
    n = data.draw(st.integers(2, 12))
    ranked = np.array([data.draw(st.permutations(range(n)))[: data.draw(st.integers(1, n))]])
    tools = data.draw(st.permutations(range(n)))
    cuts = sorted(data.draw(st.sets(st.integers(1, n), min_size=1, max_size=4)))
    labels = [tuple(tuple(tools[a:b]) for a, b in zip([0, *cuts], cuts, strict=False))]
    rewritten, relevant = credit(ranked, labels, n)
    for k in range(1, n + 1):
        expected = np.mean([bool(set(ranked[0, :k]) & set(label)) for label in labels[0]])
        assert metrics.recall(rewritten, relevant, k)[0] == pytest.approx(expected)


def test_measures_of_rankings_and_sets_by_hand():
    table = results.measure(np.array([[3, 0, 1, 2, 4], [0, 4, 1, -1, -1]]), QUERIES, 5, ks=(1, 2, 3))
    expected = {"recall@1": [0.5, 0], "recall@2": [0.5, 1], "precision@2": [0.5, 0.5], "recall@3": [1, 1]}
    assert table[[*expected, "mrr@5"]].to_dict("list") == expected | {"mrr@5": [1, 0.5]}
    table = results.measure_sets({3: [[2, 3, 1], []]}, QUERIES, 5)
    assert (table["recall@3"].tolist(), table["hit_rate@3"].tolist()) == ([1, 0], [1, 0])


def test_what_comes_out_again_keeps_its_record_and_its_seconds(project, catalog, monkeypatch):
    number, original = count(), results.record
    monkeypatch.setattr(results, "record", lambda **parts: original(**parts) | {"made": next(number)})
    extra = paths.tables("toy") / "extra.json"

    def write(first, second, seconds, **facts):
        more = (catalog, QUERIES), {"seconds": seconds} | facts
        runs = [results.Run("query", name, one, *more) for name, one in {"first": first, "second": second}.items()]
        results.write_results("toy", [*runs, results.Table("extra", pd.DataFrame({"a": [len(facts)]}), {"config": 3})])
        records = results.read_records("toy")
        stamps = [(records["query", name]["made"], records["query", name]["seconds"]) for name in ("first", "second")]
        return [*stamps, json.loads(extra.read_text())["made"]]

    assert write(GOOD, POOR, 1.5) == [(1, 1.5), (2, 1.5), 0]
    assert write(GOOD, POOR, 2.5) == [(1, 1.5), (2, 1.5), 0]
    assert write(GOOD, GOOD, 3.5) == [(1, 1.5), (3, 3.5), 0]
    assert write(GOOD, GOOD, 4.5, asks=2) == [(5, 4.5), (6, 4.5), 4]


def test_report_from_files(project, catalog):
    inputs = catalog, QUERIES
    results.write_results("toy", [results.Run("query", name, GOOD, inputs) for name in ("good", "poor")])
    # A run takes the place of the one of its name; the others stay.
    table = results.Table("extra", pd.DataFrame({"a": [1]}), {"config": 3})
    results.write_results("toy", [results.Run("query", "poor", POOR, inputs, {"config": {}}), table])
    stored = results.collect_runs("toy")["query"]["good"]
    pd.testing.assert_frame_equal(stored, GOOD, check_dtype=False, check_like=True)
    assert json.loads((paths.tables("toy") / "extra.json").read_text())["config"] == 3
    folder = results.report_runs("toy", {"query": ("poor", "recall@2"), "absent": ("x", "recall@2")}, {})
    table = pd.read_csv(folder / "metrics.csv.xz")
    assert list(table) == ["dataset", "protocol", "system", "profile", "seed", "metric", "k", "value"]
    cell = table.set_index(["system", "metric", "k"])["value"]
    at = [("good", "recall", 2), ("good", "completeness", 2), ("poor", "recall", 2), ("poor", "completeness", 2)]
    assert cell[at].tolist() == [1, 1, 0.25, 0]
    compared = pd.read_csv(folder / "significance.csv")
    assert compared[["system", "reference", "diff", "n"]].to_numpy().tolist() == [["good", "poor", 0.75, 2]]
    # Both queries have one origin: a single unit gives no interval.
    assert (compared["groups"].tolist(), compared["diff_ci_low"].isna().all()) == ([1], True)
    record = results.read_records("toy")["query", "good"]
    assert (record["profile"], record["embedder"]) == ("laptop", {"kind": "minilm"})
    assert record["catalogue_sha256"] == catalog.fingerprint()
    assert record["queries_sha256"] == QUERIES.fingerprint() != replace(QUERIES, texts=("x", "z")).fingerprint()
    pairs = results.report_runs("toy", {}, {"query": [("good", "poor", "recall@1"), ("good", "gone", "recall@1")]})
    compared = pd.read_csv(pairs / "significance.csv")[["system", "reference", "metric"]]
    assert compared.to_numpy().tolist() == [["good", "poor", "recall@1"]]
    records = paths.results("toy") / "records.jsonl"
    records.write_text(records.read_text().splitlines()[1])
    for name, reason in (("toy", "no record beside"), ("nothing", "no runs")):
        with pytest.raises(StudyError, match=reason):
            results.report_runs(name, {}, {})


def test_queries_of_one_origin_are_one_unit():
    origins = np.random.default_rng(0).normal(size=40)
    difference, groups = np.repeat(origins, 10), np.repeat(np.arange(40), 10).astype(str)
    low, high = cluster_interval(difference, groups, seed=1)
    naive = bootstrap_interval(difference, seed=1)
    # Ten copies of an origin tell no more than the origin.
    assert (low, high) == pytest.approx(bootstrap_interval(origins, seed=1), abs=0.03)
    assert high - low > 2.5 * (naive[1] - naive[0])
    groups = {"q0": "x", "q1": "x", "q2": "x", "q3": "y", "q4": "y", "q5": "z"}
    base = pd.DataFrame({"task_id": [*groups], "seed": 0})
    measured = {"a": [1.0, 1, 1, 1, 0, 1], "b": [0.0, 0, 0, 1, 1, 0]}
    frames = {name: base.assign(**{"hit_rate@1": values}) for name, values in measured.items()}
    plain = compare_all(frames, "b", ["hit_rate@1"], 0)
    row = results.compare_systems(frames, "b", "hit_rate@1", groups).iloc[0]
    assert (row["groups"], row["n"], row["diff"]) == (3, 6, plain["diff"][0])
    assert row["randomisation_p"] == randomisation(np.array([3.0, -1.0, 1.0]), seed=0) > plain["randomisation_p"][0]
    with pytest.raises(StudyError, match="no group"):
        results.compare_systems(frames, "b", "hit_rate@1", {"q0": "x"})


def test_measures_of_discovery_by_hand(catalog, embedder):
    queries = QuerySet("q", ("a", "b", "c"), ("x", "x", "y"), (((0,),), ((0,), (1, 2)), ((1,),)), ("g", "g", "h"))
    # What is popular knows nothing of its own unit.
    assert discovery.popularity(queries, queries.groups, 4).tolist() == [[0, 1, 0, 0], [0, 1, 0, 0], [2, 1, 1, 0]]
    queries = QuerySet("q", tuple("abcd"), tuple("wxyz"), (((0,),), ((0,),), ((1,),), ((4,),)), tuple("abcd"))
    table = pd.DataFrame({"task_id": list("abcd"), "seed": 0, "hit_rate@1": [1.0, 0.0, 0.0, 1.0]})
    (line,) = discovery.macro_means("s", table, (catalog, queries), ["hit_rate@1"])
    # Tools 0, 1 and 4 have 0.5, 0 and 1; server 0 has 1/3, server 2 has 1.
    assert (line["by_query"], line["by_tool"], line["by_server"]) == pytest.approx((0.5, 0.5, (1 / 3 + 1) / 2))
    assert (line["tools"], line["servers"], line["largest_server"]) == (3, 2, 0.75)
    queries, sizes = QuerySet("q", ("a",), ("read a file",), (((0,),),), ("g",)), definition_tokens(catalog)
    scores = ToolIndex(catalog, Settings(document="name_desc"), embedder).scores(queries.texts)
    table = discovery.by_k((catalog, queries), scores)
    assert table["token_reduction"].is_monotonic_decreasing
    # K = 10 hands over all five tools: nothing is saved.
    assert table["token_reduction"].iloc[-1] == pytest.approx(0)
    first = table.loc[0, ["precision", "recall", "hit_rate", "tokens", "tokens_by_characters"]].tolist()
    assert first == [1, 1, 1, sizes[0], len(json.dumps(catalog.tools[0].definition())) // 4]
    queries = QuerySet("q", ("a", "b"), ("x", "y"), (((0,), (1,)), ((4,),)), ("a", "b"))
    scores = array([0.9, 0.5, 0.4, 0.1, 0.0], [0.3, 0.2, 0.1, 0.0, 0.25])
    table = discovery.by_threshold((catalog, queries), scores, [0.4, 0.6], 2)
    # The first query keeps the tools 0 and 1, both right; the other falls back to its best two, of which 4 is right.
    columns = ["fell_back", "mean_tools", "precision", "recall", "hit_rate"]
    assert table.loc[0, columns].tolist() == [0.5, 2, 0.75, 1, 1]
    assert table["mean_tools"][1] == 1.5


def test_noisy_copies_are_unit_vectors():
    vectors, rng = np.eye(4, dtype=np.float32), np.random.default_rng(0)
    more = discovery.grown(vectors, 50, rng)
    np.testing.assert_array_equal(more[:4], vectors)
    np.testing.assert_allclose(np.linalg.norm(more, axis=1), 1, rtol=1e-5)
    assert (len(np.unique(more[4:], axis=0)), len(discovery.grown(vectors, 2, rng))) == (46, 2)


def test_requests_of_a_task_are_joined_by_hand():
    queries = QuerySet("q", ("a", "b"), ("x", "y"), (((0,), (11,)), ((4,),)), ("a", "b"))
    scores = np.zeros((3, 12), np.float32)
    # Two requests of the first task: one ranks tool 0 first, the other tool 11 fifth; the second task finds nothing.
    scores[0, 0], scores[1, :5] = 9, [9, 8, 7, 6, 0]
    scores[1, 11], scores[2, 5:] = 5, np.arange(9, 2, -1)
    table = results.measure_sets(discovery.hand_over(scores, [0, 0, 1], 2, (3, 10)), queries, 12)
    assert (table["recall@3"].tolist(), table["recall@10"][0], table["hit_rate@3"].tolist()) == ([0.5, 0], 1, [1, 0])
    scores = array([3, 2, 1, 0], [0, 3, 2, 1], [1, 0, 0, 2])
    handed = discovery.hand_over(scores, [0, 0, 2], 3, (1, 3))
    assert handed[1] == [[0, 1], [], [3]]
    assert [len(rows) for rows in mcp_zero.same_number(scores, handed)[1]] == [2, 0, 1]


def test_the_needle_grid_is_the_published_one_and_a_choice_looks_at_the_offer_only(catalog):
    points = mcp_zero.grid(2797)
    assert (len(points), len({size for size, _ in points})) == (755, 44)
    assert all(0 <= index < size for size, index in points)
    for seed in range(20):  # samples group tools by server
        sampled = mcp_zero.sample(catalog, 4, np.random.default_rng(seed))
        owners = catalog.server_of[sampled].tolist()
        assert len(set(sampled.tolist())) == 4
        assert len(dict.fromkeys(owners)) == sum(a != b for a, b in zip([None, *owners], owners, strict=False))
    assert mcp_zero.sample(catalog, 99, np.random.default_rng(0)).tolist() == [0, 1, 2, 3, 4]
    servers, tools = array(0.9, 0.5, 0.1), array(0.9, 0.8, 0.5, 0.4, 0.3)
    for offered, chosen, routed in (([0, 2, 4], 0, Routing()), ([2, 3, 4], 2, Routing()), ([4], 4, Routing(servers=1))):
        assert mcp_zero.first_choice(servers, tools, np.array(offered), catalog, routed, np.arange(5)) == chosen


def test_needles_by_hand(catalog, embedder, monkeypatch):
    """Each tool asked for in its own words: found alone or among two; tokens of the found one, and of the offer."""
    monkeypatch.setattr("study.advisor.encoders.choose.configured_embedder", lambda: embedder)
    tools = {row: catalog.tools[row] for row in (0, 4)}
    requests = {row: Request(catalog.servers[tool.server].description, tool.description) for row, tool in tools.items()}
    samples, trials = {1: np.array([0]), 2: np.array([0, 4])}, [(1, 0), (2, 0), (2, 4)]
    *runs, table = mcp_zero.needle_runs("p", catalog, trials, samples, requests, {"mcp_zero": mcp_zero.ROUTING})
    assert {run.system: run.table["hit_rate@1"].tolist() for run in runs} == {"mcp_zero": [1] * 3, "flat": [1] * 3}
    assert (runs[0].inputs[1].ids, runs[0].inputs[1].groups) == (("1:0", "2:0", "2:4"), ("0", "0", "4"))
    sizes, two = definition_tokens(catalog), table.frame.set_index(["system", "size"]).loc[("flat", 2)]
    assert two.tolist() == [2, 1, sizes[[0, 4]].mean(), sizes[[0, 4]].sum()]


def test_foreign_words_for_the_same_tool(catalog):
    servers = Server("x", "Files MCP Server", "keeps files"), Server("y", "Mail", "")
    tools = Tool(0, "readFile", "opens and shows"), Tool(0, "write_file", "Write a file!"), Tool(1, "send", "posts")
    # write_file has the same words; Mail has no server text, so its name stands in.
    expected = {0: Request("keeps files", "opens and shows"), 2: Request("Mail", "posts")}
    assert mcp_zero.pairs(catalog, [ToolCatalog("o", servers, tools)]) == expected
    # Near copies are not written apart.
    text = "Read the whole file at the given path and return its content as text."
    assert not any(mcp_zero.independent(text, other) for other in (text.upper(), text.replace("whole ", "")))
    assert mcp_zero.independent(text, "Opens what lies there and shows it, line by line.")


def test_forms_of_a_query_to_api_bank_and_groups_of_its_calls():
    lines = ("User", "hi"), ("API", "[A()] Response: {}"), ("AI", "ok"), ("User", "now")
    call = ApiCall("f:3", lines, 0, (0,), False)
    whole = "User: hi\nAPI: [A()] Response: {}\nAI: ok\nUser: now\nGenerate API Request:"
    expected = {"last_user": "now", "user_lines": "hi\nnow", "last_two": "AI: ok\nUser: now"}
    expected |= {"dialogue": "User: hi\nAI: ok\nUser: now", "dialogue_with_api_lines": whole}
    assert {form: mcp_zero.query(call, form) for form in expected} == expected
    calls = [call._replace(id=name) for name in ("f:1", "f:3", "g:1")]
    assert mcp_zero.queries_of(calls, ["x", "y", "z"]).groups == ("f", "f", "g")
    assert mcp_zero.last_tokens(["one two three", "one"], 2) == ["two three", "one"]


def test_names_that_can_be_one_server_and_entities_by_hand():
    texts = {"One": ("a", "b"), "One MCP server": ("b", "a"), "Two": ("a  b",), "X": ("a b",)}
    entities, groups = experiments.entity_tables([listing(name, *tools) for name, tools in texts.items()])
    expected = {"listings": 4, "entities": 2, "groups": 2, "listings_in_groups": 4, "names_disagree": 1}
    assert entities.frame.iloc[-1].to_dict() == {"catalogues": "One + One MCP server + Two + X"} | expected
    # No text of a tool leaves the catalogues.
    rows = [(1, "One", "", "s", 2, True), (1, "One MCP server", "", "s", 2, True)]
    rows += [(2, "Two", "", "s", 1, False), (2, "X", "", "s", 1, False)]
    assert list(groups.frame.itertuples(index=False, name=None)) == rows
    agree = {("GitHub MCP Server", "github"): True, ("Files", "files", "Mail"): False, ("MCP Server", "mcp"): False}
    for names, expected in agree.items():
        _, groups = experiments.entity_tables([listing(f"{name}", "a") for name in names])
        assert groups.frame["names_agree"].tolist() == [expected] * len(names)


def test_only_tools_of_the_best_servers_and_equal_ones_in_the_given_order(catalog):
    for keep, ranked in {1: [2, 3, -1, -1, -1], 2: [2, 4, 3, -1, -1], None: [1, 2, 4, 3, 0]}.items():
        assert router.route(array([0.2, 0.9, 0.5]), TOOLS, catalog.server_of, keep, np.arange(3)).tolist() == [ranked]
    for first in range(3):
        order = np.array([first, *(row for row in range(3) if row != first)])
        ranked = router.route(np.zeros((1, 3), np.float32), TOOLS, catalog.server_of, 1, order)[0]
        assert {int(catalog.server_of[row]) for row in ranked if row >= 0} == {first}


@pytest.mark.usefixtures("private_cache")
def test_stages_that_rank_servers(catalog, embedder):
    def scores(system, *texts):
        return router.server_scores(Stage(system, None, None), catalog, list(texts), seed=1, embedder=embedder)

    # Of the servers' own texts that of Files is nearest; of all texts that of a tool of Mail.
    task = "write a mail to a file"
    assert np.argmax(Router(catalog, embedder=embedder).server_vectors[0].cosines([task], store=False)) == 0
    # Counts of file, read, write, mail, map and route in the nearest texts, by hand; Maps shares no word.
    np.testing.assert_allclose(scores("tool_to_agent", task), [[4 / 24**0.5, 5 / 27**0.5, 0]], rtol=1e-6)
    np.testing.assert_allclose(router.oracle(catalog, [((0,), (1, 3)), ((4,),)]), [[1, 0.5, 0], [0, 0, 1]])
    for system in ("tfidf", "bm25", "mcp_zero"):  # the study's own systems rank servers that they never saw
        assert scores(system, "send a mail", "map and route").argmax(axis=1).tolist() == [1, 2]
    assert scores("all", "x").tolist() == [[0, 0, 0]]


def test_scores_of_a_trained_stage_are_kept_while_nothing_that_they_are_made_of_changes(catalog, tmp_path, monkeypatch):
    row, trained = ["row"], []

    def train(stage, catalog, texts, *, seed):
        trained.append(seed)
        return np.full((len(texts), len(catalog.servers)), len(trained) + 0.1, dtype=np.float32)

    monkeypatch.setattr(router, "server_scores", train)
    monkeypatch.setattr(router, "row_key", lambda _: row[0])
    monkeypatch.setattr(router.paths, "results", lambda name: tmp_path / name)

    def numbers(*texts, seed=1):
        scores = router.stored_scores(Stage("t2mrec", "task2mcp", "cold"), catalog, texts, seed=seed)
        assert (scores.shape, scores.dtype) == ((len(texts), len(catalog.servers)), np.float32)
        return set(scores.ravel().tolist())

    first = numbers("a mail", "a map")
    assert (numbers("a mail", "a map"), first) == (first, {np.float32(1.1).item()})
    assert numbers("a mail", "a file") != first  # other texts
    assert numbers("a mail", "a file", seed=2) == {np.float32(3.1).item()}
    row[0] = "of another version"
    assert numbers("a mail", "a file", seed=2) == {np.float32(4.1).item()}


def test_new_servers_and_tasks_stand_behind_the_base_without_labels(catalog):
    texts = ("language", "system", "tools", "category", "subcategory", "url", "author", "license")
    servers = pd.DataFrame({"id": [5, 9], "name": ["Old files", "Old mail"], "description": ["read file", "send mail"]})
    servers = servers.assign(**dict.fromkeys(texts, ""), stars_count=[3, 4], is_official=[True, False])
    tasks = pd.DataFrame({"id": [1, 2], "name": ["a", "b"], "description": ["x", "y"]})
    tasks = tasks.assign(**dict.fromkeys(("language", "category", "subcategory", "theme"), ""))
    lists = (np.array([0]), np.array([1]))
    base, nothing = Dataset("old", servers, tasks, relevance_from_lists(lists, 2), lists), sp.csr_matrix((2, 2))
    base_split = Split("cold", base.relevance, nothing.astype(np.float32), nothing.astype(np.float32), cold=True)
    data, split = router.joined(catalog, ["read it", "send it"], (base, base_split))
    assert (data.n_tasks, data.n_servers) == (4, 5)
    assert data.servers["id"].tolist() == [5, 9, 10, 11, 12]
    assert data.servers.dtypes.to_dict() == servers.dtypes.to_dict()
    assert data.server_texts()[2] == "Files \n read and write a file \n read_file, write_file"
    assert data.task_texts()[2] == "read it"
    assert split.train.toarray()[:2, :2].tolist() == [[1, 0], [0, 1]]
    assert split.train[2:].nnz == split.train[:, 2:].nnz == split.test.nnz == 0
    assert base_split.train.shape == (2, 2)  # the base itself is left alone


def test_measures_of_a_stage_by_hand(monkeypatch, catalog):
    monkeypatch.setattr(router, "definition_tokens", lambda _: np.array([10, 20, 30, 40, 50]))
    chosen = router.RouterSettings({"good": Stage("oracle", None, None)}, Settings(), (1, 2), 1, (30, 100), 0)
    inputs = catalog, QuerySet("q", ("a",), ("t",), (((1,), (4,)),), ("a",))
    runs, lines = router.measure_stage("good", (array([0.9, 0.1, 0.5]), TOOLS), inputs, chosen, {})
    by = pd.DataFrame(lines).set_index(["servers", "budget"])
    # One server: tools 1 (20 tokens) and 0 (10); two servers add tool 4 (50).
    assert by["server_recall"].tolist() == [0.5, 0.5, 1, 1]
    assert by["tokens_of_these_servers"].tolist() == [30, 30, 80, 80]
    assert by["tool_recall"].tolist() == [0.5, 0.5, 0.5, 1]
    assert by["tokens"].tolist() == [30, 30, 30, 80]
    measured = {run.protocol: run.table.drop(columns=["task_id", "seed"]).iloc[0].to_dict() for run in runs}
    assert measured["router_budget"] == {"recall@30": 0.5, "hit_rate@30": 1, "recall@100": 0.5, "hit_rate@100": 1}
    assert measured["router_servers"] == {"recall@1": 0.5, "hit_rate@1": 1, "recall@2": 1, "hit_rate@2": 1}
    assert measured["router"]["recall@1"] == 0.5


def test_credit_by_hand():
    # Labels: {1 or 3} and {4}. The first of 1 and 3 counts once, whichever it is.
    for ranked, hits in ([3, 1, 0], [1, 0, 0]), ([0, 3, 4], [0, 1, 1]), ([4, 0, 1], [1, 0, 1]), ([0, 2, -1], [0, 0, 0]):
        rewritten, relevant = credit(np.array([ranked]), [((1, 3), (4,))], 5)
        assert [int(row >= 0 and relevant[0, row] > 0) for row in rewritten[0]] == hits, ranked
        assert len(set(rewritten[0][rewritten[0] >= 0])) == (rewritten >= 0).sum()
