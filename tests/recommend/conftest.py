"""The tiny study with saved models, and a fixture that asks as a person would."""

import shutil
import sys
from contextlib import contextmanager

import pytest

from study.cli import main as cli
from study.config.compose import load
from study.pipeline.export import export
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
def ask(capsys, monkeypatch):
    """Run `study recommend` with the words given; returns exit code, what it printed and what it said beside that."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["study", "recommend", *words])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        return stopped.value.code or 0, printed.out, printed.err

    return run
