"""The notebooks: their sources, their execution on a tiny study with sweeps, and what a failing cell does."""

import ast
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pandas as pd
import pytest
import yaml

from study.analysis import notebooks
from study.analysis.notebooks import execute, execute_all
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_text
from tests.tiny_study import REPOSITORY, SIZE, TINY, lay_out, make_data, rooted

SOURCES = {path.stem: path for path in sorted((REPOSITORY / "notebooks").glob("[0-9]*.ipynb"))}
# `warm` has no T2MRec and `loo` one system: the notebooks must do without a comparison there.
RUNS = [(system, "cold") for system in ("random", "popularity", "tfidf", "t2mrec")]
RUNS += [("random", "warm"), ("tfidf", "warm"), ("item_knn", "loo")]
# Two values and two seeds per grid, three trials; the learning rate is left out, which the notebook must do without.
SWEEPS = {
    "fusion_weight": {"seeds": [1, 2], "space": {"scoring.semantic_weight": {"choices": [0.0, 0.5, 0.9]}}},
    "temperature": {"seeds": [1, 2], "space": {"training.temperature": {"choices": [0.07, 0.5]}}},
    "joint": {"trials": 3, "seeds": [2]},
}
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


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_stripped_has_one_cell_of_literal_parameters_no_path_of_a_machine_and_ends_with_checks(name):
    source = nbformat.read(SOURCES[name], as_version=4)
    code = [cell for cell in source.cells if cell.cell_type == "code"]
    assert not [cell for cell in code if cell.outputs or cell.execution_count]
    assert not [cell for cell in source.cells if re.search(r"(?<![\w.])/(home|work|tmp|Users|root)/", cell.source)]
    (parameters,) = (cell for cell in code if "parameters" in cell.metadata.get("tags", []))
    values = {line.targets[0].id: ast.literal_eval(line.value) for line in ast.parse(parameters.source).body}
    assert {"dataset", "profile"} <= set(values)
    assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(code[-1].source)))


