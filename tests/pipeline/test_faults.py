"""Commands x faults: each cell ends well or with an explanation and exit code 2, and earlier outputs stay.

A new command needs a line in `COMMANDS`.
"""

import errno
import gc
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from typer.main import get_command

from study.analysis.report.main import report
from study.base.errors import StudyError, explained
from study.base.files import replacing, write_text
from study.cli import main as cli
from study.config import compose
from study.config.compose import load
from study.search.export import export
from tests.pipeline.test_cli import visible
from tests.tiny_study import REPOSITORY, SIZE, TINY, keep_systems, rooted

NEW = [*TINY, "system=t2mrec", "system.name=other", "system.seeds=[1]", "system.model.towers.hidden=8"]
NEW += ["system.model.training.epochs=2", "system.model.training.checkpoint_every=1"]
MINE = ["--catalogue", "mine"]


@dataclass(frozen=True)
class Command:
    """How a command is called in the tiny study.

    `writes`: the folder in which it writes there; empty where it only prints, or is refused for want of inputs.
    `makes`: what is removed first, so that there is something to make.
    """

    words: list[str]
    writes: str = ""
    makes: str = ""


COMMANDS = {
    "fetch": Command(SIZE, "data"),
    "prepare": Command(SIZE, "data"),
    "split": Command(SIZE, "data"),
    "tune": Command([*TINY, "system=task_knn", "tuning.trials=2"], "results"),
    "sweep": Command(["fusion_weight", *TINY], "results"),
    "run": Command(NEW, ".cache"),
    "report": Command(TINY, "results"),
    "show": Command(TINY),
    "new": Command(["mine"], "baselines"),
    "check": Command(["tfidf"]),
    "remove": Command(["random"]),
    "verify": Command([]),
    "reference": Command([]),
    "export": Command([*TINY, "system=field_dense"], "models", "models"),
    "notebooks": Command([*TINY, "--only", "none"]),
    "site": Command(TINY, "site"),
    "authors": Command(["prepare", *TINY], "data"),
    "doctor": Command(SIZE),
    "bench": Command([*TINY, "dataset=mcptools"]),
    "recommend": Command(["read a PDF", "--dataset", "synthetic"]),
    "agent ask": Command(["read a PDF", "--dataset", "synthetic", "--outcome", "worked=0"]),
    "agent serve": Command(["--host", "0.0.0.0"]),
    "agent mcp": Command(["--transport", "none"]),
    "analyse": Command(["audit/leakage", *TINY], "results"),
    "catalog sync": Command(["--source", "none"]),
    "catalog add": Command(["none.json"]),
    "catalog list": Command([]),
    "catalog show": Command(["none"]),
    "catalog diff": Command([]),
    "catalog remove": Command(["none"]),
    "install": Command(["none", "--client", "json"]),
    "uninstall": Command(["none", "--client", "json"]),
    "judge pool": Command(["--dataset", "synthetic"]),
    "judge batches": Command(["--pass", "1", "--dataset", "synthetic"]),
    "judge collect": Command(["none", "--judge", "me", "--dataset", "synthetic"]),
    "judge evaluate": Command(["--check", "--dataset", "synthetic"]),
    "judge submit": Command(["run.trec", "--dataset", "synthetic"]),
    "judge export": Command(["out", "--dataset", "synthetic"]),
    "llm fetch": Command(["--model", "none"]),
    "llm agent": Command([]),
    "llm serve": Command(["--model", "none"]),
    "tools index": Command(["--mcp-config", "none.json"]),
    "tools find": Command(["read a PDF", *MINE]),
    "tools call": Command(["read a PDF", *MINE]),
    "tools synthesise": Command(MINE),
    "tools serve": Command(MINE),
    "tools export": Command(["--format", "openai"]),
    "tools finetune": Command(["none.jsonl", "--model", "none", "--output", "out"]),
    "tools loop": Command(["read a PDF", "--mcp-config", "none.json"]),
    "tools run": Command(["--catalogue", "none"]),
}
LINKS = [("run", "circle"), ("run", "nowhere"), ("report", "circle")]
LARGE = ["fetch", "prepare", "split", "run", "report", "authors", "analyse"]
Call = Callable[..., tuple[int, str, str]]
# -P: the folder of the copy is called study too.
STUDY = (sys.executable, "-P", "-m", "study")
WRITING = [name for name, command in COMMANDS.items() if command.writes]


