"""A tiny study in a folder of its own, with small sweeps in its conf/."""

import shutil

import pytest
import yaml

from tests.search.workers import TINY
from tests.tiny_study import lay_out, rooted


def shrink(folder, name, **changes):
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes, sort_keys=False))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The root of a study of 60 servers and 80 tasks, prepared and split."""
    from study.config.compose import load
    from study.pipeline.data import fetch, prepare, split

    root = tmp_path_factory.mktemp("study")
    lay_out(root)
    sweeps = root / "conf" / "sweep"
    shrink(sweeps, "fusion_weight", seeds=[1, 2], space={"scoring.semantic_weight": {"choices": [0.0, 0.9, 1.0]}})
    shrink(sweeps, "temperature", seeds=[1, 2], space={"training.temperature": {"choices": [0.07, 0.5]}})
    shrink(sweeps, "joint", trials=3)
    with rooted(root):
        for stage in (fetch, prepare, split):
            stage(load(TINY))
        yield root


@pytest.fixture
def root(tiny, tmp_path, monkeypatch):
    """A private copy of the tiny study, in force for the test."""
    copy = tmp_path / "study"
    shutil.copytree(tiny, copy, symlinks=True)
    monkeypatch.setenv("T2M_ROOT", str(copy))
    return copy