def build(root):
    """Runs, sweeps and tables of a tiny study: 60 servers, 80 tasks."""
    from study.analysis.report.main import report
    from study.config.compose import load
    from study.runner.rows import run_row
    from study.search.sweep import sweep

    lay_out(root)
    smoke, synthetic = root / "conf" / "profile" / "smoke.yaml", root / "conf" / "dataset" / "synthetic.yaml"
    smoke.write_text(smoke.read_text().replace("method_seeds: [1, 2]", "method_seeds: [1]"))
    synthetic.write_text(synthetic.read_text().replace("protocols: [cold, warm]", "protocols: [cold, warm, loo]"))
    for name, changes in SWEEPS.items():
        path = root / "conf" / "sweep" / f"{name}.yaml"
        content = yaml.safe_load(path.read_text()) | changes
        # After a few epochs the second seed is far better with this temperature: the search has something to find.
        planted = [point | {"training.temperature": 0.5} for point in content.get("enqueue", [])]
        content["enqueue"] = [*content.get("enqueue", []), *planted]
        path.write_text(yaml.safe_dump(content, sort_keys=False))
    make_data()
    for name in SWEEPS:
        sweep(name, load([*TINY, "system=t2mrec"]))
    for system, protocol in (*RUNS, ("t2mrec_joint", "cold")):
        run_row(load([*SIZE, f"system={system}", f"protocol={protocol}", "profile=smoke"]))
    report(load(["dataset=synthetic"]))


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The root of the tiny study, its executed notebooks by name, and what they opened below the root."""
    root, own = tmp_path_factory.mktemp("study"), tmp_path_factory.mktemp("ipython")
    (own / "profile_default" / "startup").mkdir(parents=True)
    (own / "profile_default" / "startup" / "record.py").write_text(RECORDER)
    with rooted(root):
        build(root)
        os.environ |= {"IPYTHONDIR": str(own), "T2M_NOTES": str(own / "notes")}
        made = {path.stem: nbformat.read(path, as_version=4) for path in execute_all("synthetic")}
        yield SimpleNamespace(root=root, made=made, opened=set((own / "notes").read_text().splitlines()))


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def shown(executed, name):
    """All that an executed notebook shows as text."""
    data = [output.get("data", {}) for output in outputs(executed.made[name])]
    texts = [item.get(kind, "") for item in data for kind in ("text/markdown", "text/plain")]
    return "\n".join([*(output.get("text", "") for output in outputs(executed.made[name])), *texts])


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_a_notebook_runs_on_the_tiny_study_and_shows_no_error_no_warning_and_no_path(executed, name):
    found = outputs(executed.made[name])
    assert found
    assert not [output for output in found if output.output_type == "error" or output.get("name") == "stderr"]
    assert str(executed.root) not in nbformat.writes(executed.made[name])


@pytest.mark.slow
def test_executed_again_from_another_folder_it_is_the_same_bytes(executed, tmp_path):
    source = tmp_path / "00_quickstart.ipynb"
    shutil.copy(executed.root / "notebooks" / source.name, source)
    again = execute(source, tmp_path / "out" / source.name, dataset="synthetic")
    assert again.read_bytes() == (paths.results("synthetic") / "notebooks" / source.name).read_bytes()


@pytest.mark.slow
def test_values_of_the_tiny_study_stand_in_its_notebooks_and_what_is_missing_is_said(executed):
    text = shown(executed, "00_quickstart")
    assert "60 servers, 80 tasks" in text
    assert "'train': 48, 'valid': 16, 'test': 16" in text
    means = pd.read_csv(paths.tables("synthetic") / "overall.csv").query("protocol == 'cold' and k == 10")
    means = means.set_index(["system", "metric"])["mean"]
    assert f"{round(means['tfidf', 'recall'], 4)}" in text
    text = shown(executed, "02_rq1_overall")
    for system in ("random", "tfidf", "popularity"):
        assert f"{means[system, 'ndcg']:.4f}" in text
    for part in ("Protocol warm: nothing is tested", "Protocol loo: one system has runs", "The paper reports task2mcp"):
        assert part in text
    drawn = json.loads((paths.raw("synthetic") / "truth.json").read_text())["mixture_drawn"]
    text = shown(executed, "01_dataset")
    assert [reason for reason, share in drawn.items() if f"{share:.4f}".rstrip("0") not in text] == []


@pytest.mark.slow
def test_the_paper_is_compared_on_single_test_tasks_and_the_tuned_row_with_the_untuned(executed):
    text = shown(executed, "04_rq3_sensitivity")
    assert "Sweeps without runs: `study sweep learning_rate`." in text

    def rows(first):
        lines = takewhile(lambda line: line.startswith("|"), text[text.index(f"| {first} |") :].splitlines())
        table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return {row[0]: dict(zip(table[0], row, strict=True)) for row in table[2:]}

    compared = rows("setting | paper | chosen | n | seeds")
    for name, title, printed in (
        ("fusion_weight", "Fusion weight alpha_sem", 0.9),
        ("temperature", "Temperature tau", 0.07),
    ):
        trials = pd.read_csv(paths.results("synthetic") / "sweeps" / name / "trials.csv")
        column, row = next(iter(SWEEPS[name]["space"])), compared[title]
        best, means = (
            trials.groupby(column)["valid/ndcg@10"].mean().idxmax(),
            trials.groupby(column)["test/ndcg@10"].mean(),
        )
        assert [float(row["paper"]), float(row["chosen"])] == [printed, best]
        assert float(row["diff"]) == pytest.approx(means[best] - means[printed], abs=2e-4)
    assert sum(float(row["mean"]) for row in rows("parameter | mean").values()) == pytest.approx(1, abs=0.01)
    tuned = rows("metric | n | tuned")["ndcg@10"]
    assert float(tuned["diff"]) == pytest.approx(float(tuned["tuned"][:6]) - float(tuned["untuned"][:6]), abs=2e-4)


@pytest.mark.slow
def test_every_file_that_notebooks_open_is_a_dependency_of_their_stage(executed):
    # What the recorder must have seen, else it records nothing.
    assert {"data/prepared/synthetic/tasks.parquet", "results/synthetic/tables/runs.csv"} <= executed.opened
    # A saved model spares time and changes no answer; its checkpoints are named by the versions of its class; records
    # tell of what is a dependency.
    known = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]["notebooks"]["deps"]
    known += [".cache", "figures/task2mcp", "models/task2mcp/field_dense", "results/task2mcp/records"]
    known += ["tests/reference/versions.yaml"]
    opened = {Path(path.replace("/synthetic", "/task2mcp", 1)) for path in executed.opened}
    assert [path for path in opened if not any(path.is_relative_to(dep) for dep in known)] == []


def write(folder, name, *sources):
    """A notebook of the given code cells, the first of them the parameters."""
    cells = [nbformat.v4.new_code_cell(source) for source in ("dataset = 'x'", *sources)]
    cells[0].metadata["tags"] = ["parameters"]
    folder.mkdir(exist_ok=True)
    metadata = {"language_info": {"name": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), folder / f"{name}.ipynb")


@pytest.mark.slow
def test_a_failing_cell_is_named_stops_no_other_notebook_and_the_earlier_result_stays(new_root):
    write(new_root / "notebooks", "90_case", 'raise ValueError("the third one")')
    write(new_root / "notebooks", "91_whole", "print(dataset)")
    target = paths.results("case") / "notebooks" / "90_case.ipynb"
    target.parent.mkdir(parents=True)
    target.write_text("earlier")
    with pytest.raises(StudyError, match="the third one") as caught:
        execute_all("case")
    # Papermill puts the injected parameters in a cell of their own, after the parameters.
    assert (caught.value.file, caught.value.row) == (new_root / "notebooks" / "90_case.ipynb", "cell 2")
    assert target.read_text() == "earlier"
    assert target.with_name("91_whole.ipynb").exists()
    with pytest.raises(StudyError, match="unknown notebook 'nothing'"):
        execute_all("case", ["nothing"])


def test_only_notebooks_of_which_something_changed_are_executed(new_root, monkeypatch):
    monkeypatch.setattr(notebooks, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    monkeypatch.setattr(notebooks, "execute", lambda source, target, **_: (write_text(target, "{}"), target)[1])
    code, table = new_root / "src/study/analysis/helper.py", new_root / "results/case/tables/overall.csv"
    figure = new_root / "figures/case/one.png"
    for path, text in ((code, "def one(): return 1\n"), (table, "a\n1\n"), (figure, "one")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    for name in ("91_one", "92_two"):
        write(new_root / "notebooks", name, "print(dataset)")

    def again():
        return [path.stem for path in execute_all("case", changed=True)]

    both = ["91_one", "92_two"]
    assert (again(), again()) == (both, [])
    code.write_text('def one():\n    """What it returns."""\n    return 1  # a comment\n')
    table.with_name("runs.csv").write_text("seconds\n1\n")
    assert again() == []
    code.write_text("def one(): return 2\n")
    assert again() == both
    table.write_text("a\n2\n")
    assert again() == both
    figure.unlink()
    assert again() == both
    write(new_root / "notebooks", "92_two", "print(dataset, 1)")
    assert again() == ["92_two"]


@pytest.mark.mirror
@pytest.mark.slow
def test_committed_notebooks_hold_no_row_of_unlicensed_data_and_no_warning(task2mcp):
    servers, tasks = task2mcp.data.servers, task2mcp.data.tasks
    texts = {*servers["name"], *servers["description"], *servers["url"], *tasks["name"], *tasks["description"]}
    # Shorter texts are words that a sentence or a category may hold as well.
    texts = {text for text in texts if len(text) >= 25}
    assert len(texts) > 10_000
    for path in (REPOSITORY / "results" / "task2mcp" / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        content = "\n".join(json.dumps(cell, ensure_ascii=False) for cell in notebook.cells)
        assert not [text for text in texts if text in content], path.name
        assert not [output for output in outputs(notebook) if output.get("name") == "stderr"], path.name
