"""Sweeps end to end on a tiny study, and what is refused before the first training."""

import json
import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml

from study.base import paths
from study.base.errors import StudyError
from study.config.changes import with_tuned_values, with_values
from study.config.compose import build_system, load
from study.evaluation import per_task
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.runs import run_seed
from study.evaluation.separation import mean_separation
from study.evaluation.statistics import bootstrap_interval, randomisation
from study.runner.inputs import load_inputs
from study.search import sweep as stage
from study.search.sweep import Sweep, choose_settings, load_sweep, rename_sweep
from study.t2mrec.system import T2MRec
from tests.tiny_study import TINY, contents, rooted

TAU, ALPHA = "training.temperature", "scoring.semantic_weight"


@pytest.fixture(scope="module")
def tiny(prepared_root, tmp_path_factory):
    """The tiny study, prepared and split, with small sweeps in its conf/."""
    copy = tmp_path_factory.mktemp("sweeps") / "study"
    shutil.copytree(prepared_root, copy, symlinks=True)
    for name, changes in {
        "fusion_weight": {"seeds": [1, 2], "space": {ALPHA: {"choices": [0.0, 0.9, 1.0]}}},
        "temperature": {"seeds": [1, 2], "space": {TAU: {"choices": [0.07, 0.5]}}},
        "joint": {"trials": 3},
    }.items():
        path = copy / "conf" / "sweep" / f"{name}.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes, sort_keys=False))
    with rooted(copy):
        yield copy


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


@pytest.fixture
def fits(monkeypatch):
    """A list that grows by one with every training of T2MRec."""
    seen, fit = [], T2MRec.fit
    monkeypatch.setattr(T2MRec, "fit", lambda self, *args, **settings: seen.append(1) or fit(self, *args, **settings))
    return seen


def test_fusion_weights_equal_runs_with_that_weight_and_train_once_a_seed(config, inputs, tmp_path, fits):
    folder = stage.sweep("fusion_weight", config, replace=True, again=True)
    assert len(fits) == 2  # two seeds, three weights
    table, record = pd.read_csv(folder / "trials.csv").set_index([ALPHA, "seed"]), record_of(folder)
    assert len(table) == 6
    for weight in (0.0, 1.0):
        system = build_system(with_values(config, {ALPHA: weight}).system)
        for part in ("valid", "test"):
            run = run_seed(system, *inputs, seed=2, workdir=tmp_path, part=part)
            for metric in PAPER_METRICS:
                expected = run.per_task[metric].mean()
                assert table.loc[(weight, 2), f"{part}/{metric}"] == pytest.approx(expected, abs=1e-6)
    best, means = best_of(folder), table.groupby(ALPHA)["valid/ndcg@10"].mean()
    assert (best["values"], best["value"]) == ({ALPHA: means.idxmax()}, pytest.approx(means.max(), abs=1e-6))
    (folder / "record.json").write_text(json.dumps(record | {"profile": "laptop"}))
    with pytest.raises(StudyError, match="profile 'laptop'"):
        stage.sweep("fusion_weight", config)
    stage.sweep("fusion_weight", config, replace=True, again=True)
    assert record_of(folder)["profile"] == record["profile"] == "smoke"


def test_a_grid_runs_every_value_and_seed_and_is_written_again_without_training(tiny, config, fits):
    folder = stage.sweep("temperature", config)
    assert folder == tiny / "results" / "synthetic" / "sweeps" / "temperature"
    first = {name: content for name, content in contents(folder).items() if name.endswith((".csv", ".xz"))}
    table = pd.read_csv(folder / "trials.csv")[[TAU, "seed"]]
    assert sorted(map(tuple, table.to_numpy())) == [(0.07, 1), (0.07, 2), (0.5, 1), (0.5, 2)]
    fits.clear()
    for name in first:
        (folder / name).unlink()
    stage.sweep("temperature", config)
    assert {name: (folder / name).read_bytes() for name in first} == first
    shutil.rmtree(paths.cache() / "sweeps")  # as in a fresh clone
    (folder / "best.yaml").unlink()
    stage.sweep("temperature", config)
    assert {name: (folder / name).read_bytes() for name in first} == first
    assert fits == []
    stage.sweep("temperature", config, replace=True, again=True)
    assert len(fits) == 4
    assert not list((paths.results("synthetic") / "unfinished").glob("*"))


