"""A row of the tables is what its name says: other settings, profiles, code or data never pass for it."""

import json
import logging
import shutil
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.advisor.encoders import sentence
from study.analysis.report.main import report
from study.base import paths
from study.base.errors import StudyError
from study.base.registry import system_file, system_settings
from study.config.compose import load, plain
from study.data import dataset as datasets
from study.reranking.replies import cassette
from study.runner.identity import CLASSES, DEFAULTS, GONE, OPTIONS, identity, normal_form, versions_file
from study.runner.provenance import changed_settings, differences, require_own_row, state, todays_config
from study.runner.row_store import read_records, read_row, remove_row
from study.runner.rows import run_row
from tests.pipeline.conftest import config
from tests.rows import change_row
from tests.tiny_study import REPOSITORY, contents

CURRENT = dict.fromkeys(("popularity", "random", "tfidf"), "no")
KEYS = st.text("abc", min_size=1, max_size=2)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


def states(protocol: str = "cold") -> dict[str, str]:
    """System -> how its row stands to the present study."""
    return {system: state(record)[0] for (_, system), record in read_records("synthetic", protocol).items()}


def test_other_settings_under_the_same_name_are_refused_and_what_changes_no_number_is_not(shared_root: Path) -> None:
    before = contents(shared_root / "results")
    for key, value in {"model.max_features": 9, "seeds": "[7]", "trains": "true"}.items():
        with pytest.raises(StudyError, match=f"not those of 'tfidf': system.{key}") as caught:
            run_row(config("system=tfidf", f"system.{key}={value}"))
        assert "system.name=tfidf_variant" in caught.value.fix
    assert contents(shared_root / "results") == before
    refused = {"profile.threads=2": "profile.threads", "profile.seeds=[1,2]": "system.seeds"}
    for word, key in refused.items():
        with pytest.raises(StudyError, match=key):
            require_own_row(config("system=tfidf", word))
    for word in ("profile.scale=0.5", "dataset.scale=0.9"):
        with pytest.raises(StudyError, match=r"system\.model\.training\.epochs"):
            require_own_row(load([word]))
    with pytest.raises(StudyError, match="not those of 't2mrec'"):
        require_own_row(load(["system=tfidf", "system.name=t2mrec"]))
    for word in ("profile.workers=3", "run_depth=50", "tuning.trials=3", "dataset.generator.n_tasks=9"):
        require_own_row(load([word]))
    require_own_row(load(["profile.name=mine", "profile.scale=0.1"]))  # a group with a name of its own is taken over


def test_a_variant_and_a_stale_row_stand_in_the_report(root: Path, caplog) -> None:
    before = contents(root / "results")
    run_row(config("system=tfidf", "system.model.max_features=9", "system.name=tfidf_nine"))
    assert {path: content for path, content in contents(root / "results").items() if path in before} == before
    path = root / "conf" / "system" / "simple" / "tfidf.yaml"
    path.write_text(path.read_text().replace("max_features: 50000", "max_features: 40000"))
    for system, dirty in (("tfidf", True), ("random", True), ("popularity", False)):
        record = read_row("synthetic", "cold", system).record
        change_row("synthetic", "cold", system, record=record | {"git": {"commit": "0" * 40, "dirty": dirty}})
    with caplog.at_level(logging.WARNING):
        folder = report(config())
    stale = pd.read_csv(folder / "runs.csv").set_index("system")["stale"]
    assert stale.to_dict() == CURRENT | {"tfidf": "settings", "tfidf_nine": "no"}
    assert "STALE: tfidf under cold" in caplog.text
    assert "2 of 4 runs were made with uncommitted changes" in caplog.text
    text = (folder / "overall.md").read_text()
    assert all(part in text for part in ("tfidf_nine", "1 stale", "of 4 rows 2 made with uncommitted changes"))


