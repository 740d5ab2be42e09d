"""The command line: a problem that the user can mend ends with its explanation and exit code 2."""

import json
import sys

import pytest
import yaml

from study.base.errors import printable
from study.config.compose import choices
from tests.tiny_study import TINY, contents

TFIDF = ["run", *TINY, "system=tfidf"]
# A command -> what it says.
ERRORS = [
    ([*TFIDF, "system.seeds=[]"], "no list of seeds"),
    ([*TFIDF, "system.model.max_features=9"], "not those of 'tfidf'"),
    (["run", "system=nonsense"], "unknown system 'nonsense'"),
    ([*TFIDF, "profile=laptop"], "under profile 'smoke'"),
    ([*TFIDF, f"system.name={'a' * 300}"], "too long"),
    (["run", *TINY, "system.name=deep", "system.model.scoring.pool=61"], "pool K2 = 61 is larger than the catalogue"),
    (["run", "-m", "system.model.k1=1,2", "system=bm25"], "study sweep"),
    (["run", "system=tfidf", "protocol=loo", "dataset=synthetic"], "conf/dataset/synthetic.yaml"),
    (["run", "protocol=cold,warm"], "protocol has several values: 'protocol=cold,warm'"),
    (["recommend", "caf\udce9"], "argument 2 is not UTF-8"),
    (["recommend", "read a PDF", "--dataset", "synthetic"], "no saved model"),
    (["recommend", "x", "--rerank", "magic"], "magic"),
    *((["recommend", "x", "--dataset", name], "unknown dataset") for name in ("../../etc", "/tmp", "no")),
    *((["agent", *words, "--dataset", "no"], "unknown dataset") for words in (["ask", "x"], ["mcp"])),
    *((["judge", word, "--dataset", "../../x"], "unknown dataset") for word in ("pool", "evaluate")),
    *(([name, "dataset=nosuch"], "'nosuch'") for name in ("fetch", "prepare", "split", "report", "notebooks", "tune")),
    (["fetch", "dataset=task2mcp"], "/data/mcp_raw.json: the mirror lacks a file"),
    (["split", *TINY, "protocol.seed=7"], "'protocol.seed=7' has no effect here"),
    (["report", *TINY, "system=tfidf"], "no effect"),
    (["doctor", *TINY, "tuning.trials=3"], "conf/config.yaml"),
    (["bench", "logger=tensorboard"], "'logger=tensorboard' has no effect here"),
    *(([*words, "trainer=gpu"], "trainer") for words in (["run", "--all"], ["tune", "system=task_knn"], ["export"])),
    (["prepare", "system=tfidf"], "edit conf/config.yaml"),
    (["prepare", *TINY, "dataset.labels=null"], "conf/dataset/synthetic.yaml (column labels): the data set has no"),
    (["report", "dataset=mcptools", "dataset.generator.n_servers=6"], "does not compose"),
]
ROWS = "results/synthetic/rows/simple/cold"
# A file -> the command that reads it.
DAMAGED = {
    "data/prepared/synthetic/servers.parquet": TFIDF,
    "data/prepared/synthetic/labels.parquet": ["split", *TINY],
    "data/splits/synthetic/cold.parquet": TFIDF,
    f"{ROWS}/top10.parquet": ["export", "--form", "trec", *TINY],
    f"{ROWS}/per_task.parquet": ["report", *TINY],
    f"{ROWS}/records.jsonl": ["report", *TINY],
}


@pytest.mark.parametrize(("words", "message"), ERRORS)
def test_user_errors_end_with_code_two(shared_root, call, monkeypatch, words, message):
    monkeypatch.setenv("T2M_MIRROR", "/nowhere")
    prepared = shared_root / "data/prepared/synthetic/servers.parquet"
    before = prepared.stat().st_mtime_ns
    code, _, err = call(*words)
    assert (code, message in err, "fix:" in err) == (2, True, True), err
    assert prepared.stat().st_mtime_ns == before  # nothing is made before the error


def test_settings_that_are_nested_too_deeply_are_refused(root, call):
    (root / "conf" / "statistics.yaml").write_text("a: " + "[" * 5000 + "]" * 5000)
    code, _, err = call("report", *TINY)
    assert (code, "fix:" in err, "Traceback" in err) == (2, True, False)  # where it is noticed depends on the Python


@pytest.mark.parametrize("file", DAMAGED)
def test_damaged_file_is_named_and_the_rest_stays(root, call, file):
    whole = (root / file).read_bytes()
    for damaged in (whole[: len(whole) // 2], b"\x00garbage\xff" * 9, b""):
        (root / file).write_bytes(damaged)
        before = contents(root / "results")
        code, _, err = call(*DAMAGED[file])
        assert (code, file in err, "fix:" in err) == (2, True, True), err
        assert contents(root / "results") == before


def test_record_without_a_part_is_named(root, call):
    path = root / ROWS / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for part in ("git", "seeds", "profile", "config"):
        lines = [json.dumps({key: value for key, value in one.items() if key != part}) for one in records]
        path.write_text("".join(f"{line}\n" for line in lines))
        code, _, err = call("report", *TINY)
        assert (code, "records" in err, part in err) == (2, True, True)


def test_a_question_mark_lists_the_choices_systems_by_folder(call):
    code, out, _ = call("run", "system=?")
    assert (code, set(choices("system")) - set(out.split())) == (0, set())
    assert {line.split()[0] for line in out.splitlines() if line[0] != " "} == {"paper", "simple", "useful", "probes"}
    code, out, _ = call("report", "dataset=?")
    assert (code, set(out.split())) == (0, {"dataset", *choices("dataset")})


def test_names_cannot_drive_the_terminal():
    assert printable("a\x1b[31mb\r\nc") == "a [31mb  c"


def test_the_composed_configuration_is_printed_as_hydra_prints_it(call):
    code, out, _ = call("run", "--cfg", "job", "system=tiger", "profile=full", "system.model.beam=7")
    model = yaml.safe_load(out)["system"]["model"]
    assert (code, model["beam"], model["size"]["width"], model["history"]) == (0, 7, 128, 20)


@pytest.mark.parametrize("module", ["study.runner.cluster", "study.tools.router"])
@pytest.mark.parametrize("right", [True, False])
def test_a_wrong_name_is_said_before_a_missing_part_of_the_study(call, monkeypatch, module, right):
    monkeypatch.setitem(sys.modules, module, None)
    name = "t2mrec" if right else "t3mrec"
    words = ["recommend", "x", "--batch", "out", "--system"] if "cluster" in module else ["tools", "find", "x", "--by"]
    code, _, err = call(*words, name)
    assert (code, module in err, "unknown" in err) == (2, right, not right)