@pytest.mark.parametrize("name", ["temperature", "joint"])
def test_a_current_sweep_is_left_as_it_is_and_a_stale_one_is_made_again(config, name):
    folder = stage.sweep(name, config)
    before = contents(folder)
    stage.sweep(name, config)
    assert contents(folder) == before
    record = folder / "record.json"
    record.write_text(json.dumps(record_of(folder) | {"key": "of other data"}))
    stage.sweep(name, config)
    assert record_of(folder)["key"] == json.loads(before["record.json"])["key"]


def test_single_tasks_are_kept_for_the_chosen_and_the_papers_value(config, inputs, tmp_path):
    for name, paper in (("fusion_weight", 0.9), ("temperature", 0.07)):
        folder = stage.sweep(name, config)
        trials, values = pd.read_csv(folder / "trials.csv"), pd.read_csv(folder / "per_task.csv.xz")
        column = next(iter(load_sweep(name).space))
        assert set(values[column]) == {best_of(folder)["values"][column], paper}
        assert list(values) == [column, "task_id", "seed", *PAPER_METRICS]
        for value, part in values.groupby(column):
            frame = per_task.check(part.drop(columns=column).reset_index(drop=True))
            assert len(frame) == 2 * len(inputs[1].tasks("test"))
            own = trials[trials[column] == value].set_index("seed")
            for metric in PAPER_METRICS:
                np.testing.assert_allclose(frame.groupby("seed")[metric].mean(), own[f"test/{metric}"], atol=1e-5)
    run = run_seed(build_system(config.system), *inputs, seed=2, workdir=tmp_path).per_task
    own = values[(values[column] == paper) & (values["seed"] == 2)]
    np.testing.assert_array_equal(own["task_id"], run["task_id"])
    np.testing.assert_allclose(own["ndcg@10"], run["ndcg@10"], atol=1e-6)


def test_separation_is_measured_of_every_training(config, inputs, tmp_path):
    table = pd.read_csv(stage.sweep("temperature", config) / "separation.csv")
    assert (list(table), len(table)) == ([TAU, "seed", "part", "auc", "recall"], 4)
    system = build_system(with_values(config, {TAU: 0.5}).system)
    system.fit(*inputs, seed=2, workdir=tmp_path)
    expected = mean_separation(system.task_embeddings, system.server_embeddings, inputs[1], "test", depth=10)
    row = table.set_index([TAU, "seed"]).loc[(0.5, 2)]
    assert (row["auc"], row["recall"]) == pytest.approx((expected["auc"], expected["recall"]), abs=1e-5)
    weights = pd.read_csv(stage.sweep("fusion_weight", config) / "separation.csv")
    assert weights[ALPHA].tolist() == [0.9, 0.9]  # the configured one: it decides no embedding
    assert weights["seed"].tolist() == [1, 2]


def test_any_setting_of_any_system_can_be_varied_without_test_tasks_too(tiny, tmp_path):
    changes = {"system": "item_knn", "protocol": "warm", "paper_best": None, "parts": ["valid"]}
    with sweep_like_temperature("similarity", space={"similarity": {"choices": ["cosine", "jaccard"]}}, **changes):
        config = load([*TINY, "system=item_knn", "protocol=warm"])
        folder = stage.sweep("similarity", config)
    assert set(contents(folder)) == {"best.yaml", "comparisons.csv", "record.json", "trials.csv"}
    trials = pd.read_csv(folder / "trials.csv").set_index(["similarity", "seed"])
    assert sorted(trials.index) == [("cosine", 1), ("cosine", 2), ("jaccard", 1), ("jaccard", 2)]
    system = build_system(with_values(config, {"similarity": "jaccard"}).system)
    run = run_seed(system, *load_inputs("synthetic", "warm"), seed=2, workdir=tmp_path, part="valid").per_task
    assert trials.loc[("jaccard", 2), "valid/ndcg@10"] == pytest.approx(run["ndcg@10"].mean(), abs=1e-6)
    assert best_of(folder)["values"]["similarity"] in ("cosine", "jaccard")


