from tests.toy_tools import catalog, embedder  # noqa: F401
