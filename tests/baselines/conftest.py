from __future__ import annotations

import pytest

from study import paths


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory):
    """Encodings of the toy texts stay out of the real cache."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("cache")
    patch.setattr(paths, "cache", lambda: folder)
    yield
    patch.undo()