def test_every_value_is_compared_with_the_best_on_validation(config, inputs, tmp_path):
    folder = stage.sweep("temperature", config)
    table, best, tasks = pd.read_csv(folder / "comparisons.csv"), best_of(folder), {}
    assert table[TAU].iloc[0] == best["values"][TAU]
    assert table["mean"].iloc[0] == pytest.approx(best["value"], abs=1e-6)
    for value in table[TAU]:
        system = with_values(config, {TAU: value}).system
        runs = [run_seed(build_system(system), *inputs, seed=s, workdir=tmp_path, part="valid") for s in (1, 2)]
        tasks[value] = (runs[0].per_task["ndcg@10"] + runs[1].per_task["ndcg@10"]) / 2
    first, second = table[TAU]
    assert table["diff"].iloc[1] == pytest.approx((tasks[second] - tasks[first]).mean(), abs=1e-6)
    low, high = bootstrap_interval(tasks[first].to_numpy(), seed=0)
    assert table.loc[0, ["ci_low", "ci_high"]].tolist() == pytest.approx([low, high], abs=1e-5)
    p = randomisation((tasks[second] - tasks[first]).round(12).to_numpy(), seed=0)
    assert table["randomisation_p_holm"].iloc[1] == pytest.approx(p, abs=0.02)
    assert table["same"].tolist() == [True, p >= 0.05]


def test_a_value_that_is_far_worse_is_told_from_the_best(config):
    tasks = np.arange(40)
    values = pd.concat(
        pd.DataFrame({"task_id": tasks, "seed": 1, "ndcg@10": 0.5 + shift + tasks % 2 / 10, "part": "valid", "x": x})
        for x, shift in ((1, -0.3), (2, 0.0), (3, 0.0))
    )
    sweep = replace(load_sweep("temperature"), space={"x": {"choices": [1, 2, 3]}})
    table = stage.against_best(sweep, values, {"x": 2}).set_index("x")
    assert table["same"].to_dict() == {1: False, 2: True, 3: True}
    assert table.loc[1, "diff"] == pytest.approx(-0.3)


LIMITS = [
    ([0.40, 0.44, 0.41, 0.41, 0.2, 0.2], "0.1: 0.4200 [0.3917, 0.4483]", "0.2"),  # 0.42 -+ 0.04 / sqrt(2)
    ([0.40, 0.41, 0.2], "0.2: 0.4100", "0.1; null"),  # one seed has no limits, so that any value may be the best
]


@pytest.mark.parametrize(("values", "best", "same"), LIMITS)
def test_the_limits_are_those_over_seeds_where_single_tasks_are_not_kept(tmp_path, values, best, same):
    seeds = len(values) // 3
    rows = {"x": np.repeat([0.1, 0.2, None], seeds), "seed": np.tile(range(seeds), 3), "valid/ndcg@10": values}
    pd.DataFrame(rows).to_csv(tmp_path / "trials.csv", index=False)
    sweep = replace(load_sweep("temperature"), space={"x": {"choices": [0.1, 0.2, None]}}, paper_best=0.2)
    first, paper, told, limits = stage.describe_values(tmp_path, sweep)
    assert (first, told) == (f"best {best}", f"cannot be told from the best: {same}")
    assert paper.startswith("the paper's 0.2: 0.4100")
    assert "one standard deviation" in limits


