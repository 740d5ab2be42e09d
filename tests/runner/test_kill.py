"""`study run` killed outright while its workers train: started again, it ends where an undisturbed run ends."""

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from study.cli import main as cli
from study.config.compose import load
from study.runner.row_store import list_rows, read_row
from study.runner.rows import run_row
from tests.tiny_study import REPOSITORY, TINY, keep_systems, lay_out

EPOCHS = 600  # long enough that neither worker is done before the other has begun
WANTED = [*TINY, "system=t2mrec", "system.name=killed", "system.seeds=[1,2]", "system.model.towers.hidden=32"]
WANTED += [f"system.model.training.epochs={EPOCHS}", "system.model.training.checkpoint_every=20"]
PATIENCE = 240  # seconds; the machine may be busy


def until(condition: Callable[[], bool]) -> bool:
    """Wait for the condition; returns whether it came true in time."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def start(root: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "study", "run", *WANTED, "profile.workers=2"]
    own = os.environ | {"T2M_ROOT": str(root)}
    return subprocess.Popen(words, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def results(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("T2M_ROOT", str(root))
    return [table.to_csv() for table in read_row("synthetic", "cold", "killed")[:2]]


def test_killed_run_resumes_to_identical_results(root, prepared_root, tmp_path, monkeypatch):
    cache = root / ".cache" / "runs"
    with start(root) as killed:
        try:
            assert until(lambda: len(list(cache.rglob("last.ckpt"))) == 2), "the workers never reached a checkpoint"
        finally:
            killed.send_signal(signal.SIGKILL)
        # The pipe closes when the last worker has gone: they end by themselves when their parent is dead.
        said = killed.communicate(timeout=PATIENCE)[1].decode()
    assert killed.returncode == -signal.SIGKILL
    assert "fitted" not in said
    assert not list(cache.rglob("facts-*.json")), "a seed was finished before the kill, so nothing was shown"
    assert len(list(cache.rglob("last.ckpt"))) == 2
    assert ("cold", "killed") not in list_rows("synthetic")

    with start(root) as again:
        said_again = again.communicate(timeout=PATIENCE)[1].decode()
    assert again.returncode == 0, said_again
    assert said_again.count("resuming from") == 2

    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(prepared_root, undisturbed, symlinks=True)
    monkeypatch.setenv("T2M_ROOT", str(undisturbed))
    run_row(load([*WANTED, "profile.workers=1"]))
    assert results(undisturbed, monkeypatch) == results(root, monkeypatch)


LOADED = [
    "study.runner.rows",
    "study.search.sweep",
    "study.t2mrec.system",
    "study.t2mrec.module",
    "study.analysis.report.main",
]
MOMENTS = int(os.environ.get("T2M_KILLS", "1"))  # random moments for each command; 20 take minutes
SERVERS = {f"server{number}": {"command": "npx", "args": ["-y", f"@own/server{number}"]} for number in range(30)}
FAST = [*TINY, "system=t2mrec", "system.name=killed", "system.seeds=[1,2]", "system.model.towers.hidden=8"]
FAST += ["system.model.training.epochs=3", "system.model.training.checkpoint_every=1"]
# Command -> its words, and the files that must come out the same; records hold seconds.
KILLED = {
    "run": (["run", *FAST], ["results/*/rows/own/cold/*.parquet"]),
    "sweep": (["sweep", "temperature", *TINY], ["results/*/sweeps/temperature/*.csv*"]),
    "report": (["report", *TINY], ["results/*/tables/*"]),
    "catalogue": (["catalog", "add", "own.json"], ["data/catalog/*/servers.json.gz", "data/catalog/*/changes.csv"]),
}


def command(root: str, words: list[str]) -> None:
    """`study` with some words, in a process that a server of processes forks."""
    os.environ["T2M_ROOT"] = root
    os.chdir(root)
    sys.argv = ["study", *words]
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    cli.main()


def without_seconds(path: Path) -> bytes:
    """A file's bytes; of a sweep's trials, those of all columns but the time that each took."""
    if path.name != "trials.csv":
        return path.read_bytes()
    return pd.read_csv(path).drop(columns="seconds").to_csv().encode()


@pytest.fixture(scope="module")
def forking() -> multiprocessing.context.ForkServerContext:
    """Processes that have loaded everything when they begin, so that a kill meets the command's own work."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    first = context.Process(target=os.getpid)  # starts the server, whose time is no command's
    first.start()
    first.join()
    return context


