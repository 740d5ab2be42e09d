"""docs/extending.md, followed to the letter: its files are added, its commands run, its rows are everywhere."""

import os
import re
import shutil
import sys

import nbformat
import pytest
import yaml
from typer.testing import CliRunner

import baselines
from study.analysis.notebooks import execute_all
from study.analysis.report.results import Results
from study.cli.main import app
from study.data.splits import make
from tests.baselines.recbole_toys import in_subprocess, toy, toy_planted, untuned
from tests.baselines.toys import fit, own_block, recall10, top10
from tests.tiny_study import REPOSITORY, SIZE, lay_out, rooted

PAGE = (REPOSITORY / "docs" / "extending.md").read_text()
TEMPLATE = REPOSITORY / "conf" / "system" / "_template.yaml"
TINY = [*SIZE, "profile=smoke"]
SVD, ENMF = "SVD hybrid", "ENMF"
# What the added rows are compared with; significance needs T2MRec, which is for new tasks alone.
BESIDE = [("t2mrec", "cold"), ("popularity", "cold"), ("popularity", "warm")]


def files() -> dict[str, str]:
    """The files that the page shows: by the heading above a class, and by the first line of a yaml."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (place,) = re.findall(r"## .*`(baselines/\w+\.py)`", PAGE)
    shown = re.findall(r"```yaml\n(# (\S+)\n.*?)```", PAGE, re.DOTALL)
    return {place: code} | {path: text for text, path in shown}


def commands() -> list[list[str]]:
    """The words of the commands that the page shows."""
    (shown,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [line.split("#")[0].split() for line in shown.splitlines()]


def study(*words: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (words, done.output, done.exception)


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """The root of a tiny study to which the files of the page were added, with its runs, its report and notebook 02."""
    root = tmp_path_factory.mktemp("study")
    lay_out(root)
    (root / "baselines").unlink()  # a link to this repository, which gets no file
    shutil.copytree(REPOSITORY / "baselines", root / "baselines", ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in files().items():
        assert not (root / path).exists(), path
        (root / path).write_text(text)
    smoke = root / "conf" / "profile" / "smoke.yaml"
    smoke.write_text(re.sub(r"method_seeds: \[.*?\]", "method_seeds: [1]", smoke.read_text()))
    with rooted(root), pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "__path__", [*baselines.__path__, str(root / "baselines")])
        # The kernel of a notebook must find the added class, too.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
        for stage in ("fetch", "prepare", "split"):
            study(stage, *TINY)
        for words in commands():
            if words[:2] == ["study", "run"]:  # the page's data set is the paper's, ours the smallest
                study("run", *(word for word in words[2:] if not word.startswith("dataset=")), *TINY)
        for system, protocol in (("svd_hybrid", "warm"), ("enmf", "warm"), *BESIDE):
            study("run", f"system={system}", f"protocol={protocol}", *TINY)
        study("report", "dataset=synthetic")
        execute_all("synthetic", ["02_rq1_overall"])
        yield root
    sys.modules.pop("baselines.svd_hybrid", None)


def test_the_page_asks_for_a_short_class_and_three_keys():
    own = files()
    assert list(own) == ["baselines/svd_hybrid.py", "conf/system/own/svd_hybrid.yaml", "conf/system/own/enmf.yaml"]
    for text in (own["conf/system/own/svd_hybrid.yaml"], TEMPLATE.read_text()):
        assert yaml.safe_load(text).keys() == {"title", "protocols", "model"}
    assert yaml.safe_load(own["conf/system/own/enmf.yaml"]).keys() == {"title", "recbole", "epochs", "settings"}
    assert len(own["baselines/svd_hybrid.py"].splitlines()) < 60


def test_both_rows_are_in_every_table_and_figure_of_the_report(extended):
    results = Results.load("synthetic")
    for table in (results.metrics, results.overall, results.costs):
        rows = set(zip(table["system"], table["protocol"], strict=True))
        assert {("svd_hybrid", "cold"), ("svd_hybrid", "warm"), ("enmf", "warm")} <= rows
    assert set(results.significance["system"]) == {"svd_hybrid", "popularity"}  # all that runs beside T2MRec
    for name in ("overall.md", "overall.tex"):
        text = (extended / "results" / "synthetic" / "tables" / name).read_text()
        assert (text.count(SVD), text.count(ENMF)) == (2, 1), name
    drawn = {path.stem for path in (extended / "figures" / "synthetic").iterdir()}
    kinds = ("overall", "per_task", "mean_ranks", "cost")
    expected = {f"{kind}_{protocol}" for kind in kinds for protocol in ("cold", "warm")}
    expected |= {"catalogue_coverage_cold", "win_tie_loss_cold"}
    assert drawn == expected
    assert all("svd_hybrid" in results.headline(protocol) for protocol in ("cold", "warm"))
    assert "enmf" in results.headline("warm")
    cells = nbformat.read(extended / "results/synthetic/notebooks/02_rq1_overall.ipynb", as_version=4).cells
    shown = [output.get("data", {}).get("text/markdown", "") for cell in cells for output in cell.get("outputs", [])]
    lists = [block for text in shown for block in text.split("\n\n") if block[:1] == "|" and "| Popularity" in block]
    assert len(lists) >= 4  # quality and costs under two protocols
    assert all(f"| {SVD}" in block for block in lists)


def test_the_class_tells_blocks_apart_the_yaml_alone_starts_recbole(extended, cold_blocks):
    assert own_block(top10(fit("svd_hybrid", *cold_blocks), *cold_blocks), *cold_blocks) >= 0.95
    # The tests of RecBole's models find the added one and have sizes for it.
    assert "enmf" in untuned(in_subprocess())
    assert toy_planted("enmf").settings["train_neg_sample_args"] is None


def test_the_recbole_model_learns_the_toys_as_it_stands(extended, blocks, planted, floor, tmp_path):
    """With the bars of `test_recbole`, which asks the models of this repository."""
    known, small = (planted, make(planted, "warm")), fit(toy("enmf"), *blocks, tmp_path / "small")
    assert own_block(top10(small, *blocks)[:, :5], *blocks) >= 0.95
    assert recall10(small, *blocks).mean() >= 0.9
    assert recall10(fit(toy_planted("enmf"), *known, tmp_path / "large"), *known).mean() > floor["warm"]
