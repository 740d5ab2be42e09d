import pytest

from tests.advisor.llm.scripted_endpoint import client, server  # noqa: F401


@pytest.fixture(autouse=True, scope="module")
def _private_cache(private_cache):
    """Every file here has a cache of its own."""
