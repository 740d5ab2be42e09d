"""The tiny study with few configured systems: a report reads the settings of all of them."""

import shutil

import pytest

from study.config.compose import load
from tests.tiny_study import TINY, keep_systems

CONFIGURED = ("random", "popularity", "tfidf", "task_knn", "t2mrec", "t2mrec_one_direction")
NOT_BENCHED = ("t2mrec_wo_two_tower", "t2mrec_hard_negatives", "t2mrec_wo_cl")


def config(*overrides):
    return load([*TINY, *overrides])


@pytest.fixture(scope="session")
def few_root(prepared_root, tmp_path_factory):
    """The tiny study with few systems; nobody writes there."""
    copy = tmp_path_factory.mktemp("few") / "study"
    shutil.copytree(prepared_root, copy, symlinks=True)
    keep_systems(copy, *CONFIGURED, *NOT_BENCHED)
    return copy


@pytest.fixture
def shared_root(few_root, monkeypatch):
    """The tiny study with few systems, in force for a test that only reads."""
    monkeypatch.setenv("T2M_ROOT", str(few_root))
    return few_root


@pytest.fixture
def root(few_root, tmp_path, monkeypatch):
    """A private copy of it, in force for the test."""
    copy = tmp_path / "study"
    shutil.copytree(few_root, copy, symlinks=True)
    monkeypatch.setenv("T2M_ROOT", str(copy))
    return copy
