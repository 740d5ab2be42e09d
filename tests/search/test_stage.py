"""Sweeps end to end on a tiny study, and what is refused before the first training."""

import json
import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from study.base import paths
from study.base.errors import StudyError
from study.cli.main import app
from study.config.changes import with_tuned_values, with_values
from study.config.compose import build_system, load
from study.evaluation import per_task
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.runs import run_seed
from study.evaluation.separation import mean_separation
from study.evaluation.statistics import bootstrap_interval, randomisation
from study.runner.inputs import load_inputs
from study.search import sweep as stage
from study.search.sweep import Sweep, chosen, load_sweep, renamed
from study.t2mrec.module import TwoTowers
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
    content = yaml.safe_load(path.with_name("temperature.yaml").read_text()) | {"name": file} | changes
    path.write_text(yaml.safe_dump(content))
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
    monkeypatch.setattr(T2MRec, "fit", lambda *_, **__: pytest.fail("trained again"))
    stage.sweep("temperature", config)
    assert {name: (folder / name).read_bytes() for name in names} == first


def test_a_grid_is_written_again_from_its_results_and_made_again_on_request(config, monkeypatch):
    folder = stage.sweep("temperature", config)
    first = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".csv", ".xz")}
    shutil.rmtree(stage.work_folder(load_sweep("temperature"), config))  # as in a fresh clone
    (folder / "best.yaml").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(T2MRec, "fit", lambda *_, **__: pytest.fail("trained again"))
        stage.sweep("temperature", config)
    assert {name: (folder / name).read_bytes() for name in first} == first
    seen, fit = [], T2MRec.fit
    monkeypatch.setattr(T2MRec, "fit", lambda self, *args, **settings: seen.append(1) or fit(self, *args, **settings))
    stage.sweep("temperature", config, replace=True)
    assert len(seen) == 4


@pytest.mark.parametrize("name", ["fusion_weight", "temperature", "joint"])
def test_a_current_sweep_is_left_as_it_is_and_a_stale_one_is_made_again(config, name):
    folder = stage.sweep(name, config)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    stage.sweep(name, config)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    record = folder / "record.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"key": "of other data"}))
    stage.sweep(name, config)
    assert record_of(folder)["key"] == json.loads(before["record.json"])["key"]


def test_scores_are_computed_once_per_part_and_seed_however_many_weights_there_are(config, inputs, monkeypatch):
    asked, semantic = [], T2MRec.semantic
    monkeypatch.setattr(T2MRec, "semantic", lambda self, tasks: asked.append(tasks) or semantic(self, tasks))
    folder = stage.sweep("fusion_weight", config, replace=True)
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


def test_separation_is_measured_of_every_training(config, inputs, tmp_path):
    found = pd.read_csv(stage.sweep("temperature", config) / "separation.csv")
    assert list(found) == ["training.temperature", "seed", "part", "auc", "recall"]
    assert len(found) == 4
    system = build_system(with_values(config, {"training.temperature": 0.5}).system)
    system.fit(*inputs, seed=2, workdir=tmp_path)
    expected = mean_separation(system.task_embeddings, system.server_embeddings, inputs[1], "test", depth=10)
    row = found[(found["training.temperature"] == 0.5) & (found["seed"] == 2)].iloc[0]
    assert (row["auc"], row["recall"]) == pytest.approx((expected["auc"], expected["recall"]), abs=1e-5)
    weights = pd.read_csv(stage.sweep("fusion_weight", config) / "separation.csv")
    assert weights["scoring.semantic_weight"].tolist() == [0.9, 0.9]  # the configured one: it decides no embedding
    assert weights["seed"].tolist() == [1, 2]


def test_without_test_tasks_there_are_no_such_tables(config):
    with sweep_like_temperature("blind", parts=["valid"]):
        folder = stage.sweep("blind", config)
    names = ["best.yaml", "comparisons.csv", "record.json", "trials.csv"]
    assert sorted(path.name for path in folder.iterdir()) == names


