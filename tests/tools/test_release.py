"""The published collections: every stated count, and the reference numbers that need no long embedding."""

import numpy as np
import pytest
import yaml

from study.advisor.retrieval.index import Settings, ToolIndex
from study.advisor.retrieval.texts import definition_tokens
from study.base import paths
from study.data import sources
from study.tools import collections, results
from study.tools import discovery as experiments
from study.tools.discovery import discovery_settings
from study.tools.flow import samples
from study.tools.intent import count
from study.tools.mcp_zero import by_pool, followed_requests, pairs, query, requests_of
from study.tools.queries import rank_all

pytestmark = pytest.mark.mirror
SIZES = {"livemcpbench": (70, 527, {"tasks": 94}), "mcptools": (308, 2797, {"atlas": 130}), "apibank": (1, 49, {})}
SIZES |= {"mcpflow": (1131, 9798, {"instructions": 1837})}
SIZES |= {"mcptoolbench": (6, 49, {"strict": 699, "equivalent": 699})}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("raw")
    files = {name: paths.conf() / f"dataset/{name}.yaml" for name in collections.LOADERS}
    configs = {name: yaml.safe_load(file.read_text()) for name, file in files.items()}
    return {name: sources.fetch(name, config, folder=base / name) for name, config in configs.items()}


@pytest.fixture(scope="module")
def loaded(folders):
    return {name: load(folders[name]) for name, load in collections.LOADERS.items()}


@pytest.fixture(scope="module")
def tasks(loaded):
    return loaded["livemcpbench"].catalog, loaded["livemcpbench"].queries["tasks"]


def test_sizes(loaded):
    sizes_of = {}
    for name, one in loaded.items():
        sizes = {key: len(value) for key, value in one.queries.items()}
        sizes_of[name] = len(one.catalog.servers), len(one.catalog.tools), sizes
    assert sizes_of == SIZES
    published = samples.load_samples(loaded["mcpflow"])
    tools, servers = {one.tool for one in published}, {one.server for one in published}
    assert (len(published), len(tools), len(servers)) == (1827, 82, 12)
    # No call of another group is the same call: copying one with its whole group left out can never be right.
    apart = {(one.tool, one.group): one.arguments for one in published}
    for (tool, group), arguments in apart.items():
        others = [given for (other, its), given in apart.items() if other == tool and its != group]
        right = samples.Sample("", "", tool, 0, arguments, group)
        assert not any(samples.measures(samples.Call(tool, given), right)["ast"] for given in others)


def test_mcptools_is_the_papers(loaded):
    catalog, queries = loaded["mcptools"].catalog, loaded["mcptools"].queries["atlas"]
    sizes = np.bincount(catalog.server_of)
    assert (round(sizes.mean(), 2), np.median(sizes), round(sizes.std(ddof=1), 2)) == (9.08, 5, 11.40)
    ten, asks = experiments.ten_servers(catalog, queries, discovery_settings().ten_servers)
    assert (len(ten.tools), len(asks)) == (146, 130)
    matches = pairs(catalog, [loaded[name].catalog for name in ("livemcpbench", "mcpflow")])
    assert (len(matches), len({catalog.tools[row].server for row in matches})) == (424, 83)


def test_livemcpbench_labels_and_log(tasks, folders):
    catalog, queries = tasks
    assert sum(map(len, queries.labels)) == 251
    assert definition_tokens(catalog).sum() == 136_672
    episodes = collections.load_log(folders["livemcpbench"], catalog)
    assert (len(episodes), sum(episode.success for episode in episodes)) == (95, 67)
    runs = [run for episode in episodes for run in episode.executions]
    ran = [run.tool for run in runs if run.tool is not None]
    assert (len(runs), len(ran), len(set(ran))) == (531, 528, 123)
    assert sum(run.ok for run in runs) / len(runs) == pytest.approx(0.799, abs=0.01)
    asks = followed_requests(episodes)
    assert (len(asks.queries), len(set(asks.queries.groups))) == (142, 91)
    # 105 of the tools that were run had been shown just before: the agent could hardly run any other.
    assert sum(selected[0] in row for selected, row in zip(asks.selected, asks.returned, strict=True)) == 105
    past = count(episodes, len(catalog.tools))
    assert (past.calls.sum(), (past.calls.sum(axis=0) > 0).sum()) == (528, 123)
    requests, _, malformed = requests_of(episodes, [episode.task for episode in episodes])
    assert (len(requests), malformed) == (282, 1)


