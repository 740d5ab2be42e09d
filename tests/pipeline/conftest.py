"""A tiny study in a folder of its own: the real configuration, 60 servers, 80 tasks."""

import shutil
import sys
from pathlib import Path

import pytest

from study.cli import main as cli
from study.config.compose import load
from study.pipeline import data as stages
from study.pipeline.export import export
from study.runner.rows import run
from tests.pipeline.root import TINY

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def prepared_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with configuration, prepared data, splits and three finished systems; tests copy it."""
    root = tmp_path_factory.mktemp("study")
    shutil.copytree(ROOT / "conf", root / "conf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(root))
        config = load(TINY)
        stages.fetch(config)
        stages.prepare(config)
        stages.split(config)
        for folder in ("src", "baselines"):
            (root / folder).symlink_to(ROOT / folder)
        for system in ("random", "popularity", "tfidf"):
            run(load([*TINY, f"system={system}"]))
    return root


@pytest.fixture
def root(prepared_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private copy of the prepared root, in force for the test."""
    copy = tmp_path / "study"
    shutil.copytree(prepared_root, copy, symlinks=True)
    monkeypatch.setenv("T2M_ROOT", str(copy))
    return copy


@pytest.fixture(scope="module")
def project(prepared_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny study with `best` saved, in force for the tests of a file."""
    root = tmp_path_factory.mktemp("best") / "study"
    shutil.copytree(prepared_root, root, symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(root))
        export(load([*TINY, "system=best"]))
        yield root


@pytest.fixture
def ask(project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Run `study recommend` with the words given; returns exit code, what it printed and what it said beside that."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["study", "recommend", *words])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        return stopped.value.code or 0, printed.out, printed.err

    return run