def test_any_setting_of_any_system_can_be_varied(tiny, inputs, tmp_path):
    values = ["cosine", "jaccard"]
    with sweep_like_temperature(
        "similarity", system="item_knn", protocol="warm", paper_best=None, space={"similarity": {"choices": values}}
    ):
        config = load([*TINY, "system=item_knn", "protocol=warm"])
        folder = stage.sweep("similarity", config)
    trials = pd.read_csv(folder / "trials.csv").set_index(["similarity", "seed"])
    assert sorted(trials.index) == [("cosine", 1), ("cosine", 2), ("jaccard", 1), ("jaccard", 2)]
    warm = load_inputs("synthetic", "warm")
    for part in ("valid", "test"):
        system = build_system(with_values(config, {"similarity": "jaccard"}).system)
        run = run_seed(system, *warm, seed=2, workdir=tmp_path, part=part).per_task
        assert trials.loc[("jaccard", 2), f"{part}/ndcg@10"] == pytest.approx(run["ndcg@10"].mean(), abs=1e-6)
    assert best_of(folder)["values"]["similarity"] in values


def test_every_value_is_compared_with_the_best_on_validation(config, inputs, tmp_path):
    folder = stage.sweep("temperature", config)
    found = pd.read_csv(folder / "comparisons.csv")
    best = best_of(folder)
    assert found["training.temperature"].iloc[0] == best["values"]["training.temperature"]
    assert found["mean"].iloc[0] == pytest.approx(best["value"], abs=1e-6)
    tasks = {}
    for value in found["training.temperature"]:
        system = with_values(config, {"training.temperature": value}).system
        runs = [run_seed(build_system(system), *inputs, seed=s, workdir=tmp_path, part="valid") for s in (1, 2)]
        tasks[value] = (runs[0].per_task["ndcg@10"] + runs[1].per_task["ndcg@10"]) / 2
    first, second = found["training.temperature"]
    assert found["diff"].iloc[1] == pytest.approx((tasks[second] - tasks[first]).mean(), abs=1e-6)
    low, high = bootstrap_interval(tasks[first].to_numpy(), seed=0)
    assert found.loc[0, ["ci_low", "ci_high"]].tolist() == pytest.approx([low, high], abs=1e-5)
    p = randomisation((tasks[second] - tasks[first]).round(12).to_numpy(), seed=0)
    assert found["randomisation_p_holm"].iloc[1] == pytest.approx(p, abs=0.02)
    assert found["same"].tolist() == [True, p >= 0.05]


def test_a_value_that_is_far_worse_is_told_from_the_best(config):
    tasks = np.arange(40)
    values = pd.concat(
        pd.DataFrame({"task_id": tasks, "seed": 1, "ndcg@10": 0.5 + shift + tasks % 2 / 10, "part": "valid", "x": x})
        for x, shift in ((1, -0.3), (2, 0.0), (3, 0.0))
    )
    sweep = replace(load_sweep("temperature"), space={"x": {"choices": [1, 2, 3]}})
    found = stage.against_best(sweep, values, {"x": 2}).set_index("x")
    assert found["same"].to_dict() == {1: False, 2: True, 3: True}
    assert found.loc[1, "diff"] == pytest.approx(-0.3)


def test_the_limits_are_those_over_seeds_where_single_tasks_are_not_kept(tmp_path):
    rows = [(0.1, 1, 0.40), (0.1, 2, 0.44), (0.2, 1, 0.41), (0.2, 2, 0.41), (0.3, 1, 0.2), (0.3, 2, 0.2)]
    pd.DataFrame(rows, columns=["x", "seed", "valid/ndcg@10"]).to_csv(tmp_path / "trials.csv", index=False)
    sweep = replace(load_sweep("temperature"), space={"x": {"choices": [0.1, 0.2, 0.3]}}, paper_best=0.3)
    best, paper, same, limits = stage.standing(tmp_path, sweep)
    half = 0.04 / np.sqrt(2)
    assert best == f"best 0.1: 0.4200 [{0.42 - half:.4f}, {0.42 + half:.4f}]"
    assert (paper, same) == ("the paper's 0.3: 0.2000 [0.2000, 0.2000]", "cannot be told from the best: 0.2")
    assert "one standard deviation" in limits


