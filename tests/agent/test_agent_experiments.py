"""The two measurements: keyword stuffing and many developers at once, on data with a known outcome."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from study.agent import load as bench
from study.agent import stuffing, web
from study.agent.settings import Load, Stuffing, read
from study.config import load as compose
from study.errors import StudyError
from study.pipeline.data import fetch, prepare, split

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = Stuffing(systems=["tfidf", "popularity"], repeats=[1, 3], targets=12, part="valid", top=5, seed=1)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A small synthetic data set in a folder of its own."""
    root = tmp_path_factory.mktemp("study")
    for name in ("conf", "src", "baselines"):
        (root / name).symlink_to(ROOT / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(root))
        for stage in (fetch, prepare, split):
            stage(compose(["dataset=synthetic", "dataset.generator.n_servers=60", "dataset.generator.n_tasks=80"]))
        yield root


def inputs():
    from study.pipeline.run import load_inputs

    return load_inputs(compose(["dataset=synthetic", "protocol=cold"]))


def test_attacked_servers_get_the_words_of_their_task_and_nobody_else_changes(study):
    data, parts = inputs()
    tasks, servers = stuffing.draw(data, parts, SETTINGS)
    assert len(set(tasks)) == len(set(servers)) == 12
    assert set(tasks) <= set(parts.tasks("valid"))
    assert not any(data.relevance[task, server] for task, server in zip(tasks, servers, strict=True))
    other = stuffing.attacked(data, tasks, servers, 3)
    before, after = data.servers["description"], other.servers["description"]
    changed = np.flatnonzero(before.to_numpy() != after.to_numpy())
    assert sorted(changed) == sorted(servers)
    assert after.iloc[servers[0]].count(data.tasks["name"].iloc[tasks[0]]) >= 3
    pd.testing.assert_frame_equal(data.servers.drop(columns="description"), other.servers.drop(columns="description"))


def test_who_reads_texts_is_climbed_and_who_counts_is_not(study, monkeypatch):
    path = stuffing.measure("synthetic", SETTINGS)
    table = pd.read_csv(path)
    found = stuffing.summary(table, top=5).set_index(["system", "repeats"])
    assert (found.loc["popularity", "gained"] == 0).all()
    assert (found.loc["tfidf", "gained"] > 10).all()
    assert (found.loc["tfidf", "top_after"] == 1).all()
    assert found.loc[("tfidf", 1), "low"] <= found.loc[("tfidf", 1), "gained"] <= found.loc[("tfidf", 1), "high"]
    drawn = stuffing.figure(found.reset_index(), top=5, n_servers=60)
    assert len(drawn.axes) == 2
    # The same again measures nothing; one more system measures that one.
    asked = []
    monkeypatch.setattr(stuffing, "build_system", lambda config: asked.append(config) or pytest.fail("measured again"))
    assert pd.read_csv(stuffing.measure("synthetic", SETTINGS)).equals(table)
    assert asked == []


def test_summary_by_hand():
    table = pd.DataFrame({"system": "s", "repeats": 1, "before": [10, 20, 30], "after": [1, 20, 6]})
    row = stuffing.summary(table, top=5).iloc[0]
    assert (row["n"], row["before"], row["gained"]) == (3, 20, 11)
    assert row["top_after"] == pytest.approx(1 / 3)


def test_many_developers_get_their_own_answers(agent, service, feedback, serve):
    settings = replace(read(Load), users=8, seconds=2.0, think=0.02)
    with serve(web.create(agent, feedback, service)) as address:
        rows = asyncio.run(bench.drive(address, settings))
    assert len(rows) > 20
    assert set(rows["problem"]) == {""}
    assert (rows["seconds"] > 0).all()


def test_a_mixed_answer_would_be_seen(agent, service, feedback, serve, monkeypatch):
    from study.agent.sessions import Sessions

    one = {}

    def shared(self, name):
        return one.setdefault("conversation", self.kept[name][0])

    monkeypatch.setattr(Sessions, "find", shared)
    settings = replace(read(Load), users=4, seconds=1.5, think=0.02)
    with serve(web.create(agent, feedback, service)) as address:
        rows = asyncio.run(bench.drive(address, settings))
    assert "mixed" in set(rows["problem"])


def test_the_page_as_a_program_of_its_own(study):
    settings = replace(read(Load), users=2, seconds=1.0, think=0.05, start_seconds=90.0)
    with bench.service("synthetic", "tfidf", settings.start_seconds) as address:
        rows = asyncio.run(bench.drive(address, settings))
    assert set(rows["problem"]) == {""}


def test_a_page_that_does_not_start_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(bench, "SERVE", "raise SystemExit(1)")
    with pytest.raises(StudyError, match="does not start"), bench.service("synthetic", "tfidf", 60.0):
        pass
