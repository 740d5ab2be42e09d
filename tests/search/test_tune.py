"""Stage `tune`: what it writes, that a stop changes nothing, and that test labels cannot reach a choice."""

import json
import shutil
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
import yaml

from study.base import paths
from study.base.errors import StudyError
from study.base.registry import system_settings
from study.config.changes import change_settings, value_of
from study.config.compose import choices, load, plain
from study.data.dataset import relevance_from_lists
from study.runner.rows import run_row
from study.search import trials as searches
from study.search import tune as tuning
from study.search.tune import tune
from tests.tiny_study import REPOSITORY, TINY

STOP = 3  # the measured trial that is stopped
# Another search space than conf/ states, so another name.
SPACE = "system.search.mix.choices=[0.0]"
WANTED = [*TINY, "system=task_knn", "system.name=task_knn_small", "tuning.trials=4", SPACE]
OUTSIDE = "present value of '{}'.*outside"
REFUSED = [("task_knn", "k", {"choices": [1, 5]}, OUTSIDE.format("k"))]
REFUSED += [("task_knn", "k", {"low": 1, "high": 99, "type": "int"}, OUTSIDE.format("k"))]
REFUSED += [("task_knn", "power", {"low": 5.0, "high": 6.0, "type": "float"}, OUTSIDE.format("power"))]
# Such a search would compare a dozen equal systems, and call the best of them tuned.
REFUSED += [("tiger", "training.epochs.laptop", {"choices": [1, 56]}, "profile laptop; under full all trials would be")]
MALFORMED = dict.fromkeys(("k: {low: 1}", "k: {nothing: 1}", "k: {choices: []}"), "search space of 'k'")
MALFORMED |= {"k: {low: 0.0, high: 10.0, log: true}": "search space of 'k'"}
MALFORMED |= {"k: {low: 3.0, high: 1.0}": "search space of 'k'"}
MALFORMED |= {"powre: {choices: [1]}": "'powre' is searched and is no setting of task_knn"}
DAMAGED = ["values: [", "[1]", "system: task_knn", "values: 3", "\x00\x01", "", "values: {kk: 3}"]


def trials(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "trials.csv").drop(columns="seconds")


def test_the_first_trial_is_the_yaml_and_run_uses_the_values_of_the_best(root: Path) -> None:
    config = load(WANTED)
    folder = tune(config)
    table, best = trials(folder), yaml.safe_load((folder / "best.yaml").read_text())
    searched = list(config.system.search)
    assert table.loc[0, searched].tolist() == [config.system.model[name] for name in searched]
    assert len(table) == best["trials"] == 4
    top = table.loc[table["valid/ndcg@10"].idxmax()]
    assert best["value"] == pytest.approx(top["valid/ndcg@10"], abs=1e-6)
    assert {name: top[name] for name in best["values"]} == best["values"]
    record = run_row(load(WANTED)).record
    assert {name: record["config"]["system"]["model"][name] for name in best["values"]} == best["values"]


