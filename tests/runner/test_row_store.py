"""The long files of rows: same bytes for the same rows, old or new after a kill at any moment, one process a row."""

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.base import paths
from study.base.errors import StudyError
from study.runner import row_store, rows
from study.runner.row_store import Row, list_rows, lock_row, long_files, read_per_task, read_row, remove_row, write_rows
from study.runner.rows import run_row
from tests.pipeline.conftest import config
from tests.rows import BARE
from tests.tiny_study import contents

SYSTEMS = {"field_dense": "useful", "tfidf": "simple", "lightgcn": "paper", "no_such_system": "own"}


def row(system: str, value: float, tasks: int = 3, protocol: str = "cold") -> Row:
    values = pd.DataFrame({"task_id": range(tasks), "seed": 1, "ndcg@10": value, "hit_rate@10": 1.0})
    top = pd.DataFrame({"task_id": range(tasks), "seed": 1, "rank": 1, "server_id": range(7, 7 + tasks)})
    return Row(values, top, BARE | {"dataset": "toy", "protocol": protocol, "system": system, "value": value})


def put(values: dict[str, float]) -> None:
    for system, value in values.items():
        write_rows("toy", {("cold", system): row(system, value)})


def test_a_row_lies_with_those_of_its_folder_and_comes_back_as_it_was(conf_root: Path) -> None:
    put(dict.fromkeys(SYSTEMS, 1 / 3))
    assert list_rows("toy") == [("cold", name) for name in sorted(SYSTEMS)]
    for kind in row_store.KINDS:
        assert {path.parents[1].name for path in long_files("toy", kind)} == set(SYSTEMS.values())
    values, top, record = read_row("toy", "cold", "field_dense")
    pd.testing.assert_frame_equal(values, row("field_dense", 0.333333).per_task)  # six digits, as every table
    pd.testing.assert_frame_equal(top.astype("int64"), row("field_dense", 1).top10)
    assert record == row("field_dense", 1 / 3).record
    assert list(read_per_task("toy", "cold", ("tfidf", "absent", "field_dense"))) == ["tfidf", "field_dense"]
    with pytest.raises(StudyError, match="no row of ease under cold") as caught:
        read_row("toy", "cold", "ease")
    assert caught.value.fix == "run: study run system=ease protocol=cold dataset=toy"


@settings(max_examples=3)
@given(order=st.permutations(["tfidf", "popularity", "random"]), seed=st.integers(0, 9))
def test_bytes_depend_on_the_rows_alone(tmp_path_factory: pytest.TempPathFactory, order: list[str], seed: int) -> None:
    """Whatever the order of the systems and of the lines of their tables, and however often they were written."""
    written = []
    for systems in (sorted(order), [*order, order[0]]):
        root = tmp_path_factory.mktemp("rows")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paths, "results", lambda dataset, root=root: root / "results" / dataset)
            patch.setattr(paths, "cache", lambda root=root: root / ".cache")
            for system in systems:
                values, top, record = row(system, 0.25, tasks=9)
                mixed = (table.sample(frac=1, random_state=seed) for table in (values, top))
                write_rows("toy", {("cold", system): Row(*mixed, record)})
        written.append(contents(root / "results"))
    assert written[0] == written[1]
    assert len(written[0]) == 3


def test_a_removed_row_leaves_the_others_and_one_whose_yaml_has_moved_moves_when_it_is_made_again(conf_root) -> None:
    put({"tfidf": 0.5})
    before = contents(conf_root / "results/toy")
    put({"popularity": 0.25})
    remove_row("toy", "cold", "popularity")
    assert contents(conf_root / "results/toy") == before
    yaml = conf_root / "conf" / "system" / "simple" / "tfidf.yaml"
    yaml.rename(yaml.parents[1] / "useful" / yaml.name)
    assert read_row("toy", "cold", "tfidf").record["value"] == 0.5
    put({"tfidf": 0.75})
    assert read_row("toy", "cold", "tfidf").record["value"] == 0.75
    assert {Path(name).parts[1] for name in contents(conf_root / "results/toy")} == {"useful"}
    remove_row("toy", "cold", "tfidf")
    assert (contents(conf_root / "results/toy"), list_rows("toy")) == ({}, [])


@pytest.mark.parametrize("kind", row_store.KINDS)
def test_a_row_counts_with_all_its_parts_only_where_hits_alone_may_be_none(conf_root: Path, kind: str) -> None:
    put({"tfidf": 0.5, "field_dense": 0.5})
    (path,) = (path for path in long_files("toy", kind) if path.parents[1].name == "simple")
    path.unlink()
    values, top, record = row("tfidf", 0.0, protocol="warm")
    write_rows("toy", {("warm", "tfidf"): Row(values.assign(**{"hit_rate@10": 0.0}), top.iloc[:0], record)})
    assert list_rows("toy") == [("cold", "field_dense"), ("warm", "tfidf")]
    assert row_store.find_record("toy", "cold", "tfidf") is None
    assert read_row("toy", "warm", "tfidf").top10.empty