def test_every_command_is_in_the_matrix() -> None:
    assert set(COMMANDS) == set(visible(get_command(cli.app)))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process grows beyond `size` bytes: the write of the next one fails, whichever library does it."""
    numba.set_num_threads(1)  # starts its threads, which takes a lock in a file
    before, no_bytecode = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # Python would keep a module's file that is cut at the limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = no_bytecode


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """A file system at `folder`; the test is skipped where none may be mounted."""
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no file system may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def outputs(root: Path) -> dict[str, bytes]:
    """Every file but those of the cache, which nobody misses, and the links to the code."""
    found = {}
    for top in root.iterdir():
        if top.name != ".cache" and not top.is_symlink():
            files = [top] if top.is_file() else [path for path in top.rglob("*") if path.is_file()]
            found |= {str(path.relative_to(root)): path.read_bytes() for path in files}
    return found


def temporary(root: Path) -> list[Path]:
    return [path for path in root.rglob(".*.*") if path.is_file()]


@pytest.fixture(scope="module")
def finished_root(prepared_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny study with few systems, tables and a saved model."""
    root = tmp_path_factory.mktemp("finished") / "study"
    shutil.copytree(prepared_root, root, symlinks=True)
    kept = ("random", "popularity", "tfidf", "task_knn", "t2mrec", "t2mrec_one_direction", "field_dense")
    keep_systems(root, *kept)
    (root / "baselines").unlink()  # a link to this repository, which gets no file
    shutil.copytree(REPOSITORY / "baselines", root / "baselines", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "conf" / "dataset" / "task2mcp.yaml").unlink()  # a plan of its rows takes long
    with rooted(root):
        report(load(TINY))
        export(load([*TINY, "system=field_dense"]))
    return root


@pytest.fixture
def root(finished_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "study"
    shutil.copytree(finished_root, copy, symlinks=True)
    monkeypatch.setenv("T2M_ROOT", str(copy))
    monkeypatch.chdir(tmp_path)
    return copy


def start(root: Path, name: str) -> list[str]:
    """The words of a command, with what it makes out of the way."""
    command = COMMANDS[name]
    if command.makes and (root / command.makes).is_dir():
        shutil.rmtree(root / command.makes)
    return [*name.split(), *command.words]


def explains(code: int, err: str) -> bool:
    return code == 2 and "error: " in err and "fix: " in err


@pytest.mark.parametrize(("name", "size"), [*((name, 0) for name in WRITING), *((name, 700) for name in LARGE)])
def test_a_write_that_fails_at_a_byte_is_explained_and_the_command_goes_on(
    root: Path, call: Call, name: str, size: int
) -> None:
    words, before = start(root, name), outputs(root)
    with largest_file(size):
        code, _, err = call(*words)
    assert explains(code, err), err
    assert temporary(root) == []
    after = outputs(root)
    assert {path: after.get(path) for path in before} == before
    if size:
        code, _, err = call(*words)
        assert code == 0, err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_read_only_disk_is_explained(root: Path, call: Call, name: str) -> None:
    words, before = start(root, name), outputs(root)
    with mounted(root, "--bind", str(root)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(root)], check=True)
        code, _, err = call(*words)
        assert explains(code, err) if COMMANDS[name].writes else code == 0 or explains(code, err), err
    assert outputs(root) == before


@pytest.mark.parametrize(
    ("name", "wrong"),
    [*((name, "file") for name in WRITING), ("run", "circle"), ("run", "nowhere"), ("report", "circle")],
)
def test_what_stands_in_the_place_of_a_folder_is_named(root: Path, call: Call, name: str, wrong: str) -> None:
    place, words = root / COMMANDS[name].writes, start(root, name)
    if place.suffix:
        place.mkdir()
    else:
        shutil.rmtree(place, ignore_errors=True)
        put = {
            "file": place.touch,
            "circle": lambda: place.symlink_to(place),
            "nowhere": lambda: place.symlink_to("no"),
        }
        put[wrong]()
    code, _, err = call(*words)
    assert explains(code, err), err
    assert str(place) in err


@pytest.mark.parametrize("name", COMMANDS)
def test_settings_that_are_no_text_are_named(root: Path, call: Call, name: str) -> None:
    for path in (root / "conf").rglob("*.yaml"):
        path.write_bytes(b"\xff\xfe: 1\n")
    code, _, err = call(*start(root, name))
    assert code == 0 or explains(code, err), err


