"""The table of searches: hand-made sweeps of every kind, systems without one, and damaged folders."""

import pandas as pd
import pytest
import yaml

from study.analysis.overall import tuning
from study.analysis.report.results import Results
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_csv, write_json, write_text
from study.evaluation.records import read_record
from tests.analysis.report.helpers import results_of

pytestmark = pytest.mark.usefixtures("conf_root")
# System -> NDCG@10 of four tasks. Tuned, NGCF is worse on every task, EASE better on every task, BPR neither.
VALUES = {"ngcf": [0.5, 0.6, 0.7, 0.8], "ngcf_tuned": [0.4, 0.5, 0.6, 0.7], "ease": [0.1, 0.2, 0.3, 0.4]}
VALUES |= {"ease_tuned": [0.3, 0.4, 0.5, 0.6], "bpr": [0.1, 0.2, 0.3, 0.4], "bpr_tuned": [0.2, 0.1, 0.4, 0.3]}
VALUES |= {"lonely_tuned": [0.9] * 4}  # nothing to compare with


def sweep(name, best, trials, config):
    folder = paths.results("toy") / "tuned" / name
    write_text(folder / "best.yaml", yaml.safe_dump(best))
    write_json(folder / "record.json", {"git": {}, "versions": {}, "hardware": {}, "config": config})
    write_csv(folder / "trials.csv", pd.DataFrame(trials))
    return folder


def baseline(*, scale=0.25, model=None):
    """`study tune` of neumf_tuned: two trials, the system's own values first."""
    model = model or {"epochs": 100, "settings": {"rate": 0.001, "layers": [64, 64], "all": None, "fast": False}}
    search = {
        "settings.rate": {"low": 0.0005, "high": 0.02, "log": True, "type": "float"},
        "settings.layers": {"choices": [[64], [64, 64]]},
        "settings.all": {"choices": [5, None]},
        "settings.fast": {"choices": [False, True]},
    }
    values = {"settings.rate": 0.0123456, "settings.layers": [64], "settings.all": 5, "settings.fast": True}
    best = {"system": "neumf_tuned", "protocol": "warm", "objective": "valid/ndcg@10", "value": 0.5, "trials": 2}
    best |= {"seconds": 1234.0, "values": values}
    trials = [(0, 0.4, 600.0, 0.001, "[64, 64]", None, False), (1, 0.5, 634.0, 0.0123456, "[64]", 5, True)]
    trials = pd.DataFrame(trials, columns=["trial", "valid/ndcg@10", "seconds", *search])
    config = {"system": {"search": search, "model": model}, "tuning": {"scale": scale}}
    return sweep("neumf_tuned", best, trials, config)


def row(name):
    return tuning.tuned("toy").set_index("sweep").loc[name]


def as_printed(title, columns):
    return tuning.printed(tuning.tuned("toy")).set_index("system").loc[title, columns].tolist()


def test_a_tuned_baseline_has_its_space_budget_and_the_median_of_its_trials():
    folder = baseline()
    found = row("neumf_tuned")
    assert found["space"] == "rate 0.0005 to 0.02 (log); layers [64], [64, 64]; all 5, null; fast false, true"
    assert found["chosen"] == "rate 0.01235; layers [64]; all 5; fast true"
    facts = ["kind", "title", "protocol", "trials", "seconds", "epochs", "best"]
    assert found[facts].tolist() == ["tuning", "NeuMF (tuned)", "warm", 2, 1234, "25%", 0.5]
    shown = ["trials", "epochs per trial", "seconds", "best NDCG@10"]
    assert as_printed("NeuMF (tuned)", shown) == ["2", "25%", "1,234", "0.5000"]
    halved = pd.read_csv(folder / "trials.csv")
    halved = pd.concat([halved.assign(share=0.25), halved.assign(share=1.0, **{"valid/ndcg@10": [0.6, 0.7]})])
    best, config = yaml.safe_load((folder / "best.yaml").read_text()), read_record(folder / "record.json")["config"]
    sweep("neumf_tuned", best, halved, config | {"system": config["system"] | {"rungs": [0.25, 1.0]}})
    assert row("neumf_tuned")["epochs"] == "2 x 25%; 2 x 100%"
    baseline()
    # One slow trial moves the sum and not the median.
    trials, median = pd.read_csv(folder / "trials.csv"), ["median seconds of a trial"]
    slow = pd.concat([trials, trials.tail(1).assign(seconds=40_000.0)])
    write_csv(folder / "trials.csv", slow)
    assert row("neumf_tuned")["per_trial"] == 634.0
    assert as_printed("NeuMF (tuned)", median) == ["634"]
    assert as_printed("EASE (tuned)", median) == [""]  # has not run
    write_csv(folder / "trials.csv", slow.drop(columns="seconds"))
    assert as_printed("NeuMF (tuned)", median) == [""]


