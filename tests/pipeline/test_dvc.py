"""The pipeline as DVC runs it, in a small copy of the project: what is up to date stays, a new system runs alone."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from dvc.fs import localfs
from dvc.ignore import DvcIgnoreFilter

from study.data.synthetic import generate
from tests.tiny_study import REPOSITORY, keep_systems

PIPELINE = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())
STAGES = PIPELINE["stages"]
KEPT = ("random", "popularity", "tfidf")
TOY = '''"""A toy baseline: servers in the order of their names."""

import numpy as np


class ByName:
    def fit(self, data, split, *, seed, workdir):
        self.scores = -data.servers["name"].rank().to_numpy(np.float32)

    def score(self, tasks):
        return np.tile(self.scores, (len(tasks), 1))
'''


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with three systems, one protocol and tiny data, which a mirror publishes; its report is made."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("src", "baselines", "conf", "tests/reference"):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copy(REPOSITORY / name, copy)
    keep_systems(copy, *KEPT, "t2mrec")  # which the default configuration names
    datasets = copy / "conf" / "dataset"
    own = {"protocols": ["cold"], "leave_out": ["t2mrec"], "generator": None}
    synthetic = yaml.safe_load((datasets / "synthetic.yaml").read_text()) | own
    mirror = generate(copy / "mirror" / "someone" / "data" / "v1", n_servers=60, n_tasks=80)
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in mirror.glob("*_*.*")}
    source = [{"repository": "someone/data", "commit": "v1", "files": files}]
    (datasets / "task2mcp.yaml").write_text(yaml.safe_dump(synthetic | {"source": source}))
    kept = copy / "results" / "task2mcp"  # of which no row here reads any
    (kept / "cassettes").mkdir(parents=True)
    (kept / "pools.parquet").touch()
    study(copy, "dvc", "init", "--no-scm", "-q")
    study(copy, "dvc", "repro", "report")
    return copy


@pytest.fixture
def project(built: Path, tmp_path: Path) -> Path:
    """A private copy of it."""
    return shutil.copytree(built, tmp_path / "project", symlinks=True)


def study(folder: Path, module: str, *words: str, code: int = 0) -> str:
    """Run a module in the copy with the copy's own code; returns what it printed."""
    return called(folder, sys.executable, "-m", module, *words, code=code)


def called(folder: Path, *command: str, code: int = 0) -> str:
    """Run a command in the copy, where Python finds the copy's own code; returns what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}", "PATH": path, "T2M_MIRROR": str(folder / "mirror")}
    environment = os.environ | own
    environment.pop("T2M_ROOT", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def repro(folder: Path, *words: str) -> list[str]:
    """The stages that `dvc repro report` runs."""
    return re.findall(r"Running stage '([^']+)'", study(folder, "dvc", "repro", "report", *words))


@pytest.mark.slow
def test_what_is_made_stays_and_another_result_runs_its_stages(project: Path) -> None:
    assert repro(project) == []
    results = project / "results" / "task2mcp"
    assert set(pd.read_csv(results / "tables" / "metrics.csv.xz")["system"]) == set(KEPT)
    records, runs = results / "rows" / "simple" / "cold" / "records.jsonl", results / "tables" / "runs.csv"
    lines, before = [json.loads(line) for line in records.read_text().splitlines()], runs.read_bytes()
    for elsewhere in lines:  # what another machine writes runs nothing
        elsewhere["git"]["commit"], elsewhere["hardware"]["cores"] = "0" * 40, 512
        elsewhere["seeds"][0]["seconds_fit"] += 100
    records.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    study(project, "study", "report", "dataset=task2mcp")
    assert runs.read_bytes() != before
    assert repro(project, "--dry") == []
    for name, stages in {
        "tables/metrics.json": ["report"],
        "rows/simple/cold/per_task.parquet": ["report", "rows"],
    }.items():
        kept = (results / name).read_bytes()
        (results / name).write_bytes(kept + b"\n")
        assert sorted(repro(project, "--dry")) == stages, name
        (results / name).write_bytes(kept)


@pytest.mark.slow
def test_a_new_system_runs_alone_and_changed_comments_leave_the_same_bytes(project: Path) -> None:
    rows = list((project / "results" / "task2mcp" / "rows" / "simple").rglob("*.*"))
    before = {path: path.read_bytes() for path in rows}
    for file in ("src/study/evaluation/metrics.py", "baselines/popularity.py"):
        (project / file).write_text((project / file).read_text() + "# A comment.\n")
    add(project, "by_name", TOY)
    assert repro(project) == ["tune", "rows", "report"]
    assert {path: path.read_bytes() for path in rows} == before
    tables = project / "results" / "task2mcp" / "tables"
    assert "by_name" in set(pd.read_csv(tables / "metrics.csv.xz")["system"])
    for name in ("overall.md", "overall.csv", "overall.tex", "runs.csv"):
        assert re.search("by_name|By name", (tables / name).read_text()), name


def add(project: Path, name: str, code: str) -> Path:
    """A system of one's own; returns its yaml."""
    (project / "baselines" / f"{name}.py").write_text(code)
    own = {"title": "By name", "protocols": ["cold"], "model": {"_target_": f"baselines.{name}.ByName"}}
    path = project / "conf" / "system" / "own" / f"{name}.yaml"
    path.write_text(yaml.safe_dump(own))
    return path


