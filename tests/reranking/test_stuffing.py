"""Keyword stuffing: who attacks whom, what is measured, and that a known climb is found."""

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from study.analysis import framework
from study.analysis.framework import run_analyses
from study.analysis.usefulness import stuffing
from study.analysis.usefulness.stuffing import Stuffing, gains, keywords, plan, stuff_descriptions, summary
from study.base import paths
from study.config import compose as config

SYSTEMS = ["tfidf", "popularity"]
SMALL = {"per_group": 3, "group": "theme", "attackers": 8, "controls": 6, "words": [3, 9]}
SETTINGS = Stuffing(systems=SYSTEMS, protocol="cold", part="valid", seed=1, **SMALL)


def test_keywords_by_hand():
    texts = ["The cat sat on a mat", "cat and dog", "Cat, cat, cat: DOG x", "mat"]
    assert keywords(texts, 3) == ["cat", "dog", "mat"]
    assert keywords(texts, 99) == ["cat", "dog", "mat", "sat"]


def test_the_plan(toy, toy_split):
    tasks, watched = plan(toy, toy_split, SETTINGS)
    themes = toy.tasks["theme"].to_numpy()
    assert set(tasks) <= set(toy_split.tasks("valid"))
    assert max(np.unique(themes[tasks], return_counts=True)[1]) == 3
    assert len(set(watched["server"])) == len(watched) == 14
    assert watched["form"].tolist() == ["broad"] * 4 + ["aimed"] * 4 + ["control"] * 6
    assert watched["group"].tolist() == [""] * 4 + ["theme0", "theme1", "theme2", "theme3"] + [""] * 6
    pd.testing.assert_frame_equal(plan(toy, toy_split, SETTINGS)[1], watched)


def test_only_the_attackers_descriptions_change(toy, toy_split):
    _, watched = plan(toy, toy_split, SETTINGS)
    changed = stuff_descriptions(toy, toy_split, watched, "theme", 200)
    touched = np.flatnonzero((changed.servers != toy.servers).to_numpy().any(axis=1))
    assert set(touched) == set(watched["server"][:8])
    others = toy.servers.columns.drop("description")
    pd.testing.assert_frame_equal(changed.servers[others], toy.servers[others])
    vocabulary = " ".join(np.array(toy.task_texts(("name", "description")))[toy_split.tasks("train")]).lower()
    for row in touched:
        old, new = toy.servers["description"].iloc[row], changed.servers["description"].iloc[row]
        assert new.startswith(f"{old} ")
        assert all(word in vocabulary for word in new.removeprefix(f"{old} ").split())
    words = {f"item{row}" for part in ("valid", "test") for row in toy_split.tasks(part)}
    assert not words & set(" ".join(changed.servers["description"]).split())


class Fixed:
    """Ranks servers by the length of their descriptions; the last ten not at all."""

    def fit(self, data, split, *, seed, workdir):
        self.lengths = data.servers["description"].str.len().to_numpy(np.float32) + np.arange(data.n_servers) / 1e3
        self.lengths[-10:] = -np.inf

    def score(self, tasks):
        return np.tile(self.lengths, (len(tasks), 1))


def test_ranks_are_looked_up(toy, toy_split, monkeypatch):
    monkeypatch.setattr(stuffing, "build_system", lambda system: Fixed())
    tasks, servers = toy_split.tasks("valid")[:3], np.array([0, 49, 59])
    one_seed = OmegaConf.create({"system": {"seeds": [1]}})
    ranks = stuffing.ranks_of(one_seed, toy, toy_split, tasks, servers, "valid")
    system = Fixed()
    system.fit(toy, toy_split, seed=1, workdir=None)
    expected = [1 + int((system.lengths > system.lengths[0]).sum()), 1, 60]
    assert expected[0] > 1
    assert [list(row) for row in ranks] == [expected] * 3


