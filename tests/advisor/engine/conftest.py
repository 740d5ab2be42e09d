"""The tiny study with saved models, and a fixture that asks as a person would."""

import shutil
from contextlib import contextmanager
from functools import partial

import pytest

from study.config.compose import load
from study.search.export import export
from tests.t2mrec.conftest import toy, toy_split  # noqa: F401
from tests.tiny_study import TINY


@contextmanager
def exported(prepared, copy, *overrides):
    """A copy of the tiny study in which a system was saved, in force within the block."""
    shutil.copytree(prepared, copy, symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(copy))
        export(load([*TINY, *overrides]))
        yield copy


@pytest.fixture(scope="module")
def project(prepared_root, tmp_path_factory):
    """A copy of the tiny study with `field_dense` saved, in force for the tests of a file."""
    with exported(prepared_root, tmp_path_factory.mktemp("field_dense") / "study", "system=field_dense") as copy:
        yield copy


@pytest.fixture
def ask(call, monkeypatch):
    """`study recommend` over the tiny study's servers with some words, on 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    return partial(call, "recommend", "--dataset", "synthetic")