def test_a_closed_form_has_no_epochs():
    baseline(model={"settings": {"rate": 0.002}})
    assert as_printed("NeuMF (tuned)", ["epochs per trial"]) == [""]


def test_sweeps_train_whole_runs():
    best = {"system": "t2mrec", "sweep": "temperature", "protocol": "cold", "objective": "valid/ndcg@10", "value": 0.3}
    best |= {"trials": 4, "seconds": 9, "values": {"training.temperature": 0.14}}
    trials = pd.DataFrame({"training.temperature": [0.07, 0.14], "valid/ndcg@10": [0.1, 0.3]})
    model = {"training": {"temperature": 0.07, "epochs": 200}}
    sweep("temperature", best, trials, {"system": {"search": {}, "model": model}, "tuning": {}})
    assert row("temperature")[["kind", "trials", "epochs"]].tolist() == ["sweep", 4, "100%"]
    assert row("temperature")["chosen"] == "training.temperature 0.14"


def test_tuned_rows_stand_before_sweeps_by_title_and_systems_with_a_space_and_no_run_are_there():
    baseline()
    test_sweeps_train_whole_runs()
    table = tuning.tuned("toy")
    assert table["kind"].unique().tolist() == list(tuning.KINDS)
    for _, titles in table.groupby("kind")["title"]:
        assert titles.tolist() == sorted(titles, key=str.casefold)
    sweeps = table[table["kind"] == tuning.SWEEP]
    assert sweeps["title"].tolist() == ["T2MRec (joint search)", "T2MRec: Temperature tau"]
    table = tuning.printed(table).set_index("system")
    assert table.loc["EASE (tuned)", "trials"] == "not run"
    assert set(table.loc["EASE (tuned)"].drop(["protocol", "search space", "trials"])) == {""}
    for title in ("T2MRec (tuned)", "T2MRec (joint search)"):
        assert table.loc[title, "trials"] == "not run"
        assert "training.temperature 0.01 to 0.5 (log)" in table.loc[title, "search space"]
    assert "T2MRec" not in table.index
    assert table.index.is_unique


@pytest.mark.parametrize("name", ["best.yaml", "record.json", "trials.csv"])
def test_half_a_search_is_named(name):
    folder = baseline()
    (folder / name).unlink()
    with pytest.raises(StudyError, match="neumf_tuned"):
        tuning.tuned("toy")


def test_differences_by_hand_the_largest_first_and_their_figure(monkeypatch):
    ran = {"warm": list(VALUES), "loo": ["bpr", "bpr_tuned"]}
    monkeypatch.setattr(Results, "systems", lambda self, protocol: ran[protocol])
    monkeypatch.setattr(Results, "per_task", lambda self, protocol, name: pd.DataFrame({"ndcg@10": VALUES[name]}))
    titles = {name: name.upper() for name in VALUES} | {"ngcf": "$x_{"}
    costs = pd.DataFrame([("warm", "bpr_tuned", 3, 2), ("warm", "ease_tuned", 3, 1)])
    costs = costs.set_axis(["protocol", "system", "seeds", "rising"], axis=1)
    results = results_of("synthetic", ["warm", "loo"], VALUES, titles=titles, costs=costs)
    table = tuning.effects(results)
    rows = [("warm", "ease"), ("warm", "bpr"), ("warm", "ngcf"), ("loo", "bpr")]
    assert list(zip(table["protocol"], table["system"], strict=True)) == rows
    assert table["diff"].tolist() == pytest.approx([0.2, 0, -0.1, 0])
    ends = ["diff_ci_low", "diff_ci_high"]
    assert table.loc[0, ["own", "tuned", *ends]].tolist() == pytest.approx([0.25, 0.45, 0.2, 0.2])
    assert table.loc[1, ends].tolist() == pytest.approx([-0.1, 0.1])
    warm, loo = tuning.effects_figure(table, "caption").axes
    own, tuned = warm.collections[1:]
    assert own.get_offsets()[:, 0].tolist() == pytest.approx([0.25, 0.25, 0.65])
    assert own.get_offsets()[:, 1].tolist() == tuned.get_offsets()[:, 1].tolist() == [2, 1, 0]
    assert tuned.get_offsets()[:, 0].tolist() == pytest.approx([0.45, 0.25, 0.55])
    assert [label.get_text() for label in warm.get_yticklabels()] == ["EASE", "BPR †", "$x_{"]
    assert loo.get_title(loc="left") == "loo"
    monkeypatch.setattr(Results, "systems", lambda self, protocol: ["ngcf", "lonely_tuned"])  # no tuned rows
    assert tuning.effects(results).empty
