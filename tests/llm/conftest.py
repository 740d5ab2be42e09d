from tests.llm.scripted_endpoint import client, server  # noqa: F401
