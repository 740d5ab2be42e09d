import pytest

from tests.t2mrec.conftest import make_data, toy_split  # noqa: F401


@pytest.fixture(scope="session")
def toy():
    return make_data(100, 60)
