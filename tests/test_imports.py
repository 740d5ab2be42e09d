"""The contracts of pyproject.toml: which room may import which; a broken one is caught."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_study import REPOSITORY


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    own = {"PYTHONPATH": f"{folder / 'src'}:{folder}", "PATH": "/usr/bin:/bin"}
    return subprocess.run([program, "--no-cache"], cwd=folder, env=own, capture_output=True, text=True, check=False)


def test_every_import_keeps_the_order_of_rooms():
    done = lint(REPOSITORY)
    assert done.returncode == 0, done.stdout


def test_nothing_but_tests_needs_a_library_for_tests():
    for file in [*(REPOSITORY / "src").rglob("*.py"), *(REPOSITORY / "baselines").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"unittest", "pytest", "hypothesis"}, file


@pytest.mark.slow
def test_an_import_against_the_order_breaks_the_contract(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("src", "baselines"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    for file, line in (
        ("evaluation/ranking", "from study.analysis.report import main"),
        ("base/files", "import scipy"),
    ):
        path = tmp_path / "src" / "study" / f"{file}.py"
        path.write_text(f"{path.read_text()}\n{line}\n")
    done = lint(tmp_path)
    assert done.returncode != 0
    for broken in ("study.evaluation.ranking -> study.analysis", "study.base.files -> scipy"):
        assert broken in done.stdout
