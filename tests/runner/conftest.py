from tests.pipeline.conftest import prepared_root  # noqa: F401