def test_with_one_seed_and_no_single_tasks_no_value_is_told_from_another(tmp_path):
    rows = [(0.1, 1, 0.40), (0.2, 1, 0.41), (0.3, 1, 0.2)]
    pd.DataFrame(rows, columns=["x", "seed", "valid/ndcg@10"]).to_csv(tmp_path / "trials.csv", index=False)
    sweep = replace(load_sweep("temperature"), space={"x": {"choices": [0.1, 0.2, 0.3]}}, paper_best=None)
    best, last = stage.standing(tmp_path, sweep)
    assert best.startswith("best 0.2: 0.4100")
    assert "0.3" not in last


@pytest.mark.parametrize("values", ["0.1,a", "true,1", ".nan", "0.5, 0.5", "", "[", "0.5,5e-1"])
def test_values_of_another_kind_are_refused_before_any_trial(tiny, values):
    with pytest.raises(StudyError) as caught:
        renamed(load_sweep("temperature"), "mine", values=values)
    assert caught.value.column == "--values"


def test_numbers_are_read_as_the_yaml_files_read_them(tiny):
    sweep = renamed(load_sweep("temperature"), "mine", values="1e-3, 2,.5")
    assert sweep.space["training.temperature"]["choices"] == [0.001, 2, 0.5]


def test_a_sweep_of_ones_own_is_replaced_on_request_alone(config, call):
    words = ["sweep", "temperature", *TINY, "--name", "own", "--values"]
    assert call(*words, "0.11")[0] == 0
    folder = stage.folder_of(config.dataset.name, "own")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for other in (["0.21"], ["0.11", "system.model.towers.hidden=8"]):
        code, _, err = call(*words, *other)
        assert (code, "--replace" in err) == (2, True)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert call(*words, "0.21", "--replace")[0] == 0
    assert record_of(folder)["settings"]["space"]["training.temperature"]["choices"] == [0.21]


def test_trials_that_another_search_left_keep_none_from_being_made_again(config, monkeypatch):
    folder, seen, fit = stage.sweep("temperature", config), list[int](), T2MRec.fit
    (folder / "unfinished.csv").write_text("trial,seconds,valid/ndcg@10,key\n0,1,0.5,of another search\n")
    monkeypatch.setattr(T2MRec, "fit", lambda self, *args, **settings: seen.append(1) or fit(self, *args, **settings))
    stage.sweep("temperature", config, replace=True)
    assert len(seen) == 4


def test_a_value_of_null_is_named(tmp_path):
    rows = [("en", 1, 0.40), (None, 1, 0.41)]
    pd.DataFrame(rows, columns=["x", "seed", "valid/ndcg@10"]).to_csv(tmp_path / "trials.csv", index=False)
    sweep = replace(load_sweep("temperature"), space={"x": {"choices": [None, "en"]}}, paper_best=None)
    assert stage.standing(tmp_path, sweep)[0].startswith("best null: 0.4100")


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--values", "0.11,0.21"], {"space": {"training.temperature": {"choices": [0.11, 0.21]}}}),
        (["protocol=warm"], {"protocol": "warm"}),
        (["system.model.towers.hidden=8"], {}),
    ],
)
def test_other_values_or_settings_need_a_name_of_their_own(config, call, words, changed):
    folder = stage.sweep("temperature", config)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    code, _, err = call("sweep", "temperature", *words, *TINY)
    assert code == 2
    assert "--name temperature_own" in err
    code, out, err = call("sweep", "temperature", *words, *TINY, "--name", "mine", "--replace")
    assert code == 0, err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    settings = record_of(folder.with_name("mine"))["settings"]
    assert {name: settings[name] for name in changed} == changed
    assert "cannot be told from the best" in out