@pytest.mark.slow
def test_make_repro_names_the_failed_stages_once_and_the_report_follows(project: Path) -> None:
    """The recipe of the Makefile, with the environment that is there in place of one of its own."""
    tables = project / "results" / "task2mcp" / "tables"
    failing = add(project, "fails", TOY.replace("self.scores =", "raise"))
    (tables / "metrics.csv.xz").unlink()
    venv = Path(sys.executable).parents[1]
    words = ["make", f"--makefile={REPOSITORY / 'Makefile'}", f"--old-file={venv / '.installed'}", f"VENV={venv}"]
    output = called(project, *words, "repro", "DATASET=task2mcp", "DVC_TARGETS=report", code=2)
    failing.unlink()
    assert re.search("1 rows failed: fails under cold: .*TypeError", " ".join(output.split()))
    assert output.count("the stages named above failed") == 1  # told, not only written in the recipe that make prints
    found = set(pd.read_csv(tables / "metrics.csv.xz")["system"])
    assert (found >= set(KEPT), "fails" in found) == (True, False)


def test_make_repro_of_another_profile_makes_all_rows_anew() -> None:
    words = ["make", "--dry-run", "repro", "DATASET=task2mcp", "PROFILE=full", "LAUNCHER=slurm"]
    output = " ".join(called(REPOSITORY, *words).split())
    assert "study run --all --launcher slurm dataset=task2mcp profile=full" in output
    assert "dvc repro" not in output


def test_dvc_ignores_every_record_and_nothing_else_but_four_tables_of_them() -> None:
    ignore = DvcIgnoreFilter(localfs, str(REPOSITORY))
    files = [path for path in (REPOSITORY / "results").rglob("*") if path.is_file() and "synthetic" not in path.parts]
    ignored = {path for path in files if ignore.is_ignored_file(str(path))}
    texts = {path: path.read_text() for path in files if path.suffix in (".json", ".jsonl")}
    records = {path for path, text in texts.items() if '"hardware"' in text}
    records |= {path for path in files if path.name == "executed.json"}  # of which inputs the executed notebooks are
    tables = {path for path in ignored - records if path.parent.name == "tables"}
    assert len(records) > 100
    assert ignored == records | tables
    assert {path.name for path in tables} == {"machines.csv", "overall.md", "overall.tex", "runs.csv"}


# A file -> the stages of dvc.yaml that name it, or a folder that holds it, among their dependencies.
REACHED = {
    "conf/system/own/new.yaml": {"tune", "rows", "report", "notebooks"},
    "results/task2mcp/rows/own/cold/per_task.parquet": {"report", "notebooks"},
    "conf/system/paper/t2mrec.yaml": set(STAGES) - {"fetch", "prepare", "split", "judged", "tools"},
    "src/study/analysis/audit/rq1.py": {"audit", "notebooks"},
    "baselines/bm25.py": {"tune", "rows"},
    "src/study/t2mrec/module.py": {"tune", "rows", "sweeps"},
}


@pytest.mark.parametrize("file", REACHED)
def test_a_change_reaches_the_stages_that_read_it(file: str) -> None:
    reached = {name for name, own in STAGES.items() if any(f"{file}/".startswith(f"{dep}/") for dep in own["deps"])}
    assert reached == REACHED[file]


def test_every_stage_depends_on_code_and_files_that_are_there_and_the_lock_knows_it() -> None:
    for name, stage in STAGES.items():
        assert any(dep.startswith("src/study") for dep in stage["deps"]), name
        assert [dep for dep in stage["deps"] if not dep.startswith("data/") and not (REPOSITORY / dep).exists()] == []
    assert set(yaml.safe_load((REPOSITORY / "dvc.lock").read_text())["stages"]) == set(STAGES)


def test_data_alone_is_cached_and_every_plot_has_its_columns() -> None:
    outs = [out for stage in STAGES.values() for out in stage["outs"]]
    cached = [out if isinstance(out, str) else next(iter(out)) for out in outs if "cache" not in str(out)]
    assert [out for out in cached if not out.startswith("data/")] == []
    kept = [path for out in outs if isinstance(out, dict) for path, how in out.items() if "cache" in how]
    assert [path for path in kept if not path.startswith(("results/", "figures/"))] == []
    assert len(cached) + len(kept) == len(outs)
    for path, axes in ((path, axes) for plot in PIPELINE["plots"] for path, axes in plot.items()):
        wanted = {axes["x"], *([axes["y"]] if isinstance(axes["y"], str) else axes["y"])}
        assert wanted <= set(pd.read_csv(REPOSITORY / path, nrows=0)), path
    assert set(PIPELINE["metrics"]) <= set(kept)


def test_the_parameters_are_the_settings_of_the_study_and_none_is_left_to_be_resolved() -> None:
    files = set(PIPELINE["params"])
    systems = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "conf/system").glob("*/*.yaml")}
    own = {file for file in systems if file.startswith("conf/system/own/")}
    assert {file for file in files if file.startswith("conf/system/")} == systems - own
    assert [file for file in files if "${" in str(yaml.safe_load((REPOSITORY / file).read_text()))] == []