def test_gains_by_hand(toy):
    rows = np.flatnonzero(toy.tasks["theme"].to_numpy() == "theme0")[:2]
    tasks = np.array([rows[0], rows[1], rows[0] + 1])  # the third has another theme
    listed = toy.lists[tasks[2]][0]
    free = next(row for row in range(60) if not any(row in toy.lists[task] for task in tasks))
    watched = pd.DataFrame({"server": [free, free, listed], "form": ["aimed", "broad", "control"]})
    watched["group"] = ["theme0", "", ""]
    before = np.array([[50, 50, 30], [20, 20, 30], [40, 40, 1]])
    after = np.array([[10, 10, 31], [10, 5, 31], [1, 100, 1]])
    rows_after = gains(toy, tasks, watched, "theme", before, after)
    assert rows_after["form"].tolist() == ["aimed", "broad", "control"]
    aimed, broad, control = rows_after.to_dict("records")
    assert (aimed["before"], aimed["after"], aimed["gain"]) == (35, 10, 25)
    assert (aimed["top_before"], aimed["top_after"]) == (0, 1)
    assert broad["gain"] == pytest.approx((40 + 15 - 60) / 3)
    assert broad["top_after"] == pytest.approx(2 / 3)
    # Where a server is listed, its place is its right and is not counted.
    assert any(listed in toy.lists[task] for task in tasks)
    assert control["gain"] == -1


def test_summary_by_hand():
    rows = [("aimed", 10, 1, 9, 1), ("aimed", 20, 5, 15, 0), ("control", 5, 5, 0, 0)]
    table_rows = pd.DataFrame(rows, columns=["form", "before", "after", "gain", "top_after"])
    table = summary(table_rows.assign(system="a", words=10, top_before=0.0), seed=1).set_index("form")
    assert table.loc["aimed", ["servers", "before", "after", "gain", "top_after"]].tolist() == [2, 15, 3, 12, 0.5]
    assert table.loc["aimed", "gain_ci_low"] >= 9
    assert table.loc["aimed", "gain_ci_high"] <= 15


def test_the_analysis_finds_who_climbs_and_goes_on_after_a_stop(tmp_path, monkeypatch, toy, toy_split):
    configs = {name: config.load([f"system={name}", "profile=smoke"]) for name in SETTINGS.systems}
    monkeypatch.setattr(framework, "load_settings", lambda kind: SETTINGS)
    monkeypatch.setattr(stuffing, "load", lambda overrides: configs[overrides[3].removeprefix("system=")])
    monkeypatch.setattr(stuffing, "load_inputs", lambda *_: (toy, toy_split))
    monkeypatch.setattr(stuffing, "row_key", lambda config: "0")
    monkeypatch.setattr(paths, "results", lambda dataset: tmp_path / "results" / dataset)
    monkeypatch.setattr(paths, "cache", lambda: tmp_path / "cache")
    (path,) = run_analyses(["usefulness/stuffing"], config.load(["dataset=synthetic", "profile=smoke"]))
    assert path == tmp_path / "results" / "synthetic" / "usefulness" / "stuffing.csv"
    table = pd.read_csv(path).set_index(["system", "words", "form"]).sort_index()
    assert len(table) == 2 * 2 * 3
    # Words of the asked tasks carry a server up where words decide, and nowhere where counts of labels do.
    assert (table.loc[("tfidf", 9), "gain"][["broad", "aimed"]] > 10).all()
    assert table.loc[("tfidf", 9), "gain"]["control"] < 0
    assert (table.loc["popularity", "gain"] == 0).all()
    assert path.with_suffix(".json").exists()
    first = path.read_bytes()
    monkeypatch.setattr(stuffing, "ranks_of", None)  # nothing is fitted a second time, also without a cache
    assert not list(tmp_path.glob("cache/**/*.parquet"))
    list(run_analyses(["usefulness/stuffing"], config.load(["dataset=synthetic", "profile=smoke"])))
    assert path.read_bytes() == first
