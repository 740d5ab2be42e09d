"""A row of the tables is what its name says: other settings, profiles, code or data never pass for it."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.advisor.encoders import sentence
from study.advisor.llm.settings import cassette
from study.analysis.report.main import report
from study.base import paths
from study.base.errors import StudyError
from study.base.registry import system_file, system_settings
from study.config.compose import load, plain
from study.data import dataset as datasets
from study.runner import provenance as stale
from study.runner.identity import CLASSES, DEFAULTS, GONE, OPTIONS, identity, normal_form, versions_file
from study.runner.provenance import as_configured, differences, require_own_row
from study.runner.row_store import list_rows, read_row, remove_row
from study.runner.rows import run_row
from tests.pipeline.conftest import config, results
from tests.rows import change_row
from tests.tiny_study import REPOSITORY

CHANGED = ["system.model.max_features=9", "system.seeds=[7]", "system.trains=true", "profile.threads=2"]
NO_CHANGE = ["profile.workers=3", "run_depth=50", "tuning.trials=3", "dataset.generator.n_tasks=9"]
KEYS = st.text("abc", min_size=1, max_size=2)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize("override", [*CHANGED, "profile.seeds=[1,2]"])
def test_other_settings_under_the_same_name_are_refused(root: Path, override: str) -> None:
    before = results(root)
    with pytest.raises(StudyError, match="not those of 'tfidf'") as caught:
        run_row(config("system=tfidf", override))
    assert "system.name=tfidf_variant" in str(caught.value)
    assert override.partition("=")[0] in str(caught.value) or "system.seeds" in str(caught.value)
    assert results(root) == before


def test_other_epochs_through_a_scale_and_another_name_are_refused() -> None:
    for override in ("profile.scale=0.5", "dataset.scale=0.9"):
        with pytest.raises(StudyError, match=r"system\.model\.training\.epochs"):
            require_own_row(load([override]))
    with pytest.raises(StudyError, match="not those of 't2mrec'"):
        require_own_row(load(["system=tfidf", "system.name=t2mrec"]))


@pytest.mark.parametrize("override", NO_CHANGE)
def test_what_changes_no_number_is_allowed(override: str) -> None:
    require_own_row(load([override]))


def test_variant_gets_a_row_of_its_own(root: Path) -> None:
    before = results(root)
    run_row(config("system=tfidf", "system.model.max_features=9", "system.name=tfidf_nine"))
    assert ("cold", "tfidf_nine") in list_rows("synthetic")
    assert {path: content for path, content in results(root).items() if path in before} == before
    folder = report(config())
    assert "tfidf_nine" in (folder / "overall.md").read_text()
    rows = pd.read_csv(folder / "runs.csv").set_index("system")
    assert rows.loc["tfidf_nine", "stale"] == "no"


def test_another_profile_replaces_on_request_alone(root: Path) -> None:
    before = results(root)
    with pytest.raises(StudyError, match="under profile 'smoke', and this would replace them by 'laptop'") as caught:
        run_row(config("system=tfidf", "profile=laptop"))
    assert "--replace" in str(caught.value)
    assert results(root) == before
    assert run_row(config("system=tfidf", "profile=laptop"), replace=True).record["profile"] == "laptop"


def test_removed_outputs_do_not_stand_in_the_way(root: Path) -> None:
    remove_row("synthetic", "cold", "tfidf")
    run_row(config("system=tfidf", "profile=laptop"))
    assert read_row("synthetic", "cold", "tfidf").record["profile"] == "laptop"


def marks(root: Path) -> pd.Series:
    return pd.read_csv(report(config()) / "runs.csv").set_index("system")["stale"]


def test_changed_setting_marks_its_row_alone(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = root / "conf" / "system" / "simple" / "tfidf.yaml"
    path.write_text(path.read_text().replace("max_features: 50000", "max_features: 40000"))
    with caplog.at_level(logging.WARNING):
        found = marks(root)
    assert found.to_dict() == {"popularity": "no", "random": "no", "tfidf": "settings"}
    assert "STALE: tfidf under cold" in caplog.text
    assert "model.max_features: 50000, not 40000" in caplog.text
    assert "1 stale" in (paths.tables("synthetic") / "overall.md").read_text()


def test_a_raised_version_marks_its_row_alone_and_that_of_the_evaluator_every_row(root: Path) -> None:
    raise_version("tfidf")
    assert marks(root).to_dict() == {"popularity": "no", "random": "no", "tfidf": "code or data"}
    raise_version("evaluator")
    assert set(marks(root)) == {"code or data"}


def raise_version(name: str) -> None:
    text = versions_file().read_text()
    versions_file().write_text(text.replace(f"\n{name}: {{version: 1", f"\n{name}: {{version: 2"))


def test_another_split_marks_the_rows_of_its_protocol(root: Path) -> None:
    run_row(config("system=tfidf", "protocol=warm"))
    path = paths.splits("synthetic") / "warm.parquet"
    table = pd.read_parquet(path)
    table.sample(frac=1, random_state=1).to_parquet(path)
    rows = pd.read_csv(report(config()) / "runs.csv").set_index(["protocol", "system"])["stale"]
    assert rows[rows != "no"].to_dict() == {("warm", "tfidf"): "code or data"}


def test_other_weights_mark_the_rows_of_the_systems_that_read_them(root: Path, monkeypatch) -> None:
    add_system(root, "minilm")
    run_row(config("system=minilm"))
    assert set(marks(root)) == {"no"}
    monkeypatch.setattr(sentence, "model_version", lambda model: "other weights")
    assert marks(root).to_dict() == {"minilm": "settings", "popularity": "no", "random": "no", "tfidf": "no"}


def test_other_replies_mark_the_row_that_they_were_recorded_for(root: Path) -> None:
    add_system(root, "t2mrec")  # with all its variants
    for name, protocol in (("t2mrec_llm", "cold"), ("t2mrec_llm_local", "cold"), ("t2mrec_wo_cl", "warm")):
        settings = load(["dataset=synthetic", f"system={name}", f"protocol={protocol}"])
        record = identity(settings) | {"config": plain(settings)}
        assert stale.state(record) == ("no", "")
        replies = cassette("synthetic", "t2mrec_llm")
        replies.parent.mkdir(parents=True, exist_ok=True)
        replies.write_text("{}\n")
        assert stale.state(record)[0] == ("settings" if name == "t2mrec_llm" else "no")
        replies.unlink()


def add_system(root: Path, name: str) -> None:
    (file,) = (REPOSITORY / "conf/system").glob(f"*/{name}.yaml")
    folder = root / "conf/system" / file.parent.name
    folder.mkdir(exist_ok=True)
    shutil.copy(file, folder)


def test_a_moved_class_and_a_new_key_with_its_default_make_no_row_stale_with_their_lines(root, monkeypatch) -> None:
    path = system_file("tfidf")
    text = path.read_text()
    path.write_text(text.replace("baselines.cosine.TfidfCosine", "baselines.moved.Tfidf") + "  power: 1\n")
    made = stale_settings("tfidf")
    assert len(made) == 2
    monkeypatch.setitem(CLASSES, "baselines.cosine.TfidfCosine", "baselines.moved.Tfidf")
    monkeypatch.setitem(DEFAULTS, "baselines.moved.Tfidf", {"power": 1})
    assert stale_settings("tfidf") == []
    path.write_text(path.read_text().replace("power: 1", "power: 2"))
    assert stale_settings("tfidf") == ["model.power: 1, not 2"]


def stale_settings(system: str) -> list[str]:
    record = read_row("synthetic", "cold", system).record
    today = plain(load(["dataset=synthetic", "profile=smoke", "system=popularity"]))
    today["system"] |= system_settings(system)  # the class need not be there
    return stale.changed_settings(record, today)


def test_a_size_for_each_profile_is_the_one_of_the_rows_profile() -> None:
    block = {"_target_": "baselines.settings.of_profile", "profile": "laptop", "smoke": 1, "laptop": [2], "full": 3}
    assert normal_form({"width": block, "_target_": "a.B"}) == {"width": [2], "_target_": "a.B"}


def test_a_class_that_became_an_option_and_a_key_that_is_gone_are_todays(monkeypatch) -> None:
    monkeypatch.setitem(CLASSES, "a.Plain", "a.B")
    monkeypatch.setitem(OPTIONS, "a.Plain", {"plain": True})
    monkeypatch.setitem(GONE, "a.B", {"bug": False})
    assert normal_form({"_target_": "a.Plain", "bug": False}) == {"_target_": "a.B", "plain": True}
    assert normal_form({"_target_": "a.B", "bug": True}) == {"_target_": "a.B", "bug": True}


def test_fresh_runs_are_current_and_changed_data_marks_every_row(root: Path) -> None:
    assert set(marks(root)) == {"no"}
    assert "stale" not in (paths.tables("synthetic") / "overall.md").read_text()
    path = paths.prepared("synthetic") / "tasks.parquet"
    tasks = pd.read_parquet(path)
    tasks.loc[0, "description"] += " more"
    tasks.to_parquet(path)
    assert set(marks(root)) == {"code or data"}


def test_changed_choice_of_tuning_marks_the_row(root: Path) -> None:
    best = paths.results("synthetic") / "tuned" / "task_knn" / "best.yaml"
    best.parent.mkdir(parents=True)
    best.write_text("values: {k: 5}")
    run_row(config("system=task_knn"))
    assert marks(root)["task_knn"] == "no"
    best.write_text("values: {k: 10}")
    assert marks(root)["task_knn"] == "settings"
    best.unlink()
    assert marks(root)["task_knn"] == "settings"


def test_older_record_and_absent_data_are_said_to_be_unchecked(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = read_row("synthetic", "cold", "tfidf").record
    del record["version"]
    change_row("synthetic", "cold", "tfidf", record=record)
    with caplog.at_level(logging.WARNING):
        assert marks(root).to_dict() == {"popularity": "no", "random": "no", "tfidf": "unchecked"}
    assert "1 of 3 runs could not be checked" in caplog.text
    for part in datasets.PREPARED:
        (paths.prepared("synthetic") / f"{part}.parquet").unlink()
    assert set(marks(root)) == {"unchecked"}


def test_report_counts_rows_made_with_uncommitted_changes(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    for system, dirty in (("tfidf", True), ("random", True), ("popularity", False)):
        git = {"commit": "0" * 40, "dirty": dirty}
        record = read_row("synthetic", "cold", system).record
        change_row("synthetic", "cold", system, record=record | {"git": git})
    with caplog.at_level(logging.WARNING):
        folder = report(config())
    assert "2 of 3 runs were made with uncommitted changes" in caplog.text
    for name in ("overall.md", "overall.tex"):
        assert "of 3 rows 2 made with uncommitted changes" in (folder / name).read_text()


def test_record_whose_system_is_gone_is_a_variant_and_one_whose_data_set_is_gone_is_stale(root: Path) -> None:
    for part, state in (("system", "no"), ("dataset", "settings")):
        record = read_row("synthetic", "cold", "tfidf").record
        record["config"][part]["name"] += "_gone"
        assert stale.state(record)[0] == state, part
    assert stale.state({"config": {}})[0] == "settings"


@given(st.dictionaries(KEYS, TREES, min_size=1, max_size=4), st.data())
def test_settings_that_went_through_a_record_do_not_differ_and_one_change_is_one_difference(tree, data) -> None:
    other = json.loads(json.dumps(tree))
    assert differences(tree, other) == []
    place, path = other, []
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        path.append(key)
        if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = ["changed", place[key]]
    found = differences(other, tree)
    assert len(found) == 1
    assert found[0].startswith(".".join(path) + ": ")


def test_missing_and_additional_keys_are_differences() -> None:
    assert differences({"a": 1}, {"b": None}) == ["a: 1, not nothing", "b: nothing, not null"]


def test_group_with_a_name_of_its_own_is_taken_over() -> None:
    mine = load(["profile.name=mine", "profile.scale=0.1", "dataset=task2mcp"])
    assert as_configured(mine).system.model.training.epochs == 20
    require_own_row(mine)


def test_settings_that_depend_on_the_protocol_are_compared_under_the_records_own(root: Path) -> None:
    for protocol in ("cold", "warm", "cold"):
        made = load(["dataset=synthetic", "system=t2mrec_wo_cl", f"protocol={protocol}"])
        assert changes(plain(made)) == []
    wrong = plain(made) | {"protocol": plain(load(["protocol=warm"]).protocol)}
    assert "seeds" in changes(wrong)[0]


def changes(made: dict[str, Any]) -> list[str]:
    return stale.changed_settings({"config": made}, plain(stale.todays_config({"config": made})))


def test_what_a_system_is_called_makes_no_run_stale_but_its_settings_do(root: Path) -> None:
    made = plain(load(["dataset=synthetic", "system=tfidf"]))
    before = made["system"] | {"title": "an earlier title", "protocols": ["cold"], "family": "other", "reference": None}
    before.pop("rungs")  # of the search, and unknown to records of earlier days
    assert changes(made | {"system": before}) == []
    assert changes(made | {"system": before | {"seeds": [9]}}) != []