def forget(*, results: bool = True) -> None:
    """Remove the trials of this machine, as another checkout would have none, and the results."""
    shutil.rmtree(paths.cache() / "tune", ignore_errors=True)
    for folder in ("tuned", "unfinished") if results else ():
        shutil.rmtree(paths.results("synthetic") / folder, ignore_errors=True)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The shares of the trials that are measured; those before the one that stops the search leave a checkpoint."""
    shares: list[float] = []
    measure = tuning.validation_score

    def noted(*args: Any, share: float) -> float:
        (args[-1] / "checkpoint").parent.mkdir(parents=True, exist_ok=True)
        (args[-1] / "checkpoint").touch()
        shares.append(share)
        if len(shares) == STOP:
            raise KeyboardInterrupt
        return measure(*args, share=share)

    monkeypatch.setattr(tuning, "validation_score", noted)
    return shares


def test_a_stopped_search_goes_on_to_the_same_trials_in_a_fresh_clone(root: Path, counted: list[float]) -> None:
    counted.extend([0.0] * STOP)  # is not stopped
    straight = trials(tune(load(WANTED)))
    forget()
    counted.clear()
    with pytest.raises(KeyboardInterrupt):
        tune(load(WANTED))
    # What the stopped trial left is there for it to go on from, and nothing of those before it.
    assert [path.parent.name for path in (paths.cache() / "tune").rglob("checkpoint")] == [str(STOP - 1)]
    # What is kept lies in no folder that a stage hashes, so that settings which are taken back leave none changed.
    assert not tuning.sweep_folder(load(WANTED)).exists()
    unfinished = paths.results("synthetic") / "unfinished"
    assert len(list(unfinished.iterdir())) == 1
    forget(results=False)  # what git holds is all there is
    pd.testing.assert_frame_equal(trials(tune(load(WANTED))), straight)
    assert len(counted) == 4 + 1
    assert not list((paths.cache() / "tune").rglob("checkpoint"))
    assert not list(unfinished.glob("*"))


@pytest.mark.parametrize("rungs", [[], ["system.rungs=[0.5,1.0]"]])
def test_a_finished_search_goes_on_with_more_trials_in_a_fresh_clone_or_is_made_again(root, counted, rungs) -> None:
    counted.extend([0.0] * STOP)
    longer = [*WANTED, "tuning.trials=6", *rungs]
    straight = trials(tune(load(longer)))
    forget()
    first = trials(tune(load([*WANTED, *rungs])))
    forget(results=False)
    before = len(counted)
    pd.testing.assert_frame_equal(trials(tune(load(longer))), straight)
    kept = straight.merge(first.drop(columns="trial"), how="inner")  # a later rung may have other points
    assert len(counted) == before + len(straight) - len(kept)
    assert tuning.is_tuned(load(longer))
    assert not tuning.is_tuned(load([*WANTED, *rungs]))
    pd.testing.assert_frame_equal(trials(tune(load(longer), again=True)), straight)
    assert len(counted) == before + 2 * len(straight) - len(kept)


def test_every_search_space_holds_the_present_values_and_others_are_named() -> None:
    searched = [system for system in choices("system") if system_settings(system).get("search")]
    assert len(searched) > 20
    assert all(tuning.present_values(load([f"system={system}"])) for system in searched)
    sizes = tuning.present_values(load(["system=gdsrec_tuned", "profile=laptop"]))  # written by profile
    assert (sizes["friends"], sizes["negatives"]) == (5, 2)
    for system, name, domain, problem in REFUSED:
        own = load([f"system={system}", "profile=full"])
        config = change_settings(own, {"system.search": {name: domain}}, merge=False)
        with pytest.raises(StudyError, match=problem) as caught:
            tuning.present_values(config)
        assert (caught.value.column, Path(str(caught.value.file)).name) == (f"search.{name}", f"{system}.yaml")


def test_a_range_over_a_size_moves_with_the_value_at_that_size() -> None:
    config = load(["system=tiger_tuned", "profile=full"])
    space = plain(config.system.search)
    assert "training.learning_rate.laptop" not in space
    moved = space["training.learning_rate.full"]
    assert (moved["low"], moved["high"], moved["log"]) == (pytest.approx(0.00025), pytest.approx(0.005), True)
    value = tuning.present_values(config)["training.learning_rate.full"]
    assert value == value_of(config, "training.learning_rate")


def test_long_rows_have_the_values_of_the_tuned_rows() -> None:
    """They are written by hand, rounded, so a search that is made again must not leave them behind."""
    for tuned in ("tiger_tuned", "lc_rec_tuned", "mpt_rec_tuned"):
        best = REPOSITORY / "results" / "task2mcp" / "tuned" / tuned / "best.yaml"
        config = load([f"system={tuned}_long"])
        for name, value in yaml.safe_load(best.read_text())["values"].items():
            assert value_of(config, name) == (value if isinstance(value, str) else pytest.approx(value, rel=0.02)), name


def test_the_sampler_learns_after_the_startup_trials(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, sampler = [], optuna.samplers.TPESampler
    monkeypatch.setattr(searches, "TPESampler", lambda **own: settings.append(own) or sampler(**own))
    tune(load([*WANTED, "tuning.startup=3", "tuning.trials=2"]))
    assert settings == [{"seed": seed, "n_startup_trials": 3} for seed in (1, 2)]  # one a trial


def test_test_labels_cannot_reach_a_choice(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = trials(tune(load(WANTED)))
    read = tuning.load_inputs

    def with_other_test_labels(*names: str) -> tuple:
        data, split = read(*names)
        lists = [row[::-1][:1] if split.test[task].nnz else row[:0] for task, row in enumerate(data.lists)]
        object.__setattr__(split, "test", relevance_from_lists(tuple(lists), data.n_servers))
        return data, split

    monkeypatch.setattr(tuning, "load_inputs", with_other_test_labels)
    forget()
    pd.testing.assert_frame_equal(trials(tune(load(WANTED))), straight)


def test_the_best_third_and_the_yaml_go_on_and_the_last_rung_decides(root: Path, monkeypatch) -> None:
    """What is good after a tenth of the epochs is the worst after all of them."""
    calls: list[tuple[float, int]] = []

    def measured(config: Any, values: dict[str, Any], *args: Any, share: float) -> float:
        calls.append((share, values["k"]))
        return values["k"] / 1000 if share < 1 else 0.5 - values["k"] / 1000

    monkeypatch.setattr(tuning, "validation_score", measured)
    wanted = [*WANTED, "tuning.trials=6", "system.rungs=[0.1,0.3,1.0]"]
    folder = tune(load(wanted))
    table = pd.read_csv(folder / "trials.csv")
    own = load(wanted).system.model.k
    assert table.groupby("share").size().to_dict() == {0.1: 6, 0.3: 2, 1.0: 2}
    assert table["trial"].tolist() == list(range(10))
    first, last = table[table["share"] == 0.1], table[table["share"] == 1.0]
    assert first.loc[0, "k"] == own
    assert set(last["k"]) == {own, first["k"].max()}
    best = yaml.safe_load((folder / "best.yaml").read_text())
    assert best["values"]["k"] == min(last["k"])
    assert best["trials"] == 10
    tune(load(wanted))
    assert len(calls) == 10  # all were kept


def test_a_trial_is_measured_after_its_share_of_the_epochs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measured(system: Any, *args: object, **settings: object) -> None:
        epochs.append(system.epochs)
        raise KeyboardInterrupt

    epochs: list[int] = []
    monkeypatch.setattr(tuning, "run_seed", measured)
    config = load(["system=bpr", "dataset.scale=1.0"])
    with pytest.raises(KeyboardInterrupt):
        tuning.validation_score(config, {"settings.learning_rate": 0.1}, None, None, tmp_path, share=0.25)
    assert epochs == [250]
    assert config.system.model.epochs == 1000  # a run has them all


@pytest.mark.parametrize(("domain", "reason"), MALFORMED.items())
def test_malformed_space_is_named(conf_root: Path, domain: str, reason: str) -> None:
    path = conf_root / "conf" / "system" / "simple" / "task_knn.yaml"
    path.write_text(path.read_text().replace("k: {choices: [1, 5, 10, 20, 50, 100, 200]}", domain))
    with pytest.raises(StudyError, match=reason) as caught:
        tune(load([*TINY, "system=task_knn"]))
    assert str(caught.value.column).startswith("search.")
    assert caught.value.file == path


def test_a_system_without_a_space_and_another_space_under_the_same_name_are_refused(root: Path) -> None:
    with pytest.raises(StudyError, match="no search space"):
        tune(load([*TINY, "system=tfidf"]))
    with pytest.raises(StudyError, match=r"system.search.mix.choices: \[0.0\]"):
        tune(load([word for word in WANTED if "name" not in word]))
    tune(load([*WANTED, "tuning.trials=1"]))
    other = load([*WANTED, "profile=laptop", "tuning.trials=1"])
    with pytest.raises(StudyError, match=r"under profile 'smoke'.*by 'laptop'"):
        tune(other)
    assert json.loads((tune(other, replace=True) / "record.json").read_text())["profile"] == "laptop"


def test_other_spaces_and_seeds_share_no_trials(root: Path) -> None:
    extras = ["run_depth=10", "tuning.seed=2", "tuning.startup=4", "system.model.k=20"]
    extras += ["system.search.power.choices=[1.0]", "system.seeds=[2]"]
    points: list[dict[str, Any]] = [{"k": 5}, {}]
    keys = {tuning.search_key(load([*WANTED, extra]), 0.33, points) for extra in extras}
    keys |= {tuning.search_key(load(WANTED), share, points) for share in (0.33, 0.5)}
    assert len(keys) == 7
    assert tuning.search_key(load([*WANTED, "tuning.trials=9"]), 0.33, [*points, {}]) in keys
    assert tuning.search_key(load(WANTED), 0.33, [{"k": 5}, {"k": 1}]) not in keys


def test_damaged_choice_is_named(root: Path) -> None:
    best = paths.results("synthetic") / "tuned" / "task_knn" / "best.yaml"
    best.parent.mkdir(parents=True)
    for content in DAMAGED:
        best.write_text(content)
        with pytest.raises(StudyError, match=r"(?s)best\.yaml.*fix:"):
            run_row(load([*TINY, "system=task_knn"]))


def test_the_command_tunes_where_the_system_says_unless_told_otherwise(root: Path, call) -> None:
    words = ["tune", *WANTED, "tuning.trials=2", "tuning.startup=1", "system.tuned=warm", "system.name=task_knn_warm"]
    for more, protocol in (([], "warm"), (["protocol=cold"], "cold")):
        assert call(*words, *more)[0] == 0
        folder = paths.results("synthetic") / "tuned" / "task_knn_warm"
        assert json.loads((folder / "record.json").read_text())["protocol"] == protocol
