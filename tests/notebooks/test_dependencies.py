"""Whatever a notebook reads is a dependency of the stage that executes it, so a new result never meets an old page."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
KNOWN = STAGES["notebooks"]["deps"]
# `paths.results(dataset) / "judged"` -> the function and the literal pieces behind it.
PATH = re.compile(r'paths\.(\w+)\([\w.]*\)((?:\s*/\s*"[^"]*")*)')
PLACES = {
    "conf": "conf",
    "raw": "data/raw/{}",
    "prepared": "data/prepared/{}",
    "splits": "data/splits/{}",
    "models": "models/{}",
    "results": "results/{}",
    "tables": "results/{}/tables",
}
# A file of generated data, one that is published and never remade, one of a tool collection.
ELSEWHERE = (
    "data/raw/task2mcp/truth.json",
    "data/raw/task2mcp/T2MRec/task_mcp_embedding.csv",
    "results/task2mcp/per_query.csv.xz",
)
# Runs the code cells of the given notebooks in plain Python and prints every file below the root that they open.
RECORDER = """
import json, os, sys
from pathlib import Path
import pandas as pd
root, opened, read_parquet = os.environ["T2M_ROOT"] + os.sep, set(), pd.read_parquet
def note(path):
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    if isinstance(name, str) and name.startswith(root):
        opened.add(name.removeprefix(root))
def hook(event, arguments):
    if event == "open" and "r" in str(arguments[1]):
        note(arguments[0])
def from_parquet(path, *args, **kwargs):  # pyarrow opens files without telling Python
    note(path)
    return read_parquet(path, *args, **kwargs)
pd.read_parquet = from_parquet
sys.addaudithook(hook)
for notebook in sys.argv[1:]:
    space = {}
    for cell in json.loads(Path(notebook).read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), space)
            if "parameters" in cell["metadata"].get("tags", []):
                space["dataset"] = "synthetic"
print("opened", json.dumps(sorted(opened)))
"""


def covered(path: str, known: list[str]) -> bool:
    return any(path == dep or path.startswith(dep + "/") for dep in known)


def modules(source: str) -> set[str]:
    """The study's own modules that a source imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("study"):
            found |= {str(node.module)} | {f"{node.module}.{name.name}" for name in node.names}
    return found


def code(path: Path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def sources() -> dict[str, str]:
    """Name -> source of every notebook and of every module of analysis and judging that it imports."""
    found = {path.name: code(path) for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))}
    waiting = {module for source in found.values() for module in modules(source)}
    while waiting:
        module = waiting.pop()
        path = ROOT / "src" / f"{module.replace('.', '/')}.py"
        if module not in found and path.exists() and module.startswith(("study.analysis", "study.judging.store")):
            found[module] = path.read_text(encoding="utf-8")
            waiting |= modules(found[module])
    return found


def test_every_file_that_notebooks_open_is_a_dependency(executed, tmp_path) -> None:
    script = tmp_path / "recorder.py"
    script.write_text(RECORDER)
    notebooks = sorted(str(path) for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
    done = subprocess.run(
        [sys.executable, script, *notebooks],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"T2M_ROOT": str(executed.root), "MPLBACKEND": "Agg"},
    )
    assert done.returncode == 0, done.stderr
    opened = json.loads(done.stdout.rpartition("opened ")[2])
    # What the recorder must have seen, else it records nothing.
    assert {"data/prepared/synthetic/tasks.parquet", "results/synthetic/tables/runs.csv"} <= set(opened)
    known = [*KNOWN, ".cache", "figures/task2mcp"]
    assert [path for path in opened if not covered(path.replace("/synthetic", "/task2mcp", 1), known)] == []


def test_every_path_that_notebooks_build_is_a_dependency() -> None:
    lacking = []
    for name, source in sources().items():
        for function, rest in PATH.findall(source):
            if function not in PLACES:
                continue
            path = "/".join([PLACES[function].format("task2mcp"), *re.findall(r'"([^"]*)"', rest)])
            # A folder whose files are named at run time is looked at by the test above.
            if path not in ELSEWHERE and not (covered(path, KNOWN) or any(dep.startswith(path + "/") for dep in KNOWN)):
                lacking.append((name, path))
    assert lacking == []


def test_every_dependency_that_is_kept_in_the_project_exists() -> None:
    kept = [
        (stage, path)
        for stage, settings in STAGES.items()
        for path in settings.get("do", settings)["deps"]
        if "${" not in path and not path.startswith("data/")
    ]
    assert len(kept) > 40
    assert [entry for entry in kept if not (ROOT / entry[1]).exists()] == []
