"""Order and repetition of lists, and one class per label: hand-made lists, planted shares, and rates by chance."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.analysis.audit import provenance
from study.analysis.audit.detectors import BY_CONTENT, Labels, in_pattern
from study.analysis.framework import load_settings, run_analyses
from study.base.errors import StudyError
from study.config import compose as config
from study.data.lists import order_measures, padded, places, repetition_measures, shuffled
from study.evaluation.statistics import clustered_share
from tests.analysis import toys
from tests.analysis.toys import NO_REASON, UNSORTED, made

SETTINGS = replace(load_settings(Labels), permutations=25)
N = 300


def toy(tasks, lists, servers=None):
    """Tasks, or as many of different themes, over N servers; `servers` says what some of them are."""
    return toys.toy(tasks or [{"theme": f"t{row}"} for row in range(len(lists))], lists, N, servers)


def examined(data, **changes):
    """The frame of labels and the evidence that it rests on."""
    evidence = provenance.Evidence(data, replace(SETTINGS, **changes))
    return provenance.labels_frame(data, evidence), evidence


def classes(data, **changes):
    return [part["class"].tolist() for _, part in examined(data, **changes)[0].groupby("task_id")]


def test_words_of_the_theme_and_rare_words_of_the_text_are_seen_and_common_words_are_not():
    servers = {5: {"description": "reads weather maps"}, 9: {"name": "Weather MCP"}}
    data = toy([{"theme": "Weather thing"}], [[9, 250, 5, 100]], servers)
    assert classes(data) == [["theme_token", "none", "theme_token", "none"]]
    data = toy([{"theme": "x", "name": "Detect pelicans"}], [[7, 3]], {3: {"description": "counts pelicans at sea"}})
    assert classes(data) == [["none", "text_token"]]


def test_runs_through_a_language_and_through_the_alphabet_and_a_long_one_over_unequally_used_servers():
    servers = {row: {"language_tokens": "Go, Shell"} for row in range(10, 290, 20)}
    tasks = [{"theme": "x", "language": "Go"}, {"theme": "y", "language": "Rust"}]
    # 10, 30 and 50 are next to each other among the servers in Go; 250 is in Go too.
    data = toy(tasks, [[299, 250, 10, 30, 50]] * 2, servers)
    assert classes(data) == [["none", "language", *["language_run"] * 3], ["none"] * 5]
    # Through the alphabet: small steps in listed order.
    data = toy(None, [[200, 40, 41, 42], [42, 41, 40, 200], [44, 60, 80, 100]])
    assert classes(data) == [["none", *["alphabetical"] * 3], ["none"] * 4, ["balancing"] * 4]
    run = [3, 50, 90, 140, 190, 240]
    # Every second server of the run is listed by three more tasks.
    others = [[server, 299 - number] for number in range(3) for server in run[::2]]
    assert classes(toy(None, [run, *others]))[0] == ["long_run"] * 6


def test_the_pool_of_a_theme_is_what_its_other_lists_hold():
    rng = np.random.default_rng(0)
    lists = [[7, 250, *rng.choice(np.arange(100, 240), 4, replace=False)] for _ in range(6)]
    lists += [list(rng.choice(np.arange(100, 240), 5, replace=False)) for _ in range(60)]
    data = toy([{"theme": "a" if row < 6 else f"t{row}"} for row in range(66)], lists)
    found = classes(data, long_run=99, level_run=99)
    assert all(row[:2] == ["theme_pool"] * 2 for row in found[:6])
    assert sum(kind == "theme_pool" for row in found for kind in row) <= 14
    # A set that stands several times in a theme is one piece of evidence.
    tasks = [{"theme": "a"}] * 5 + [{"theme": f"t{row}"} for row in range(40)]
    data = toy(tasks, [[7, 250, 120]] * 5 + [[row + 10, row + 60] for row in range(40)])
    assert "theme_pool" not in {kind for row in classes(data) for kind in row}


def test_the_order_of_detectors_decides_and_the_configured_orders_hold_every_one():
    for order in (SETTINGS.order, *SETTINGS.other_orders.values()):
        assert sorted(order) == sorted(provenance.DETECTORS)
    servers = {row: {"description": "weather", "language_tokens": "Go"} for row in (40, 41, 42)}
    data = toy([{"theme": "weather", "language": "Go"}], [[40, 41, 42]], servers)
    assert classes(data) == [["theme_token"] * 3]
    later = [name for name in SETTINGS.order if name != "theme_token"]
    assert classes(data, order=[*later, "theme_token"]) == [["language_run"] * 3]
    for order in (["theme_token"], [*SETTINGS.order, "language"], [*later, "guess"]):
        with pytest.raises(StudyError, match="order of classes"):
            classes(data, order=order, thresholds={})
    # What other orders of detectors say, by hand.
    data = toy([{"theme": "weather", "language": "Go"}], [[200, 40, 41, 42]], servers)
    table = provenance.order_table(examined(data)[0], {"as stated": SETTINGS.order} | SETTINGS.other_orders)
    share = table.set_index(["order", "class"])["share"]
    assert share["as stated", "any sign of content"] == 0.75
    assert share["signs of order first", "any rule of order"] == 0.75
    assert share["signs of content first", "any rule of order"] == 0
    sums = table[table["class"].isin([*provenance.DETECTORS, "none"])].groupby("order")["share"].sum()
    assert sums.tolist() == pytest.approx([1, 1, 1])


def test_thresholds_are_varied_one_at_a_time():
    """A run of two, one of three and one of four labels in small steps, and three labels that belong to none."""
    data = toy(None, [[40, 41, 200, 10], [50, 51, 52, 9], [60, 61, 62, 63]])
    varied = {"alphabetical": {"close_run": [2, 3, 4, 5]}, "theme_token": {"theme_words": [0.01, 1.0]}}
    settings = replace(SETTINGS, level_run=9, language_run=9, thresholds=varied)
    table = provenance.threshold_table(data, settings)
    assert table["value"].tolist() == [2, 3, 4, 5, 0.01, 1.0]
    assert table["stated"].tolist() == [False, True, False, False, False, False]
    assert (12 * table["share"]).round(6).tolist() == [9, 7, 4, 0, 0, 0]
    runs = table[table["detector"] == "alphabetical"]
    assert (runs["runs_share"] == runs["share"]).all()
    assert (runs[["chance", "kept", "even"]].diff()[1:] <= 0).all(axis=None)  # a longer run is never more frequent
    for detector, name in (("alphabetical", "other_run"), ("other", "close_run")):
        with pytest.raises(StudyError, match=name):
            replace(settings, thresholds={detector: {name: [1]}})


def test_resampled_lists_keep_the_order_the_length_and_the_language():
    rng = np.random.default_rng(5)
    servers = {row: {"language_tokens": "Go"} for row in range(0, 300, 3)}
    lists = [list(rng.choice(N, size, replace=False)) for size in (10, 10, 7, 2)]
    data = toy([{"theme": "x", "language": "Go"}] * 3 + [{"theme": "x", "language": "Rust"}], lists, servers)
    evidence = provenance.Evidence(data, SETTINGS)
    drawn = evidence.sample_lists(np.ones(N, dtype=np.int64), rng)
    for row, (old, new) in enumerate(zip(evidence.matrix, drawn, strict=True)):
        assert ((old >= 0) == (new >= 0)).all()
        kept, made = old[old >= 0], new[new >= 0]
        assert np.argsort(kept).tolist() == np.argsort(made).tolist()
        assert len(set(made)) == len(made)
        if row < 3:  # no server is written in the last task's language
            assert (kept % 3 == 0).sum() == (made % 3 == 0).sum()
    assert (drawn != evidence.matrix).any()


@given(st.integers(0, 1000), st.integers(1, 12))
def test_servers_put_in_a_pattern_keep_their_set_and_take_its_order(seed, size):
    rng = np.random.default_rng(seed)
    pattern, servers = np.full((2, 2, 12), -1)
    pattern[:, :size], servers[:, :size] = rng.permuted(np.tile(np.arange(40), (2, 2, 1)), axis=2)[..., :size]
    found = in_pattern(servers, pattern)
    np.testing.assert_array_equal(np.sort(found), np.sort(servers))
    np.testing.assert_array_equal(np.argsort(found[:, :size]), np.argsort(pattern[:, :size]))


def test_what_systems_find_is_a_run_only_where_the_servers_are():
    rng = np.random.default_rng(8)
    lists = [np.arange(start, start + 10) for start in rng.integers(0, N - 10, 20)] + [np.array([5, 90, 12])]
    data = toy(None, lists)
    asked = np.arange(10, 21)
    every = pd.DataFrame({"task_id": np.repeat(asked + 1, 10), "rank": np.tile(np.arange(1, 11), len(asked))})
    servers = {"follower": np.arange(99, 89, -1), "stepper": np.arange(10) * 29}
    runs = {name: every.assign(server_id=np.tile(found + 1, len(asked))) for name, found in servers.items()}
    found = provenance.retrieved_table(data, provenance.Evidence(data, SETTINGS), runs).set_index(["lists", "detector"])
    ordered = found.xs("any rule of order", level="detector")
    assert (ordered["n"] == 103).all()  # ten tasks with ten, one with three
    assert (ordered["tasks"] == 11).all()
    # The ten servers found in falling order stand as the lists do, rising; in the list of three, two steps up do not.
    assert ordered.loc["follower", "labels"] == 100
    assert ordered.loc[provenance.RELEASED, "labels"] == 100
    assert found.loc[("stepper", "alphabetical"), "labels"] == 0


@pytest.mark.parametrize("share", [0.0, 0.15, 0.3, 0.5])
def test_a_planted_share_of_filler_is_found_within_three_per_cent_of_the_labels(share):
    """Half of the filler follows the task's language, half the alphabet; it fills lists up from within,
    as in the release, and everything else is drawn."""
    rng, languages = np.random.default_rng(11), ["Go", "Rust", "Java", "Perl"]
    spoken = rng.choice(languages, N)
    servers = {row: {"language_tokens": language} for row, language in enumerate(spoken)}
    tasks, lists, planted = [], [], {"language_run": 0, "alphabetical": 0}
    for row in range(600):
        language = languages[row % 4]
        tasks.append({"theme": f"t{row}", "language": language})
        size = int(rng.integers(6, 11)) if rng.random() < share / 0.8 else 0  # 8 of 10 entries on average
        kind = ("language_run", "alphabetical")[row % 2]
        pool = np.flatnonzero(spoken == language) if kind == "language_run" else np.arange(N)
        filler = pool[int(rng.integers(len(pool) - 10)) :][:size]
        others = rng.choice(np.setdiff1d(np.arange(N), filler), 10 - size, replace=False)
        lists.append([*others, *filler])
        planted[kind] += size
    evidence = provenance.Evidence(toy(tasks, lists, servers), SETTINGS)
    flags = evidence.order(evidence.matrix)
    for kind, count in planted.items():
        assert abs(flags[kind].mean() - count / 6000) < 0.03, kind


def test_sorted_lists_of_any_servers_show_long_runs_and_nothing_else():
    """Against lists in random order every detector of order would fire; against the same order only real runs do."""
    rng = np.random.default_rng(6)
    lists = [np.sort(rng.choice(N, 10, replace=False)) for _ in range(150)]
    ordered = [*(np.arange(start, start + 10) for start in rng.integers(0, N - 10, 50))]
    for planted, is_run in ((lists, False), (lists + ordered, True)):
        data = toy(None, planted)
        table = provenance.detector_table(*examined(data)).set_index("detector")
        run, close = table.loc["long_run"], table.loc["alphabetical"]
        assert run["share"] > run["chance_high"] + 0.5
        assert [run["kept"], run["even"]] == pytest.approx([run["share"]] * 2)
        assert (close["share"] > max(close["kept_high"], close["even_high"]) + 0.15) == is_run
    both = table.loc["any detector"]
    assert both["chance"] >= table.loc[["alphabetical", "theme_token"], "chance"].max()
    assert table.loc["any rule of order", "labels"] >= close["labels"]


def test_the_interval_of_a_share_by_hand():
    """Two clusters: 3 of 4 and 0 of 2 labels; linearised standard error sqrt(2 * (1^2 + 1^2)) / 6."""
    p, low, high = clustered_share(np.array([1, 1, 1, 0, 0, 0], dtype=bool), np.array([5, 5, 5, 5, 8, 8]))
    error = 1.96 * 2 / 6
    assert (p, low, high) == pytest.approx((0.5, max(0, 0.5 - error), min(1, 0.5 + error)))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Data with a third of the labels from each of language and alphabet, and no sorted or copied lists."""
    folder = tmp_path_factory.mktemp("planted")
    mixture = NO_REASON | {"language_match": 0.3, "alphabetical": 0.4, "random": 0.3}
    sound = UNSORTED | {"zero_lists": 0.0, "repeat_lists": 0.0}
    data, _ = made(folder, n_servers=3000, n_tasks=800, mixture=mixture, **sound)
    truth = pd.read_csv(folder / "raw" / "truth_labels.csv")
    return data, truth[truth["in_list"]]


