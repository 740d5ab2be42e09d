from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The toy data sets are shared with the other baselines' tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "baselines"))


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory):
    """Encodings of the toy texts stay out of the real cache."""
    from study import paths

    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("cache")
    patch.setattr(paths, "cache", lambda: folder)
    yield
    patch.undo()
