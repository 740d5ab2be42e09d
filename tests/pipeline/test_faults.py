"""Commands that write x faults of the disk and of files: each ends with an explanation, and earlier outputs stay."""

import errno
import gc
import json
import os
import resource
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from study.advisor.saved.files import write_manifest
from study.analysis.report.main import report
from study.base.errors import StudyError, explained, free_space
from study.base.files import replacing, write_text
from study.search.export import export
from tests.pipeline.conftest import config
from tests.tiny_study import REPOSITORY, TINY, rooted

Call = Callable[..., tuple[int, str, str]]
SMALL = ["system=t2mrec", "system.model.towers.hidden=8", "system.model.training.epochs=2"]
# Command -> its words and the folder in which it writes.
COMMANDS = {
    "prepare": (TINY[:-1], "data/prepared"),
    "run": ([*TINY, *SMALL, "system.name=other", "system.seeds=[1]"], ".cache"),
    "tune": ([*TINY, "system=task_knn", "tuning.trials=2"], "results"),
    "report": (TINY, "results"),
    "export": ([*TINY, *SMALL], "models"),
}


def outputs(root: Path) -> dict[str, bytes]:
    """Every file but those of the cache, which nobody misses, and the links to the code."""
    tops = [top for top in root.iterdir() if top.name != ".cache" and not top.is_symlink()]
    files = (path for top in tops for path in [top, *top.rglob("*")] if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def require_explained(code: int, err: str) -> None:
    assert (code, "error: " in err, "fix: " in err) == (2, True, True), err


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
    if subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 700])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_write_that_fails_at_a_byte_is_explained_and_the_command_goes_on(root, call, name, size) -> None:
    words, before = COMMANDS[name][0], outputs(root)
    with largest_file(size):
        require_explained(*call(name, *words)[::2])
    assert [path for path in root.rglob(".*.*") if path.is_file()] == []
    after = outputs(root)
    assert {path: after.get(path) for path in before} == before
    assert call(name, *words)[0] == 0


@pytest.mark.slow
def test_a_read_only_disk_is_explained(root: Path, call: Call) -> None:
    before = outputs(root)
    with mounted(root, "--bind", str(root)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(root)], check=True)
        require_explained(*call("run", *COMMANDS["run"][0])[::2])
    assert outputs(root) == before


@pytest.mark.parametrize(
    ("name", "wrong"), [*((name, "file") for name in COMMANDS), ("run", "circle"), ("report", "nowhere")]
)
def test_what_stands_in_the_place_of_a_folder_is_named(root: Path, call: Call, name: str, wrong: str) -> None:
    words, folder = COMMANDS[name]
    path = root / folder
    shutil.rmtree(path, ignore_errors=True)
    target = {"circle": path, "nowhere": Path("no")}.get(wrong)
    path.touch() if target is None else path.symlink_to(target)
    code, _, err = call(name, *words)
    require_explained(code, err)
    assert str(path) in err


@pytest.mark.slow
def test_a_full_disk_is_explained_with_what_is_free_and_a_library_that_hides_it_too(tmp_path: Path) -> None:
    folder, kept = tmp_path / "small", tmp_path / "small" / "kept.txt"
    folder.mkdir()
    writers: list[Callable[[Path], object]] = [
        lambda path: path.write_text("x" * 10**6),
        lambda path: save_file({"a": np.zeros(10**5, np.float32)}, path),
        lambda path: torch.save(torch.zeros(10**5), path),
    ]
    with mounted(folder, "-t", "tmpfs", "-o", "size=64k", "none"):
        write_text(kept, "earlier")
        for write in writers:
            with (
                pytest.raises(StudyError, match=r"kept.txt: the disk is full; \d+ (bytes|KiB)"),
                replacing(kept) as new,
            ):
                write(new)
            gc.collect()  # a file that a library still holds open takes its space even when it is removed
        assert [path.name for path in folder.iterdir()] == ["kept.txt"]
        assert kept.read_text() == "earlier"
        write_text(kept, "later")


@pytest.mark.parametrize(
    ("free", "shown_as"), [(1023, "1023 bytes"), (1024, "1 KiB"), (5 << 20, "5 MiB"), (3 << 40, "3072 GiB")]
)
def test_free_space_is_said_in_the_largest_unit_that_it_fills(tmp_path, monkeypatch, free, shown_as) -> None:
    usage = namedtuple("usage", "free")(free)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: os.stat(folder) and usage)
    assert free_space(tmp_path / "not" / "there") == f"{shown_as} are free"


def test_an_error_of_the_program_stays_one(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a.txt"):
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []
    assert explained(ValueError()) is None
    assert explained(ConnectionRefusedError(errno.ECONNREFUSED, "refused")) is None


def test_what_a_killed_write_left_goes_with_the_next_write_of_the_same_file(tmp_path: Path) -> None:
    young, others = ".a.txt.abcdefgh", {".b.txt.abcdefgh", ".a.txt.long-name"}
    for name in (".a.txt.x1_45678", young, *others):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    os.utime(tmp_path / young)  # another process may still be at it
    write_text(tmp_path / "a.txt", "")
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", young, *others}


@pytest.mark.slow
def test_odd_homes_and_outputs(prepared_root: Path, tmp_path: Path) -> None:
    """No home; streams of another encoding, where what they lack is escaped; a full one."""
    shutil.copytree(prepared_root, tmp_path / "study", symlinks=True)
    shutil.copytree(REPOSITORY / "conf/system/useful", tmp_path / "study/conf/system/useful", dirs_exist_ok=True)
    with rooted(tmp_path / "study"):
        report(config())
        catalogue = export(config("system=field_dense")) / "catalogue.json"
    content = json.loads(catalogue.read_text())
    content["description"] = [f"a → é {text}" for text in content["description"]]
    catalogue.write_text(json.dumps(content))
    write_manifest(catalogue.parent, "products.json")
    # -P: the folder of the copy is called study too.
    program = (sys.executable, "-P", "-m", "study")
    words = [*program, "recommend", "a → é", "--dataset", "synthetic"]
    environment = os.environ | {"T2M_ROOT": str(tmp_path / "study")}
    home = environment | {"HOME": str(tmp_path / "none"), "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}
    done = subprocess.run([*program, "show", *TINY], env=home, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    # Where it says ascii, click writes UTF-8.
    for encoding, shown in (("latin-1", b"\\u2192"), ("ascii", "→".encode())):
        own = environment | {"PYTHONIOENCODING": encoding}
        done = subprocess.run(words, env=own, capture_output=True, check=False)
        assert (done.returncode, shown in done.stdout) == (0, True), done.stderr
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, env=environment, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
