"""Fetching: only verified bytes take their place, from a server or a mirror, and every failure says what to do."""

import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from study.base.errors import StudyError
from study.data import sources
from tests.tiny_study import contents

CONTENT = {"data/a.json": b"[1]\n", "data/deep/b c.csv": b"x,y\n", "other/c.txt": "é\n".encode()}
ADDRESS = "owner/repo/0123abc"


class Quiet(SimpleHTTPRequestHandler):
    requests: list[str] = []  # noqa: RUF012

    def do_GET(self):
        self.requests.append(self.path)
        super().do_GET()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def upstream(tmp_path):
    folder = tmp_path / "upstream"
    for path, content in CONTENT.items():
        file = folder / ADDRESS / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder


@pytest.fixture
def server(upstream, monkeypatch):
    monkeypatch.delenv("T2M_MIRROR", raising=False)
    monkeypatch.setattr(sources, "RETRIES", 0)
    Quiet.requests.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(upstream))) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def config(**changed):
    checksums = {path: hashlib.sha256(content).hexdigest() for path, content in CONTENT.items()} | changed
    return {"source": [{"repository": "owner/repo", "commit": "0123abc", "strip": "data", "files": checksums}]}


def test_download_places_every_file_and_only_damaged_ones_are_fetched_again(server, tmp_path):
    folder = sources.fetch("x", config(), base_url=server, folder=tmp_path / "raw")
    assert contents(folder) == {"a.json": b"[1]\n", "deep/b c.csv": b"x,y\n", "other/c.txt": "é\n".encode()}
    Quiet.requests.clear()
    (folder / "a.json").write_bytes(b"[2]\n")
    sources.fetch("x", config(), base_url=server, folder=folder)
    assert Quiet.requests == [f"/{ADDRESS}/data/a.json"]
    assert (folder / "a.json").read_bytes() == b"[1]\n"


@pytest.mark.parametrize("by_mirror", [True, False])
def test_wrong_checksum_leaves_the_earlier_file(by_mirror, server, upstream, tmp_path, monkeypatch):
    if by_mirror:
        monkeypatch.setenv("T2M_MIRROR", str(upstream))
    folder = sources.fetch("x", config(), base_url=server, folder=tmp_path / "raw")
    before = contents(folder)
    expected, got = "0" * 64, hashlib.sha256(CONTENT["data/a.json"]).hexdigest()
    with pytest.raises(StudyError, match=f"{expected}.*{got}|{got}.*{expected}") as error:
        sources.fetch("x", config(**{"data/a.json": expected}), base_url=server, folder=folder)
    assert str(error.value.file).endswith(f"{ADDRESS}/data/a.json")
    assert error.value.fix
    assert contents(folder) == before


def test_mirror_needs_no_network_and_names_what_it_lacks(upstream, tmp_path, monkeypatch):
    monkeypatch.setenv("T2M_MIRROR", str(tmp_path / "nowhere"))
    with pytest.raises(StudyError, match=r"nowhere.*\n.*T2M_MIRROR"):
        sources.fetch("x", config(), folder=tmp_path / "raw")
    monkeypatch.setenv("T2M_MIRROR", str(upstream))
    folder = sources.fetch("x", config(), base_url="http://127.0.0.1:9", folder=tmp_path / "by_mirror")
    assert len(contents(folder)) == 3
    (upstream / ADDRESS / "other/c.txt").unlink()
    with pytest.raises(StudyError, match=r"c\.txt: the mirror lacks a file"):
        sources.fetch("x", config(), folder=tmp_path / "raw")


def test_no_network_and_missing_upstream_file(server, upstream, tmp_path):
    (upstream / ADDRESS / "data/a.json").unlink()
    with pytest.raises(StudyError, match=r"could not download \(HTTPError.*404"):
        sources.fetch("x", config(), base_url=server, folder=tmp_path / "raw")
    with pytest.raises(StudyError, match="could not download") as error:
        sources.fetch("x", config(), base_url="http://127.0.0.1:9", folder=tmp_path / "raw")
    assert "T2M_MIRROR" in str(error.value.fix)
    assert not contents(tmp_path / "raw")


def test_checksum_list_file(upstream, new_root, tmp_path, monkeypatch):
    monkeypatch.setenv("T2M_MIRROR", str(upstream))
    lines = [f"{hashlib.sha256(content).hexdigest()}  {path}" for path, content in CONTENT.items()]
    (tmp_path / "conf/dataset").mkdir(parents=True)
    (tmp_path / "conf/dataset/x.sha256").write_text("\n".join(lines) + "\n", encoding="utf-8")
    entry = {"repository": "owner/repo", "commit": "0123abc", "checksums": "dataset/x.sha256"}
    assert len(contents(sources.fetch("x", {"source": [entry]}))) == 3
    assert (tmp_path / "data/raw/x/data/a.json").exists()
    (tmp_path / "conf/dataset/x.sha256").write_text("abc\n", encoding="utf-8")
    with pytest.raises(StudyError, match="sha256sum"):
        sources.fetch("x", {"source": [entry]})


def test_a_source_without_its_parts_is_refused(tmp_path):
    with pytest.raises(StudyError, match="has no source"):
        sources.fetch("x", {"source": []}, folder=tmp_path)
    with pytest.raises(StudyError, match=r"column source.commit.*lacks a key"):
        sources.fetch("x", {"source": [{"repository": "o/r", "files": {"a": "0"}}]}, folder=tmp_path)
