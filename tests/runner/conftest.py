from tests.pipeline.conftest import few_root, root, shared_root  # noqa: F401
