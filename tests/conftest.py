"""One thread per library: tests are small, and threads that wait for one another are slow on a busy machine."""

import gc
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.tiny_study import REPOSITORY, TINY, lay_out, make_data, rooted

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("DVC_NO_ANALYTICS", "1")  # DVC in folders of the tests sends no usage data
os.fsync = lambda _: None  # no test cuts the power, and waiting for the disk takes longer than most of them
# No test times anything: a slow or busy machine fails none.
settings.register_profile("study", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("study")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs the public data where no mirror of it is at hand: the suite needs no network."""
    if item.get_closest_marker("mirror") and not os.environ.get("T2M_MIRROR"):
        pytest.skip("T2M_MIRROR names no folder with the public data")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped, one line a reason."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped"))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")


@pytest.fixture(scope="module", autouse=True)
def freeze_what_is_loaded() -> None:
    """What other files of tests have loaded stays; the garbage collector need not go through it again and again."""
    gc.freeze()
    if "absl.logging" in sys.modules:
        # Its handler closes its stream, which is pytest's, as soon as uvicorn configures logging.
        sys.modules["absl.logging"].get_absl_handler().python_handler.stream = sys.__stderr__


@pytest.fixture(scope="module")
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder for the tests of one file; encodings of toy texts stay out of the real cache."""
    from study.base import paths

    folder = tmp_path_factory.mktemp("cache")
    with paths.CACHE.within(folder):
        yield


@pytest.fixture(scope="session")
def prepared_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of 60 servers and 80 tasks with three finished systems; tests copy it."""
    from study.config.compose import load
    from study.runner.rows import run_row

    root = tmp_path_factory.mktemp("study")
    lay_out(root)
    with rooted(root):
        make_data()
        for system in ("random", "popularity", "tfidf"):
            run_row(load([*TINY, f"system={system}"]))
    return root


@pytest.fixture
def shared_root(prepared_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The prepared root itself, in force for a test that only reads."""
    monkeypatch.setenv("T2M_ROOT", str(prepared_root))
    return prepared_root


@pytest.fixture
def root(prepared_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private copy of the prepared root, in force for the test."""
    copy = tmp_path / "study"
    shutil.copytree(prepared_root, copy, symlinks=True)
    monkeypatch.setenv("T2M_ROOT", str(copy))
    return copy


@pytest.fixture
def new_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the root of the study."""
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def conf_root(new_root: Path) -> Path:
    """A root that holds a copy of the settings, and nothing else."""
    shutil.copytree(REPOSITORY / "conf", new_root / "conf")
    return new_root


@pytest.fixture
def call(capsys, monkeypatch):
    """`study` with some words: its exit code, what it printed, and what it said of an error."""
    from study.cli import main as cli

    def main(*words):
        monkeypatch.setattr(sys, "argv", ["study", *words])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return int(stopped.value.code or 0), *capsys.readouterr()

    return main


@dataclass(eq=False)
class Task2MCP:
    """The published data as `study fetch` and `study prepare` make it, in a folder of its own.

    Attributes:
        data: the `Dataset`.
        cleaning: the table cleaning.csv, one line per rule.
        prepared: the folder of the prepared tables.
    """

    data: Any  # most tests need none of it, and importing its type takes a second
    cleaning: Any
    prepared: Path

    @cache  # noqa: B019 - there is one a session
    def split(self, protocol: str) -> Any:
        """The split of a protocol, with the settings of ``conf/protocol``."""
        from study.data.splits import make

        return make(self.data, protocol)

    def labels(self, name: str = "labels") -> Any:
        """A prepared label table: ``labels``, or ``labels_all`` with the longer lists."""
        import pandas as pd

        return pd.read_parquet(self.prepared / f"{name}.parquet")


@pytest.fixture(scope="session")
def task2mcp(tmp_path_factory: pytest.TempPathFactory) -> Task2MCP:
    """The public data, fetched and prepared once for all tests that need it; they are marked ``mirror``."""
    from study.config import compose as config
    from study.data import dataset, prepare, sources

    folder = tmp_path_factory.mktemp("task2mcp")
    chosen = config.plain(config.load(["dataset=task2mcp"]))["dataset"]
    raw = sources.fetch("task2mcp", chosen, folder=folder / "raw")
    cleaning = prepare.prepare("task2mcp", raw, folder / "prepared", labels=chosen["labels"])
    return Task2MCP(dataset.load("task2mcp", folder / "prepared"), cleaning, folder / "prepared")
