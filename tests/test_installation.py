"""What a developer installs: a wheel in an empty environment, without the study's needs, used from another folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from study.advisor.encoders import fetched
from study.advisor.encoders.sentence import folder_of
from tests.tiny_study import REPOSITORY

HEAVY = ("torch", "pytorch_lightning", "recbole", "ray", "hydra", "dvc", "jupyterlab", "sklearn", "scipy", "pyarrow")
HEAVY += ("optuna", "sentence_transformers")
MOST = 500_000_000  # bytes, weights of the encoder included


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The interpreter of an environment with the wheel, and the variables of its user."""
    folder = tmp_path_factory.mktemp("light")
    source = folder / "source"
    ignored = shutil.ignore_patterns(".*", "data", "results", "figures", "models", "notebooks", "tests", "__pycache__")
    shutil.copytree(REPOSITORY, source, ignore=ignored)
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    python = folder / "env" / "bin" / "python"
    pip = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", source], capture_output=True, text=True, cwd=folder
    )
    if pip.returncode and "No matching distribution" in pip.stderr:
        pytest.skip("no index of packages can be reached")
    assert pip.returncode == 0, pip.stderr
    shutil.rmtree(source)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("T2M_", "PYTHON"))}
    variables |= {"XDG_DATA_HOME": str(folder / "data"), "HOME": str(folder)}
    weights = folder / "data" / "t2mrec-study" / ".cache" / "minilm"
    weights.mkdir(parents=True)
    for inside in fetched.described("minilm").files:
        shutil.copyfile(folder_of("minilm") / Path(inside).name, weights / Path(inside).name)
    return python, variables, folder


def call(installed, *words):
    """What a command prints; it must end well."""
    python, variables, folder = installed
    program = [python.with_name("study"), *words]
    done = subprocess.run(program, capture_output=True, text=True, env=variables, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_light_installation_answers_and_holds_nothing_heavy(installed):
    python, variables, folder = installed
    about = {"mcpServers": {"database": {"command": "npx", "args": ["-y", "server-postgres"]}}}
    (folder / "mcp.json").write_text(json.dumps(about))
    call(installed, "catalog", "add", "mcp.json")
    found = json.loads(call(installed, "recommend", "query a postgres database", "--json"))
    assert [server["name"] for server in found["recommendations"]] == ["database"]
    assert (folder / "data" / "t2mrec-study" / "data" / "catalog").is_dir()
    there = "import importlib.util as u, sys; print([name for name in sys.argv[1:] if u.find_spec(name)])"
    assert subprocess.run([python, "-c", there, *HEAVY], capture_output=True, text=True).stdout.strip() == "[]"
    kept = [path for part in ("env", "data") for path in (folder / part).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept if not path.is_symlink()) < MOST
    study = subprocess.run([python, "-m", "study", "run", "system=bm25"], capture_output=True, text=True, env=variables)
    assert (study.returncode, "[study]" in study.stderr) == (2, True)
