"""Gate "mutants": 80 small faults in the code, each run against the tests that reach its place.

    python tests/gates/mutants.py draw --tree OLD    the places, seeded (done once; the list lies in mutants.yaml)
    python tests/gates/mutants.py map --tree COPY    which tests reach which place, by probes in the code of COPY
    python tests/gates/mutants.py run --tree COPY    each fault in COPY, tests with -x; goes on where it was stopped
    python tests/gates/mutants.py near --tree COPY   the same without a map: the test files that name the place's module
    python tests/gates/mutants.py check --tree COPY  whether those that were killed still are
    python tests/gates/mutants.py show               killed and survived
    python tests/gates/mutants.py find --tree COPY   the places that are no longer there: give their new text by hand

COPY is a work tree of its own with an environment in .venv: the script writes faults into its files and puts them back.
A place is a function and a source text, so that it survives moves. A fault counts as killed only if the test that fails
with it passes without it.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

LIST = Path(os.environ.get("MUTANTS_LIST") or Path(__file__).with_name("mutants.yaml"))
SEED, PER_KIND = 58, 16
FIRST, MOST = 40, 300  # tests run first, and at all: the fastest that reach the place
NEAR = 6  # test files
CPU, WALL = 300, 3600  # seconds for the tests of one step: of the processor, and in all (a busy machine is slow)
# Rooms with many subjects count by subject.
WIDE = ("src/study/analysis", "src/study/tools")
# What the redesign deletes, replaces by a library or writes anew.
LEAVES = (
    "agent/agent",
    "agent/answer",
    "agent/commands",
    "agent/conversation",
    "agent/extraction",
    "agent/load_test",
    "agent/model",
    "agent/model_trial",
    "agent/retrieval",
    "agent/settings",
    "agent/specification",
    "analysis/ablation/figures",
    "analysis/audit/figures",
    "analysis/audit/labels_mixture",
    "analysis/audit/settings",
    "analysis/audit/tables",
    "analysis/overall/drawn",
    "analysis/overall/growth",
    "analysis/report/plots",
    "analysis/usefulness/diversity",
    "analysis/usefulness/figures",
    "analysis/usefulness/parts",
    "baselines/_template",
    "baselines/generative/prefix_tree",
    "baselines/label_ranker_plain",
    "baselines/on_device",
    "baselines/recbole_",
    "baselines/settings",
    "catalog/settings",
    "cli/aliases",
    "cli/audit",
    "cli/main",
    "cli/systems",
    "cli/usefulness",
    "cli/verify",
    "config/compose",
    "config/reader",
    "config/schema",
    "config/systems",
    "data/raw_files",
    "encoders/nearest",
    "pipeline/bench_parts",
    "pipeline/croissant",
    "pipeline/gpu_hours",
    "pipeline/plan",
    "recommend/batch",
    "recommend/large",
    "runner/cluster",
    "runner/crate",
    "runner/doctor",
    "runner/energy",
    "runner/exchange",
    "runner/fingerprint",
    "runner/loggers",
    "runner/outputs",
    "runner/own_system",
    "runner/provenance",
    "search/trials",
    "site/",
    "t2mrec/device",
    "t2mrec/program_",
    "tools/catalogues/connection",
    "tools/catalogues/registries",
    "tools/flow/contrastive",
    "tools/flow/encoder_tables",
    "tools/flow/lora",
    "tools/flow/marketplace",
    "tools/flow/settings",
    "tools/intent/settings",
    "tools/serve/arguments",
    "tools/serve/checker",
    "tools/serve/children",
    "tools/serve/server",
    "tools/serve/settings",
    "tools/sizes",
    "usefulness/one_product",
)
GONE = ("rerank_pool",)  # functions of files that stay
CORE = ("baselines", "src/study/data", "src/study/evaluation", "src/study/t2mrec")  # rooms with a fault of every kind
PATHS = (
    "path",
    "raw",
    "folder",
    "file",
    "name",
    "given",
    "root",
    "place",
    "home",
)  # a division of these is no arithmetic
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
PROBE = """
import os
_seen = set()
def hit(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if test and (number, test) not in _seen:
        _seen.add((number, test))
        with open({file!r}, "a") as stream:
            stream.write(f"{{number}}\\t{{test}}\\n")
"""


@dataclass
class Mutant:
    """A fault. `state`: open, killed, survived, or unreached (no test comes to its place)."""

    kind: str
    file: str  # relative to the tree; where it was last
    function: str  # qualified name within the file
    before: str
    after: str
    nth: int = 0  # of equal places in the function
    state: str = "open"
    by: str | None = None  # the test that kills it
    tests: int | None = None  # how many were run


@dataclass
class Place:
    """Where a fault can be. `nth`: number among equal texts of the function. `after`: the text with the fault."""

    path: Path
    function: str
    nth: int
    node: ast.AST
    after: str

    @property
    def name(self) -> str:
        return self.function.rsplit(".", 1)[-1]


def load() -> list[Mutant]:
    return [Mutant(**entry) for entry in yaml.safe_load(LIST.read_text(encoding="utf-8"))]


def save(mutants: list[Mutant]) -> None:
    text = yaml.safe_dump([asdict(one) for one in mutants], sort_keys=False, width=10_000, allow_unicode=True)
    temporary = LIST.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(LIST)


def places(tree: ast.Module) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Every node within a function, with the function's qualified name and the node's parent."""

    def walk(node: ast.AST, parent: ast.AST, names: tuple[str, ...], inside: bool) -> Iterator[tuple[str, Any, Any]]:
        if isinstance(node, ast.JoinedStr):
            return
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if any("jit" in ast.unparse(one) for one in node.decorator_list):
                return
            names, inside = (*names, node.name), inside or not isinstance(node, ast.ClassDef)
            for child in node.body:
                yield from walk(child, node, names, inside)
            return
        if inside:
            yield ".".join(names), node, parent
        for child in ast.iter_child_nodes(node):
            yield from walk(child, node, names, inside)

    for node in tree.body:
        yield from walk(node, tree, (), False)


def fault(node: ast.AST, parent: ast.AST) -> tuple[str, str] | None:
    """The kind of fault that a node can have, and its text with it."""

    def swapped(own: ast.AST) -> ast.AST:
        return SWAPS[type(own)]()

    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        sides = (node.left, node.right)
        if any(isinstance(one, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp | ast.Dict) for one in sides):
            return None
        if any(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in sides):
            return None
        if isinstance(node.op, ast.Div) and any(word in ast.unparse(node).lower() for word in PATHS):
            return None
        return "arithmetic", ast.unparse(ast.BinOp(node.left, swapped(node.op), node.right))  # type: ignore[arg-type]
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        return "boundary", ast.unparse(ast.Compare(node.left, [swapped(node.ops[0])], node.comparators))  # type: ignore[list-item]
    if isinstance(node, ast.BoolOp):
        return "condition", ast.unparse(ast.BoolOp(swapped(node.op), node.values))  # type: ignore[arg-type]
    if isinstance(parent, ast.If | ast.IfExp | ast.While) and node is parent.test:
        return "condition", ast.unparse(ast.UnaryOp(ast.Not(), node))  # type: ignore[arg-type]
    if isinstance(node, ast.Raise):
        return "swallowed error", "pass"
    divided = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div) and node is parent.right
    if divided and isinstance(node, ast.Constant) and isinstance(node.value, str):
        return "wrong file", repr("other_" + node.value)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "paths":
        others = {"results": "tables", "tables": "results", "prepared": "raw", "raw": "prepared", "splits": "prepared"}
        others |= {"cache": "conf", "conf": "cache", "models": "results", "figures": "tables"}
        if node.attr in others:
            return "wrong file", f"paths.{others[node.attr]}"
    return None


