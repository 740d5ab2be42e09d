"""The notebooks: their sources, their execution on generated and on published data, and what a failing cell does."""

import ast
import io
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import vl_convert
import yaml
from nbformat.v4 import new_code_cell, new_notebook, new_output

from study.analysis import notebooks
from study.analysis.notebooks import execute, execute_all, normalise
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_text
from tests.tiny_study import REPOSITORY, TINY, lay_out, rooted

SOURCES = {path.stem: path for path in sorted((REPOSITORY / "notebooks").glob("[0-9]*.ipynb"))}
FIRST, *OTHERS = SOURCES
CHECKS = yaml.safe_load(Path(__file__).with_name("checks.yaml").read_text(encoding="utf-8"))
VIEW = "application/vnd.vegalite.v5+json"  # an interactive figure


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_stripped_has_one_cell_of_literal_parameters_and_no_path_of_a_machine(name):
    source = nbformat.read(SOURCES[name], as_version=4)
    code = [cell for cell in source.cells if cell.cell_type == "code"]
    assert not [cell for cell in code if cell.outputs or cell.execution_count]
    assert not [cell for cell in source.cells if re.search(r"(?<![\w.])/(home|work|tmp|Users|root)/", cell.source)]
    (parameters,) = (cell for cell in code if "parameters" in cell.metadata.get("tags", []))
    values = {line.targets[0].id: ast.literal_eval(line.value) for line in ast.parse(parameters.source).body}
    assert "dataset" in values


def add_checks(folder):
    """Let every notebook of a folder end with what must hold for the parameters of its source."""
    for name, checks in CHECKS.items():
        notebook = nbformat.read(folder / f"{name}.ipynb", as_version=4)
        notebook.cells.append(new_code_cell(checks))
        nbformat.write(notebook, folder / f"{name}.ipynb")


def outputs(notebook):
    """What a notebook shows; no error is among it, and nothing was printed to the error stream."""
    found = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert found
    assert not [output for output in found if output.output_type == "error" or output.get("name") == "stderr"]
    return found


@pytest.mark.slow
def test_the_first_notebook_runs_on_a_tiny_study_twice_to_the_same_bytes(root, tmp_path, monkeypatch):
    from study.analysis.report.main import report
    from study.config.compose import load

    monkeypatch.delenv("MPLBACKEND", raising=False)  # as Jupyter draws
    report(load(TINY))
    add_checks(root / "notebooks")
    (made,) = execute_all("synthetic")
    found = outputs(nbformat.read(made, as_version=4))
    text = "\n".join(output.get("data", {}).get("text/plain", "") for output in found)
    assert re.search(r"servers +60\s+tasks +80", text)
    means = pd.read_csv(paths.tables("synthetic") / "overall.csv").query("protocol == 'cold' and k == 10")
    for value in means.query("system == 'tfidf' and metric in ['ndcg', 'recall']")["mean"]:
        assert min(abs(float(shown) - value) for shown in re.findall(r"0\.\d{3}", text)) < 6e-4
    assert sum("image/png" in output.get("data", {}) for output in found) == 2
    assert str(root) not in made.read_text()
    # From another folder, too.
    (tmp_path / "elsewhere").mkdir()
    source = tmp_path / "elsewhere" / f"{FIRST}.ipynb"
    shutil.copy(root / "notebooks" / source.name, source)
    assert execute(source, tmp_path / "out" / source.name, dataset="synthetic").read_bytes() == made.read_bytes()


@pytest.fixture(scope="module")
def published(task2mcp, tmp_path_factory):
    """The executed notebooks by name, each ended by its checks, over the public data and the committed results."""
    from study.config.compose import load
    from study.data.stages import split
    from study.search.export import export

    root = tmp_path_factory.mktemp("published")
    lay_out(root)
    for path in (REPOSITORY / "results").glob("*/*"):
        if path.name != "notebooks":
            link = root / "results" / path.relative_to(REPOSITORY / "results")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    for kind in ("raw", "prepared"):
        (root / "data" / kind).mkdir(parents=True)
        (root / "data" / kind / "task2mcp").symlink_to(task2mcp.prepared.parent / kind)
    with rooted(root):
        split(load(["dataset=task2mcp"]))
        export(load(["dataset=task2mcp", "system=t2mrec", "profile=smoke"]))  # or notebook 07 trains it whole
        add_checks(root / "notebooks")
        yield {path.stem: nbformat.read(path, as_version=4) for path in execute_all("task2mcp")}


@pytest.fixture(scope="session")
def texts(task2mcp):
    """Texts of the public data, which states no licence; shorter ones are words that a sentence may hold as well."""
    servers, tasks = task2mcp.data.servers, task2mcp.data.tasks
    found = {*servers["name"], *servers["description"], *servers["url"], *tasks["name"], *tasks["description"]}
    return {text for text in found if len(text) >= 25}


@pytest.mark.mirror
@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_a_notebook_runs_on_published_data_and_neither_it_nor_the_committed_one_shows_a_row(published, texts, name):
    committed = REPOSITORY / "results" / "task2mcp" / "notebooks" / f"{name}.ipynb"
    for notebook in (published[name], nbformat.read(committed, as_version=4)):
        outputs(notebook)
        content = "\n".join(json.dumps(cell, ensure_ascii=False) for cell in notebook.cells)
        assert not [text for text in texts if text in content]