@pytest.mark.parametrize(("protocol", "kind"), [("cold", "per_task"), ("cold", "top10"), ("warm", "top10")])
def test_a_row_that_a_long_file_has_lost_does_not_count_and_the_others_do(conf_root: Path, protocol, kind) -> None:
    write_rows("toy", {(protocol, name): row(name, 0.5, protocol=protocol) for name in ("bm25", "tfidf")})
    (path,) = long_files("toy", kind)
    table = pd.read_parquet(path)
    table[table["system"] == "bm25"].to_parquet(path)
    assert list_rows("toy") == [(protocol, "bm25")]
    with pytest.raises(StudyError, match=f"no row of tfidf under {protocol}"):
        read_row("toy", protocol, "tfidf")


class Killed(BaseException):
    """What a kill is to a process: nothing catches it."""


@contextlib.contextmanager
def killed_before(moment: int):
    """The step on the disk with this number, and all later ones, end the process. Yields: the steps done."""
    steps: list[str] = []

    def counted(name: str):
        work = getattr(Path, name)

        def step(self: Path, *args, **kwargs):
            if len(steps) == moment:
                raise Killed
            steps.append(name)
            return work(self, *args, **kwargs)

        return step

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        for name in ("mkdir", "rename", "replace", "chmod", "unlink"):
            patch.setattr(Path, name, counted(name))
        yield steps


@pytest.mark.slow
def test_a_kill_at_any_moment_of_writing_leaves_the_old_row_or_the_new_one(conf_root: Path) -> None:
    """Before every step on the disk of one write, each from a fresh start."""
    put({"tfidf": 0.25, "popularity": 0.5})
    for name in ("results", ".cache"):
        shutil.copytree(conf_root / name, conf_root / "before" / name)
    moment, steps, seen = 0, [], set()
    while moment == 0 or len(steps) == moment - 1:
        for name in ("results", ".cache"):
            shutil.rmtree(conf_root / name)
            shutil.copytree(conf_root / "before" / name, conf_root / name)
        with killed_before(moment) as steps:
            put({"tfidf": 0.75})
        assert list_rows("toy") == [("cold", "popularity"), ("cold", "tfidf")]
        values, top, record = read_row("toy", "cold", "tfidf")
        seen.add(record["value"])
        assert (set(values["ndcg@10"]), len(top)) == ({record["value"]}, 3)
        assert read_row("toy", "cold", "popularity").record["value"] == 0.5
        put({"tfidf": 0.75})  # the same command goes on
        assert read_row("toy", "cold", "tfidf").record["value"] == 0.75
        moment += 1
    assert seen == {0.25, 0.75}
    assert moment > 15


def test_seeds_that_were_being_removed_when_it_stopped_are_not_taken_for_finished(root: Path, monkeypatch) -> None:
    """A kill while the finished folder is removed: some of its files are gone, the list of finished seeds is not."""
    remove = shutil.rmtree

    def killed(folder, *args, **kwargs):
        if list(Path(folder).rglob("facts-1.json")):
            for path in Path(folder).rglob("per_task-*"):
                path.unlink()
            raise Killed
        remove(folder, *args, **kwargs)

    wanted = config("system=popularity", "system.name=stopped")
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(Killed):
        run_row(wanted)
    monkeypatch.setattr(shutil, "rmtree", remove)
    first = read_row("synthetic", "cold", "stopped").per_task
    run_row(wanted)
    pd.testing.assert_frame_equal(read_row("synthetic", "cold", "stopped").per_task, first)
    assert not list((paths.cache() / "runs").rglob("*.json"))


HOLD = "import time; from study.runner.row_store import lock_row\n"
HOLD += "with lock_row('toy', 'cold', 'tfidf'): print(flush=True), time.sleep(60)"


@pytest.mark.slow
def test_a_lock_is_waited_for_and_ends_with_its_process(conf_root: Path, caplog) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with lock_row("toy", "cold", "bm25") as waited:  # another row's
            assert not waited
        killer = subprocess.Popen(["sh", "-c", f"sleep 1; kill -9 {holder.pid}"])
        with lock_row("toy", "cold", "tfidf") as waited:
            assert waited
        killer.wait()
    assert "tfidf under cold is being made by another process" in caplog.text


def test_who_waited_for_a_row_does_not_make_it_again(shared_root: Path, monkeypatch) -> None:
    monkeypatch.setattr(rows, "_make", lambda *_: pytest.fail("the row was made again"))
    monkeypatch.setattr(rows, "lock_row", lambda *_: contextlib.nullcontext(True))
    assert set(run_row(config("system=popularity")).per_task["seed"]) == {1}


def test_a_damaged_file_stops_a_write_and_the_finished_row_waits_for_its_mend(conf_root: Path) -> None:
    put({"tfidf": 0.5})
    (path,) = long_files("toy", "per_task")
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(StudyError, match="not readable as Parquet") as caught:
        put({"popularity": 0.75})
    assert caught.value.file == path
    path.write_bytes(whole)
    assert list_rows("toy") == [("cold", "popularity"), ("cold", "tfidf")]
    np.testing.assert_array_equal(read_row("toy", "cold", "popularity").per_task["ndcg@10"], 0.75)
