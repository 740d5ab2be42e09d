"""Sweeps end to end on a tiny study, and what is refused before the first training."""

import json
import logging
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from study import paths
from study.cli.main import app
from study.config.compose import build_system, load
from study.config.registry import with_tuned_values, with_values
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.runs import run_seed
from study.evaluation.separation import mean_separation
from study.runner.inputs import load_inputs
from study.search import fits
from study.search import sweep as stage
from study.search.fits import fit_key, fitted, kept_fit, training_seconds
from study.search.settings import Sweep, chosen, load_sweep
from study.t2mrec.system import T2MRec
from tests.tiny_study import TINY


@pytest.fixture
def config(tiny):
    return load([*TINY, "system=t2mrec"])


@pytest.fixture
def inputs(config):
    """The data set and the split."""
    return load_inputs(config.dataset.name, config.protocol.name)


@contextmanager
def sweep_like_temperature(file, **changes):
    """A further file of conf/sweep while the block runs."""
    path = paths.conf() / "sweep" / f"{file}.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.with_name("temperature.yaml").read_text()) | changes))
    yield
    path.unlink()


def record_of(folder):
    return json.loads((folder / "record.json").read_text())


def best_of(folder):
    return yaml.safe_load((folder / "best.yaml").read_text())


def test_fusion_weights_equal_runs_with_that_weight(config, inputs, tmp_path):
    folder = stage.sweep("fusion_weight", config)
    table = pd.read_csv(folder / "trials.csv")
    assert len(table) == 6
    for weight in (0.0, 0.9, 1.0):
        system = build_system(with_values(config, {"scoring.semantic_weight": weight}).system)
        for part in ("valid", "test"):
            run = run_seed(system, *inputs, seed=2, workdir=tmp_path, part=part)
            row = table[(table["scoring.semantic_weight"] == weight) & (table["seed"] == 2)].iloc[0]
            for metric in PAPER_METRICS:
                assert row[f"{part}/{metric}"] == pytest.approx(run.per_task[metric].mean(), abs=1e-6)
    assert record_of(folder)["profile"] == "smoke"
    best, means = best_of(folder), table.groupby("scoring.semantic_weight")["valid/ndcg@10"].mean()
    assert best["values"] == {"scoring.semantic_weight": means.idxmax()}
    assert best["value"] == pytest.approx(means.max(), abs=1e-6)


def test_a_grid_runs_every_value_and_seed_and_is_written_again_without_training(config, monkeypatch):
    folder = stage.sweep("temperature", config)
    names = ("trials.csv", "per_task.csv.xz", "separation.csv")
    first = {name: (folder / name).read_bytes() for name in names}
    table = pd.read_csv(folder / "trials.csv")[["training.temperature", "seed"]]
    assert sorted(map(tuple, table.to_numpy())) == [(0.07, 1), (0.07, 2), (0.5, 1), (0.5, 2)]
    for name in names:
        (folder / name).unlink()
    monkeypatch.setattr(stage, "measure_trial", lambda *_: pytest.fail("a finished trial was run again"))
    monkeypatch.setattr(T2MRec, "fit", lambda *_, **__: pytest.fail("trained again"))
    stage.sweep("temperature", config)
    assert {name: (folder / name).read_bytes() for name in names} == first


def test_scores_are_computed_once_per_part_and_seed_however_many_weights_there_are(config, inputs, monkeypatch):
    stage.sweep("fusion_weight", config)  # now the trainings are kept
    asked, semantic = [], T2MRec.semantic
    monkeypatch.setattr(T2MRec, "semantic", lambda self, tasks: asked.append(tasks) or semantic(self, tasks))
    monkeypatch.setattr(fits, "write_details", lambda *_: None)
    folder = stage.sweep("fusion_weight", config)
    once = np.concatenate([inputs[1].tasks("valid"), inputs[1].tasks("test")])
    np.testing.assert_array_equal(np.concatenate(asked), np.concatenate([once, once]))  # two seeds, three weights
    record = record_of(folder)
    assert record["tasks"] == len(once)
    assert record["processor_seconds"] > 0
    assert 0 < record["seconds"] < 60