def test_the_pool_of_the_reference_scores(loaded, tasks, folders, monkeypatch):
    monkeypatch.setattr(experiments.paths, "raw", lambda name: folders[name] if name else folders["mcpflow"].parent)
    small, queries = tasks
    named = experiments.pools(small, *(loaded[name].catalog for name in ("mcptools", "mcpflow")))
    assert [len(pool.tools) for _, pool in named] == [527, 3298, 12_412, 12_618]
    whole = named[-1][1]
    ranked = rank_all(ToolIndex(whole, experiments.SYSTEMS["bm25_name_desc"]).scores(queries.texts))
    means = results.measure(ranked, queries, len(whole.tools)).mean(numeric_only=True)
    measured = means[["mrr@12618", "hit_rate@5", "recall@10"]].tolist()
    assert measured == pytest.approx([0.180, 0.255, 0.157], abs=0.01)


@pytest.mark.slow
def test_api_bank(loaded, folders):
    """Top-1 of the last two lines, wording of all_apis.csv: .524 .514 of all APIs, .901 .842 of the dialogue's."""
    catalog = loaded["apibank"].catalog
    calls = collections.api_calls(folders["apibank"], catalog)
    first, later = ([call for call in calls if call.first is first_call] for first_call in (True, False))
    assert (len(calls), len(first), len({call.tool for call in calls})) == (389, 212, 49)
    assert sum(len(call.pool) == 1 for call in first) == 97
    chance = [np.mean([1 / len(call.pool) for call in part]) for part in (first, later)]
    assert chance == pytest.approx([0.697, 0.422], abs=0.001)
    (usual,) = catalog.rows_by_name["GetUserToken"]
    majority = [np.mean([call.tool == usual for call in part]) for part in (first, later)]
    assert majority == pytest.approx([0.321, 0.079], abs=0.001)
    assert all(query(call, "last_user") for call in calls)
    narrow = collections.narrowly_read(folders["apibank"], catalog)
    assert sum(not tool.description for tool in narrow.tools) == 2
    scores = ToolIndex(narrow, Settings(document="desc")).scores([query(call, "last_two") for call in calls])
    right = [ranked[:, 0] == [call.tool for call in calls] for ranked in by_pool(scores, calls).values()]
    hits = [ranked[[call.first is part for call in calls]].mean() for ranked in right for part in (True, False)]
    assert hits == pytest.approx([0.524, 0.514, 0.901, 0.842], abs=0.001)


@pytest.mark.parametrize(
    ("mode", "document", "mrr", "hit", "recall"),
    [
        ("bm25", "server", 0.415, (0.298, 0.479, 0.532, 0.638), (0.255, 0.309, 0.416, 0.516)),
        ("tfidf", "server", 0.434, (0.319, 0.457, 0.564, 0.691), (0.252, 0.337, 0.427, 0.544)),
        pytest.param(
            *("hybrid", "server", 0.441, (0.298, 0.500, 0.596, 0.745), (0.308, 0.370, 0.498, 0.579)),
            marks=pytest.mark.slow,  # embeds every tool
        ),
    ],
)
def test_reference_rows_of_search(tasks, mode, document, mrr, hit, recall):
    catalog, queries = tasks
    index = ToolIndex(catalog, Settings(mode, document))
    ranked = rank_all(index.scores(queries.texts), order=index.order)
    means = results.measure(ranked, queries, 527).mean(numeric_only=True)
    assert means["mrr@527"] == pytest.approx(mrr, abs=0.01)
    assert [means[f"hit_rate@{k}"] for k in (1, 3, 5, 10)] == pytest.approx(hit, abs=0.01)
    assert [means[f"recall@{k}"] for k in (3, 5, 10, 20)] == pytest.approx(recall, abs=0.01)