@pytest.mark.parametrize("name", KILLED)
def test_a_command_killed_at_random_moments_ends_with_the_same_bytes(prepared_root, tmp_path, forking, name):
    if name == "sweep" and "T2M_KILLS" not in os.environ:
        pytest.skip("takes a minute (T2M_KILLS=1); tests/search stops sweeps, too")
    words, patterns = KILLED[name]
    rng = random.Random(name)

    def start_in(folder: Path) -> multiprocessing.process.BaseProcess:
        process = forking.Process(target=command, args=(str(folder), words))
        process.start()
        return process

    def made(folder: Path) -> dict[str, bytes]:
        # What a killed write leaves beside its file begins with a dot, and nobody reads it.
        found = [path for pattern in patterns for path in folder.glob(pattern) if not path.name.startswith(".")]
        return {str(path.relative_to(folder)): without_seconds(path) for path in found}

    def copy(number: int) -> Path:
        folder = tmp_path / str(number)
        shutil.copytree(prepared_root, folder, symlinks=True)
        (folder / "own.json").write_text(json.dumps({"mcpServers": SERVERS}))
        keep_systems(folder, "random", "popularity", "tfidf", "t2mrec", "t2mrec_one_direction")
        sweep = folder / "conf" / "sweep" / "temperature.yaml"
        text = re.sub(r"choices: \[.*\]", "choices: [0.07, 0.14]", sweep.read_text())
        sweep.write_text(re.sub(r"seeds: \[.*\]", "seeds: [1]", text))
        return folder

    whole, began = copy(0), time.monotonic()
    undisturbed = start_in(whole)
    undisturbed.join(PATIENCE)
    assert undisturbed.exitcode == 0
    seconds, wanted = time.monotonic() - began, made(whole)
    assert wanted
    killed = 0
    while killed < MOMENTS:
        folder = copy(1)
        first = start_in(folder)
        first.join(rng.uniform(0, seconds))
        first.kill()
        first.join()
        if first.exitcode == -signal.SIGKILL:
            killed += 1
        else:
            seconds *= 0.7  # it was done before its moment came: the machine is faster now
        again = start_in(folder)
        again.join(PATIENCE)
        assert again.exitcode == 0
        assert made(folder) == wanted
        shutil.rmtree(folder)


# What `make repro` makes; the rest of it prints.
REPRO = ["make", "results/synthetic/.made", f"VENV={Path(sys.executable).parents[1]}"]
FEW = ("random", "popularity", "t2mrec", "field_dense")
BYTES = ["rows/*/*/*.parquet", "tables/overall.csv", "tables/significance.csv", "tables/metrics.*"]


@pytest.mark.skipif("T2M_KILLS" not in os.environ, reason="takes minutes (T2M_KILLS=8)")
def test_make_repro_killed_at_random_moments_ends_with_the_same_bytes(tmp_path):
    rng = random.Random("repro")

    def copy(name: str) -> Path:
        root = tmp_path / name
        root.mkdir()
        lay_out(root)
        shutil.copy(REPOSITORY / "Makefile", root)
        synthetic = root / "conf" / "dataset" / "synthetic.yaml"
        text = re.sub(r"n_servers: \d+", "n_servers: 60", synthetic.read_text())
        synthetic.write_text(re.sub(r"n_tasks: \d+", "n_tasks: 80", text))
        profile = root / "conf" / "profile"
        shutil.copy(profile / "smoke.yaml", profile / "laptop.yaml")
        keep_systems(root, *FEW)
        for path in [*(root / "notebooks").glob("0[02-9]*"), *(root / "notebooks").glob("10*")]:
            path.unlink()
        return root

    def make(root: Path) -> subprocess.Popen[bytes]:
        own = os.environ | {"T2M_ROOT": str(root)}
        quiet = subprocess.DEVNULL
        return subprocess.Popen(REPRO, cwd=root, env=own, stdout=quiet, stderr=quiet, start_new_session=True)

    def made(root: Path) -> dict[str, bytes]:
        results = root / "results" / "synthetic"
        found = [path for pattern in BYTES for path in results.glob(pattern) if not path.name.startswith(".")]
        return {str(path.relative_to(root)): path.read_bytes() for path in found}

    whole, killed = copy("whole"), copy("killed")
    began = time.monotonic()
    assert make(whole).wait() == 0
    seconds = time.monotonic() - began
    for _ in range(MOMENTS):
        process = make(killed)
        try:
            process.wait(rng.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            # Every process of it, as when the machine goes off.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert make(killed).wait() == 0
    assert made(killed) == made(whole)
    assert (killed / REPRO[1]).exists()
