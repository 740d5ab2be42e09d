import pytest

from study.base import paths


@pytest.fixture
def new_results(tmp_path, monkeypatch):
    """An empty folder for the results of any data set."""
    monkeypatch.setattr(paths, "results", lambda dataset: tmp_path)
    return tmp_path
