"""Reading text and tables: what other programs and editors leave in them, and what is refused."""

import lzma

import pandas as pd
import pytest

from study.base.errors import StudyError
from study.base.files import read_csv, read_text, write_csv

TEXT = "tâche,serveur\r\n1,2\r\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_byte_order_mark_is_no_text(tmp_path, encoding):
    (path := tmp_path / "x.csv").write_bytes(TEXT.encode(encoding))
    assert read_text(path, fix="x") == TEXT
    assert read_csv(path, fix="x", columns=["tâche"])["tâche"].tolist() == [1]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "latin-1", "cp1252"])
def test_another_encoding_is_named_with_its_place(tmp_path, encoding):
    (path := tmp_path / "x.csv").write_bytes(b"fine\n" + TEXT.encode(encoding))
    with pytest.raises(StudyError, match=r"not UTF-8 text \(line 2, byte \d+") as caught:
        read_text(path, fix="ask again")
    assert caught.value.fix == "save it as UTF-8, or ask again"
    with pytest.raises(StudyError, match="not a readable table"):
        read_csv(path, fix="x")


@pytest.mark.parametrize("name", ["x.csv", "x.csv.xz"])
def test_a_cell_may_hold_the_mark_of_a_comment(tmp_path, name):
    table = pd.DataFrame({"language": ["C#", "#1", "F# 8"], "count": [1, 2, 3]})
    write_csv(tmp_path / name, table)
    pd.testing.assert_frame_equal(read_csv(tmp_path / name, fix="x"), table)


def test_what_is_no_table_is_refused(tmp_path):
    faults = {
        "the table is missing": None,
        "not a readable table": b"",
        "a column stands twice": b"a,a\n1,2\n",
        "a column is missing": b"b\n1\n",
    }
    for reason, content in faults.items():
        if content is not None:
            (tmp_path / "x.csv").write_bytes(content)
        with pytest.raises(StudyError, match=reason):
            read_csv(tmp_path / "x.csv", fix="x", columns=["a"])
    (tmp_path / "x.csv.xz").write_bytes(lzma.compress(b"a\n1\n")[:-9])
    with pytest.raises(StudyError, match="not a readable table"):
        read_csv(tmp_path / "x.csv.xz", fix="x")
