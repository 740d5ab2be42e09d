"""A tiny study in a folder of its own: the real configuration, 60 servers, 80 tasks."""

import shutil
from pathlib import Path

import pytest
from pipeline_root import TINY

from study.config import load
from study.pipeline import data as stages
from study.pipeline.run import run

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
