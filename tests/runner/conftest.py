from tests.pipeline.conftest import root  # noqa: F401
