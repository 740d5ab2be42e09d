"""The data set and split that the tests share."""

import pytest

from study.data.splits import make
from tests.reranking.toys import make_data


@pytest.fixture(scope="session")
def toy():
    return make_data(100, 60)


@pytest.fixture(scope="session")
def toy_split(toy):
    return make(toy, "cold")