def test_values_are_read_as_the_yaml_files_read_them_and_of_another_kind_refused(tiny):
    assert rename_sweep(load_sweep("temperature"), "mine", values="1e-3, 2,.5").space[TAU]["choices"] == [0.001, 2, 0.5]
    assert rename_sweep(load_sweep("joint"), "mine", trials=3).trials == 3
    wrong = ("0.1,a", "true,1", ".nan", "", "0.5, 0.5", "[", "0.5,5e-1")
    refused = [("temperature", "mine", {"values": values}, "--values") for values in wrong]
    refused += [("temperature", name, {}, "--name") for name in ("joint", "t2mrec", "../x", "Mine", "_x")]
    refused += [("joint", "mine", {"values": "1,2"}, "--values"), ("temperature", "mine", {"trials": 3}, "--trials")]
    for name, other, changes, column in refused:
        with pytest.raises(StudyError) as caught:
            rename_sweep(load_sweep(name), other, **changes)
        assert caught.value.column == column, changes


def test_other_values_or_settings_need_a_name_of_their_own_which_is_replaced_on_request_alone(config, call):
    folder = stage.sweep("temperature", config)
    before, own, name = contents(folder), folder.with_name("mine"), ["--name", "mine", "--replace"]
    values, protocol, setting = ["--values", "0.11"], ["protocol=warm"], ["system.model.towers.hidden=8"]
    fixes = ((values, "--name temperature_own"), (protocol, "--name"), (setting, "--name"), (["-m"], "--values"))
    for words, fix in fixes:
        code, _, err = call("sweep", "temperature", *words, *TINY)
        assert (code, fix in err) == (2, True)
    code, out, err = call("sweep", "temperature", *values, *protocol, *setting, *TINY, *name)
    assert (code, "cannot be told from the best" in out) == (0, True), err
    settings, made = record_of(own)["settings"], contents(own)
    assert (settings["space"], settings["protocol"]) == ({TAU: {"choices": [0.11]}}, "warm")
    again = load_sweep("mine", "synthetic")
    assert (again.name, again.protocol, {point[TAU] for point in again.points()}) == ("mine", "warm", {0.11})
    for words in ([*protocol, *setting], [*values, *setting], [*values, *protocol]):
        code, _, err = call("sweep", "temperature", *words, *TINY, *name[:2])
        assert (code, "--replace" in err) == (2, True)
    assert (contents(folder), contents(own)) == (before, made)
    assert call("sweep", "temperature", *values, *TINY, *name)[0] == 0
    assert record_of(own)["settings"]["protocol"] == "cold"


@pytest.mark.parametrize("name", ["temperature", "joint"])
def test_the_key_is_that_of_what_decides_a_trial(config, name):
    sweep = load_sweep(name)
    key = stage.sweep_key(sweep, config)
    for name, value in {"title": "x", "place": "y", "trials": 99}.items():
        assert stage.sweep_key(replace(sweep, **{name: value}), config) == key, name
    space = {"enqueue": [], "space": {TAU: {"choices": [0.5]}}, "simplex": []}
    for other in ({"seeds": [7]}, {"objective": "recall@5"}, {"name": "z"}, space):
        assert stage.sweep_key(replace(sweep, **other), config) != key, other
    assert stage.sweep_key(sweep, with_values(config, {"training.weight_decay": 0.5})) != key
    ranked = stage.sweep_key(sweep, with_values(config, {"scoring.pool": 11}))
    assert (ranked == key) == ("scoring.pool" in sweep.space)  # every trial ranks with it, or sets it
    assert stage.sweep_key(sweep, with_values(config, dict.fromkeys(sweep.space, 0.3))) == key  # every trial sets it


