"""A tiny study in a folder of its own: 60 servers, 80 tasks, four systems, reported and ready for the notebooks."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from study import paths
from tests.tiny_study import SIZE, lay_out, make_data, rooted

PARTS = ("00_quickstart", "01_dataset", "02_rq1_overall")  # what the runs below fill
# (system, protocol); `warm` has no T2MRec and `loo` one system: the notebooks must do without a comparison there.
RUNS = [
    ("random", "cold"),
    ("popularity", "cold"),
    ("tfidf", "cold"),
    ("t2mrec", "cold"),
    ("random", "warm"),
    ("tfidf", "warm"),
    ("item_knn", "loo"),
]


@dataclass(frozen=True)
class Executed:
    """The tiny study after its notebooks ran, those with runs twice: file name -> bytes, first and second time."""

    root: Path
    notebooks: tuple[dict[str, bytes], dict[str, bytes]]
    figures: tuple[dict[str, bytes], dict[str, bytes]]


def build(root):
    from study.config.compose import load
    from study.pipeline.report import report
    from study.runner.rows import run

    lay_out(root)
    smoke = root / "conf" / "profile" / "smoke.yaml"
    smoke.write_text(smoke.read_text().replace("method_seeds: [1, 2]", "method_seeds: [1]"))
    synthetic = root / "conf" / "dataset" / "synthetic.yaml"
    synthetic.write_text(synthetic.read_text().replace("protocols: [cold, warm]", "protocols: [cold, warm, loo]"))
    make_data()
    for system, protocol in RUNS:
        run(load([*SIZE, f"system={system}", f"protocol={protocol}", "profile=smoke"]))
    report(load(["dataset=synthetic"]))


def content(folder, pattern):
    return {path.name: path.read_bytes() for path in sorted(folder.glob(pattern))}


@pytest.fixture(scope="session")
def executed(tmp_path_factory):
    from study.pipeline.notebooks import execute_all

    root = tmp_path_factory.mktemp("study")
    with rooted(root):
        build(root)
        notebooks, figures = [], []
        for only in ((), PARTS):
            shutil.rmtree(paths.figures("synthetic"), ignore_errors=True)
            shutil.rmtree(paths.results("synthetic") / "notebooks", ignore_errors=True)
            execute_all("synthetic", only)
            notebooks.append(content(paths.results("synthetic") / "notebooks", "*.ipynb"))
            figures.append(content(paths.figures("synthetic"), "*"))
    return Executed(root, tuple(notebooks), tuple(figures))


@pytest.fixture
def in_study(executed, monkeypatch):
    monkeypatch.setenv("T2M_ROOT", str(executed.root))
    return executed