def test_another_profile_replaces_on_request_alone(root: Path) -> None:
    before = contents(root / "results")
    with pytest.raises(StudyError, match="under profile 'smoke', and this would replace them by 'laptop'") as caught:
        run_row(config("system=tfidf", "profile=laptop"))
    assert "--replace" in str(caught.value)
    assert contents(root / "results") == before
    assert run_row(config("system=tfidf", "profile=laptop"), replace=True).record["profile"] == "laptop"
    remove_row("synthetic", "cold", "tfidf")  # what is gone does not stand in the way
    assert run_row(config("system=tfidf")).record["profile"] == "smoke"


def test_a_raised_version_changed_data_and_another_split_mark_their_rows_alone(root: Path) -> None:
    run_row(config("system=tfidf", "protocol=warm"))
    assert (states(), states("warm")) == (CURRENT, {"tfidf": "no"})
    path = paths.splits("synthetic") / "warm.parquet"
    pd.read_parquet(path).sample(frac=1, random_state=1).to_parquet(path)
    assert (states(), states("warm")) == (CURRENT, {"tfidf": "code or data"})
    for name, marked in {"tfidf": ["tfidf"], "evaluator": list(CURRENT)}.items():
        text = versions_file().read_text()
        versions_file().write_text(text.replace(f"\n{name}: {{version: 1", f"\n{name}: {{version: 2"))
        assert states() == CURRENT | dict.fromkeys(marked, "code or data")
        versions_file().write_text(text)
    path = paths.prepared("synthetic") / "tasks.parquet"
    tasks = pd.read_parquet(path)
    tasks.assign(description=tasks["description"] + " more").to_parquet(path)
    assert set(states().values()) == {"code or data"}


def test_other_weights_mark_the_rows_of_the_systems_that_read_them(root: Path, monkeypatch) -> None:
    add_system(root, "minilm")
    settings = config("system=minilm")
    record = identity(settings) | {"config": plain(settings)}
    assert state(record)[0] == "no"
    monkeypatch.setattr(sentence, "model_version", lambda model: "other weights")
    assert (state(record)[0], states()) == ("settings", CURRENT)


def test_other_replies_mark_the_row_that_they_were_recorded_for(root: Path) -> None:
    add_system(root, "t2mrec")  # with all its variants
    for name, protocol in (("t2mrec_llm", "cold"), ("t2mrec_llm_local", "cold"), ("t2mrec_wo_cl", "warm")):
        settings = load(["dataset=synthetic", f"system={name}", f"protocol={protocol}"])
        record = identity(settings) | {"config": plain(settings)}
        assert state(record) == ("no", "")
        replies = cassette("synthetic", "t2mrec_llm")
        replies.parent.mkdir(parents=True, exist_ok=True)
        replies.write_text("{}\n")
        assert state(record)[0] == ("settings" if name == "t2mrec_llm" else "no")
        replies.unlink()


def add_system(root: Path, name: str) -> None:
    (file,) = (REPOSITORY / "conf/system").glob(f"*/{name}.yaml")
    folder = root / "conf/system" / file.parent.name
    folder.mkdir(exist_ok=True)
    shutil.copy(file, folder)


def test_a_moved_class_and_a_new_key_with_its_default_make_no_row_stale_with_their_lines(root, monkeypatch) -> None:
    def changes() -> list[str]:
        today = plain(load(["dataset=synthetic", "profile=smoke", "system=popularity"]))
        today["system"] |= system_settings("tfidf")  # the class need not be there
        return changed_settings(read_row("synthetic", "cold", "tfidf").record, today)

    path = system_file("tfidf")
    text = path.read_text()
    path.write_text(text.replace("baselines.cosine.TfidfCosine", "baselines.moved.Tfidf") + "  power: 1\n")
    assert len(changes()) == 2
    monkeypatch.setitem(CLASSES, "baselines.cosine.TfidfCosine", "baselines.moved.Tfidf")
    monkeypatch.setitem(DEFAULTS, "baselines.moved.Tfidf", {"power": 1})
    assert changes() == []
    path.write_text(path.read_text().replace("power: 1", "power: 2"))
    assert changes() == ["model.power: 1, not 2"]