def sources(tree: Path) -> list[Path]:
    return sorted([*(tree / "src" / "study").rglob("*.py"), *(tree / "baselines").rglob("*.py")])


@cache
def candidates(tree: Path) -> dict[tuple[str, str], list[Place]]:
    """File, function, number among equals and node of every place, by kind of fault and text."""
    found: dict[tuple[str, str], list[Place]] = defaultdict(list)
    for path in sources(tree):
        seen: dict[tuple[str, str], int] = defaultdict(int)
        for function, node, parent in places(ast.parse(path.read_text(encoding="utf-8"))):
            if (fitting := fault(node, parent)) is not None:
                text = ast.unparse(node)
                found[fitting[0], text].append(Place(path, function, seen[function, text], node, fitting[1]))
                seen[function, text] += 1
    return found


def locate(mutant: Mutant, tree: Path) -> tuple[Path, ast.AST] | None:
    """The place of a fault: in its file, else in a function of its name, else anywhere it stands once."""
    ranked: dict[int, list[tuple[Path, ast.AST]]] = defaultdict(list)
    for place in candidates(tree).get((mutant.kind, mutant.before), ()):
        same, last = place.function == mutant.function, place.name == mutant.function.rsplit(".", 1)[-1]
        rank = 3 if place.nth != mutant.nth or not last else 2 if not same else int(place.path != tree / mutant.file)
        ranked[rank].append((place.path, place.node))
    return next((ranked[rank][0] for rank in sorted(ranked) if len(ranked[rank]) == 1), None)


