"""`study new`, `check` and `remove`, what `study run` says at its end, and docs/extending.md followed to the letter."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import baselines
from study.analysis.report.results import Results, outcome
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_json
from study.base.registry import system_file
from study.data.splits import make
from study.runner import own_system
from study.runner.contract import SystemContract
from study.runner.identity import read_versions
from study.runner.own_system import class_file, examine, new_system, remove_system
from study.runner.row_store import list_rows
from tests.baselines.toys import block_dataset, build, fit, recall10
from tests.rows import put_row
from tests.tiny_study import REPOSITORY, TINY

PAGE = (REPOSITORY / "docs" / "extending.md").read_text().partition("\n## Variants")[0]
# What `score` or `fit` says instead -> what is found.
WRONG = {
    "score = np.full((len(tasks), 30), np.nan)": "the score nan for task",
    "score = np.zeros((len(tasks), 3))": "gave shape",
    "score = 1 / 0": "ZeroDivisionError",
    "score = np.random.default_rng().random((len(tasks), 30))": "the same seed gives other scores",
    "score = self.data.relevance.toarray()[tasks]": "held-out labels change the scores",
    "score = (self.split.train + self.split.valid).toarray().sum(0) + np.zeros((len(tasks), 1))": "held-out labels",
    "score = self.fits + np.zeros((len(tasks), 1))": "a stopped training goes on to other scores",
}
# A training that keeps its steps, and forgets where it was.
FORGETS = """import os
        self.fits = np.random.default_rng(seed).random(data.n_servers)
        for step in ("1", "2", "3"):
            if (workdir / step).exists():
                self.fits = self.fits[::-1]
            (workdir / "new").write_text(step)
            os.replace(workdir / "new", workdir / step)
