"""Sweeps end to end on a tiny study, and what is refused before the first training."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import typer
import yaml
from sweep_workers import TINY
from typer.testing import CliRunner

from study import paths
from study.analysis.tables import PAPER_METRICS
from study.config import build_system, load
from study.errors import StudyError
from study.evaluation.runs import run_seed
from study.pipeline.run import load_inputs, with_tuned_values
from study.sweeps import stage
from study.sweeps.cli import sweep as command
from study.sweeps.fits import fit_key, fitted, with_values
from study.sweeps.settings import Sweep
from study.sweeps.settings import load as load_sweep


@pytest.fixture
def config(tiny):
    return load([*TINY, "system=t2mrec"])


def test_fusion_weights_equal_runs_with_that_weight(config, tmp_path):
    folder = stage.sweep("fusion_weight", config)
    table = pd.read_csv(folder / "trials.csv")
    assert len(table) == 6
    data, split = load_inputs(config)
    for weight in (0.0, 0.9, 1.0):
        system = build_system(with_values(config, {"scoring.semantic_weight": weight}).system)
        for part in ("valid", "test"):
            run = run_seed(system, data, split, seed=2, workdir=tmp_path, part=part)
            row = table[(table["scoring.semantic_weight"] == weight) & (table["seed"] == 2)].iloc[0]
            for metric in PAPER_METRICS:
                assert row[f"{part}/{metric}"] == pytest.approx(run.per_task[metric].mean(), abs=1e-6)
    record = json.loads((folder / "record.json").read_text())
    assert record["profile"] == "smoke"
    best = yaml.safe_load((folder / "best.yaml").read_text())
    means = table.groupby("scoring.semantic_weight")["valid/ndcg@10"].mean()
    assert best["values"] == {"scoring.semantic_weight": means.idxmax()}
    assert best["value"] == pytest.approx(means.max(), abs=1e-6)


def test_a_grid_runs_every_value_and_seed_and_resumes_without_training(config, monkeypatch):
    folder = stage.sweep("temperature", config)
    first = (folder / "trials.csv").read_bytes()
    table = pd.read_csv(folder / "trials.csv")
    assert sorted(zip(table["training.temperature"], table["seed"], strict=True)) == [
        (0.07, 1),
        (0.07, 2),
        (0.5, 1),
        (0.5, 2),
    ]
    monkeypatch.setattr(stage, "measure_trial", lambda *_: pytest.fail("a finished trial was run again"))
    stage.sweep("temperature", config)
    assert (folder / "trials.csv").read_bytes() == first


def test_a_fit_is_kept_for_every_sweep_that_wants_it(config, monkeypatch):
    from study.t2mrec.system import T2MRec

    data, split = load_inputs(config)
    once = fitted(config, data, split, seed=1, keep=True)
    monkeypatch.setattr(T2MRec, "fit", lambda *_, **__: pytest.fail("trained again"))
    again = fitted(with_values(config, {"scoring.anchors": 3}), data, split, seed=1, keep=True)
    np.testing.assert_array_equal(once.task_embeddings, again.task_embeddings)
    asked, known = split.tasks("test"), split.known("test")
    again.scoring = once.scoring
    np.testing.assert_array_equal(once.rank(asked, 10, known)[0], again.rank(asked, 10, known)[0])
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        fitted(with_values(config, {"training.temperature": 0.2}), data, split, seed=1, keep=True)


def test_scoring_alone_shares_a_fit_and_everything_else_does_not(config):
    key = fit_key(config)
    assert fit_key(with_values(config, {"scoring.anchors": 1, "scoring.semantic_weight": 0.1})) == key
    for name, value in (("training.temperature", 0.5), ("towers.hidden", 64), ("lexical.max_features", 10)):
        assert fit_key(with_values(config, {name: value})) != key


def test_the_joint_search_tunes_a_system_without_the_test_tasks(config):
    folder = stage.sweep("joint", config)
    assert folder.name == "t2mrec_tuned"
    table = pd.read_csv(folder / "trials.csv")
    assert len(table) == 3
    assert not [name for name in table if name.startswith("test/")]
    assert table.loc[0, "training.temperature"] == 0.07  # the paper's settings come first
    tuned = with_tuned_values(load([*TINY, "system=t2mrec_tuned"]))
    system = build_system(tuned.system)
    assert sum(system.scoring.structure_weights) == pytest.approx(1)
    best = table.loc[table["valid/ndcg@10"].idxmax()]
    assert system.training.temperature == pytest.approx(best["training.temperature"], rel=1e-4)
    assert system.towers.hidden == best["towers.hidden"]


def test_the_command_prints_where_the_results_are(config):
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, ["fusion_weight", *TINY])
    assert done.exit_code == 0, done.output
    assert "sweeps/fusion_weight" in done.output.replace("\n", "")


@pytest.mark.parametrize(
    ("key", "value", "column"),
    [
        ("objective", "ndgc@10", "objective"),
        ("parts", ["test"], "parts"),
        ("seeds", [], "seeds"),
        ("seeds", [1, 1], "seeds"),
        ("kind", "random", "kind"),
        ("space", {}, "space"),
        ("space", {"training.temperature": {"low": 0.1, "high": 1.0}}, "space"),
        ("simplex", ["scoring.theme"], "simplex"),
        ("enqueue", [{"training.epochs": 3}], "enqueue"),
        ("attempts", 0, "attempts"),
    ],
)
def test_a_wrong_sweep_is_refused(tiny, key, value, column):
    settings = vars(load_sweep("temperature")) | {key: value}
    with pytest.raises(StudyError) as caught:
        Sweep(**settings)
    assert caught.value.column == column
    assert caught.value.fix


def test_wrong_files_are_refused(tiny):
    folder = paths.conf() / "sweep"
    with pytest.raises(StudyError, match="unknown sweep 'temprature'"):
        load_sweep("temprature")
    content = yaml.safe_load((folder / "temperature.yaml").read_text())
    (folder / "extra.yaml").write_text(yaml.safe_dump(content | {"colour": "red"}))
    with pytest.raises(StudyError, match="unknown key"):
        load_sweep("extra")
    content.pop("seeds")
    (folder / "extra.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(StudyError, match="missing key"):
        load_sweep("extra")
    (folder / "extra.yaml").unlink()


def test_what_cannot_be_swept_is_refused_before_any_training(config):
    with pytest.raises(StudyError, match="workers"):
        stage.sweep("temperature", config, jobs=0)
    with pytest.raises(StudyError, match="varies t2mrec"):
        stage.sweep("temperature", load([*TINY, "system=tfidf"]))
    with pytest.raises(StudyError, match="under cold"):
        stage.sweep("temperature", load([*TINY, "system=t2mrec", "protocol=warm"]))
    folder = paths.conf() / "sweep"
    shutil.copy(folder / "temperature.yaml", folder / "typo.yaml")
    content = yaml.safe_load((folder / "typo.yaml").read_text()) | {
        "space": {"training.temprature": {"choices": [1.0]}}
    }
    (folder / "typo.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(StudyError, match=r"no setting 'training\.temprature'"):
        stage.sweep("typo", config)
    (folder / "typo.yaml").unlink()


def test_another_profile_does_not_replace_results_silently(config):
    stage.sweep("fusion_weight", config)
    path = stage.folder_of("synthetic", "fusion_weight") / "record.json"
    content = json.loads(path.read_text()) | {"profile": "laptop"}
    path.write_text(json.dumps(content))
    with pytest.raises(StudyError, match="profile 'laptop'"):
        stage.sweep("fusion_weight", config)
    stage.sweep("fusion_weight", config, replace=True)
    assert json.loads(path.read_text())["profile"] == "smoke"


def test_weights_are_divided_by_their_sum():
    sweep = load_sweep("joint")
    raw = {"scoring.category": 0.2, "scoring.language": 0.6, "scoring.theme": 0.0, "towers.layers": 3}
    settled = sweep.settle(raw)
    assert [settled[name] for name in sweep.simplex] == pytest.approx([0.25, 0.75, 0.0])
    assert settled["towers.layers"] == 3
    none = sweep.settle(raw | {"scoring.category": 0.0, "scoring.language": 0.0})
    assert [none[name] for name in sweep.simplex] == pytest.approx([1 / 3] * 3)


def test_choice_is_by_the_mean_over_seeds_on_validation():
    sweep = load_sweep("temperature")
    table = pd.DataFrame({
        "training.temperature": [0.07, 0.07, 0.14, 0.14], "seed": [1, 2, 1, 2],
        "valid/ndcg@10": [0.2, 0.2, 0.3, 0.0], "test/ndcg@10": [0.0, 0.0, 1.0, 1.0],
    })  # fmt: skip
    assert stage.chosen(sweep, table) == {"value": 0.2, "values": {"training.temperature": 0.07}}
