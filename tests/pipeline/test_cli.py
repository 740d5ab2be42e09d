"""The command line: a problem that the user can mend ends with its explanation and exit code 2."""

import json
import re
import sys

import pandas as pd
import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from study.base import paths
from study.base.errors import StudyError, printable
from study.cli import main as cli
from study.config.compose import choices, load
from study.data import dataset as datasets
from study.runner import row_store
from study.search.tune import sweep_folder
from tests.pipeline.conftest import results
from tests.tiny_study import TINY

OF_TFIDF = {"system.seeds=[]": "no list of seeds", "system.model.max_features=9": "not those of 'tfidf'"}
OF_TFIDF |= {"+key=1": "unknown key 'key'", "profile=laptop": "under profile 'smoke'"}
ERRORS = [(["run", *TINY, "system=tfidf", override], said) for override, said in OF_TFIDF.items()]
ERRORS += [(["run", *TINY, "system.name=deep", "system.model.scoring.pool=61"], "pool K2, and only 60 servers")]
ERRORS += [(["run", "system=nonsense"], "unknown system 'nonsense'")]
ERRORS += [(["run", "protocol=cold,warm"], "protocol has several values: 'protocol=cold,warm'")]
ERRORS += [(["run", "system.model.nonsense=1"], "does not compose")]
ERRORS += [(["recommend", "caf\udce9"], "argument 2 is not UTF-8")]
ERRORS += [(["recommend", "read a PDF", "--dataset", "synthetic"], "no saved model")]
ERRORS += [(["recommend", "read a PDF", "--dataset", "../../etc"], "unknown dataset")]
ERRORS += [(["verify", "--expected", "nowhere.yaml"], "nowhere.yaml")]
ERRORS += [(["fetch", "dataset=task2mcp"], "/data/mcp_raw.json: the mirror lacks a file")]
ERRORS += [(["split", *TINY, "protocol.seed=7"], "'protocol.seed=7' has no effect here")]
ERRORS += [(["report", *TINY, "system=tfidf"], "no effect"), (["doctor", *TINY, "tuning.trials=3"], "conf/config.yaml")]
ERRORS += [
    (["prepare", "system=tfidf"], "edit conf/config.yaml"),
    (["verify", "--expected", "."], "there is no file of expected scores"),
    (["verify", "--expected", "/dev/zero"], "there is no file of expected scores"),
]
ERRORS += [(["judge", *words, "--dataset", "../../x"], "unknown dataset") for words in (["pool"], ["evaluate"])]
ERRORS += [(["agent", "ask", "x", "--dataset", name], "unknown dataset") for name in ("../x", "/tmp", "no")]
ERRORS += [(["run", *TINY, "system=tfidf", f"system.name={'a' * 300}"], "too long")]
ERRORS += [(["prepare", *TINY, "dataset.labels=null"], "the data set has no label file")]
ERRORS += [(["prepare", "dataset=mcptools"], "no label file")]
ERRORS += [(["report", "dataset=mcptools", "dataset.generator.n_servers=6"], "does not compose")]
KEPT = "results/synthetic"
DAMAGED = {
    "prepared": ("data/prepared/synthetic/servers.parquet", ["run", *TINY, "system=tfidf"]),
    "labels": ("data/prepared/synthetic/labels.parquet", ["split", *TINY]),
    "split": ("data/splits/synthetic/cold.parquet", ["run", *TINY, "system=tfidf"]),
    "run": (f"{KEPT}/rows/simple/cold/top10.parquet", ["report", *TINY]),
    "per-task values": (f"{KEPT}/rows/simple/cold/per_task.parquet", ["report", *TINY]),
    "record in report": (f"{KEPT}/rows/simple/cold/records.jsonl", ["report", *TINY]),
    "record in run": (f"{KEPT}/rows/simple/cold/records.jsonl", ["run", *TINY, "system=tfidf"]),
}


@pytest.mark.parametrize(("words", "message"), ERRORS)
def test_user_errors_end_with_code_two(root, call, monkeypatch, words, message):
    monkeypatch.setenv("T2M_MIRROR", "/nowhere")
    if words[0] == "verify":
        call("report", *TINY)
    code, _, err = call(*words)
    assert code == 2
    assert message in err
    assert "fix:" in err


def test_after_a_stop_it_is_said_that_the_same_command_goes_on(root, call, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("study.data.stages.split", stopped)
    code, _, err = call("split", *TINY)
    assert code == 130
    assert "the same command goes on" in err


def test_a_search_ends_with_the_best_value(root, call):
    code, out, err = call("tune", *TINY, "system=task_knn", "tuning.trials=2")
    assert code == 0, err
    best = yaml.safe_load((sweep_folder(load([*TINY, "system=task_knn"])) / "best.yaml").read_text())
    assert f"{best['value']:.4f}" in out
    assert all(f"{name}={value}" in out for name, value in best["values"].items())


def test_settings_that_are_nested_too_deeply_are_refused(root, call):
    (root / "conf" / "statistics.yaml").write_text("a: " + "[" * 5000 + "]" * 5000)
    code, _, err = call("report", *TINY)
    assert code == 2
    assert "nested too deeply" in err
    assert "fix:" in err


@pytest.mark.parametrize("damage", ["half", "garbage", "empty"])
@pytest.mark.parametrize("which", DAMAGED)
def test_damaged_file_is_named_and_the_rest_stays(root, call, which, damage):
    file, words = DAMAGED[which]
    whole = (root / file).read_bytes()
    damaged = {"half": whole[: len(whole) // 2], "garbage": b"\x00garbage\xff" * 9, "empty": b""}
    (root / file).write_bytes(damaged[damage])
    before = results(root)
    code, _, err = call(*words)
    assert code == 2, err
    assert file in err
    assert "fix:" in err
    assert results(root) == before


@pytest.mark.parametrize("part", ["git", "seeds", "profile", "config"])
def test_record_without_a_part_is_named(root, call, part):
    path = root / KEPT / "rows" / "simple" / "cold" / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in one.items() if k != part}) + "\n" for one in records))
    code, _, err = call("report", *TINY)
    assert code == 2
    assert "records" in err
    assert part in err