def test_single_tasks_are_kept_for_the_chosen_and_the_papers_value(config, inputs, tmp_path):
    for name, paper in (("fusion_weight", 0.9), ("temperature", 0.07)):
        folder = stage.sweep(name, config)
        trials, found = pd.read_csv(folder / "trials.csv"), pd.read_csv(folder / "per_task.csv.xz")
        column = next(iter(load_sweep(name).space))
        assert set(found[column]) == {best_of(folder)["values"][column], paper}
        assert list(found) == [column, "task_id", "seed", *PAPER_METRICS]
        for value, part in found.groupby(column):
            frame = per_task.check(part.drop(columns=column).reset_index(drop=True))
            assert len(frame) == 2 * len(inputs[1].tasks("test"))
            own = trials[trials[column] == value].set_index("seed")
            for metric in PAPER_METRICS:
                means = frame.groupby("seed")[metric].mean()
                np.testing.assert_allclose(means, own[f"test/{metric}"], atol=1e-5)
    run = run_seed(build_system(config.system), *inputs, seed=2, workdir=tmp_path).per_task
    own = found[(found[column] == paper) & (found["seed"] == 2)]
    np.testing.assert_array_equal(own["task_id"], run["task_id"])
    np.testing.assert_allclose(own["ndcg@10"], run["ndcg@10"], atol=1e-6)


def test_separation_is_measured_of_every_training(config, inputs):
    found = pd.read_csv(stage.sweep("temperature", config) / "separation.csv")
    assert list(found) == ["training.temperature", "seed", "part", "auc", "recall"]
    assert len(found) == 4
    system = fitted(with_values(config, {"training.temperature": 0.5}), *inputs, seed=2, keep=True)
    expected = mean_separation(system.task_embeddings, system.server_embeddings, inputs[1], "test", depth=10)
    row = found[(found["training.temperature"] == 0.5) & (found["seed"] == 2)].iloc[0]
    assert (row["auc"], row["recall"]) == pytest.approx((expected["auc"], expected["recall"]), abs=1e-5)
    weights = pd.read_csv(stage.sweep("fusion_weight", config) / "separation.csv")
    assert weights["scoring.semantic_weight"].tolist() == [0.9, 0.9]  # the configured one: it decides no embedding
    assert weights["seed"].tolist() == [1, 2]


def test_without_test_tasks_or_kept_trainings_there_are_no_such_tables(config):
    with sweep_like_temperature("blind", name="blind", parts=["valid"]):
        folder = stage.sweep("blind", config)
    assert sorted(path.name for path in folder.iterdir()) == ["best.yaml", "record.json", "trials.csv"]


def test_trainings_are_timed_when_they_are_made_and_counted_once(config, inputs):
    other = with_values(config, {"training.temperature": 0.3})
    assert training_seconds(other, 1) is None
    fitted(other, *inputs, seed=1, keep=True)
    noted = training_seconds(other, 1)
    assert noted > 0
    fitted(other, *inputs, seed=1, keep=True)  # from the cache, which takes no training
    assert training_seconds(other, 1) == noted
    folder = stage.sweep("temperature", config)
    table, record = pd.read_csv(folder / "trials.csv"), record_of(folder)
    settings = [with_values(config, {"training.temperature": value}) for value in table["training.temperature"]]
    expected = [training_seconds(own, seed) for own, seed in zip(settings, table["seed"], strict=True)]
    np.testing.assert_allclose(table["seconds"], expected, rtol=1e-5)
    assert (record["untimed"], record["seconds"]) == (0, round(sum(expected), 1))
    # Embeddings kept before trainings were timed.
    path = kept_fit(settings[0], 1)
    content = path.read_bytes()
    save_file(load_file(path), path)
    record = record_of(stage.sweep("temperature", config))
    path.write_bytes(content)
    assert (record["untimed"], record["seconds"]) == (1, round(sum(expected[1:]), 1))


@pytest.mark.parametrize("name", ["temperature", "joint"])
def test_the_key_is_that_of_what_decides_a_trial(config, name):
    sweep = load_sweep(name)
    key = stage.sweep_key(sweep, config)
    same = {"attempts": 9, "paper_best": 0.5, "title": "x", "place": "y", "trials": 99}
    for name, value in (same | {"keep_fits": not sweep.keep_fits}).items():
        assert stage.sweep_key(replace(sweep, **{name: value}), config) == key, name
    space = {"enqueue": [], "space": {"training.temperature": {"choices": [0.5]}}, "simplex": []}
    for other in ({"seeds": [7]}, {"objective": "recall@5"}, {"sampler_seed": 2}, {"name": "z"}, space):
        assert stage.sweep_key(replace(sweep, **other), config) != key, other
    assert stage.sweep_key(sweep, with_values(config, {"towers.hidden": 8})) != key


