"""The framework of the analyses: selection, tables with records, kept fits."""

import json

import pandas as pd
import pytest

from study.analysis import framework
from study.analysis.framework import Analysis, Context, Fits, kept_fits, read_group_table, run_analyses, run_analysis
from study.base import paths
from study.base.errors import StudyError, UnavailableError
from study.config.compose import load


def ones(study: Context) -> dict[str, pd.DataFrame]:
    """How many ones?"""
    study.facts["n"] = 1
    return {"ones": pd.DataFrame({"value": [1]})}


def lacking(study: Context) -> dict[str, pd.DataFrame]:
    """What do weights say that are not here?"""
    raise UnavailableError("no weights here", fix="fetch them")


@pytest.fixture
def registry(conf_root, monkeypatch):
    entries = [Analysis("audit", "ones", ones), Analysis("audit", "lacking", lacking)]
    entries += [Analysis("audit", "long", lacking, slow=True), Analysis("usefulness", "ones", ones)]
    monkeypatch.setattr(framework, "all_analyses", lambda: {f"{each.group}/{each.name}": each for each in entries})


def test_a_group_leaves_its_slow_analyses_out_and_what_lacks_its_inputs_keeps_its_tables(registry) -> None:
    def names(*words: str) -> list[str]:
        return [f"{each.group}/{each.name}" for each in framework.select_analyses(words)]

    assert names("audit") == ["audit/ones", "audit/lacking"]
    assert names("audit/long", "audit/ones") == ["audit/long", "audit/ones"]
    assert names() == ["audit/ones", "audit/lacking", "usefulness/ones"]
    with pytest.raises(StudyError):
        names("audit/nosuch")
    config = load(["dataset=synthetic"])
    assert [path.name for path in run_analyses(["audit"], config)] == ["ones.csv"]
    with pytest.raises(UnavailableError):
        list(run_analyses(["audit/lacking"], config))


def test_every_registered_analysis_stands_in_a_known_group_and_asks_a_question() -> None:
    analyses = framework.all_analyses()
    assert {entry.group for entry in analyses.values()} <= set(framework.GROUPS)
    assert all(entry.question for entry in analyses.values())


def test_equal_tables_keep_their_record_and_other_tables_or_facts_get_a_new_one(registry) -> None:
    config, now = load(["dataset=synthetic"]), {"seed": 0, "value": 1}

    def varying(study: Context) -> dict[str, pd.DataFrame]:
        """Which value?"""
        study.facts["seed"] = now["seed"]
        return {"varying": pd.DataFrame({"value": [now["value"]]})}

    entry = Analysis("audit", "varying", varying)
    record = paths.results("synthetic") / "audit" / "varying.json"
    run_analysis(entry, config)
    old = json.loads(record.read_text()) | {"hardware": {"cores": 512}}
    record.write_text(json.dumps(old))
    run_analysis(entry, config)
    assert json.loads(record.read_text()) == old
    for change in ({"seed": 1}, {"value": 2}):
        now |= change
        run_analysis(entry, config)
        assert json.loads(record.read_text())["hardware"] != old["hardware"]
        record.write_text(json.dumps(json.loads(record.read_text()) | {"hardware": old["hardware"]}))
    assert read_group_table("synthetic", "audit", "varying")["value"].tolist() == [2]
    for group, command in (("audit", "study analyse audit dataset"), ("report", "study report dataset")):
        with pytest.raises(StudyError, match=f"{command}=synthetic"):
            read_group_table("synthetic", group, "nosuch")


def test_kept_fits_are_found_in_table_and_cache_and_saved_in_the_order_asked_for(tmp_path) -> None:
    fits = Fits(tmp_path / "fits.parquet", tmp_path / "cache", ("system", "seed"))
    assert fits.read_keys() == set()
    fits.add(pd.DataFrame({"system": "a", "seed": [1, 1], "value": [0.1, 0.2]}))
    fits.add(pd.DataFrame({"system": "b", "seed": [1], "value": [0.3]}))
    assert fits.save([("b", 1), ("a", 1), ("a", 2)])["value"].tolist() == [0.3, 0.1, 0.2]
    assert list(fits.cache.glob("*")) == []
    fits.add(pd.DataFrame({"system": "a", "seed": [2], "value": [0.4]}))
    assert fits.read_keys() == {("a", 1), ("a", 2), ("b", 1)}
    assert fits.save([("a", 2)])["value"].tolist() == [0.4]
    pd.DataFrame({"system": ["a"]}).to_parquet(fits.path)
    with pytest.raises(StudyError, match="not a table of fits"):
        fits.read_keys()
    fits.path.write_bytes(b"PAR1 half a file")
    with pytest.raises(StudyError, match="not readable") as caught:
        fits.read_keys()
    assert caught.value.file == fits.path


def test_unfinished_fits_of_a_group_lie_in_the_cache_and_finished_ones_in_the_results(new_root) -> None:
    fits = kept_fits("toy", "audit", "some", ("system",))
    assert fits.cache.is_relative_to(paths.cache())
    assert fits.path == paths.results("toy") / "audit" / "some.parquet"