def test_labels_with_a_foreign_id_are_named(root):
    path = root / "data" / "prepared" / "synthetic" / "labels.parquet"
    labels = pd.read_parquet(path)
    labels.loc[7, "server_id"] = 999_999
    labels.to_parquet(path)
    with pytest.raises(StudyError, match=r"labels.parquet \(row 7, column server_id\)"):
        datasets.load("synthetic")


def visible(group, before=""):
    """The commands of a group and its sub-groups that its help lists."""
    found = []
    for name, command in group.commands.items():
        if not command.hidden:
            found += visible(command, f"{name} ") if isinstance(command, TyperGroup) else [before + name]
    return found


def test_there_are_few_commands():
    commands = visible(get_command(cli.app))
    assert {"run", "report", "recommend", "agent ask"} <= set(commands)
    assert len(commands) <= 57


def facts(command):
    """What settings and code decide and the help of a command states."""
    if command == "tune":
        tuning, folder = load().tuning, sweep_folder(load(["dataset=synthetic", "system=tfidf"]))
        place = str(folder.relative_to(paths.root())).replace("synthetic", "DATASET").replace("tfidf", "SYSTEM")
        budget = f"{tuning.trials} trials (tuning.trials) with {load().system.rungs[0]} of a run's epochs"
        return [budget, place, "best.yaml", "stopped search goes on", "profile=full --replace"]
    places = str(row_store.rows_folder("DATASET").relative_to(paths.root()))
    return [places, *row_store.KINDS, "keeps its finished seeds", "system=?", "protocol=?"]


@pytest.mark.parametrize("command", ["tune", "run"])
def test_help_states_what_settings_and_code_decide(call, command):
    code, out, _ = call(*command.split(), "--help")
    said = " ".join(re.sub("[^ -~]", " ", out).split())  # on one line, without frames
    assert code == 0
    assert [fact for fact in facts(command) if fact not in said] == []


@pytest.mark.parametrize("group", ["system", "protocol"])
def test_a_question_mark_lists_the_choices(call, group):
    code, out, _ = call("run", f"{group}=?")
    assert (code, set(choices(group)) - set(out.split())) == (0, set())


def test_names_cannot_drive_the_terminal():
    assert printable("a\x1b[31mb\r\nc") == "a [31mb  c"


def test_what_a_group_offers_is_listed_by_folder(call):
    code, out, _ = call("run", "system=?")
    assert code == 0
    folders = {line.split()[0] for line in out.splitlines() if not line.startswith(" ")}
    assert folders == {"paper", "simple", "useful", "probes"}
    assert set(choices("system")) <= set(out.split())
    code, out, _ = call("report", "dataset=?")
    assert (code, set(out.split())) == (0, {"dataset", *choices("dataset")})


def test_the_composed_configuration_is_printed_as_hydra_prints_it(call):
    code, out, _ = call("run", "--cfg", "job", "system=tiger", "profile=full", "system.model.beam=7")
    model = yaml.safe_load(out)["system"]["model"]
    assert (code, model["beam"], model["size"]["width"], model["history"]) == (0, 7, 128, 20)


@pytest.mark.parametrize("word", ["-m", "--multirun"])
def test_several_values_name_the_command_that_tries_them(call, word):
    code, _, said = call("run", word, "system.model.k1=1,2", "system=bm25")
    assert (code, "study sweep" in said) == (2, True)


def test_a_protocol_that_a_data_set_lacks_is_named_with_the_file(call):
    code, _, said = call("run", "system=item_knn", "protocol=loo", "dataset=synthetic")
    assert code == 2
    assert "synthetic has no protocol loo" in said
    assert "conf/dataset/synthetic.yaml" in said


@pytest.mark.parametrize("command", ["fetch", "prepare", "split", "report", "notebooks", "tune", "run"])
def test_an_unknown_data_set_is_refused_at_once(call, command):
    code, _, said = call(command, "dataset=nosuch")
    assert (code, "unknown dataset 'nosuch'" in said) == (2, True)


@pytest.mark.parametrize("module", ["study.runner.cluster", "study.tools.router"])
@pytest.mark.parametrize("right", [True, False])
def test_a_wrong_name_is_said_before_a_missing_part_of_the_study(conf_root, call, monkeypatch, module, right):
    monkeypatch.setitem(sys.modules, module, None)
    name = "t2mrec" if right else "t3mrec"
    words = ["recommend", "x", "--batch", "out", "--system"] if "cluster" in module else ["tools", "find", "x", "--by"]
    code, _, err = call(*words, name)
    assert (code, module in err, "unknown" in err) == (2, right, not right)


def test_a_wrong_reranker_is_said_before_a_missing_catalogue(conf_root, call):
    code, _, err = call("recommend", "x", "--rerank", "magic")
    assert (code, "magic" in err) == (2, True)
