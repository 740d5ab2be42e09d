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
def prepared_root(prepared_root, tmp_path_factory):
    """The tiny study with few systems; tests copy it."""
    copy = tmp_path_factory.mktemp("few") / "study"
    shutil.copytree(prepared_root, copy, symlinks=True)
    keep_systems(copy, *CONFIGURED, *NOT_BENCHED)
    return copy
