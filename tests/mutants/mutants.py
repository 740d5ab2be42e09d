"""Mutants: small faults, drawn at random over all packages, each with the test that kills it (mutants.yaml).

    python tests/mutants/mutants.py show               killed and not killed; places that the code no longer has
    python tests/mutants/mutants.py check [WORD...]    run the tests with every fault, or with those that WORD names

`check` writes each fault into a clean work tree (--tree, by default this one) and puts the file back. It first runs the
test that killed the fault, then the test files that name its module, and notes what kills it now; it goes on where it
was stopped, and ends with 1 if a fault that was killed survives. A place is a function and a source text, so it
survives moves; where the text has changed, mend the entry by hand. A fault counts as killed only if the test passes
without it.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import resource
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import yaml

LIST = Path(__file__).with_suffix(".yaml")
NEAR = 6  # test files of a module
CPU, WALL = 300, 3600  # seconds for the tests of one step: of the processor, and in all (a busy machine is slow)


@dataclass
class Mutant:
    """A fault. `state`: killed, survived, or open (the tests of its module do not kill it)."""

    kind: str
    file: str  # relative to the tree; where it was last
    function: str  # qualified name within the file
    before: str
    after: str
    nth: int = 0  # of equal texts in the function
    state: str = "open"
    by: str | None = None  # the test that kills it
    tests: int | None = None  # how many were run


def save(mutants: list[Mutant]) -> None:
    text = yaml.safe_dump([asdict(one) for one in mutants], sort_keys=False, width=10_000, allow_unicode=True)
    LIST.with_suffix(".tmp").write_text(text, encoding="utf-8")
    LIST.with_suffix(".tmp").replace(LIST)


def nodes(tree: ast.AST, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.AST]]:
    """Every node of the functions, with the function's qualified name; not those within f-strings, which have no place
    of their own."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from nodes(child, (*names, child.name))
        elif not isinstance(child, ast.JoinedStr):
            yield ".".join(names), child
            yield from nodes(child, names)


@cache
def parsed(tree: Path) -> dict[Path, list[tuple[str, ast.AST]]]:
    files = sorted([*(tree / "src" / "study").rglob("*.py"), *(tree / "baselines").rglob("*.py")])
    return {path: list(nodes(ast.parse(path.read_text(encoding="utf-8")))) for path in files}


def locate(mutant: Mutant, tree: Path) -> tuple[Path, ast.AST] | None:
    """The place of a fault: in its file, else in a function of its name, else anywhere it stands once."""
    (statement,) = ast.parse(mutant.before).body
    kind = type(statement.value if isinstance(statement, ast.Expr) else statement)
    ranked: dict[int, list[tuple[Path, ast.AST]]] = defaultdict(list)
    for path, own in parsed(tree).items():
        equal: Counter[str] = Counter()
        for function, node in own:
            if type(node) is not kind or ast.unparse(node) != mutant.before:
                continue
            same_name = function.rpartition(".")[2] == mutant.function.rpartition(".")[2]
            here = same_name and equal[function] == mutant.nth
            rank = 3 if not here else 2 if function != mutant.function else int(path != tree / mutant.file)
            ranked[rank].append((path, node))
            equal[function] += 1
    return next((ranked[rank][0] for rank in sorted(ranked) if len(ranked[rank]) == 1), None)


def replaced(text: str, node: ast.AST, new: str) -> str:
    """`text` with another text in the node's place."""
    data, lines = text.encode(), text.encode().splitlines(keepends=True)
    start, end = (
        sum(map(len, lines[: line - 1])) + column
        for line, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))  # type: ignore[attr-defined]
    )
    return (data[:start] + new.encode() + data[end:]).decode()


def run_tests(tree: Path, *tests: str) -> tuple[int | None, list[str]]:
    """The exit code of pytest in a tree, None after more time than allowed, and the tests that fail."""
    words = ["-m", "pytest", "-qx", "-rfE", "--tb=no", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            [tree / ".venv/bin/python", *words],
            cwd=tree,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=WALL,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU + 10)),
        )
    except subprocess.TimeoutExpired:
        return None, []
    failed = re.findall(r"(?m)^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout)
    return (done.returncode if done.returncode >= 0 else None), failed


def kill(tree: Path, mutant: Mutant, place: tuple[Path, ast.AST], tests: list[str]) -> str | None:
    """The test that fails with the fault and passes without it, or None."""
    path, node = place
    clean = path.read_text(encoding="utf-8")
    try:
        new = mutant.after if isinstance(node, ast.stmt) else f"({mutant.after})"
        path.write_text(replaced(clean, node, new), encoding="utf-8")
        code, failed = run_tests(tree, *tests)
    finally:
        path.write_text(clean, encoding="utf-8")
    by = failed[0] if failed else tests[0]
    return by if code != 0 and run_tests(tree, by)[0] == 0 else None


def near_tests(tree: Path, path: Path) -> list[str]:
    """The test files that name the module of a file, those that bear its name first; at most `NEAR` of them."""
    module = ".".join(path.relative_to(tree).with_suffix("").parts).removeprefix("src.").removesuffix(".__init__")
    parent, _, stem = module.rpartition(".")
    names = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(parent)} import [^\n]*\b{stem}\b")
    files = [file for file in (tree / "tests").rglob("test_*.py") if names.search(file.read_text(encoding="utf-8"))]
    files.sort(key=lambda file: (stem not in file.stem, file.stat().st_size))
    return [file.relative_to(tree).as_posix() for file in files[:NEAR]]


def check(tree: Path, mutants: list[Mutant], words: list[str]) -> bool:
    """Whether every fault that was killed still is; of those not yet run at this commit."""
    if changes := git(tree, "status", "--porcelain", "src", "baselines"):
        sys.exit(f"{tree} has changes; commit them or give a work tree of its own:\n{changes[:500]}")
    noted, lost = tree / ".cache" / "mutants" / git(tree, "rev-parse", "HEAD"), 0
    noted.mkdir(parents=True, exist_ok=True)
    for number, mutant in enumerate(mutants):
        if words and not any(word in f"{mutant.file} {mutant.function} {mutant.by}" for word in words):
            continue
        if (noted / str(number)).exists():
            continue
        by, place = None, locate(mutant, tree)
        if place is not None:
            steps = [*([mutant.by] if mutant.by else []), *near_tests(tree, place[0])]
            by = next((by for test in steps if (by := kill(tree, mutant, place, [test]))), None)
        print(number, f"killed by {by}" if by else "NOT KILLED", mutant.file, mutant.function, flush=True)
        lost += by is None and mutant.state == "killed"
        if by:
            mutant.state, mutant.by = "killed", by
            (noted / str(number)).touch()
            save(mutants)
    return not lost


def git(tree: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=tree, text=True, capture_output=True, check=True).stdout.strip()


def show(tree: Path, mutants: list[Mutant]) -> None:
    print(", ".join(f"{count} {state}" for state, count in Counter(one.state for one in mutants).items()))
    for one in mutants:
        gone = locate(one, tree) is None
        if gone or one.state != "killed":
            what = "no longer there" if gone else one.state
            print(f"  {what}: {one.file} {one.function}: {one.before[:80]} -> {one.after[:80]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("check", "show"))
    parser.add_argument("words", nargs="*", help="part of a file's, a function's or a test's name")
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[2])
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended in any way, it puts the file back
    tree = options.tree.resolve()
    mutants = [Mutant(**entry) for entry in yaml.safe_load(LIST.read_text(encoding="utf-8"))]
    if options.action == "show":
        show(tree, mutants)
    elif not check(tree, mutants, options.words):
        sys.exit(1)


if __name__ == "__main__":
    main()
