"""The tiny study with few configured systems: a report reads the settings of all of them."""

from pathlib import Path

import pytest

CONFIGURED = ("random", "popularity", "tfidf", "task_knn", "t2mrec", "t2mrec_one_direction")
NOT_BENCHED = ("t2mrec_wo_two_tower", "t2mrec_hard_negatives", "t2mrec_wo_cl")


@pytest.fixture
def root(root: Path) -> Path:
    """A private copy of the tiny study, in force for the test."""
    for path in (root / "conf" / "system").glob("[!_]*.yaml"):
        if path.stem not in (*CONFIGURED, *NOT_BENCHED):
            path.unlink()
    return root