def draw(tree: Path) -> list[Mutant]:
    """Of each kind one place in each of 16 rooms, those of `CORE` among them."""
    found: dict[str, dict[str, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for (kind, before), own in candidates(tree).items():
        for place in own:
            file = place.path.relative_to(tree).as_posix()
            if place.name in GONE or file.removeprefix("src/study/").startswith(LEAVES):
                continue
            parts = Path(file).parent.parts
            room = "/".join(parts if file.startswith(WIDE) else parts[:3])
            found[kind][room].append(Mutant(kind, file, place.function, before, place.after, place.nth))
    rng, drawn = random.Random(SEED), []
    for kind in sorted(found):
        core = [room for room in CORE if room in found[kind]]
        others = sorted(set(found[kind]) - set(core))
        for room in [*core, *rng.sample(others, PER_KIND - len(core))]:
            own_places = sorted(found[kind][room], key=lambda one: (one.file, one.function, one.before, one.nth))
            drawn.append(rng.choice(own_places))
    return drawn


def replaced(text: str, node: Any, new: str) -> str:
    """`text` with another text in the node's place."""
    lines = text.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    data = text.encode()
    return (data[:start] + new.encode() + data[end:]).decode()


def require_copy(tree: Path) -> None:
    """Refuse a tree with changes of somebody's."""
    changes = subprocess.run(["git", "status", "--porcelain"], cwd=tree, text=True, capture_output=True, check=True)
    if changes.stdout.strip():
        sys.exit(f"{tree} has changes; give a work tree of its own:\n{changes.stdout[:500]}")


def run_tests(tree: Path, *words: str, log: Path | None = None, limited: bool = True) -> int | None:
    """The exit code of pytest in a tree; None after more time than allowed. `log`: gets the outcomes, a line a test."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parent),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if log is not None:
        environment["MUTANTS_LOG"] = str(log)
    command = [str(tree / ".venv/bin/python"), "-m", "pytest", "-q", "-p", "mutants", "-p", "no:cacheprovider", *words]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU + 10))) if limited else None,
    )
    try:
        code = process.wait(WALL if limited else None)
        return None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def pytest_runtest_logreport(report: Any) -> None:
    """Keep what became of a test (this file is pytest's plugin too)."""
    if file := os.environ.get("MUTANTS_LOG"):
        with open(file, "a") as stream:
            stream.write(json.dumps([report.nodeid, report.when, report.outcome, round(report.duration, 3)]) + "\n")


def pieces(tree: Path) -> list[str]:
    """Folders of tests that hold test files themselves."""
    folders = {path.parent for path in (tree / "tests").rglob("test_*.py")} - {tree / "tests" / "gates"}
    return sorted(folder.relative_to(tree).as_posix() for folder in folders)


def make_map(tree: Path, mutants: list[Mutant], only: list[str]) -> None:
    """Run the tests with a probe in every place, a folder at a time."""
    kept = tree / ".cache" / "mutants"
    kept.mkdir(parents=True, exist_ok=True)
    require_copy(tree)
    by_file: dict[Path, list[tuple[Any, int]]] = defaultdict(list)
    for number, mutant in enumerate(mutants):
        if (place := locate(mutant, tree)) is not None:
            by_file[place[0]].append((place[1], number))
    try:
        (tree / "src/study/_probe.py").write_text(PROBE.format(file=str(kept / "hits.tsv")))
        for path, nodes in by_file.items():
            text = path.read_text(encoding="utf-8")
            for node, number in sorted(nodes, key=lambda one: (one[0].lineno, one[0].col_offset), reverse=True):
                call = f'__import__("study._probe", fromlist=["hit"]).hit({number})'
                own = ast.get_source_segment(text, node) or ""
                new = f"{call}; {own}" if isinstance(node, ast.stmt) else f"({call} or ({own}))"
                text = replaced(text, node, new)
            ast.parse(text)
            path.write_text(text, encoding="utf-8")
        for piece in only or pieces(tree):
            done = kept / (piece.replace("/", "-") + ".done")
            if done.exists():
                continue
            tests = sorted(path.relative_to(tree).as_posix() for path in (tree / piece).glob("test_*.py"))
            code = run_tests(tree, *tests, log=kept / "outcomes.jsonl", limited=False)
            print(piece, "exit", code, flush=True)
            if code in (0, 1):
                done.touch()
    finally:
        subprocess.run(["git", "checkout", "-q", "--", "src", "baselines"], cwd=tree, check=True)
        (tree / "src/study/_probe.py").unlink(missing_ok=True)


def read_map(tree: Path) -> tuple[dict[int, set[str]], dict[str, float], bool]:
    """Tests by fault, seconds by test, and whether every folder was run."""
    kept = tree / ".cache" / "mutants"
    seconds: dict[str, float] = defaultdict(float)
    for line in (kept / "outcomes.jsonl").read_text().splitlines():
        test, _, _, took = json.loads(line)
        seconds[test] += took
    of_file: dict[str, set[str]] = defaultdict(set)
    for test in seconds:
        of_file[test.split("::")[0]].add(test)
    reach: dict[int, set[str]] = defaultdict(set)
    for line in (kept / "hits.tsv").read_text().splitlines():
        number, _, name = line.partition("\t")
        test, _, phase = name.rpartition(" ")
        # What a fixture does is seen by every test that shares it.
        reach[int(number)] |= of_file[test.split("::")[0]] if phase == "(setup)" else {test} & seconds.keys()
    return reach, seconds, all((kept / (piece.replace("/", "-") + ".done")).exists() for piece in pieces(tree))


def kill(tree: Path, mutant: Mutant, tests: list[str], broken: set[str]) -> tuple[str | None, bool]:
    """The test that fails with the fault and passes without it, None where none does; whether all ended in time."""
    place = locate(mutant, tree)
    assert place is not None
    path, node = place
    clean = path.read_text(encoding="utf-8")
    new = mutant.after if isinstance(node, ast.stmt) else f"({mutant.after})"
    faulty = replaced(clean, node, new)
    listed, log = tree / ".cache/mutants/tests.txt", tree / ".cache/mutants/last.jsonl"
    left = [test for test in tests if test not in broken]
    while left:
        listed.write_text("\n".join(left))
        log.unlink(missing_ok=True)
        try:
            path.write_text(faulty, encoding="utf-8")
            code = run_tests(tree, "-x", f"@{listed}", *(f"--deselect={test}" for test in broken), log=log)
        finally:
            path.write_text(clean, encoding="utf-8")
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        failed = [line[0] for line in lines if line[2] == "failed"]
        if code == 0:
            return None, True
        if code is None:
            ended = {line[0] for line in lines if line[1] == "teardown"}
            hanging = next((test for test in left if test not in ended), left[0])
            return (f"{hanging} (time)", True) if run_tests(tree, hanging) == 0 else (None, False)
        if not failed:  # nothing could be collected: the fault breaks the import
            if run_tests(tree, f"@{listed}", "--collect-only") == 0:
                return f"{left[0]} (collection)", True
            return None, False
        if run_tests(tree, failed[0]) == 0:
            return failed[0], True
        broken.add(failed[0])  # it fails without the fault too
        left = [test for test in left if test not in broken]
    return None, True


def in_order(tests: set[str], seconds: dict[str, float]) -> list[list[str]]:
    """The fastest tests in two steps, those of a file together."""
    fastest = sorted(tests, key=lambda test: (seconds[test], test))[:MOST]
    return [sorted(part, key=lambda test: test.split("::")[0]) for part in (fastest[:FIRST], fastest[FIRST:]) if part]


def run(tree: Path, mapped: Path, mutants: list[Mutant]) -> None:
    """Decide every open fault as far as the map goes."""
    require_copy(tree)
    (tree / ".cache/mutants").mkdir(parents=True, exist_ok=True)
    broken: set[str] = set()
    tried: dict[int, set[str]] = defaultdict(set)
    while True:
        reach, seconds, whole = read_map(mapped)
        for number, mutant in enumerate(mutants):
            tests = reach.get(number, set())
            if mutant.state != "open" or locate(mutant, tree) is None:
                continue
            if not tests and whole:
                mutant.state = "unreached"
                save(mutants)
                continue
            by, in_time = None, True
            for step in in_order(tests - tried[number], seconds):
                by, ended = kill(tree, mutant, step, broken)
                in_time &= ended
                tried[number] |= set(step)
                if by is not None:
                    break
            if by is not None:
                mutant.state, mutant.by, mutant.tests = "killed", by, len(tried[number])
            elif whole and in_time:
                mutant.state, mutant.tests = "survived", len(tried[number])
            else:
                continue
            save(mutants)
            print(number, mutant.state, mutant.file, mutant.by or "", flush=True)
        if whole:
            return
        time.sleep(60)  # the map is being made


def near_tests(tree: Path, path: Path) -> list[str]:
    """The test files that name the module of a file, those that bear its name first; at most `NEAR` of them."""
    module = ".".join(path.relative_to(tree).with_suffix("").parts).removeprefix("src.").removesuffix(".__init__")
    parent, _, stem = module.rpartition(".")
    names = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(parent)} import [^\n]*\b{stem}\b")
    found = [file for file in (tree / "tests").rglob("test_*.py") if names.search(file.read_text(encoding="utf-8"))]
    found.sort(key=lambda file: (stem not in file.stem, file.stat().st_size))
    return [file.relative_to(tree).as_posix() for file in found[:NEAR]]


def run_near(tree: Path, mutants: list[Mutant]) -> None:
    """Decide every open fault that the tests of its module kill; the others stay open."""
    require_copy(tree)
    kept, broken = tree / ".cache" / "mutants", set[str]()
    kept.mkdir(parents=True, exist_ok=True)
    for number, mutant in enumerate(mutants):
        place, done = locate(mutant, tree), kept / f"{number}.near"
        if mutant.state != "open" or place is None or done.exists():
            continue
        tests = near_tests(tree, place[0])
        by = next((by for test in tests if (by := kill(tree, mutant, [test], broken)[0]) is not None), None)
        if by is not None:
            mutant.state, mutant.by, mutant.tests = "killed", by, len(tests)
            save(mutants)
        done.touch()
        print(number, mutant.state, mutant.file, by or tests, flush=True)


def check(tree: Path, mapped: Path, mutants: list[Mutant]) -> bool:
    """Whether every fault that was killed still is: by its test, or else by those that reach its place."""
    require_copy(tree)
    kept = tree / ".cache" / "mutants"
    kept.mkdir(parents=True, exist_ok=True)
    reach, seconds, _ = read_map(mapped) if (mapped / ".cache/mutants/hits.tsv").exists() else ({}, {}, False)
    broken, lost = set[str](), 0
    for number, mutant in enumerate(mutants):
        done = kept / f"{number}.checked"
        if mutant.state != "killed" or done.exists():
            continue
        by = None
        if locate(mutant, tree) is not None and mutant.by is not None:
            test = mutant.by.removesuffix(" (time)").removesuffix(" (collection)")
            for step in ([test], *in_order(reach.get(number, set()), seconds)):
                by = by or kill(tree, mutant, step, broken)[0]
        if by is None:
            lost += 1
            print(f"NOT KILLED {number} {mutant.file} {mutant.function}: {mutant.before} -> {mutant.after}", flush=True)
        else:
            done.touch()
    return not lost


def show(mutants: list[Mutant]) -> None:
    for state in ("open", "unreached", "survived", "killed"):
        of_state = [one for one in mutants if one.state == state]
        print(f"{state}: {len(of_state)} of {len(mutants)}")
        if state in ("unreached", "survived"):
            for one in of_state:
                print(f"  {one.kind}: {one.file} {one.function}: {one.before[:80]} -> {one.after[:80]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("draw", "map", "run", "near", "check", "show", "find"))
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--tree", type=Path, default=None)
    parser.add_argument("--map", type=Path, default=None, help="the tree that was mapped, if another")
    options = parser.parse_intermixed_args()
    tree = options.tree and options.tree.resolve()
    if options.action == "draw":
        if LIST.exists():
            sys.exit(f"{LIST} is there")
        save(draw(tree))
        return
    mutants = load()
    if options.action == "map":
        make_map(tree, mutants, options.folders)
    elif options.action == "run":
        run(tree, (options.map or tree).resolve(), mutants)
    elif options.action == "near":
        run_near(tree, mutants)
    elif options.action == "check" and not check(tree, (options.map or tree).resolve(), mutants):
        sys.exit(1)
    elif options.action == "find":
        for one in mutants:
            if locate(one, tree) is None:
                print(f"{one.file} {one.function}: {one.before}")
    show(mutants)


if __name__ == "__main__":
    main()
