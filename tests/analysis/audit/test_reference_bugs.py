"""The table of reference bugs: means and differences by hand, rows that have not run, answers that name no server."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.colors import to_rgba

from study import paths
from study.analysis.audit.figures_labels import plot_reference_bugs
from study.analysis.audit.reference_bugs import bug_table, compute
from study.analysis.audit.settings import ReferenceBugs, read
from study.analysis.report.colours import GREEN, RED
from study.config.compose import load
from study.config.registry import all_system_settings
from study.errors import StudyError
from study.evaluation.records import record
from study.files import write_csv, write_json
from study.runner.outputs import Outputs

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    return tmp_path


def wrote(system, values, reports, first_seed=0):
    """A run under `warm`: values of shape (seeds, tasks)."""
    outputs = Outputs.of("synthetic", "warm", system)
    rows = [
        {"task_id": task, "seed": seed, "ndcg@10": value}
        for seed, line in enumerate(values, first_seed)
        for task, value in enumerate(line)
    ]
    write_csv(outputs.per_task, pd.DataFrame(rows))
    seeds = [{"seed": seed, **report} for seed, report in enumerate(reports, first_seed)]
    write_json(outputs.record, record(seeds=seeds))


def test_differences_by_hand(root):
    sound, faulty = [[0.5, 0.25, 0.0], [0.5, 0.75, 0.0]], [[0.25, 0.25, 0.25]] * 2
    wrote("tiger", sound, [{"report": {"answers": 90, "answers_of_no_server": 0}}] * 2)
    wrote("tiger_unconstrained", faulty, [{"report": {"answers": 90, "answers_of_no_server": n}} for n in (30, 15)])
    (path,) = compute(load(["dataset=synthetic"]))
    table = pd.read_csv(path).set_index("row")
    assert list(table.index) == list(read(ReferenceBugs).rows)
    found = table.loc["tiger_unconstrained"]
    about = found[["system", "protocol", "state", "metric", "seeds", "n"]].tolist()
    assert about == ["tiger", "warm", "run", "ndcg@10", 2, 3]
    # Tasks, after the mean over seeds: 0.5, 0.5, 0 without and 0.25 each with the bug.
    assert found["without"] == pytest.approx(1 / 3, abs=1e-5)
    assert found["with_bug"] == pytest.approx(0.25)
    assert found["difference"] == pytest.approx(0.25 - 1 / 3, abs=1e-5)
    assert found["low"] <= found["difference"] <= found["high"]
    # Seed by seed: 1/4 - 1/4 and 1/4 - 5/12; of the six values one is the same.
    assert found[["least", "most", "unmoved"]].tolist() == pytest.approx([-1 / 6, 0.0, 1 / 6], abs=1e-5)
    assert found["no_server"] == pytest.approx(45 / 180)
    others = table.drop(index="tiger_unconstrained")
    assert (others["state"] == "not run").all()
    assert others.loc[:, "seeds":].isna().all(axis=None)
    assert path.with_suffix(".json").exists()


def test_one_of_two_runs_gives_no_number(root):
    wrote("gdsrec", [[0.5, 0.25]], [{}])
    table = bug_table("synthetic", read(ReferenceBugs)).set_index("row")
    assert table.loc["gdsrec_with_target", "state"] == "not run"
    wrote("gdsrec_with_target", [[0.75, 0.25]], [{}])
    table = bug_table("synthetic", read(ReferenceBugs)).set_index("row")
    assert table.loc["gdsrec_with_target", "difference"] == pytest.approx(0.125)
    assert np.isnan(table.loc["gdsrec_with_target", "no_server"])
    wrote("gdsrec", [[0.5, 0.25, 0.0]], [{}])
    with pytest.raises(StudyError, match="same tasks"):
        bug_table("synthetic", read(ReferenceBugs))


def test_a_single_run_is_compared_with_the_same_seed(root):
    wrote("gdsrec", [[0.0, 0.0], [0.5, 0.25], [1.0, 1.0]], [{}] * 3)
    wrote("gdsrec_with_target", [[0.75, 0.25]], [{}], first_seed=1)
    found = bug_table("synthetic", read(ReferenceBugs)).set_index("row").loc["gdsrec_with_target"]
    # Seed 1 alone: 0.375 without and 0.5 with the bug; the mean over the method's three seeds would be 0.4583.
    assert found[["seeds", "without", "with_bug", "difference"]].tolist() == pytest.approx([1, 0.375, 0.5, 0.125])
    wrote("gdsrec_with_target", [[0.75, 0.25]], [{}], first_seed=7)
    with pytest.raises(StudyError, match="no seed of gdsrec_with_target is a seed of gdsrec"):
        bug_table("synthetic", read(ReferenceBugs))


def test_the_figure_shows_what_the_table_holds(root):
    tasks = 40
    with pytest.raises(StudyError, match="no row with a reference bug has run"):
        plot_reference_bugs({"reference_bugs": bug_table("synthetic", read(ReferenceBugs))})
    runs = {"tiger": 0.25, "tiger_unconstrained": 0.125, "gdsrec": 0.5, "gdsrec_with_target": 0.75}
    for system, value in runs.items():
        wrote(system, [[value] * tasks], [{}])
    table = bug_table("synthetic", read(ReferenceBugs))
    panel = plot_reference_bugs({"reference_bugs": table}).axes[0]
    assert len(panel.get_yticks()) == len(table)
    texts = [text.get_text() for text in panel.texts]
    assert sorted(texts) == ["+0.250", "-0.125", *["not run"] * (len(table) - 2)]
    drawn = [np.ma.filled(collection.get_offsets(), np.nan)[:, 0] for collection in panel.collections[1:3]]
    open_, filled = (values[~np.isnan(values)].tolist() for values in drawn)
    assert (open_, filled) == ([0.5, 0.25], [0.75, 0.125])


@pytest.mark.parametrize(
    ("sound", "faulty", "moved"),
    [
        ([[0.2] * 40, [0.4] * 40], [[0.4] * 40, [0.5] * 40], GREEN),
        ([[0.2] * 40, [0.4] * 40], [[0.6] * 40, [0.3] * 40], None),  # one seed each way
        ([[0.2] * 40, [0.4] * 40], [[0.1] * 40, [0.3] * 40], RED),
        ([[0.2] * 40, [0.4] * 40], [[0.2] * 40, [0.4] * 40], None),
    ],
)
def test_a_bug_is_coloured_only_where_tasks_and_seeds_agree(root, sound, faulty, moved):
    wrote("gdsrec", sound, [{}] * 2)
    wrote("gdsrec_with_target", faulty, [{}] * 2)
    tables = {"reference_bugs": bug_table("synthetic", read(ReferenceBugs))}
    inks = {tuple(ink) for ink in plot_reference_bugs(tables).axes[0].collections[2].get_facecolors()}
    assert inks & {to_rgba(GREEN), to_rgba(RED)} == ({to_rgba(moved)} if moved else set())


def test_every_bug_of_the_configuration_is_in_the_table_and_differs_from_its_method_in_one_setting():
    settings, systems = read(ReferenceBugs), all_system_settings()
    assert {name for name, system in systems.items() if system.family == "fault"} <= set(settings.rows)
    for row, about in settings.rows.items():
        own = load([f"system={row}", f"protocol={about.protocol}"]).system
        method = load([f"system={about.system}", f"protocol={about.protocol}"]).system
        assert about.protocol in own.protocols
        assert own.reference is None
        assert "fault" in own.title
        assert len([key for key in method.model if own.model[key] != method.model[key]]) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": {"tiger_unconstrained": {"system": "tigre", "protocol": "warm", "bug": "x"}}}, "tigre"),
        ({"rows": {"tiger_unconstrained": {"system": "tiger", "bug": "x"}}}, "missing key 'protocol'"),
        ({"draws": 3}, "unknown key 'draws'"),
    ],
)
def test_wrong_settings_are_refused(change, said, root):
    path = paths.conf() / "audit" / "reference_bugs.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(StudyError, match=said):
        read(ReferenceBugs)