def test_planted_runs_and_languages_are_found(planted):
    data, truth = planted
    frame, _ = examined(data)
    both = frame.merge(truth, on=["task_id", "server_id", "position"], validate="one_to_one")
    assert len(both) == len(frame)
    # Alphabetical entries lie in close runs where a list puts three next to each other: 0.4^3 and more of them.
    assert both.loc[both["source"] == "language_match", "language"].mean() > 0.97
    near = both[both["alphabetical"]]
    assert (near["source"] == "alphabetical").mean() > 0.85
    assert both.loc[both["source"] == "alphabetical", "alphabetical"].mean() > 0.3
    assert both.loc[both["source"] == "random", "alphabetical"].mean() < 0.02


def test_without_evidence_every_detector_fires_at_its_chance_rate(tmp_path):
    data, _ = made(tmp_path, mixture=NO_REASON, **UNSORTED)
    table = provenance.detector_table(*examined(data)).set_index("detector")
    for name, row in table.iterrows():
        spread = 1.96 * np.sqrt(max(row["chance"], 1e-4) * 10 / row["n"])  # a run marks several labels at once
        if not name.startswith("any "):
            assert np.isnan(row["kept"]) == (name in BY_CONTENT)
        assert abs(row["share"] - row["chance"]) < 2 * spread, name


