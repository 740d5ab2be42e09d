"""The tiny study with `best` saved, and a fixture that asks it as a person would."""

import shutil
import sys
from pathlib import Path

import pytest

from study.cli import main as cli
from study.config.compose import load
from study.pipeline.export import export
from tests.t2mrec.conftest import toy, toy_split  # noqa: F401
from tests.tiny_study import TINY


@pytest.fixture(scope="module")
def project(prepared_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny study with `best` saved, in force for the tests of a file."""
    place = tmp_path_factory.mktemp("best") / "study"
    shutil.copytree(prepared_root, place, symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(place))
        export(load([*TINY, "system=best"]))
        yield place


@pytest.fixture
def ask(project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Run `study recommend` with the words given; returns exit code, what it printed and what it said beside that."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["study", "recommend", *words])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        return stopped.value.code or 0, printed.out, printed.err

    return run
