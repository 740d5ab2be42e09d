import pytest

from tests.advisor.gateway.served import served  # noqa: F401
from tests.toy_tools import catalog, embedder, project, run, toy  # noqa: F401


@pytest.fixture
def anyio_backend():
    return "asyncio"
