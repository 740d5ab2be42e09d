"""One thread per library: tests are small, and threads that wait for one another are slow on a busy machine."""

import os
from collections.abc import Iterator

import pytest

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")


@pytest.fixture(scope="module")
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder for the tests of one file; encodings of toy texts stay out of the real cache."""
    from study import paths

    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "cache", lambda: folder)
        yield