@pytest.mark.parametrize("words", [["run", *TINY, "system=tfidf"], ["report", *TINY], ["show", *TINY]], ids=str)
def test_systems_that_are_broken_stop_no_other_and_are_named(root: Path, call: Call, caplog, words: list[str]) -> None:
    model = "model: {_target_: baselines.cosine.Tfidf}"
    broken = {"no_class": "model: {}", "no_family": f"family: none\n{model}", "renamed": f"name: other\n{model}"}
    broken |= {"unread": "model: [", "misplaced": "model: {_target_: baselines.none.Tfidf}", "text": "model: text"}
    for name, lines in broken.items():
        (root / "conf" / "system" / "own" / f"{name}.yaml").write_text(f"title: Mine\nprotocols: [cold]\n{lines}\n")
    compose._warn.cache_clear()
    code, _, err = call(*words)
    assert code == 0, err
    code, _, err = call("check", "misplaced")  # a class is looked for when it is made
    assert (code, "misplaced.yaml" in err) == (2, True), err
    del broken["misplaced"]
    assert words[0] == "run" or [name for name in broken if f"{name}.yaml" not in caplog.text] == []


def refused(path: Path, write: Callable[[Path], object]) -> None:
    with (
        pytest.raises(StudyError, match=r"kept.txt: the disk is full; \d+ (bytes|KiB) are free"),
        replacing(path) as new,
    ):
        write(new)


def test_a_full_disk_is_explained_with_what_is_free_and_a_library_that_hides_it_too(tmp_path: Path) -> None:
    folder, kept = tmp_path / "small", tmp_path / "small" / "kept.txt"
    folder.mkdir()
    with mounted(folder, "-t", "tmpfs", "-o", "size=64k", "none"):
        write_text(kept, "earlier")
        arrays = {"a": np.zeros(10**5, np.float32)}
        writers = {
            "text": lambda path: path.write_text("x" * 10**6),
            "safetensors": lambda path: save_file(arrays, path),
            "torch": lambda path: torch.save(torch.zeros(10**5), path),
        }
        for write in writers.values():
            refused(kept, write)
            gc.collect()  # a file that a library still holds open takes its space even when it is removed
        assert [path.name for path in folder.iterdir()] == ["kept.txt"]
        assert kept.read_text() == "earlier"
        write_text(kept, "later")


def test_an_error_of_the_program_stays_one(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a.txt"):
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []
    assert explained(ValueError()) is None
    assert explained(ConnectionRefusedError(errno.ECONNREFUSED, "refused")) is None


def test_what_a_killed_write_left_goes_with_the_next_write_of_the_same_file(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    left, young, others = (
        tmp_path / ".a.txt.x1_45678",
        tmp_path / ".a.txt.abcdefgh",
        [".b.txt.abcdefgh", ".a.txt.long-name"],
    )
    for path in (left, young, *(tmp_path / name for name in others)):
        path.write_text("")
        os.utime(path, (0, 0))
    os.utime(young)  # another process may still be at it
    write_text(target, "")
    assert {path.name for path in tmp_path.iterdir()} == {target.name, young.name, *others}


def test_missing_home_changes_nothing(root: Path) -> None:
    own = os.environ | {"HOME": str(root / "none"), "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}
    words = [*STUDY, "show", *TINY]
    done = subprocess.run(words, env=own, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("encoding", "target", "code"), [("latin-1", "PIPE", 0), ("ascii", "PIPE", 0), ("", "full", 2)]
)
def test_output_that_cannot_be_written_as_it_stands(root: Path, encoding: str, target: str, code: int) -> None:
    own = os.environ | {"PYTHONIOENCODING": encoding or "utf-8"}
    catalogue = root / "models" / "synthetic" / "field_dense" / "catalogue.json"
    content = json.loads(catalogue.read_text())
    content["description"] = [f"a → é {text}" for text in content["description"]]
    catalogue.write_text(json.dumps(content))
    words = [*STUDY, "recommend", "a → é", "--dataset", "synthetic"]
    with open("/dev/full", "wb") as full:
        out = full if target == "full" else subprocess.PIPE
        done = subprocess.run(words, env=own, stdout=out, stderr=subprocess.PIPE, check=False)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    # Escaped; where a stream says ascii, click writes UTF-8.
    assert code or (b"\\u2192" if encoding == "latin-1" else "→".encode()) in done.stdout
