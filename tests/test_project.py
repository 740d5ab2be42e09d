"""What the project says of itself: order of imports, locked versions, citation, described tables."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pandas as pd
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import study
from study.judging.croissant import export_croissant
from tests.tiny_study import REPOSITORY as ROOT
from tests.tiny_study import rooted


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    own = {"PYTHONPATH": f"{folder / 'src'}:{folder}", "PATH": "/usr/bin:/bin"}
    return subprocess.run([program, "--no-cache"], cwd=folder, env=own, capture_output=True, text=True, check=False)


def test_every_import_keeps_the_order_of_rooms():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


def test_nothing_but_tests_needs_a_library_for_tests():
    for file in [*(ROOT / "src").rglob("*.py"), *(ROOT / "baselines").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"unittest", "pytest", "hypothesis"}, file


@pytest.mark.slow
def test_an_import_against_the_order_breaks_the_contract(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("src", "baselines"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
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


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = re.findall(r"(?m)^[\w.-]+==[^\\\n]*", (ROOT / "requirements.txt").read_text())
LOCKED = {re.sub(r"[-_.]+", "-", each.name).lower(): each for each in map(Requirement, LOCK)}


def test_every_direct_dependency_is_locked_as_listed() -> None:
    extras = PROJECT["optional-dependencies"]
    for line in [*PROJECT["dependencies"], *extras["study"], *extras["dev"]]:
        wanted = Requirement(line)
        if wanted.name == "torch":  # installed before the lock
            continue
        locked = LOCKED[re.sub(r"[-_.]+", "-", wanted.name).lower()]
        assert (wanted.specifier, str(wanted.marker)) == (locked.specifier, str(locked.marker)), line
    text = (ROOT / "requirements.txt").read_text()
    assert "torch" not in LOCKED
    assert len(LOCK) == len(LOCKED)
    assert len(re.findall(r"==[^\n]*\\\n +--hash=sha256:[0-9a-f]{64}", text)) == len(LOCKED)  # each has a hash


def test_conda_file_agrees_with_the_lock() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["dependencies"] == ["python=3.11", "pip", {"pip": ["-r requirements.txt"]}]


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0", "3.13.0", "3.14.0"])
def test_every_locked_package_runs_on_any_python_that_the_project_takes(python: str) -> None:
    assert SpecifierSet(PROJECT["requires-python"]).contains(python) == (python != "3.14.0")
    for name, locked in LOCKED.items():
        try:
            about = metadata(name)
        except PackageNotFoundError:  # of another Python
            assert locked.marker is not None, name
            continue
        assert f"=={Version(about['Version']).public}" == str(locked.specifier), "this environment is not the lock"
        wants = about.get("Requires-Python")
        assert python == "3.14.0" or not wants or SpecifierSet(wants).contains(python), name


def test_the_citation_names_this_version_and_the_preprint_with_its_authors():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert str(citation["version"]) == study.__version__
    (paper,) = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["He", "Chen", "Zhao", "Zhang", "Mo", "Ma"]
    assert paper["identifiers"][0]["value"] == "arXiv:2604.17234"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_croissant_describes_every_result_table_and_its_records_are_their_rows(tmp_path):
    import mlcroissant  # takes seconds

    tables = {"tables/overall.csv": pd.read_csv, "rows/useful/cold/top10.parquet": pd.read_parquet}
    names = {*tables, "tables/metrics.csv.xz", "audit/verdicts.csv"}
    for name in names:
        copy = tmp_path / "results/task2mcp" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / "results/task2mcp" / name).read_bytes())
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    with rooted(tmp_path):
        path = export_croissant("task2mcp", tmp_path / "results/task2mcp")
    described = mlcroissant.Dataset(jsonld=str(path))
    assert (described.metadata.issues.errors, described.metadata.issues.warnings) == (set(), set())
    assert {file.name for file in described.metadata.distribution} == names
    for table, read in tables.items():
        found = pd.DataFrame(described.records(record_set=f"rows/{table}"))
        expected = read(path.parent / table)
        assert [name.removeprefix(f"rows/{table}/") for name in found] == list(expected)
        assert len(found) == len(expected)
        first, row = (frame.iloc[0].tolist() for frame in (found, expected))
        assert [value.decode() if isinstance(value, bytes) else value for value in first] == row