def test_the_normal_form_of_settings(monkeypatch) -> None:
    """A size is that of the row's profile; a class that became an option, and a key that is gone, are today's."""
    block = {"_target_": "baselines.settings.of_profile", "profile": "laptop", "smoke": 1, "laptop": [2], "full": 3}
    assert normal_form({"width": block, "_target_": "a.B"}) == {"width": [2], "_target_": "a.B"}
    monkeypatch.setitem(CLASSES, "a.Plain", "a.B")
    monkeypatch.setitem(OPTIONS, "a.Plain", {"plain": True})
    monkeypatch.setitem(GONE, "a.B", {"bug": False})
    assert normal_form({"_target_": "a.Plain", "bug": False}) == {"_target_": "a.B", "plain": True}
    assert normal_form({"_target_": "a.B", "bug": True}) == {"_target_": "a.B", "bug": True}


def test_changed_choice_of_tuning_marks_the_row(root: Path) -> None:
    best = paths.results("synthetic") / "tuned" / "task_knn" / "best.yaml"
    best.parent.mkdir(parents=True)
    best.write_text("values: {k: 5}")
    run_row(config("system=task_knn"))
    assert states()["task_knn"] == "no"
    best.write_text("values: {k: 10}")
    assert states()["task_knn"] == "settings"
    best.unlink()
    assert states()["task_knn"] == "settings"


def test_older_records_and_absent_data_are_unchecked_and_names_that_are_gone_are_variants_or_stale(root: Path) -> None:
    record = read_row("synthetic", "cold", "tfidf").record
    assert state({key: value for key, value in record.items() if key != "version"})[0] == "unchecked"
    assert state({"config": {}})[0] == "settings"
    for part, expected in (("system", "no"), ("dataset", "settings")):
        other = json.loads(json.dumps(record))
        other["config"][part]["name"] += "_gone"
        assert state(other)[0] == expected, part
    for part in datasets.PREPARED:
        (paths.prepared("synthetic") / f"{part}.parquet").unlink()
    assert set(states().values()) == {"unchecked"}


@given(st.dictionaries(KEYS, TREES, min_size=1, max_size=4), st.data())
def test_settings_that_went_through_a_record_do_not_differ_and_one_change_is_one_difference(tree, data) -> None:
    other = json.loads(json.dumps(tree))
    assert differences(tree, other) == []
    inner, path = other, []
    while True:
        path.append(key := data.draw(st.sampled_from(sorted(inner))))
        if not isinstance(inner[key], dict) or not inner[key] or data.draw(st.booleans()):
            break
        inner = inner[key]
    inner[key] = ["changed", inner[key]]
    (line,) = differences(other, tree)
    assert line.startswith(".".join(path) + ": ")
    assert differences({"a": 1}, {"b": None}) == ["a: 1, not nothing", "b: nothing, not null"]


def test_settings_are_compared_under_the_records_own_protocol_and_without_what_a_system_is_called(shared_root) -> None:
    def changes(recorded: dict) -> list[str]:
        return changed_settings({"config": recorded}, plain(todays_config({"config": recorded})))

    for protocol in ("warm", "cold"):
        recorded = plain(load(["dataset=synthetic", "system=t2mrec_wo_cl", f"protocol={protocol}"]))
        assert changes(recorded) == []
    assert "seeds" in changes(recorded | {"protocol": plain(load(["protocol=warm"]).protocol)})[0]
    recorded = plain(load(["dataset=synthetic", "system=tfidf"]))
    before = recorded["system"] | {"title": "an earlier title", "protocols": ["cold"], "family": "other"}
    before["reference"] = None
    before.pop("rungs")  # of the search, and unknown to records of earlier days
    assert changes(recorded | {"system": before}) == []
    assert changes(recorded | {"system": before | {"seeds": [9]}}) != []