def test_the_files_hold_ids_alone_and_shares_add_up(conf_root, tmp_path_factory, monkeypatch):
    data, _ = made(tmp_path_factory.mktemp("small"), n_servers=300, n_tasks=80)
    quick = replace(SETTINGS, permutations=2, thresholds={"alphabetical": {"close_run": [2]}})
    monkeypatch.setattr("study.data.dataset.load", lambda name: data)
    monkeypatch.setattr("study.analysis.framework.load_settings", lambda kind: quick)
    written = list(run_analyses(["audit/provenance"], config.load(["dataset=synthetic"])))
    file = written[0].with_name("provenance.parquet")
    assert parquet.read_schema(file).names == ["task_id", "server_id", "position", "class"]
    tables = {path.stem: pd.read_csv(path) for path in written}
    sums = tables["provenance"].groupby(["scope", "name"])["share"].sum()
    np.testing.assert_allclose(sums, 1, atol=1e-4)
    counts = pd.read_parquet(file)["class"].value_counts()
    everything = tables["provenance"].query("scope == 'all'").set_index("class")["labels"]
    assert counts.to_dict() == everything[everything > 0].to_dict()


def test_planted_sorted_and_copied_lists_are_found_and_lists_without_show_none(tmp_path):
    def measured(data):
        matrix = padded(data.lists, places(data))
        order = order_measures(matrix, 2, 6)
        chance = order_measures(shuffled(matrix, np.random.default_rng(0)), 2, 6)
        return order | repetition_measures(matrix), chance

    data, truth = made(tmp_path / "planted", n_servers=1000, n_tasks=2000)
    found, chance = measured(data)
    assert abs(found["lists wholly ascending by id"] - truth["parameters"]["ascending_share"]) < 0.03
    assert chance["lists wholly ascending by id"] < 0.001
    # A share of the tasks copies the list of another; defects are planted afterwards in 1 % of the lists.
    assert abs(found["lists beyond the first of each set"] - truth["parameters"]["duplicate_share"]) < 0.02
    data, _ = made(tmp_path / "none", n_servers=500, mixture=NO_REASON, **UNSORTED)
    found, chance = measured(data)
    assert found["lists beyond the first of each set"] < 0.02
    for name, value in chance.items():
        assert found[name] == pytest.approx(value, rel=0.1, abs=0.01)
