"""The command line: a problem that the user can mend ends with its explanation and exit code 2."""

import json
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.core import TyperGroup
from typer.main import get_command

from study.cli import main as cli
from study.data import dataset as datasets
from study.errors import StudyError
from tests.tiny_study import TINY


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["study", *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    printed = capsys.readouterr()
    return int(stopped.value.code or 0), printed.out, printed.err


def cut_short(raw: Path) -> None:
    path = raw / "mcp_raw.json"
    path.write_bytes(path.read_bytes()[:-9])


def duplicate_first_server(raw: Path) -> None:
    rows = json.loads((raw / "mcp_raw.json").read_text())
    (raw / "mcp_raw.json").write_text(json.dumps([*rows, rows[0]]))


def huge_description(raw: Path) -> None:
    rows = json.loads((raw / "mcp_raw.json").read_text())
    rows[3]["description"] = "x" * 10_000_000
    (raw / "mcp_raw.json").write_text(json.dumps(rows))


def nan_name(raw: Path) -> None:
    rows = json.loads((raw / "mcp_raw.json").read_text())
    rows[2]["name"] = float("nan")
    (raw / "mcp_raw.json").write_text(json.dumps(rows))


def first_label_cell(cell: str):
    def change(raw: Path) -> None:
        path = raw / "mcp_task.csv"
        path.write_text(re.sub(r'^1,".*"$', f'1,"{cell}"', path.read_text(), count=1, flags=re.MULTILINE))

    return change


FAULTS = {
    "missing file": (lambda raw: (raw / "task_raw.json").unlink(), ["task_raw.json"]),
    "truncated JSON": (cut_short, ["mcp_raw.json"]),
    "duplicate ids": (duplicate_first_server, ["mcp_raw.json", "id"]),
    "unknown ids in labels": (first_label_cell("[999999]"), ["mcp_task.csv", "999999"]),
    "non-list label cell": (first_label_cell("__import__('os')"), ["mcp_task.csv", "mcp_ids"]),
    "empty task list": (lambda raw: (raw / "task_raw.json").write_text("[]"), ["task_raw.json"]),
    "NaN text": (nan_name, ["mcp_raw.json"]),
    "10 MB description": (huge_description, ["mcp_raw.json", "description"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_raw_file_stops_prepare_and_earlier_outputs_stay(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    change, named = FAULTS[fault]
    before = {path: path.read_bytes() for path in (root / "data" / "prepared").rglob("*.parquet")}
    change(root / "data" / "raw" / "synthetic")
    code, _, err = call(capsys, monkeypatch, "prepare", *TINY)
    assert code == 2, err
    assert "fix:" in err
    for word in named:
        assert word in err
    assert "Traceback" not in err
    assert {path: path.read_bytes() for path in (root / "data" / "prepared").rglob("*.parquet")} == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "system=nonsense"], "unknown system 'nonsense'"),
        (["run", "protocol=cold,warm"], "protocol has several values: 'protocol=cold,warm'"),
        (["run", "system.model.nonsense=1"], "does not compose"),
        (
            ["run", *TINY, "system=t2mrec", "system.name=deep", "system.model.scoring.pool=61"],
            "larger than the catalogue",
        ),
        (["run", *TINY, "system=tfidf", "system.seeds=[]"], "at least one seed"),
        (["run", *TINY, "system=tfidf", "system.model.max_features=9"], "not those of 'tfidf'"),
        (["run", *TINY, "system=tfidf", "+key=1"], "unknown key 'key'"),
        (["run", *TINY, "system=tfidf", "profile=laptop"], "under profile 'smoke'"),
        (["recommend", "read a PDF", "--dataset", "synthetic"], "no saved model"),
        (["recommend", "read a PDF", "--dataset", "../../etc"], "unknown dataset"),
        (["recommend", "caf\udce9"], "argument 2 is not UTF-8"),
        (["verify", "--expected", "nowhere.yaml"], "nowhere.yaml"),
        (["fetch", "dataset=task2mcp"], "names a folder that does not exist"),
    ],
)
def test_user_errors_end_with_code_two(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.setenv("T2M_MIRROR", "/nowhere")
    if words[0] == "verify":
        call(capsys, monkeypatch, "report", *TINY)
    code, _, err = call(capsys, monkeypatch, *words)
    assert code == 2
    assert message in err
    assert "fix:" in err


def cut_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garbage(path: Path) -> None:
    path.write_bytes(b"\x00garbage\xff" * 9)


def empty(path: Path) -> None:
    path.write_bytes(b"")


KEPT = "results/synthetic"
DAMAGED = {
    "prepared": ("data/prepared/synthetic/servers.parquet", ["run", *TINY, "system=tfidf"]),
    "labels": ("data/prepared/synthetic/labels.parquet", ["split", *TINY]),
    "split": ("data/splits/synthetic/cold.parquet", ["run", *TINY, "system=tfidf"]),
    "run": (f"{KEPT}/top10/cold/tfidf.parquet", ["report", "--evaluate", *TINY]),
    "per-task values": (f"{KEPT}/per_task/cold/tfidf.csv.xz", ["report", *TINY]),
    "record in report": (f"{KEPT}/records/cold/tfidf.json", ["report", *TINY]),
    "record in run": (f"{KEPT}/records/cold/tfidf.json", ["run", *TINY, "system=tfidf"]),
}


@pytest.mark.parametrize("damage", [cut_half, garbage, empty])
@pytest.mark.parametrize("which", DAMAGED)
def test_damaged_file_is_named_and_the_rest_stays(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, which: str, damage
) -> None:
    file, words = DAMAGED[which]
    damage(root / file)
    before = {path: path.read_bytes() for path in (root / "results").rglob("*") if path.is_file()}
    code, _, err = call(capsys, monkeypatch, *words)
    assert code == 2, err
    assert file in err
    assert "fix:" in err
    assert {path: path.read_bytes() for path in (root / "results").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("part", ["git", "seeds", "profile", "config"])
def test_record_without_a_part_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    path = root / KEPT / "records" / "cold" / "tfidf.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != part}))
    code, _, err = call(capsys, monkeypatch, "report", *TINY)
    assert code == 2
    assert "tfidf.json" in err
    assert part in err


def test_labels_with_a_foreign_id_are_named(root: Path) -> None:
    path = root / "data" / "prepared" / "synthetic" / "labels.parquet"
    labels = pd.read_parquet(path)
    labels.loc[7, "server_id"] = 999_999
    labels.to_parquet(path)
    with pytest.raises(StudyError, match=r"labels.parquet \(row 7, column server_id\)"):
        datasets.load("synthetic")


def test_wrong_checksum_keeps_the_earlier_file(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tmp_path / "mirror" / "ssea-lab" / "Task2MCP" / "e19780c92aed4200d95c73c4d525ee0b56437ce7" / "data"
    address.mkdir(parents=True)
    (address / "mcp_raw.json").write_text("[]")
    kept = root / "data" / "raw" / "task2mcp" / "mcp_raw.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("earlier")
    monkeypatch.setenv("T2M_MIRROR", str(tmp_path / "mirror"))
    code, _, err = call(capsys, monkeypatch, "fetch", "dataset=task2mcp")
    assert code == 2
    assert "mcp_raw.json" in err
    assert "checksum" in err.lower() or "sha" in err.lower()
    assert kept.read_text() == "earlier"


def visible(group: TyperGroup, before: str = "") -> list[str]:
    """The commands of a group and its sub-groups that its help lists."""
    found = []
    for name, command in group.commands.items():
        if not command.hidden:
            found += visible(command, f"{name} ") if isinstance(command, TyperGroup) else [before + name]
    return found


def test_there_are_few_commands() -> None:
    commands = visible(get_command(cli.app))
    assert {"run", "report", "recommend", "agent ask"} <= set(commands)
    assert len(commands) <= 35


def test_names_cannot_drive_the_terminal() -> None:
    assert cli.printable("a\x1b[31mb\r\nc") == "a [31mb  c"