@pytest.mark.parametrize("name", ["joint", "t2mrec", "../x", "Mine", "_x"])
def test_a_name_that_is_taken_or_none_is_refused(tiny, name):
    with pytest.raises(StudyError) as caught:
        renamed(load_sweep("temperature"), name)
    assert caught.value.column == "--name"


def test_values_and_trials_are_for_the_sweeps_that_have_them(tiny):
    with pytest.raises(StudyError, match="varies 12 parameters"):
        renamed(load_sweep("joint"), "mine", values="1,2")
    with pytest.raises(StudyError, match="a trial for every value"):
        renamed(load_sweep("temperature"), "mine", trials=3)
    assert renamed(load_sweep("joint"), "mine", trials=3).trials == 3


def test_a_stop_in_a_training_says_that_the_command_goes_on(config, call, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    name = ["--values", "0.31", "--name", "stopped"]
    with monkeypatch.context() as patch:
        patch.setattr(TwoTowers, "on_train_epoch_end", stop)
        code, _, err = call("sweep", "temperature", *TINY, *name)
    assert code == 130
    assert "the same command goes on" in err
    assert call("sweep", "temperature", *TINY, *name)[0] == 0


@pytest.mark.parametrize("name", ["temperature", "joint"])
def test_the_key_is_that_of_what_decides_a_trial(config, name):
    sweep = load_sweep(name)
    key = stage.sweep_key(sweep, config)
    for name, value in {"title": "x", "place": "y", "trials": 99}.items():
        assert stage.sweep_key(replace(sweep, **{name: value}), config) == key, name
    space = {"enqueue": [], "space": {"training.temperature": {"choices": [0.5]}}, "simplex": []}
    for other in ({"seeds": [7]}, {"objective": "recall@5"}, {"name": "z"}, space):
        assert stage.sweep_key(replace(sweep, **other), config) != key, other
    assert stage.sweep_key(sweep, with_values(config, {"training.weight_decay": 0.5})) != key
    ranked = stage.sweep_key(sweep, with_values(config, {"scoring.pool": 11}))
    assert (ranked == key) == ("scoring.pool" in sweep.space)  # every trial ranks with it, or sets it
    assert stage.sweep_key(sweep, with_values(config, dict.fromkeys(sweep.space, 0.3))) == key  # every trial sets it


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


WRONG = {"objective": ["ndgc@10"], "parts": [["test"]], "seeds": [[], [1, 1]], "kind": ["random"]}
WRONG |= {"space": [{}, {"training.temperature": {"low": 0.1, "high": 1.0}}], "simplex": [["scoring.theme"]]}
WRONG |= {"enqueue": [[{"training.epochs": 3}]]}
LOG_OF_ZERO = {"training.temperature": {"low": 0.0, "high": 1.0, "log": True}}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_a_wrong_sweep_is_refused(tiny, key, value):
    with pytest.raises(StudyError) as caught:
        Sweep(**vars(load_sweep("temperature")) | {key: value})
    assert caught.value.column == key
    assert caught.value.fix


def test_a_space_that_is_none_is_named(tiny):
    with pytest.raises(StudyError) as caught:
        replace(load_sweep("joint"), space=LOG_OF_ZERO, simplex=[], enqueue=[])
    assert caught.value.column == "space.training.temperature"
    assert caught.value.file == Sweep.file("joint")


def test_what_cannot_be_swept_is_refused_before_any_training(config):
    with pytest.raises(StudyError, match="unknown sweep 'temprature'"):
        load_sweep("temprature")
    with pytest.raises(StudyError, match='system: "tfidf", not "t2mrec"'):
        stage.sweep("temperature", load([*TINY, "system=tfidf"]))
    with pytest.raises(StudyError, match=r'protocol: "warm", not "cold"'):
        stage.sweep("temperature", load([*TINY, "system=t2mrec", "protocol=warm"]))
    with pytest.raises(StudyError, match=r"towers.hidden: 8, not"):
        stage.sweep("temperature", load([*TINY, "system=t2mrec", "system.model.towers.hidden=8"]))
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
