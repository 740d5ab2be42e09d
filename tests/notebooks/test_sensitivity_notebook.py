"""The notebook of RQ3 on a tiny study with sweeps: every branch that has results runs, and its values are right."""

from itertools import takewhile
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
import yaml

from study.base import paths
from study.runner.row_store import read_per_task
from tests.tiny_study import REPOSITORY, TINY, lay_out, make_data, rooted

NAME = "04_rq3_sensitivity"
# Two values and two seeds per grid, three trials: every branch, in seconds.
SMALL = {
    "fusion_weight": {"seeds": [1, 2], "space": {"scoring.semantic_weight": {"choices": [0.0, 0.5, 0.9]}}},
    "temperature": {"seeds": [1, 2], "space": {"training.temperature": {"choices": [0.07, 0.5]}}},
    "joint": {"trials": 3, "seeds": [2]},
}


def build(root):
    """Runs and sweeps of a tiny study; the learning rate is left out, which the notebook must do without."""
    from study.config.compose import load
    from study.runner.rows import run_row
    from study.search.sweep import sweep

    lay_out(root)
    for name, changes in SMALL.items():
        path = root / "conf" / "sweep" / f"{name}.yaml"
        content = yaml.safe_load(path.read_text()) | changes
        # After a few epochs the second seed is far better with this temperature: the search has something to find.
        planted = [point | {"training.temperature": 0.5} for point in content.get("enqueue", [])]
        content["enqueue"] = [*content.get("enqueue", []), *planted]
        path.write_text(yaml.safe_dump(content, sort_keys=False))
    make_data()
    for name in SMALL:
        sweep(name, load([*TINY, "system=t2mrec"]))
    for system in ("t2mrec", "t2mrec_joint"):
        run_row(load([*TINY, f"system={system}"]))


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What the notebook shows: its text and number of figures, and where its study lies."""
    from study.analysis.notebooks import execute_all

    root = tmp_path_factory.mktemp("study")
    with rooted(root):
        build(root)
        [path] = execute_all("synthetic", [NAME])
        notebook = nbformat.read(path, as_version=4)
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        assert not [output for output in outputs if output.output_type in ("stream", "error")]
        data = [output["data"] for output in outputs]
        text = "\n".join(item.get("text/markdown", "") for item in data)
        yield SimpleNamespace(root=root, text=text, figures=sum("image/png" in item for item in data))


def rows(text, first):
    """The rows of the Markdown table whose heading begins with the given cells: first cell -> the others."""
    lines = takewhile(lambda line: line.startswith("|"), text[text.index(f"| {first} |") :].splitlines())
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(table[0], row, strict=True)) for row in table[2:]}


def test_every_figure_is_drawn_and_what_has_not_run_is_named(shown):
    assert "Sweeps without runs: `study sweep learning_rate`." in shown.text
    assert shown.figures == 2 + 3
    drawn = {path.stem for path in paths.figures("synthetic").glob("*.png")}
    joint = {f"joint_{name}" for name in ("history", "importance", "slices")}
    assert drawn == {"sweep_fusion_weight", "sweep_temperature", *joint}
    assert str(shown.root) not in shown.text


def test_the_paper_is_compared_on_single_test_tasks(shown):
    compared = rows(shown.text, "setting | paper | chosen | n | seeds")
    assert len(compared) == 2
    titles = (("fusion_weight", "Fusion weight alpha_sem", 0.9), ("temperature", "Temperature tau", 0.07))
    for name, title, paper in titles:
        trials = pd.read_csv(paths.results("synthetic") / "sweeps" / name / "trials.csv")
        column, row = next(iter(SMALL[name]["space"])), compared[title]
        best = trials.groupby(column)["valid/ndcg@10"].mean().idxmax()
        assert (float(row["paper"]), float(row["chosen"])) == (paper, best)
        assert (row["n"], row["seeds"]) == ("16", "2")
        means = trials.groupby(column)["test/ndcg@10"].mean()
        assert float(row["diff"]) == pytest.approx(means[best] - means[paper], abs=2e-4)
        assert float(row["diff_ci_low"]) <= float(row["diff"]) <= float(row["diff_ci_high"])
        expected = {"holds"} if best == paper else {"holds", "does not hold", "not contradicted"}
        assert row["verdict"] in expected


def test_the_search_is_shown_with_raw_weights_and_the_tuned_row_with_its_tests(shown):
    shares = rows(shown.text, "parameter | mean")
    assert len(shares) == 12
    assert "theme (raw weight)" in shares
    assert sum(float(row["mean"]) for row in shares.values()) == pytest.approx(1, abs=0.01)
    tuned = rows(shown.text, "metric | n | tuned")
    assert list(tuned)[-1] == "ndcg@10"
    tables = read_per_task("synthetic", "cold", ("t2mrec_joint", "t2mrec"))
    own, plain = (table["ndcg@10"].mean() for table in tables.values())
    assert tuned["ndcg@10"]["tuned"].startswith(f"{own:.4f}")
    assert tuned["ndcg@10"]["untuned"].startswith(f"{plain:.4f}")
    assert np.isclose(float(tuned["ndcg@10"]["diff"]), own - plain, atol=2e-4)
    assert own != plain
    assert 0 < float(tuned["recall@10"]["wilcoxon_p_holm"]) < 1
    assert tuned["recall@5"]["wilcoxon_p_holm"] == ""


def checks():
    """Run the notebook's cells that draw nothing, the checks among them, in this process."""
    notebook = nbformat.read(REPOSITORY / "notebooks" / f"{NAME}.ipynb", as_version=4)
    space = {}
    for cell in notebook.cells:
        if cell.cell_type == "code" and "save_figure" not in cell.source:
            exec(cell.source, space)


@pytest.fixture(scope="module")
def checked(shown):
    """The study as it is, which the checks pass."""
    checks()


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("tuned/t2mrec_joint/best.yaml", lambda text: text.replace("towers.layers: ", "towers.layers: 1")),
        ("sweeps/fusion_weight/best.yaml", lambda text: text.replace("semantic_weight: 0.", "semantic_weight: 1.")),
        ("tuned/t2mrec_joint/trials.csv", lambda text: text.replace(",0.07,", ",0.08,")),
    ],
)
def test_its_checks_can_fail(capsys, file, change):
    """Chosen values that are not the best trial's, and a search without the paper's settings, stop the notebook."""
    path = paths.results("synthetic") / file
    before = path.read_text()
    assert change(before) != before
    path.write_text(change(before))
    try:
        with pytest.raises(AssertionError):
            checks()
    finally:
        path.write_text(before)