"""


@pytest.fixture
def own_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The tiny study with a folder of baselines that may be written to."""
    (root / "baselines").unlink()  # a link to this repository
    shutil.copytree(REPOSITORY / "baselines", root / "baselines", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(baselines, "__path__", [*baselines.__path__, str(root / "baselines")])
    yield root
    for name in ("mine", "svd_hybrid"):
        sys.modules.pop(f"baselines.{name}", None)
        vars(baselines).pop(name, None)


def tree(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def test_a_new_system_passes_its_check_runs_and_leaves_nothing_behind(own_root: Path, call) -> None:
    before = tree(own_root)
    assert call("new", "mine")[0] == 0
    code, out, err = call("check", "mine")
    assert code == 0, err
    assert "cold: 1.00 of the first 5 are of the task's own block" in out
    code, out, err = call("run", *TINY, "system=mine")
    assert code == 0, err
    for words in (("Mine", "recall@10"), ("Popularity", "ndcg@10")):
        assert any(all(word in line for word in words) for line in out.splitlines())
    sweeps = paths.results("synthetic") / "sweeps"
    with system_file("mine").open("a") as stream:  # a variant goes with its file
        stream.write("variants:\n  wide: {title: Mine wide}\n")
    put_row("synthetic", "cold", "mine_wide")
    (paths.conf() / "sweep" / "factors.yaml").write_text("system: mine_wide\n")
    for name, system in (("factors", "mine_wide"), ("unnamed", "tfidf"), ("temperature", "t2mrec")):
        write_json(sweeps / name / "record.json", {"system": system})
    kept = tree(own_root)
    assert kept > before
    assert call("remove", "mine")[0] == 0
    for words in (["mine", "dataset=synthetic"], ["*", "--yes"]):
        code, _, err = call("remove", *words)
        assert (code, "fix: " in err) == (2, True)
    assert tree(own_root) == kept
    for name in ("mine", "unnamed"):
        assert call("remove", name, "--yes")[0] == 0
        assert call("remove", name, "--yes")[0] == 2
    assert tree(own_root) == before | {sweeps / "temperature" / "record.json"}


def test_a_row_whose_system_no_file_describes_any_more_is_removed(own_root: Path, call) -> None:
    before = tree(own_root)
    put_row("synthetic", "cold", "mine")
    assert call("remove", "mine", "--yes")[0] == 0
    assert tree(own_root) == before


def make_wrong(line: str) -> None:
    """A new system whose scores are made by a line."""
    new_system("mine")
    text = class_file("mine").read_text()
    kept = f"        self.data, self.split = data, split\n        {FORGETS}        self.tasks,"
    text = text.replace("        self.tasks,", kept)
    text = re.sub(r"return np\.asarray.*", lambda _: f"{line}\n        return np.asarray(score, np.float32)", text)
    class_file("mine").write_text(text)


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_said_once_and_no_row_is_made(own_root: Path, call, caplog, line: str) -> None:
    make_wrong(line)
    code, out, err = call("check", "mine")
    assert (code, err.count(WRONG[line])) == (2, 1)
    assert WRONG[line] not in out
    assert "fix: " in err
    if "relevance" in line:
        assert call("run", *TINY, "system=mine")[0] == 2
        assert sum("every score is a number" in message for message in caplog.messages) == 1
        assert ("cold", "mine") not in list_rows("synthetic")


def test_a_system_that_ranks_nothing_is_told_so(own_root: Path, call) -> None:
    make_wrong("score = np.ones((len(tasks), self.data.n_servers))")
    code, out, _ = call("check", "mine")
    assert (code, "same score for every server" in out) == (0, True)


@pytest.mark.parametrize(("trains", "keeps"), [(True, False), (True, True), (False, False)])
def test_a_training_that_nothing_could_stop_is_told_so(own_root: Path, trains: bool, keeps: bool) -> None:
    if keeps:
        make_wrong("score = (self.tasks[tasks] @ self.servers.T).toarray()")  # which `FORGETS` leaves right
    else:
        new_system("mine")
    with system_file("mine").open("a") as stream:
        stream.write(f"trains: {str(trains).lower()}\n")

    class Mine(SystemContract):
        system, protocols = "mine", ("cold",)

    Mine().test_a_stopped_training_goes_on_to_the_same_scores()
    assert len(Mine.notes) == (trains and not keeps)


def test_the_log_that_an_error_of_a_check_names_is_kept(own_root: Path, call) -> None:
    make_wrong("raise __import__('study.base.errors').base.errors.StudyError('it stopped', file=self.log)")
    text = class_file("mine").read_text()
    line = "        self.log = workdir / 'its.log'; self.log.write_text('why')\n        self.data, self.split"
    class_file("mine").write_text(text.replace("        self.data, self.split", line))
    code, _, err = call("check", "mine")
    log = Path(re.search(r"\S+/its\.log", err)[0])
    assert (code, log.read_text()) == (2, "why")
    shutil.rmtree(log.parents[1])


def test_a_system_of_ones_own_is_examined_once_and_again_when_it_computes_something_else(own_root, monkeypatch) -> None:
    new_system("mine")
    examined: list[str] = []
    monkeypatch.setattr(own_system, "examine", lambda name: examined.append(name) or [])
    for _ in range(2):
        own_system.require_sound("mine")
    own_system.require_sound("tfidf")  # the tests examine those of the repository
    assert (examined, read_versions()["mine"].version) == (["mine"], 1)
    mine = sys.modules["baselines.mine"].Mine
    score = mine.score
    monkeypatch.setattr(mine, "score", lambda self, tasks: -score(self, tasks))
    own_system.require_sound("mine")
    assert (examined, read_versions()["mine"].version) == (["mine", "mine"], 2)


NO_CLASS = [(None, "there is no class", None), ("\nimport nosuch_module\n", "cannot be imported", "line 2")]
NO_CLASS += [("class Mine(:\n", "cannot be imported", "line 1")]


@pytest.mark.parametrize(("text", "reason", "row"), NO_CLASS)
def test_a_class_that_cannot_be_had_is_told_by_its_place(own_root: Path, text: str | None, reason: str, row) -> None:
    new_system("mine")
    file = class_file("mine")
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(StudyError, match=reason) as caught:
        list(examine("mine"))
    assert caught.value.row == row
    assert str(caught.value.file) == str(system_file("mine") if text is None else file)


def test_a_name_that_is_none_or_is_taken_is_refused(conf_root: Path) -> None:
    before = tree(conf_root)
    for name in ("../mine", "Mine", "2nn", "", "a" * 61, "t2mrec_wo_cl", "tfidf", "_mine"):
        with pytest.raises(StudyError, match=r"no name|already"):
            new_system(name)
    assert tree(conf_root) == before


def test_what_others_need_or_git_holds_is_not_removed(own_root: Path) -> None:
    new_system("mine")
    folder = own_root / "conf" / "system" / "own"
    (folder / "other.yaml").write_text("of: tfidf\ntitle: Other\n")
    (folder / "mixed.yaml").write_text("of: random\nmodel: {base: {model_of: tfidf}}\n")
    (folder / "mine_too.yaml").write_text((folder / "mine.yaml").read_text())
    for name, users in (("tfidf", 2), ("mine", 1)):
        with pytest.raises(StudyError, match=f"need {name}: {users}"):
            remove_system(name, really=True)
    remove_system("mine_too", really=True)  # the class that two share stays with the first
    assert str(class_file("mine")) in remove_system("mine", really=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(REPOSITORY))
        for name in ("random", "temperature"):
            with pytest.raises(StudyError, match="part of the repository"):
                remove_system(name, really=True)


def put(system: str, values: dict[int, list[float]], tasks: tuple[int, ...] = (1, 2, 3, 4)) -> None:
    rows = [(task, seed, value) for seed, row in values.items() for task, value in zip(tasks, row, strict=True)]
    frame = pd.DataFrame(rows, columns=["task_id", "seed", "ndcg@10"])
    put_row("toy", "cold", system, frame.assign(**{"recall@10": frame["ndcg@10"]}))


def test_the_outcome_is_that_of_paired_tasks(new_root: Path, caplog) -> None:
    put("mine", {1: [0.0, 0.5, 1.0, 0.5], 2: [0.5, 0.5, 1.0, 0.0]})
    assert set(outcome("toy", "cold", "mine")["system"]) == {"mine"}
    put("popularity", {1: [0.0, 0.0, 0.5, 0.5]})
    table = outcome("toy", "cold", "mine").set_index(["system", "metric"])
    own = table.loc["mine", "ndcg@10"]
    assert (own["n"], own["mean"], own["diff"]) == (4, 0.5, 0.25)  # 0.25, 0.5, 1, 0.25 against 0, 0, 0.5, 0.5
    assert table.loc["popularity", "recall@10"]["mean"] == 0.25
    paired = (np.array([0.25, 0.5, 0.5, -0.25]),)
    limits = stats.bootstrap(paired, np.mean, n_resamples=20_000, method="percentile", random_state=1)
    found = own[["diff_ci_low", "diff_ci_high"]].astype(float)
    np.testing.assert_allclose(found, limits.confidence_interval, atol=0.02)
    put("t2mrec", {1: [0.0, 0.0, 0.0, 0.0]}, tasks=(1, 2, 3, 5))  # of another split
    assert set(outcome("toy", "cold", "mine")["system"]) == {"mine", "popularity"}
    assert "t2mrec, which ran for other tasks" in caplog.text
    put("t2mrec", {1: [0.0, 0.0, 0.0, 0.0]})
    assert set(outcome("toy", "cold", "mine")["system"]) == {"mine", "t2mrec"}


def blocks(kind: str) -> list[str]:
    """What the page shows in a language, in its order."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def page(own_root: Path) -> Path:
    """The tiny study with the files of the page, each at the place that the page names."""
    code, tests = blocks("python")
    (own_root / re.findall(r"## .*`(baselines/\w+\.py)`", PAGE)[0]).write_text(code)
    for text in (*blocks("yaml"), tests):
        place = own_root / re.match(r"# (\S+)", text)[1]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return own_root


@pytest.mark.slow
def test_the_pages_commands_and_tests_pass_and_its_rows_are_in_every_table_and_figure(page: Path, call) -> None:
    (shown,) = blocks("sh")
    for words in (line.split("#")[0].split() for line in shown.splitlines()):
        if words[:2] == ["study", "check"]:
            code, out, err = call(*words[1:])
            assert code == 0, err
            assert "cold: 1.00 of the first 5 are of the task's own block" in out
        elif words[:2] == ["study", "run"]:  # the page's data set is the paper's, ours the smallest
            assert call("run", *(word for word in words[2:] if not word.startswith("dataset=")), *TINY)[0] == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", page / "tests/test_svd_hybrid.py"]
    environment = os.environ | {"T2M_ROOT": str(page), "PYTHONPATH": str(page)}
    done = subprocess.run(command, cwd=page, env=environment, capture_output=True, text=True)
    assert "6 passed" in done.stdout, done.stdout + done.stderr
    for system, protocol in (("svd_hybrid", "warm"), ("t2mrec", "cold"), ("popularity", "warm")):
        assert call("run", f"system={system}", f"protocol={protocol}", *TINY)[0] == 0
    assert call("report", "dataset=synthetic")[0] == 0
    results = Results.load("synthetic")
    for table in (results.overall, results.costs):
        rows = set(zip(table["system"], table["protocol"], strict=True))
        assert {("svd_hybrid", "cold"), ("svd_hybrid", "warm")} <= rows
    assert "svd_hybrid" in set(results.significance["system"])
    for name in ("overall.md", "overall.tex"):
        text = (page / "results/synthetic/tables" / name).read_text()
        assert text.count("SVD hybrid") == 2, name


@pytest.mark.slow
def test_the_pages_model_of_recbole_learns_by_its_yaml_alone(page: Path, tmp_path: Path) -> None:
    data, system = block_dataset(), build("enmf", epochs=20, patience="null", **{"settings.learning_rate": 0.02})
    split = make(data, "warm")
    assert recall10(fit(system, data, split, tmp_path / "enmf"), data, split).mean() >= 0.9
