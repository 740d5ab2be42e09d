from tests.advisor.llm.scripted_endpoint import client, server  # noqa: F401
from tests.toy_tools import catalog, embedder, project, run, toy  # noqa: F401
