"""The public names: the examples of docs/extending.md run, importing is light, and they give what the stages give."""

import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import study
from study.base.errors import StudyError
from study.evaluation.runs import run_seed
from tests.tiny_study import REPOSITORY, lay_out, rooted

PAGE = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8").partition("\n## The Python API")[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module", autouse=True)
def _root(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    lay_out(root)
    (root / "results").symlink_to(REPOSITORY / "results")
    with rooted(root):
        yield


def test_importing_the_package_imports_nothing_heavy():
    program = "import sys, study; sys.exit(bool({'torch', 'pandas', 'numpy', 'sklearn', 'hydra'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_each_of_the_names_has_an_example():
    assert len(study.__all__) == 11
    assert [name for name in study.__all__ if not any(re.search(rf"\b{name}\b", text) for text in EXAMPLES)] == []
    with pytest.raises(AttributeError):
        study.load_everything  # noqa: B018


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_run(number, capsys):
    exec(compile(EXAMPLES[number], f"docs/extending.md, example {number}", "exec"), {"__name__": "example"})


def test_a_run_and_its_measures_are_those_of_the_stages(tmp_path, monkeypatch):
    data = study.load_data()
    monkeypatch.setattr("study.api.fetch", lambda _: pytest.fail("data that are there were made again"))
    assert study.load_data().n_servers == data.n_servers
    split = study.load_split(data, "warm")
    ranking = study.run(study.load_system("item_knn"), data, split, seed=3)
    done = run_seed(study.load_system("item_knn"), data, split, seed=3, workdir=tmp_path)
    pd.testing.assert_frame_equal(ranking, done.top)
    ours = study.evaluate(ranking, data, split)
    for column in ("recall@10", "ndcg@5", "mrr@10"):
        np.testing.assert_allclose(ours[column], done.per_task[column])
    same = study.compare(ours, ours)
    assert (same["diff"], same["losses"]) == (0, 0)
    # What names what there is not is refused.
    for column, value in {"task_id": -1, "server_id": 999_999, "rank": 11}.items():
        wrong = ranking.assign(**{column: ranking[column].where(ranking.index != 7, value)})
        with pytest.raises(StudyError, match=f"{value} is no") as caught:
            study.evaluate(wrong, data, split)
        assert (caught.value.row, caught.value.column) == (7, column)
    with pytest.raises(StudyError, match="a rank stands twice"):
        study.evaluate(ranking.assign(rank=1), data, split)


def test_what_is_not_there_is_named():
    with pytest.raises(StudyError, match="task2mcp"):
        study.load_data("task2mcp")
    with pytest.raises(StudyError, match="nonsense"):
        study.load_system("nonsense")
    with pytest.raises(StudyError, match="anchrs"):
        study.load_system("t2mrec", scoring__anchrs=3)
