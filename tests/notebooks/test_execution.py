"""The notebooks on a tiny study: same bytes twice, the right values, and clear failures."""

import json
import re
import shutil

import nbformat
import pandas as pd
import pytest

from study.analysis import notebooks
from study.analysis.notebooks import execute
from study.base import paths
from study.base.errors import StudyError
from tests.notebooks.test_dependencies import KNOWN, covered
from tests.tiny_study import REPOSITORY


def shown(notebook):
    """Everything that an executed notebook shows as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    data = [output.get("data", {}) for output in outputs]
    texts = [item.get(kind, "") for item in data for kind in ("text/markdown", "text/plain")]
    return "\n".join([*(output.get("text", "") for output in outputs), *texts])


def read(executed, stem):
    return nbformat.reads(executed.notebooks[0][f"{stem}.ipynb"].decode(), as_version=4)


def write(folder, *sources):
    """A notebook of the given code cells, the first of them the parameters."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells[0].metadata["tags"] = ["parameters"]
    path = folder / "90_case.ipynb"
    folder.mkdir(exist_ok=True)
    metadata = {"language_info": {"name": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    return path


def test_two_executions_are_byte_identical(executed):
    first, second = executed.notebooks
    assert list(first) == ["00_quickstart.ipynb"]  # the others are for published data
    assert first == second


def test_every_file_that_notebooks_open_is_a_dependency(executed):
    # What the recorder must have seen, else it records nothing.
    assert {"data/prepared/synthetic/tasks.parquet", "results/synthetic/tables/runs.csv"} <= executed.opened
    # A saved model of field_dense is its catalogue, encoded: it spares time and changes no answer.
    # Its checkpoints are named by the versions of its class.
    # No stage hashes records (.dvcignore): what they describe is a dependency.
    known = [*KNOWN, ".cache", "figures/task2mcp", "models/task2mcp/field_dense", "results/task2mcp/records"]
    known.append("tests/reference/versions.yaml")
    assert [path for path in executed.opened if not covered(path.replace("/synthetic", "/task2mcp", 1), known)] == []


def test_nothing_is_printed_to_the_error_stream(executed):
    notebook = read(executed, "00_quickstart")
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert str(executed.root) not in nbformat.writes(notebook)


def test_quickstart_shows_the_tiny_study(in_study):
    text = shown(read(in_study, "00_quickstart"))
    assert re.search(r"servers +60\s+tasks +80", text)
    assert re.search(r"train +48\s+valid +16\s+test +16", text)
    overall = pd.read_csv(paths.tables("synthetic") / "overall.csv").query("protocol == 'cold' and k == 10")
    means = overall.set_index(["system", "metric"])["mean"]
    assert f"{means.round(3)['tfidf', 'recall']:.3f}" in text


@pytest.mark.usefixtures("in_study")
def test_values_of_the_tiny_study():
    overall = pd.read_csv(paths.tables("synthetic") / "overall.csv")
    cold = overall[(overall["protocol"] == "cold") & (overall["k"] == 10)]
    found = cold.pivot_table(index="system", columns="metric", values="mean")
    # 16 test tasks with ten labels each: a random ranking finds 10 of 60 servers; standard error 0.03.
    assert found.loc["random", "recall"] == pytest.approx(10 / 60, abs=0.09)
    assert found.loc["tfidf", "ndcg"] > found.loc["random", "ndcg"] + 0.05


def test_opens_from_another_folder(in_study, tmp_path):
    source = tmp_path / "00_quickstart.ipynb"
    shutil.copy(in_study.root / "notebooks" / source.name, source)
    target = execute(source, tmp_path / "out" / source.name, dataset="synthetic")
    assert target.read_bytes() == in_study.notebooks[0]["00_quickstart.ipynb"]


def test_a_failing_cell_is_named_and_the_earlier_result_stays(in_study, tmp_path):
    source = write(tmp_path, 'dataset = "synthetic"', 'raise ValueError("the third one")')
    target = tmp_path / "result.ipynb"
    target.write_text("earlier")
    with pytest.raises(StudyError, match="the third one") as caught:
        execute(source, target, dataset="synthetic")
    # Papermill puts the injected parameters in a cell of their own, after the parameters.
    assert (caught.value.file, caught.value.row) == (source, "cell 2")
    assert "fix:" in str(caught.value)
    assert target.read_text() == "earlier"


def test_no_committed_execution_printed_a_warning():  # it names a temporary file, so two executions would differ
    for path in sorted((REPOSITORY / "results" / "task2mcp" / "notebooks").glob("*.ipynb")):
        outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]
        assert [output.text for output in outputs if output.get("name") == "stderr"] == [], path.stem


@pytest.mark.mirror
def test_committed_notebooks_hold_no_row_of_unlicensed_data(task2mcp):
    servers, tasks = task2mcp.data.servers, task2mcp.data.tasks
    texts = {*servers["name"], *servers["description"], *servers["url"], *tasks["name"], *tasks["description"]}
    # Shorter texts are words that a sentence or a category may hold as well.
    texts = {text for text in texts if len(text) >= 25}
    assert len(texts) > 10_000
    for path in (REPOSITORY / "results" / "task2mcp" / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        content = "\n".join(json.dumps(cell, ensure_ascii=False) for cell in notebook.cells)
        assert not [text for text in texts if text in content], path.name


def test_an_unknown_notebook_is_refused(in_study):
    with pytest.raises(StudyError, match="unknown notebook 'nothing'"):
        notebooks.execute_all("synthetic", ["nothing"])


def test_a_notebook_that_fails_stops_none_of_the_others(in_study, tmp_path, monkeypatch):
    folder = tmp_path / "notebooks"
    for name in ("00_first.ipynb", "91_whole.ipynb"):  # the first is for generated data
        write(folder, "dataset = 'x'", "print(dataset)").rename(folder / name)
    write(folder, "dataset = 'x'", "1 / 0")
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    with pytest.raises(StudyError, match="ZeroDivisionError"):
        notebooks.execute_all("case")
    assert [path.name for path in (paths.results("case") / "notebooks").glob("*.ipynb")] == ["91_whole.ipynb"]


@pytest.mark.slow
def test_only_notebooks_of_which_something_changed_are_executed(in_study, tmp_path, monkeypatch):
    folder, code = tmp_path / "notebooks", tmp_path / "src/study/analysis/helper.py"
    for name in ("00_first.ipynb", "91_one.ipynb", "92_two.ipynb"):
        write(folder, "dataset = 'x'", "print(dataset)").rename(folder / name)
    table, figure = tmp_path / "results/case/tables/overall.csv", tmp_path / "figures/case/one.png"
    for path, text in ((code, "def one(): return 1\n"), (table, "a\n1\n"), (figure, "one")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))

    def again():
        return [path.stem for path in notebooks.execute_all("case", changed=True)]

    both = ["91_one", "92_two"]
    assert again() == both
    assert again() == []
    code.write_text('def one():\n    """What it returns."""\n    return 1  # a comment\n')
    (table.parent / "runs.csv").write_text("seconds\n1\n")
    assert again() == []
    code.write_text("def one(): return 2\n")
    assert again() == both
    table.write_text("a\n2\n")
    assert again() == both
    figure.unlink()
    assert again() == both
    write(folder, "dataset = 'x'", "print(dataset, 1)").rename(folder / "92_two.ipynb")
    assert again() == ["92_two"]
