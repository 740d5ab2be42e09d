from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The toy data sets are shared with the other baselines' tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "baselines"))


@pytest.fixture(autouse=True, scope="module")
def _private_cache(private_cache):
    """Every file here has a cache of its own."""
