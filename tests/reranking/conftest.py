"""The data set and split that the tests share."""

import pytest
from reranking_toys import make_data

from study.data.splits import make


@pytest.fixture(scope="session")
def toy():
    return make_data(100, 60)


@pytest.fixture(scope="session")
def toy_split(toy):
    return make(toy, "cold")
