"""The measurement of many developers at once, on data with a known outcome."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from study.agent import load as bench
from study.agent import web
from study.agent.settings import Load, read
from study.config import load as compose
from study.errors import StudyError
from study.pipeline.data import fetch, prepare, split

ROOT = Path(__file__).resolve().parents[2]


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