def test_the_joint_search_tunes_a_system_without_the_test_tasks(config):
    folder = stage.sweep("joint", config)
    table = pd.read_csv(folder / "trials.csv")
    assert (folder.name, len(table)) == ("t2mrec_joint", 3)
    assert not [name for name in table if name.startswith("test/")]
    assert table.loc[0, TAU] == 0.07  # the paper's settings come first
    system = build_system(with_tuned_values(load([*TINY, "system=t2mrec_joint"])).system)
    assert sum(system.scoring.structure_weights) == pytest.approx(1)
    best = table.loc[table["valid/ndcg@10"].idxmax()]
    assert system.training.temperature == pytest.approx(best[TAU], rel=1e-4)
    assert system.towers.hidden == best["towers.hidden"]


WRONG = [("objective", "ndgc@10"), ("parts", ["test"]), ("seeds", []), ("seeds", [1, 1]), ("space", {})]
WRONG += [("space", {TAU: {"low": 0.1, "high": 1.0}}), ("simplex", ["scoring.theme"])]
WRONG += [("enqueue", [{"training.epochs": 3}])]


def test_a_wrong_sweep_is_refused_and_what_cannot_be_swept_before_any_training(config):
    for key, value in WRONG:
        with pytest.raises(StudyError) as caught:
            Sweep(**vars(load_sweep("temperature")) | {key: value})
        assert (caught.value.column, bool(caught.value.fix)) == (key, True), value
    with pytest.raises(StudyError) as caught:
        replace(load_sweep("joint"), space={TAU: {"low": 0.0, "high": 1.0, "log": True}}, simplex=[], enqueue=[])
    assert (caught.value.column, caught.value.file) == (f"space.{TAU}", Sweep.file("joint"))
    with pytest.raises(StudyError, match="unknown sweep 'temprature'"):
        load_sweep("temprature")
    for words, problem in (
        (["system=tfidf"], 'system: "tfidf", not "t2mrec"'),
        (["system=t2mrec", "protocol=warm"], 'protocol: "warm", not "cold"'),
        (["system=t2mrec", "system.model.towers.hidden=8"], "towers.hidden: 8, not"),
    ):
        with pytest.raises(StudyError, match=problem):
            stage.sweep("temperature", load([*TINY, *words]))
    typo = sweep_like_temperature("typo", space={"training.temprature": {"choices": [1.0]}})
    with typo, pytest.raises(StudyError, match=r"no setting 'training\.temprature'"):
        stage.sweep("typo", config)
    whole = sweep_like_temperature("whole", space={f"model.{TAU}": {"choices": [1.0]}})  # as `study run` has it
    with whole, pytest.raises(StudyError) as caught:
        stage.sweep("whole", config)
    assert caught.value.fix.endswith(f"model: {TAU}")
    known_tasks = sweep_like_temperature("known_tasks", system="bpr", space={"epochs": {"choices": [1]}})
    with known_tasks, pytest.raises(StudyError, match="bpr is not applicable under 'cold'") as caught:
        stage.sweep("known_tasks", load([*TINY, "system=bpr"]))
    assert (caught.value.file, caught.value.column) == (Sweep.file("known_tasks"), "protocol")


def test_weights_are_divided_by_their_sum():
    sweep = load_sweep("joint")
    raw = {"scoring.category": 0.2, "scoring.language": 0.6, "scoring.theme": 0.0, "towers.layers": 3}
    settled = sweep.settle(raw)
    assert [settled[name] for name in sweep.simplex] == pytest.approx([0.25, 0.75, 0.0])
    assert settled["towers.layers"] == 3
    none = sweep.settle(raw | {"scoring.category": 0.0, "scoring.language": 0.0})
    assert [none[name] for name in sweep.simplex] == pytest.approx([1 / 3] * 3)


def test_choice_is_by_the_mean_over_seeds_on_validation():
    rows = [(0.07, 1, 0.2, 0.0), (0.07, 2, 0.2, 0.0), (0.14, 1, 0.3, 1.0), (0.14, 2, 0.0, 1.0)]
    table = pd.DataFrame(rows, columns=[TAU, "seed", "valid/ndcg@10", "test/ndcg@10"])
    assert choose_settings(load_sweep("temperature"), table) == {"value": 0.2, "values": {TAU: 0.07}}
