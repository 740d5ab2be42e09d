"""MCP-Flow's learned parts and its experiments: planted truths, leaks, files and tables."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from study.advisor.retrieval.documents import Server, Tool, ToolCatalog
from study.base.errors import StudyError
from study.base.settings import build_settings
from study.tools import results
from study.tools.flow import bench as benches
from study.tools.flow import experiments, learned, selector, settings, tables
from study.tools.flow.samples import Call, Sample
from study.tools.flow.slot_filler import SlotFiller

COPYING = settings.Copying(strength=1.0, letters=500, spans=40)


def parameters(required, **properties):
    return {"type": "object", "properties": properties, "required": required}


URL, COUNT = {"type": "string"}, {"type": "integer"}
SERVERS = Server("web", "Web", ""), Server("mail", "Mail", ""), Server("maps", "Maps", "")
TOOLS = (
    Tool(0, "read_page", "read a page", parameters(["url"], url=URL, limit={"type": "integer", "default": 5})),
    Tool(0, "price_page", "price of a page", parameters(["url"], url=URL)),
    Tool(1, "send_mail", "send a mail", parameters(["email", "message"], email=URL, message=URL)),
    Tool(1, "read_mail", "read a mail", parameters(["email"], email=URL)),
    Tool(2, "route_map", "find a route on a map", parameters(["city"], city=URL)),
    Tool(2, "price_map", "price of a map", parameters(["city"], city=URL)),
)
CATALOG = ToolCatalog("toy", SERVERS, TOOLS)
TORONTO = "please read a page using https://toronto.org/a for Anna at 7"
CITIES = ("Lisbon", "Toronto", "Berlin", "Madrid", "Prague", "Vienna")


def made():
    """Two wordings of six calls per tool; every argument stands in its text, beside other pieces."""
    found = []
    for (row, tool), (call, city) in product(enumerate(CATALOG.tools), enumerate(CITIES)):
        place, key = city.lower(), f"{row}-{call}"
        given = {"url": f"https://{place}.org/a", "email": f"{place}@b.org", "message": f"news of {city}", "city": city}
        arguments = {p.name: given[p.name] for p in tool.parameters if p.required}
        limit = {"limit": call + 10} if row == 0 and call % 2 else {}
        tail = f" with limit {call + 10}" if limit else ""
        said = ", ".join(f'"{value}"' if name == "message" else value for name, value in arguments.items())
        for form in ("please", "now"):
            text = f"{form} {tool.description}{tail} using {said} for Anna at 7"
            found.append(Sample(f"{key}-{form}", text, row, tool.server, arguments | limit, key))
    return found


SAMPLES = made()
FLOW = settings.flow_settings()


@pytest.fixture
def bench(embedder):
    return benches.assemble(CATALOG, SAMPLES, FLOW, embedder)


@pytest.fixture(scope="module")
def slot_filler():
    return SlotFiller(CATALOG, COPYING).fit(SAMPLES)


def test_the_slot_filler_learns_which_piece_is_whose():
    train = [one for one in SAMPLES if "Prague" not in one.text and "Vienna" not in one.text]
    unseen = [one for one in SAMPLES if one not in train]

    def right(learned_from):
        found = SlotFiller(CATALOG, COPYING).fit(learned_from)
        return np.mean([found.fill(one.text, one.tool) == one.arguments for one in unseen])

    assert right(train) > 0.9
    # Where the right values are another's, nothing can be learned.
    shuffled = [replace(one, arguments=dict.fromkeys(one.arguments, "none of it")) for one in train]
    assert right(shuffled) < right(train)


def test_the_slot_filler_fills_tools_of_another_catalogue(slot_filler):
    stated = {"url": URL, "listed": {"enum": ["slow", "fast"]}, "whole": {"type": "object"}}
    tools = tuple(Tool(0, name, name, parameters([name], **{name: own})) for name, own in stated.items())
    other = slot_filler.of(ToolCatalog("o", (Server("x", "X", ""),), tools))
    assert other.fill("Open https://new.org/x today", 0) == {"url": "https://new.org/x"}
    assert other.fill("as fast as you can", 1)["listed"] in ("slow", "fast")
    assert other.fill("anything", 2) == {"whole": ""}


def test_overlap_by_hand():
    found = selector.overlap(["read the mail", "x"], ["read_mail", "readMail now", "..."])
    assert found == pytest.approx(np.array([[1, 2 / 3, 0], [0, 0, 0]]))


def test_conditional_logit_recovers_planted_weights():
    rng = np.random.default_rng(0)
    planted = np.array([2.0, -1.0, 0.0])
    rows = rng.normal(size=(4000, 5, 3)).astype(np.float32)
    scores = rows @ planted + rng.gumbel(size=(4000, 5))
    assert selector.fit(rows, scores.argmax(axis=1), 1e-6) == pytest.approx(planted, abs=0.12)
    heavy = selector.fit(rows, scores.argmax(axis=1), 1e3)
    assert np.abs(heavy).max() < 0.01


def test_exemplars_by_hand():
    vectors = np.eye(4, dtype=np.float32)[[0, 0, 1, 2]]
    calls = zip((5, 5, 2, 9), "aabc", strict=True)
    own = [Sample(str(n), "", tool, 0, {"n": n}, group) for n, (tool, group) in enumerate(calls)]
    kept = selector.Exemplars(vectors, own, top=2)
    query = np.array([[0.8, 0.6, 0, 0]], dtype=np.float32)
    similarity = kept.similarity(query)
    nearest, votes = kept.by_tool(similarity)
    assert kept.tools.tolist() == [2, 5, 9]
    assert nearest[0] == pytest.approx([0.6, 0.8, 0])
    assert votes[0] == pytest.approx([0, 1, 0])
    assert kept.nearest_of(similarity[0], 5).arguments == {"n": 0}
    assert kept.nearest_of(similarity[0], 7) is None
    # Of the own call, and of what siblings would say, nothing is seen.
    apart = kept.similarity(query, ["a"])
    nearest, votes = kept.by_tool(apart)
    assert nearest[0, 1] == selector.ABSENT
    assert votes[0] == pytest.approx([0.5, 0, 0.5])
    assert kept.nearest_of(apart[0], 5) is None


def test_candidates_hold_the_right_tool_once_and_no_twin(bench):
    with pytest.raises(StudyError, match="labelled"):
        build_settings(settings.Pool, {"source": "nowhere", "size": 10, "seeds": 1}, None)
    pool = settings.Pool("catalogue", 3, 1)
    shown = np.stack(benches.candidates(bench, pool, 0))
    right = shown == np.array([[one.tool] for one in SAMPLES])
    assert shown.shape == (len(SAMPLES), 3)
    assert (right.sum(axis=1) == 1).all()
    assert set(right.argmax(axis=1)) == {0, 1, 2}
    assert (shown == np.stack(benches.candidates(bench, pool, 0))).all()
    doubled = ToolCatalog("d", CATALOG.servers, (*CATALOG.tools, CATALOG.tools[0]))
    assert selector.duplicates(doubled)[0] == frozenset({6})
    drawn = selector.pool_of(SAMPLES[0], np.arange(7), None, frozenset({6}), np.random.default_rng(0))
    assert sorted(drawn.tolist()) == [0, 1, 2, 3, 4, 5]


def test_answers_of_an_unseen_server_beat_chance(bench):
    train = np.array([row for row, one in enumerate(SAMPLES) if one.server != 2])
    test = np.array([row for row, one in enumerate(SAMPLES) if one.server == 2])
    trained = benches.train(bench, train, FLOW, 0, SlotFiller(CATALOG, COPYING))
    shown = benches.candidates(bench, settings.Pool("catalogue", None, 1), 0)
    found = benches.answer(bench, test, shown, FLOW.systems, trained, 0)
    chosen = found["flow_trained_without_exemplars"]
    assert chosen[["tool", "param"]].mean().min() > 0.9
    assert found["flow_random"]["tool"].mean() < 0.6
    assert found["flow_exemplars_copied"]["ast"].mean() < chosen["param"].mean()
    for table in found.values():
        assert (table["tool"] == (table["rank"] == 1)).all()
        assert ((table["tool"] >= table["param"]) & (table["param"] >= table["ast"])).all()


def test_test_labels_cannot_change_answers(bench, embedder):
    train, test = np.arange(0, 60), np.arange(60, 72)
    shown = [np.arange(6) for _ in SAMPLES]
    systems = {"flow_trained": FLOW.systems["flow_trained"]}
    spoilt = [one if row < 60 else replace(one, arguments={"other": 1}) for row, one in enumerate(SAMPLES)]
    answers = []
    for own in (bench, benches.assemble(CATALOG, spoilt, FLOW, embedder)):
        trained = benches.train(own, train, FLOW, 0, SlotFiller(CATALOG, COPYING))
        answers.append(benches.answer(own, test, shown, systems, trained, 0)["flow_trained"])
    first, second = answers
    assert (first["rank"] == second["rank"]).all()
    assert not second["param"].any()


def test_siblings_leak_and_grouping_stops_it(bench):
    # Vectors that tell calls apart, so that a call's nearest neighbour is its sibling.
    rng, place = np.random.default_rng(0), {one.group: n for n, one in enumerate(SAMPLES)}
    vectors = rng.normal(size=(len(SAMPLES), 64)).astype(np.float32)[[place[one.group] for one in SAMPLES]]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    bench = replace(bench, known=replace(bench.known, vectors=vectors))
    found = experiments.leak(bench, FLOW).set_index("split")
    assert found.loc["leave_one_out", "ast"] == 1
    assert found.loc["leave_call_out", "ast"] == 0
    assert found.loc["seen_ungrouped", "ast"] > found.loc["seen", "ast"]
    assert found.loc["unseen_tool", "tool"] == found.loc["unseen_server", "tool"] == 0


def test_servers_side_by_side(bench):
    table = tables.compare_servers(bench, {"Web": ["web"], "Maps": ["maps"]}, COPYING).set_index("server")
    assert table.loc["Web", ["tools", "parameters", "required"]].tolist() == [2, 3, 2]
    assert table.loc["Maps", "instructions"] == 24
    assert table["best"].sum() == pytest.approx(1)
    assert table["fit"].between(table["fit_ci_low"], table["fit_ci_high"]).all()
    with pytest.raises(StudyError, match="no server"):
        tables.compare_servers(bench, {"Web": ["absent"]}, COPYING)


def test_a_call_for_another_catalogue_uses_the_exemplars_of_its_candidates(bench, catalog, embedder, monkeypatch):
    found = learned.call_tool(catalog, "find a route on a map", np.array([1, 4]), learned_from=bench, embedder=embedder)
    assert found == Call(4, {})
    known = learned.learn(bench, FLOW)
    # The same tools on another server, in another order.
    tools = tuple(replace(CATALOG.tools[row], server=0) for row in (4, 2, 0))
    other = ToolCatalog("other", (Server("x", "X", ""),), tools)
    kept = known.exemplars(other, 5)
    offered = [CATALOG.tools[one.tool].name for one in SAMPLES if one.tool in (4, 2, 0)]
    carried = {(one.tool, name) for one, name in zip(kept.samples, offered, strict=True)}
    assert carried == {(0, "route_map"), (1, "send_mail"), (2, "read_page")}
    fill, filled = SlotFiller.fill, []
    watched = lambda self, *told, **more: filled.append(told[1:]) or fill(self, *told, **more)  # noqa: E731
    monkeypatch.setattr(SlotFiller, "fill", watched)
    near = learned.call_tool(other, TORONTO, np.arange(3), learned_from=bench, embedder=embedder)
    assert near == Call(2, {"url": "https://toronto.org/a"})
    # The parameters are those of an exemplar, not the slot filler's guess.
    assert filled == [(2, ["url"])]
    nowhere = ToolCatalog("n", other.servers, (replace(tools[0], name="unknown"),))
    assert not known.exemplars(nowhere, 5).samples


def test_what_was_learned_is_kept_without_texts(bench, embedder, tmp_path):
    more = [replace(one, id=f"{one.id}!", text=f"again {one.text}") for one in SAMPLES[:20]]
    found, path = learned.learn(bench, FLOW, more), tmp_path / "kept.safetensors"
    assert learned.read_learned(path) is None
    learned.write_learned(path, found)
    again = learned.read_learned(path)
    assert (again.tools, again.parameters) == (found.tools, found.parameters)
    np.testing.assert_array_equal(again.vectors, found.vectors)
    answers = [SlotFiller(CATALOG, FLOW.copying, one.value, one.setting).fill(TORONTO, 0) for one in (found, again)]
    assert answers[0] == answers[1] == {"url": "https://toronto.org/a"}
    assert SAMPLES[0].text.encode() not in path.read_bytes()
    # The slot_filler learns from more than the selector.
    alone = learned.learn(bench, FLOW)
    assert not np.array_equal(alone.value[0], found.value[0])
    np.testing.assert_array_equal(alone.weights[True], found.weights[True])
    for damage in (b"", path.read_bytes()[:100]):
        path.write_bytes(damage)
        assert learned.read_learned(path) is None


def test_mcp_flow_is_learned_from_once(project, bench, catalog, embedder, monkeypatch):
    prepared, told = [], []
    monkeypatch.setattr(benches, "prepare", lambda *_: prepared.append(1) or bench)
    monkeypatch.setattr(experiments, "synthetic", lambda *_: (SAMPLES[:12], {}))
    for _ in range(2):
        made = learned.call_tool(catalog, "find a route on a map", np.array([1, 4]), embedder=embedder, say=told.append)
        assert made == Call(4, {})
    assert (len(prepared), len(told)) == (1, 1)
    assert "embedded" in told[0]
    # Other settings teach something else.
    first = learned.learned_key()
    monkeypatch.setattr(learned, "SETTINGS", learned.SETTINGS[:1])
    assert learned.learned_key() != first


def test_a_parameter_without_a_value_is_named(bench, embedder):
    schema = parameters(["url", "depth"], url=URL, depth=COUNT, extra=COUNT)
    other = ToolCatalog("o", (Server("x", "X", ""),), (Tool(0, "read_page", "read a page", schema),))
    text = "read a page using https://toronto.org/a"
    made = learned.call_tool(other, text, np.array([0]), learned_from=bench, embedder=embedder)
    # Neither an empty text nor an invented number; what is optional and unsaid is not set at all.
    assert made.arguments == {"url": "https://toronto.org/a", "depth": None}
    assert learned.missing(other, made) == ["depth"]


def test_floors_by_hand(slot_filler):
    own = [one for one in SAMPLES if one.tool in (0, 1)]
    line = tables.measure_arguments("toy", "required", slot_filler, own)
    # Half of the calls of read_page set a limit, which is not required.
    assert (line["calls"], line["tools"]) == (24, 2)
    assert line["param"] == line["param_by_tool"] == 0.75
    foreign = [replace(one, arguments={"unheard": 1}) if one.tool == 1 else one for one in own]
    assert (line["nameable"], tables.measure_arguments("toy", "required", slot_filler, foreign)["nameable"]) == (1, 0.5)
    assert line["ast"] == 0.75
    trained = tables.measure_arguments("toy", "trained", slot_filler, own)
    assert trained["param"] > line["param"]


def test_runs_resume_and_their_tables_follow(project, bench, monkeypatch):
    pools = {"labelled3": settings.Pool("labelled", 3, 2), "all": settings.Pool("catalogue", None, 1)}
    chosen = {"seeds": (0, 1), "pools": pools, "references": {"seen": ("flow_dense", "labelled3")}}
    small = replace(FLOW, **chosen, splits=settings.Splits(2, 3))
    for runs in experiments.call_parts(bench, bench, small):
        results.write_results("mcpflow", runs)
    folder = tables.report_flow(small)
    calls = pd.read_csv(folder / "flow_calls.csv")
    row = calls.set_index(["split", "pool", "system"]).loc["unseen_server", "labelled3", "flow_trained"]
    files = results.collect_runs("mcpflow", "calls")
    answers = files["unseen_server_labelled3"]["flow_trained"]
    assert row["tool"] == pytest.approx(100 * answers["tool"].mean(), rel=1e-4)
    assert row["tool_by_server"] == pytest.approx(100 * answers.groupby("server")["tool"].mean().mean(), rel=1e-4)
    assert (row["instructions"], row["tools"], row["servers"], row["seeds"]) == (72, 6, 3, 2)
    metrics = pd.read_csv(folder / "metrics.csv.xz")
    cell = metrics.set_index(["protocol", "system", "metric", "k", "seed"])["value"].sort_index()
    at = ("seen_labelled3", "flow_dense")
    assert cell[(*at, "tool", 3, 1)] == pytest.approx(cell[(*at, "hit_rate", 1, 1)], abs=1e-5)
    compared = pd.read_csv(folder / "significance.csv")
    assert set(compared["metric"]) == {"tool", "param", "ast"}
    assert (compared["n"] == 6).all()
    assert "flow_random" not in files["seen_all"]
    assert results.read_records("mcpflow")[at]["seeds"] == [{"seed": 0}, {"seed": 1}]
    assert "Not run" in (folder / "overall.md").read_text()
    monkeypatch.setattr(benches, "answer", lambda *_: pytest.fail("a finished split ran again"))
    assert not list(experiments.call_parts(bench, bench, small))
    # Other settings, other samples or another catalogue: what lies there is not this run.
    first, *others = CATALOG.servers
    renamed = replace(bench, catalog=replace(CATALOG, servers=(replace(first, name="Other"), *others)))
    assert experiments.finished("seen", bench, small)
    assert not experiments.finished("seen", bench, replace(small, exemplars=small.exemplars + 1))
    assert not experiments.finished("seen", replace(bench, samples=bench.samples[:-1]), small)
    assert not experiments.finished("seen", renamed, small)


def test_synthesis_keeps_off_labelled_servers(bench, embedder, project, monkeypatch):
    unlabelled = [one for one in SAMPLES if one.server != 2]
    own = benches.assemble(CATALOG, unlabelled, FLOW, embedder)
    texts, counts = experiments.synthetic(own, FLOW)
    assert {one.server for one in texts} == {2}
    lenient = replace(FLOW, filtration=replace(FLOW.filtration, similarity=1.1))
    kept, made = experiments.filtered(own, texts, counts, lenient, embedder)
    rules = next(table.frame for table in made if table.name == "flow_filtration")
    assert set(rules["of"]) == {"synthetic", "public"}
    assert 0 < len(kept.samples) <= len(texts)
