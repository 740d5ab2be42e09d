"""The tiny study with saved models, and a fixture that asks as a person would."""

import json
import shutil
from contextlib import contextmanager
from functools import partial

import pytest
from safetensors.numpy import load_file, save_file

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


def damage(path, how):
    """Cut a saved file short, remove it, replace it by a text, or change the value or the arrays that it holds."""
    before = path.read_bytes()
    if how == "cut":
        path.write_bytes(before[:-20])
    elif how == "gone":
        path.unlink()
    elif isinstance(how, str):
        path.write_text(how)
    elif path.suffix == ".json":
        content = json.loads(before)
        path.write_text(json.dumps(how(content) or content))
    else:
        arrays = load_file(path)
        how(arrays)
        save_file(arrays, path)
    assert not path.exists() or path.read_bytes() != before