@pytest.mark.mirror
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("01_dataset", {"protocols": ["cold_grouped"], "most": 8}),
        ("02_rq1_overall", {"protocol": "warm", "systems": "t2mrec item_knn minilm"}),
        ("03_rq2_ablation", {"metric": "recall@10", "level": "subcategory"}),
        ("04_rq3_sensitivity", {"metric": "recall@10", "sweeps": ["temperature"]}),
        ("05_audit", {"protocol": "loo", "systems": "popularity_theme bm25"}),
        ("06_tool_level", {"k": 5, "history": "intent_requests", "budget": 1000}),
        ("08_useful", {"part": "fresh", "metric": "precision@5"}),
        ("09_explore", {"protocol": "warm", "up": "item_knn"}),
    ],
)
def test_a_notebook_runs_with_other_parameters(published, name, changes, tmp_path):
    executed = execute(SOURCES[name], tmp_path / f"{name}.ipynb", dataset="task2mcp", **changes)
    shown = outputs(nbformat.read(executed, as_version=4))
    assert shown != outputs(published[name])


@pytest.mark.mirror
@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", [{}, {"across": "bm25", "only_language": "Go"}, {"letters": "data", "only_twin": "yes"}]
)
def test_the_view_of_two_systems_counts_and_draws_the_tasks_that_a_reader_chooses(published, chosen):
    shown = [output.get("data", {}) for cell in published["09_explore"].cells for output in cell.get("outputs", [])]
    view = deepcopy(next(data[VIEW] for data in shown if VIEW in data))
    for param in view["params"]:
        param["value"] = chosen.get(param["name"], param.get("value"))
    rows = pd.read_csv(io.StringIO(next(rows for rows in view["datasets"].values() if isinstance(rows, str))))
    values = {param["name"]: param["value"] for param in view["params"]}
    rows = rows[rows["theme"].str.contains(values["letters"], case=False, regex=False)]
    for name in ("language", "twin"):
        rows = rows[rows[name].eq(values[f"only_{name}"]) | (values[f"only_{name}"] == "all")]
    across, up = rows[values["across"]], rows[values["up"]]
    words = f"{len(rows)} tasks. Mean across {across.mean():.4f}, up {up.mean():.4f}. "
    words += f"Better across: {(across > up).sum()}, up: {(across < up).sum()}"
    picture = vl_convert.vegalite_to_svg(view, vl_version="5.20")
    assert words in picture
    # One point per task, beside the three of the legend.
    assert picture.count('aria-roledescription="circle"') == len(rows)


def write(folder, name, *sources):
    """A notebook of the given code cells, the first of them the parameters."""
    cells = [nbformat.v4.new_code_cell(source) for source in ("dataset = 'x'", *sources)]
    cells[0].metadata["tags"] = ["parameters"]
    folder.mkdir(exist_ok=True)
    metadata = {"language_info": {"name": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), folder / f"{name}.ipynb")


@pytest.mark.slow
def test_a_failing_cell_is_named_stops_no_other_notebook_and_the_earlier_result_stays(conf_root):
    folder, target = conf_root / "notebooks", paths.results("task2mcp") / "notebooks" / "91_case.ipynb"
    for name, source in (("90_first", "1"), ("91_case", 'raise ValueError("the third one")'), ("92_whole", "1 + 1")):
        write(folder, name, source)
    target.parent.mkdir(parents=True)
    target.write_text("earlier")
    with pytest.raises(StudyError, match="the third one") as caught:
        execute_all("task2mcp")
    # Papermill puts the injected parameters in a cell of their own, after the parameters.
    assert (caught.value.file, caught.value.row) == (folder / "91_case.ipynb", "cell 2")
    assert target.read_text() == "earlier"
    assert target.with_name("92_whole.ipynb").exists()
    with pytest.raises(StudyError, match="unknown notebook 'nothing'"):
        execute_all("task2mcp", ["nothing"])


def test_only_notebooks_of_which_something_changed_are_executed(conf_root, monkeypatch):
    monkeypatch.setattr(notebooks, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    monkeypatch.setattr(notebooks, "execute", lambda source, target, **_: (write_text(target, "{}"), target)[1])
    code, table = conf_root / "src/study/analysis/shared.py", paths.tables("task2mcp") / "overall.csv"
    figure = paths.figures("task2mcp") / "one.png"
    for path, text in ((code, "def one(): return 1\n"), (table, "a\n1\n"), (figure, "one")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    for name in ("90_first", "91_one", "92_two"):
        write(conf_root / "notebooks", name, "print(dataset)")

    def again():
        return [path.stem for path in execute_all("task2mcp", changed=True)]

    both = ["91_one", "92_two"]  # the first is for generated data
    assert (again(), again()) == (both, [])
    table.with_name("runs.csv").write_text("seconds\n1\n")
    code.write_text("# A comment.\ndef one():\n    return 1\n")
    assert again() == []
    for change in (lambda: code.write_text("def one(): return 2\n"), lambda: table.write_text("a\n2\n"), figure.unlink):
        change()
        assert again() == both
    write(conf_root / "notebooks", "92_two", "print(dataset, 1)")
    assert again() == ["92_two"]


def test_what_differs_between_equal_executions_is_stripped() -> None:
    def executed(name: str, address: str) -> nbformat.NotebookNode:
        data = {"text/html": f'<table id="T_{name}">', "text/plain": f"<Styler at 0x{address}>"}
        cell = new_code_cell("1", outputs=[new_output("display_data", data, metadata={"time": address})])
        return normalise(new_notebook(cells=[cell], metadata={"machine": name}))

    assert executed("0a1b2", "7f83") == executed("ffe00", "7f0a")
    assert executed("0a1b2", "7f83").cells[0].outputs[0].data["text/plain"] == "<Styler>"
