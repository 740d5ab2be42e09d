"""Preparing: what is changed is counted, what is wrong is refused with its place, earlier outputs survive."""

import math
from functools import partial

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from study.base import files, paths
from study.base.errors import StudyError
from study.data import dataset, prepare, raw_files
from tests.tiny_study import contents


@pytest.fixture
def run(tmp_path):
    def go(release):
        return prepare.prepare("x", release.write(tmp_path / "raw"), tmp_path / "out")

    return go


def counted(table, rule, column):
    return table[table["rule"].str.startswith(rule) & (table["column"] == column)].iloc[0]


def test_small_release_by_hand(run, release, tmp_path):
    table = run(release)
    data = dataset.load("x", tmp_path / "out")
    assert data.servers["id"].tolist() == [10, 2, 3, 4, 5]
    assert [row.tolist() for row in data.lists] == [[0, 1, 2], [3, 4], [1]]
    labels = pd.read_parquet(tmp_path / "out/labels.parquet")
    assert labels.to_numpy().tolist() == [[1, 10, 1], [1, 2, 2], [1, 3, 3], [2, 4, 1], [2, 5, 3], [3, 2, 1]]
    assert data.servers["category"].tolist()[:2] == ["dev-tools", "Dev Tools"]
    assert set(data.servers["category_clean"]) == {"dev-tools"}
    assert data.servers["language"].tolist()[:2] == ["Python, Shell", ""]
    assert data.servers["is_official"].tolist() == [True, False, True, True, True]
    assert data.tasks["theme_clean"].tolist() == ["Real Estate", "Real Estate", "Z"]
    assert (counted(table, "id 0", "server_id")[["rows", "values"]] == [1, 2]).all()
    assert (counted(table, "repeated id", "server_id")[["rows", "values"]] == [2, 2]).all()
    assert counted(table, "null", "license")["rows"] == 1
    assert counted(table, "null", "system")["rows"] == 5
    assert counted(table, "spelling", "category_clean")["rows"] == 1
    assert (counted(table, "repeated text", "url")[["rows", "values"]] == [5, 4]).all()
    assert pd.read_csv(tmp_path / "out/cleaning.csv").columns.tolist() == prepare.CLEANING_COLUMNS
    # The same input gives the same bytes.
    first = contents(tmp_path / "out")
    run(release)
    assert contents(tmp_path / "out") == first
    assert set(first) == {"servers.parquet", "tasks.parquet", "labels.parquet", "cleaning.csv"}


def test_a_task_without_labels_ends_the_command_with_code_2(release, conf_root, call):
    """The row is the line that an editor shows: the header is line 1, so task 2 stands in line 3."""
    release.labels = 'task_id,mcp_ids\n1,"[10, 2, 3]"\n2,"[0]"\n3,"[2]"\n'
    release.write(paths.raw("synthetic"))
    code, _, message = call("prepare", "dataset=synthetic")
    assert code == 2
    assert f"{paths.raw('synthetic') / 'mcp_task.csv'} (line 3, column mcp_ids): task 2 has no labels" in message
    assert not paths.prepared("synthetic").exists()


def test_text_that_systems_read_is_not_touched_and_unknown_keys_are_counted(run, release, tmp_path):
    odd = "  <script>alert(1)</script>\n'; DROP TABLE — ☃ \u202e \x00 "
    release.servers[0] |= {"description": odd, "tools": "a ,b"}
    release.servers[2] |= {"score": 3}
    release.tasks[0]["description"] = odd
    table = run(release)
    data = dataset.load("x", tmp_path / "out")
    assert data.servers.loc[0, ["description", "tools"]].tolist() == [odd, "a ,b"]
    assert data.tasks.loc[0, "description"] == odd
    assert counted(table, "unknown column", "score")["action"] == "changed"


def test_longer_lists(run, release, tmp_path):
    release.all_labels = 'task_id,mcp_ids\n1,"[10, 2, 3, 4]"\n2,"[4, 5]"\n3,"[2]"\n'
    run(release)
    assert len(pd.read_parquet(tmp_path / "out/labels_all.parquet")) == 7
    (tmp_path / "raw/mcp_task_all.csv").unlink()
    release.all_labels = None
    run(release)
    assert not (tmp_path / "out/labels_all.parquet").exists()


