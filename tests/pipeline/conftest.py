"""The tiny study with few configured systems: a report reads the settings of all of them."""

import pytest

from study.config.compose import load
from tests.tiny_study import TINY, keep_systems

CONFIGURED = ("random", "popularity", "tfidf", "task_knn", "t2mrec", "t2mrec_one_direction")
NOT_BENCHED = ("t2mrec_wo_two_tower", "t2mrec_hard_negatives", "t2mrec_wo_cl")


def config(*overrides):
    return load([*TINY, *overrides])


def results(root):
    """What every file of results holds."""
    return {path: path.read_bytes() for path in (root / "results").rglob("*") if path.is_file()}


@pytest.fixture
def root(root):
    """A private copy of the tiny study, in force for the test."""
    keep_systems(root, *CONFIGURED, *NOT_BENCHED)
    return root
