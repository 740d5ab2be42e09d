"""Whatever a notebook reads is a dependency of the stage that executes it, so a new result never meets an old page."""

import ast
import json
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
KNOWN = STAGES["notebooks"]["deps"]
# `paths.results(dataset) / "judged"` -> the function and the literal pieces behind it.
PATH = re.compile(r'paths\.(\w+)\([\w.]*\)((?:\s*/\s*"[^"]*")*)')
PLACES = {name: f"data/{name}/task2mcp" for name in ("raw", "prepared", "splits")}
PLACES |= {name: f"{name}/task2mcp" for name in ("models", "results")}
PLACES |= {"conf": "conf", "tables": "results/task2mcp/tables"}
# Of a tool collection; and records, which no stage hashes (.dvcignore): what they describe is a dependency.
ELSEWHERE = ("results/task2mcp/per_query.csv.xz", "results/task2mcp/records")


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


def test_every_path_that_notebooks_build_is_a_dependency() -> None:
    lacking = []
    for name, source in sources().items():
        for function, rest in PATH.findall(source):
            if function not in PLACES:
                continue
            # A folder whose files are named at run time is looked at by the test of opened files (test_execution.py).
            path = "/".join([PLACES[function], *re.findall(r'"([^"]*)"', rest)])
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
