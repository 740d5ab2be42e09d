"""A tiny study in a folder of its own: 60 servers, 80 tasks, four systems, reported and ready for the notebooks."""

import os
import shutil
from types import SimpleNamespace

import pytest

from study.base import paths
from tests.tiny_study import SIZE, lay_out, make_data, rooted

# (system, protocol); `warm` has no T2MRec and `loo` one system.
RUNS = [(system, "cold") for system in ("random", "popularity", "tfidf", "t2mrec")]
RUNS += [("random", "warm"), ("tfidf", "warm"), ("item_knn", "loo")]
# IPython runs this at the start of every kernel: what a notebook opens below the root is noted.
RECORDER = """
def record():
    import os, sys
    import pandas as pd
    root, read_parquet = os.environ["T2M_ROOT"] + os.sep, pd.read_parquet
    notes = os.open(os.environ["T2M_NOTES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def note(path):
        if str(path).startswith(root):
            os.write(notes, (str(path).removeprefix(root) + "\\n").encode())
    def from_parquet(path, *args, **kwargs):  # pyarrow opens files without telling Python
        note(path)
        return read_parquet(path, *args, **kwargs)
    pd.read_parquet = from_parquet
    sys.addaudithook(lambda event, told: note(told[0]) if event == "open" and "r" in str(told[1]) else None)
record()
del record
"""


def build(root):
    from study.analysis.report.main import report
    from study.config.compose import load
    from study.runner.rows import run_row

    lay_out(root)
    smoke = root / "conf" / "profile" / "smoke.yaml"
    smoke.write_text(smoke.read_text().replace("method_seeds: [1, 2]", "method_seeds: [1]"))
    synthetic = root / "conf" / "dataset" / "synthetic.yaml"
    synthetic.write_text(synthetic.read_text().replace("protocols: [cold, warm]", "protocols: [cold, warm, loo]"))
    make_data()
    for system, protocol in RUNS:
        run_row(load([*SIZE, f"system={system}", f"protocol={protocol}", "profile=smoke"]))
    report(load(["dataset=synthetic"]))


def content(folder, pattern):
    return {path.name: path.read_bytes() for path in sorted(folder.glob(pattern))}


@pytest.fixture(scope="session")
def executed(tmp_path_factory):
    """The tiny study after its notebook ran twice: file name -> bytes, first and second time.

    `opened` are the paths below the root that they read.
    """
    from study.analysis.notebooks import execute_all

    root = tmp_path_factory.mktemp("study")
    with rooted(root):
        build(root)
        own = tmp_path_factory.mktemp("ipython")
        (own / "profile_default" / "startup").mkdir(parents=True)
        (own / "profile_default" / "startup" / "record.py").write_text(RECORDER)
        os.environ |= {"IPYTHONDIR": str(own), "T2M_NOTES": str(own / "notes")}
        notebooks = []
        for _ in range(2):
            shutil.rmtree(paths.results("synthetic") / "notebooks", ignore_errors=True)
            execute_all("synthetic")
            notebooks.append(content(paths.results("synthetic") / "notebooks", "*.ipynb"))
    opened = set((own / "notes").read_text().splitlines())
    return SimpleNamespace(root=root, opened=opened, notebooks=notebooks)


@pytest.fixture
def in_study(executed, monkeypatch):
    monkeypatch.setenv("T2M_ROOT", str(executed.root))
    return executed
