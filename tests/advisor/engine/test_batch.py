"""Files of requests, answered as one at a time, by workers of Ray; a stopped call goes on."""

from importlib.metadata import version
from importlib.util import find_spec

import pandas as pd
import pytest

from study.advisor.engine import batch
from study.advisor.saved.saved import load_saved_model
from study.config.compose import load
from study.search.export import export
from tests.advisor.engine.conftest import exported
from tests.tiny_study import TINY

TEXTS = ["read a PDF and extract tables", "", "send an e-mail", "query a database in Go", "PDF database " * 40]
REQUESTS = pd.DataFrame({"text": TEXTS, "language": ["Python", None, "", "Go", "Go"]})


def one_by_one(model, requests, k):
    rows = requests.fillna("").to_dict("records")
    return [
        [one.server_id for one in model.recommend(row["text"] or " ", language=row["language"], k=k)] for row in rows
    ]


@pytest.fixture(scope="module")
def t2mrec(prepared_root, tmp_path_factory):
    """The tiny study with a saved T2MRec and a saved `field_dense`, in force for the tests of a file."""
    with exported(prepared_root, tmp_path_factory.mktemp("batch") / "study", "system=t2mrec") as copy:
        export(load([*TINY, "system=field_dense"]))
        yield copy


def test_many_at_once_are_answered_as_one_at_a_time(t2mrec):
    model, other = (load_saved_model("synthetic", system) for system in ("t2mrec", "field_dense"))
    valid = REQUESTS[REQUESTS["text"] != ""]  # alone, an empty request is refused
    for k in (3, 30):
        assert list(batch.best(model, valid, k)) == one_by_one(model, valid, k)
        assert [len(servers) for servers in batch.best(model, REQUESTS, k)] == [k] * len(REQUESTS)
    assert list(batch.best(other, valid[["text"]], 3)) == one_by_one(other, valid.assign(language=""), 3)


# Ray leaves its own logs open, and processes to the system.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("workers", [1, 2])
def test_files_are_answered_and_those_that_are_there_stay(t2mrec, call, tmp_path, workers):
    if workers > 1:
        if find_spec("ray") is None:
            pytest.skip("ray is not installed")
        # Ray is not imported for this: it would take the captured output with it.
        if tuple(map(int, version("ray").split(".")[:2])) < (2, 60):
            pytest.skip("this Ray has no Ray Data for today's pyarrow: make setup RAY=1")
    folder, output = tmp_path / "requests", tmp_path / "answers"
    folder.mkdir()
    output.mkdir()
    valid = REQUESTS[REQUESTS["text"] != ""]
    parts = [valid[:2], valid[2:3], valid[3:]]
    for number, part in enumerate(parts):
        part.to_parquet(folder / f"{number}.parquet")
    (output / "1.parquet").write_bytes(b"kept")
    words = ["recommend", str(folder), "--batch", str(output), "--workers", str(workers), "-k", "4"]
    code, out, err = call(*words, "--dataset", "synthetic", "--system", "t2mrec")
    assert code == 0, err
    assert "3 requests answered" in out  # two in the first file, one in each other
    assert (output / "1.parquet").read_bytes() == b"kept"
    model = load_saved_model("synthetic", "t2mrec")
    for number in (0, 2):
        answers = pd.read_parquet(output / f"{number}.parquet")
        assert answers["servers"].map(list).tolist() == one_by_one(model, parts[number], 4)


def test_what_cannot_be_answered_is_refused_before_a_worker_starts(t2mrec, call, tmp_path):
    words = ["recommend", str(tmp_path), "--batch", str(tmp_path / "out"), "--dataset", "synthetic"]
    code, _, err = call(*words, "--system", "t2mrec")
    assert (code, "no parquet files" in err) == (2, True)
    code, _, err = call(*words, "--language", "Go", "--check")
    assert (code, "--language and no --check" in err) == (2, True)
    pd.DataFrame({"text": ["x"]}).to_parquet(tmp_path / "one.parquet")
    code, _, err = call(*words, "--system", "field_dense_core")
    assert (code, "study export" in err) == (2, True)
    pd.DataFrame({"text": ["x", None]}).to_parquet(tmp_path / "one.parquet")
    code, _, err = call(*words, "--system", "t2mrec")
    assert (code, "one.parquet" in err, "2" in err, list((tmp_path / "out").glob("*"))) == (2, True, True, [])
