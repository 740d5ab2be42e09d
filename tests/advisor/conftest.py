from tests.advisor.llm.scripted_endpoint import client, server  # noqa: F401
