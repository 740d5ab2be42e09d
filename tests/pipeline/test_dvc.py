"""The pipeline as DVC runs it, in a small copy of the project: what is up to date stays, a new system runs alone."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
KEPT = ("random", "popularity", "tfidf")
TOY = '''"""A toy baseline: servers in the order of their names."""

import numpy as np


class ByName:
    def fit(self, data, split, *, seed, workdir):
        self.scores = -data.servers["name"].rank().to_numpy(np.float32)

    def score(self, tasks):
        return np.tile(self.scores, (len(tasks), 1))
'''

# Runs the notebook of the overall comparison in one process and prints its tables.
NOTEBOOK = """
import IPython.display
import nbformat

def show(thing):
    if isinstance(thing, IPython.display.Markdown):
        print(thing.data)

IPython.display.display = show
names = {}
for cell in nbformat.read("notebooks/02_rq1_overall.ipynb", as_version=4).cells:
    if cell.cell_type == "code":
        exec(cell.source, names)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with three systems, one protocol and a tiny data set."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("src", "baselines", "conf"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "dvc.yaml", copy)
    (copy / "notebooks").mkdir()
    for path in (copy / "conf" / "system").glob("*.yaml"):
        if path.stem not in KEPT:
            path.unlink()
    shutil.copy(ROOT / "conf" / "system" / "t2mrec.yaml", copy / "conf" / "system" / "t2mrec.yaml")
    edit(copy / "conf" / "system" / "t2mrec.yaml", "family: t2mrec ", "family: ablation ")  # left out, but composable
    edit(copy / "conf" / "dataset" / "synthetic.yaml", "protocols: [cold, warm]", "protocols: [cold]")
    edit(copy / "conf" / "dataset" / "synthetic.yaml", "n_servers: 400", "n_servers: 60")
    edit(copy / "conf" / "dataset" / "synthetic.yaml", "n_tasks: 600", "n_tasks: 80")
    (copy / "conf" / "dataset" / "task2mcp.yaml").unlink()
    study(copy, "dvc", "init", "--no-scm", "-q")
    study(copy, "study", "plan")
    study(copy, "dvc", "repro", "report@synthetic")
    return copy


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def study(folder: Path, module: str, *words: str) -> str:
    """Run a module in the copy with the copy's own code; returns what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}", "PATH": path}
    environment.pop("T2M_ROOT", None)
    done = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def ran(output: str) -> list[str]:
    return re.findall(r"Running stage '([^']+)'", output)


def test_second_repro_runs_nothing(project: Path) -> None:
    output = study(project, "dvc", "repro", "report@synthetic")
    assert ran(output) == []
    assert "up to date" in output


def test_new_system_runs_alone_and_appears_in_the_tables(project: Path) -> None:
    (project / "baselines" / "by_name.py").write_text(TOY)
    template = (project / "conf" / "system" / "tfidf.yaml").read_text().split("model:")[0]
    own = template.replace("name: tfidf", "name: by_name").replace("baselines/tfidf.py", "baselines/by_name.py")
    own = re.sub(r"title: [^#\n]*", "title: By name ", own)
    (project / "conf" / "system" / "by_name.yaml").write_text(own + "model:\n  _target_: baselines.by_name.ByName\n")
    study(project, "study", "plan")
    assert ran(study(project, "dvc", "repro", "report@synthetic")) == ["run@synthetic-cold-by_name", "report@synthetic"]
    tables = project / "results" / "synthetic" / "tables"
    assert "by_name" in set(pd.read_csv(tables / "metrics.csv.xz")["system"])
    assert "By name" in (tables / "overall.md").read_text()
    for name in ("overall.csv", "overall.tex", "runs.csv"):
        assert re.search("by_name|By name", (tables / name).read_text()), name

    shutil.copy(ROOT / "notebooks" / "02_rq1_overall.ipynb", project / "notebooks")
    (project / "show_overall.py").write_text(NOTEBOOK)
    shown = study(project, "show_overall")
    lists = [block for block in re.split(r"\n\n+", shown) if block.startswith("|") and "| Popularity" in block]
    assert len(lists) >= 2  # quality, costs
    assert all("| By name" in block for block in lists)
    drawn = {path.stem: path.read_text() for path in (project / "figures" / "synthetic").glob("*.svg")}
    assert {"overall_cold", "per_task_cold", "cost_cold"} <= set(drawn)
    assert [name for name, figure in drawn.items() if "By name" not in figure] == []


def test_one_failing_system_is_named_and_the_others_stand_in_the_tables(project: Path, tmp_path: Path) -> None:
    copy = tmp_path / "project"
    shutil.copytree(project, copy)
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    shutil.copy(ROOT / "notebooks" / "02_rq1_overall.ipynb", copy / "notebooks")
    (copy / ".venv").mkdir()
    (copy / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (copy / ".venv" / ".installed").touch()
    (copy / "baselines" / "fails.py").write_text(TOY.replace("ByName", "Fails").replace("self.scores =", "raise"))
    own = (copy / "conf" / "system" / "tfidf.yaml").read_text().split("model:")[0]
    own = own.replace("name: tfidf", "name: fails").replace("baselines/tfidf.py", "baselines/fails.py")
    (copy / "conf" / "system" / "fails.yaml").write_text(own + "model:\n  _target_: baselines.fails.Fails\n")
    tables = copy / "results" / "synthetic" / "tables"
    shutil.rmtree(tables)
    shutil.rmtree(copy / "figures", ignore_errors=True)

    environment = os.environ | {"PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}"}
    environment.pop("T2M_ROOT", None)
    words = ["make", "repro", "DVC_TARGETS=report@synthetic"]
    done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "run@synthetic-cold-fails" in said
    assert said.count("the stages named above failed") == 1  # told, not only written in the recipe that make prints
    assert set(pd.read_csv(tables / "metrics.csv.xz")["system"]) >= set(KEPT)
    assert "fails" not in set(pd.read_csv(tables / "metrics.csv.xz")["system"])
    assert (copy / "figures" / "synthetic" / "overall_cold.png").exists()


def test_further_code_and_a_changed_parent_run_their_own_system_alone(project: Path) -> None:
    systems = project / "conf" / "system"
    child = (systems / "tfidf.yaml").read_text().split("model:")[0]
    (systems / "tfidf_child.yaml").write_text(
        "defaults: [tfidf, _self_]\nname: tfidf_child\ntitle: Child\n"
        "code: [baselines/tfidf.py, baselines/popularity.py]\n"
    )
    assert "defaults" not in child
    stages = ("run@synthetic-cold-tfidf_child", "report@synthetic")

    def again() -> list[str]:
        study(project, "study", "plan")
        return ran(study(project, "dvc", "repro", *stages))

    assert again() == list(stages)
    assert again() == []
    edit(systems / "tfidf.yaml", "title: TF-IDF cosine", "title: TF-IDF, cosine")
    assert {name for name in again() if name.startswith("run@")} == {stages[0], "run@synthetic-cold-tfidf"}
    edit(project / "baselines" / "popularity.py", "import", "import ")
    assert stages[0] in again()


def test_changed_evaluator_retrains_nothing(project: Path) -> None:
    edit(project / "src" / "study" / "evaluation" / "multiplicity.py", "import", "import ")
    assert ran(study(project, "dvc", "repro", "report@synthetic")) == ["report@synthetic"]


def test_plan_names_files_that_exist() -> None:
    plan = yaml.safe_load((ROOT / "plan.yaml").read_text())
    for kind in ("tune", "run", "run_tuned"):
        for item in plan[kind].values():
            assert (ROOT / item["code"]).exists()
            assert (ROOT / item["config"]).exists()


def test_every_tuned_row_of_the_plan_has_something_that_tunes_it() -> None:
    plan = yaml.safe_load((ROOT / "plan.yaml").read_text())
    for item in plan["run_tuned"].values():
        chosen = ROOT / "results" / item["dataset"] / "sweeps" / item["system"] / "best.yaml"
        assert f"{item['dataset']}-{item['system']}" in plan["tune"] or chosen.exists(), item