GOOD = 'task_id,mcp_ids\n1,"[10]"\n2,"[4]"\n'
# What is wrong with one server, one task or the file of labels -> the row and the column that are named.
SERVERS = {
    f"{key} {value!r:.20}": (2, key, {key: value})
    for key, value in (
        *[("id", "3"), ("id", True), ("id", 0), ("id", 2**70), ("stars_count", math.inf), ("name", None)],
        *[("official", "yes"), ("description", ["a"])],
    )
}
SERVERS["id twice"] = (2, "id", {"id": 2})
TASKS = {"id twice": (1, "id", {"id": 1}), "NaN theme": (1, "theme", {"theme": math.nan})}
# Of the cell in line 4: unknown and negative ids, no list, other types.
CELLS = ['"[77]"', '"[-1]"', '"[]"', "", '"[0]"', "12", '"[1.0]"', '"[true]"', f'"{"[" * 200_000}"', f'"[{"9" * 5000}"']
LABELS = {f"cell {cell!r:.20}": ("line 4", "mcp_ids", f"{GOOD}3,{cell}\n") for cell in CELLS}
LABELS |= {
    "unknown task": ("line 5", "task_id", GOOD + '3,"[2]"\n9,"[2]"\n'),
    "repeated task": ("line 4", "mcp_ids", GOOD + '2,"[2]"\n'),
    "task without row": (None, "task_id", GOOD),
    "ragged row": (None, None, GOOD + "3,[2, 3]\n"),
    "task id text": ("line 4", "mcp_ids", GOOD + 'three,"[2]"\n'),
    "missing column": (None, None, "task_id,ids\n1,[2]\n"),
    "empty file": (None, None, ""),
}
FAULTS = [
    *((lambda r, new=new: r.servers[2].update(new), "mcp_raw.json", *where) for *where, new in SERVERS.values()),
    *((lambda r, new=new: r.tasks[1].update(new), "task_raw.json", *where) for *where, new in TASKS.values()),
    *((lambda r, text=text: setattr(r, "labels", text), "mcp_task.csv", *where) for *where, text in LABELS.values()),
    (lambda release: release.servers[2].update(description="\ud800"), "mcp_raw.json", None, None),
    (lambda release: release.servers[3].pop("url"), "mcp_raw.json", 3, "url"),
    (lambda release: release.servers.clear(), "mcp_raw.json", None, None),
    (lambda release: release.servers.insert(1, []), "mcp_raw.json", 1, None),
    (lambda release: release.servers[0].update(task_raw=[], id=0), "mcp_raw.json", 0, "id"),
]
IDS = [*SERVERS, *TASKS, *LABELS, "half a surrogate pair", "missing key", "no servers", "server is a list", "wrapped"]


@pytest.mark.parametrize(("fault", "file", "row", "column"), FAULTS, ids=IDS)
def test_faults_name_their_place_and_leave_earlier_outputs(run, release, tmp_path, fault, file, row, column):
    run(release)
    before = contents(tmp_path / "out")
    fault(release)
    with pytest.raises(StudyError) as error:
        run(release)
    assert error.value.file == tmp_path / "raw" / file
    assert (error.value.row, error.value.column) == (row, column)
    assert error.value.fix
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("name", ["mcp_raw.json", "task_raw.json", "mcp_task.csv"])
def test_missing_truncated_and_badly_encoded_files(run, release, tmp_path, name):
    run(release)
    before = contents(tmp_path / "out")
    path = tmp_path / "raw" / name
    good = path.read_bytes()

    def refused(reason):
        with pytest.raises(StudyError, match=reason) as error:
            prepare.prepare("x", tmp_path / "raw", tmp_path / "out")
        assert error.value.file == path
        assert contents(tmp_path / "out") == before
        return error.value

    path.write_bytes(good[:-4] + b"\xff\xfe")
    refused(rf"not UTF-8 text \(line \d+, byte {len(good) - 4} of the file\)")
    if path.suffix == ".json":
        path.write_bytes(b'[{"id": 1},\n  {"id": 2')
        refused(r"line 2 column")
        path.write_bytes(b"[" * 200_000)
        refused("recursion limit")
    path.unlink()
    refused("the file is missing")


def test_a_failing_write_replaces_nothing(run, release, tmp_path, monkeypatch):
    run(release)
    before = contents(tmp_path / "out")

    def failing(path, frame):
        raise OSError("no space left on device")

    monkeypatch.setattr(files, "write_csv", failing)  # the last one
    release.servers[0]["name"] = "changed"
    with pytest.raises(OSError, match="no space"):
        run(release)
    assert contents(tmp_path / "out") == before


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=80),
        st.text(max_size=80).map(str.encode),
        st.text('[]{}",:0123456789-. \n', max_size=60).map(str.encode),
        st.text('[]",0123456789\n', max_size=60).map(lambda text: f"task_id,mcp_ids\n{text}".encode()),
    )
)
def test_no_bytes_crash_the_readers(tmp_path, content):
    path = tmp_path / "hostile"
    path.write_bytes(content)
    table = partial(raw_files.read_table, form=raw_files.SERVERS)
    for read in (raw_files.read_lists, raw_files.read_records, table):
        try:
            read(path)
        except StudyError as error:
            assert error.file == path  # noqa: PT017


WRONG = {
    "null text": ("servers", lambda table: table.assign(description=[None, *table["description"][1:]]), "no text"),
    "a number": ("tasks", lambda table: table.assign(theme=3), "column theme"),
    "an id twice": ("servers", lambda table: pd.concat([table, table.iloc[[2]]]), "stands twice"),
    "a place in words": ("labels", lambda table: table.assign(position="first"), "no whole number"),
    "a column less": ("tasks", lambda table: table.drop(columns="name"), "column name"),
    "no row": ("servers", lambda table: table.iloc[:0], "the table is empty"),
    "a foreign id": (
        "labels",
        lambda table: table.assign(server_id=table["server_id"].where(table.index != 7, 10**6)),
        r"labels.parquet \(row 7, column server_id\)",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_prepared_table_that_is_wrong_is_named(root, fault):
    part, change, message = WRONG[fault]
    assert dataset.load("synthetic").n_servers == 60
    file = root / "data" / "prepared" / "synthetic" / f"{part}.parquet"
    change(pd.read_parquet(file)).to_parquet(file)
    with pytest.raises(StudyError, match=message) as caught:
        dataset.load("synthetic")
    assert "prepared/synthetic" in str(caught.value)
    assert "study prepare dataset=synthetic" in str(caught.value)