def test_workers_and_a_database_mean_nothing_to_the_fusion_weight_and_it_says_so(config, caplog):
    with caplog.at_level(logging.WARNING):
        stage.sweep("fusion_weight", config, jobs=4, storage="sqlite:///nothing.db")
    assert "without --jobs and --storage" in caplog.text
    caplog.clear()
    stage.sweep("fusion_weight", config)
    assert not caplog.text


def test_a_fit_is_kept_for_every_sweep_that_wants_it_and_scoring_alone_shares_it(config, inputs, monkeypatch):
    key = fit_key(config)
    assert fit_key(with_values(config, {"scoring.anchors": 1, "scoring.semantic_weight": 0.1})) == key
    for name, value in (("training.temperature", 0.5), ("towers.hidden", 64), ("lexical.max_features", 10)):
        assert fit_key(with_values(config, {name: value})) != key, name
    once = fitted(config, *inputs, seed=1, keep=True)
    monkeypatch.setattr(T2MRec, "fit", lambda *_, **__: pytest.fail("trained again"))
    again = fitted(with_values(config, {"scoring.anchors": 3}), *inputs, seed=1, keep=True)
    np.testing.assert_array_equal(once.task_embeddings, again.task_embeddings)
    asked, known = inputs[1].tasks("test"), inputs[1].known("test")
    again.scoring = once.scoring
    np.testing.assert_array_equal(once.rank(asked, 10, known)[0], again.rank(asked, 10, known)[0])
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        fitted(with_values(config, {"training.temperature": 0.2}), *inputs, seed=1, keep=True)


def test_the_joint_search_tunes_a_system_without_the_test_tasks(config):
    folder = stage.sweep("joint", config)
    assert folder.name == "t2mrec_joint"
    table = pd.read_csv(folder / "trials.csv")
    assert len(table) == 3
    assert not [name for name in table if name.startswith("test/")]
    assert table.loc[0, "training.temperature"] == 0.07  # the paper's settings come first
    tuned = with_tuned_values(load([*TINY, "system=t2mrec_joint"]))
    system = build_system(tuned.system)
    assert sum(system.scoring.structure_weights) == pytest.approx(1)
    best = table.loc[table["valid/ndcg@10"].idxmax()]
    assert system.training.temperature == pytest.approx(best["training.temperature"], rel=1e-4)
    assert system.towers.hidden == best["towers.hidden"]


def test_the_command_prints_where_the_results_are(config):
    done = CliRunner().invoke(app, ["sweep", "fusion_weight", *TINY])
    assert done.exit_code == 0, done.output
    assert "sweeps/fusion_weight" in done.output.replace("\n", "")


WRONG = {"objective": ["ndgc@10"], "parts": [["test"]], "seeds": [[], [1, 1]], "kind": ["random"], "attempts": [0]}
WRONG |= {"space": [{}, {"training.temperature": {"low": 0.1, "high": 1.0}}], "simplex": [["scoring.theme"]]}
WRONG |= {"enqueue": [[{"training.epochs": 3}]]}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_a_wrong_sweep_is_refused(tiny, key, value):
    with pytest.raises(StudyError) as caught:
        Sweep(**vars(load_sweep("temperature")) | {key: value})
    assert caught.value.column == key
    assert caught.value.fix


def test_what_cannot_be_swept_is_refused_before_any_training(config):
    with pytest.raises(StudyError, match="unknown sweep 'temprature'"):
        load_sweep("temprature")
    with pytest.raises(StudyError, match="workers"):
        stage.sweep("temperature", config, jobs=0)
    with pytest.raises(StudyError, match="varies t2mrec"):
        stage.sweep("temperature", load([*TINY, "system=tfidf"]))
    with pytest.raises(StudyError, match="under cold"):
        stage.sweep("temperature", load([*TINY, "system=t2mrec", "protocol=warm"]))
    typo = sweep_like_temperature("typo", space={"training.temprature": {"choices": [1.0]}})
    with typo, pytest.raises(StudyError, match=r"no setting 'training\.temprature'"):
        stage.sweep("typo", config)


def test_another_profile_does_not_replace_results_silently(config):
    stage.sweep("fusion_weight", config)
    path = stage.folder_of("synthetic", "fusion_weight") / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"profile": "laptop"}))
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
    rows = [(0.07, 1, 0.2, 0.0), (0.07, 2, 0.2, 0.0), (0.14, 1, 0.3, 1.0), (0.14, 2, 0.0, 1.0)]
    table = pd.DataFrame(rows, columns=["training.temperature", "seed", "valid/ndcg@10", "test/ndcg@10"])
    assert chosen(sweep, table) == {"value": 0.2, "values": {"training.temperature": 0.07}}
