from tests.toy_tools import catalog, embedder, project  # noqa: F401
