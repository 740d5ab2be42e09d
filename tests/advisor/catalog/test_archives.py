"""Archives: git's own tree ids, and everything hostile refused before it is read as data."""

import gzip
import io
import itertools
import subprocess
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from study.advisor.catalog import archives, records
from study.advisor.catalog.archived import READERS
from study.advisor.catalog.settings import Limits, Sources
from study.base.errors import StudyError
from tests.advisor.catalog.sources import pack

MOST = 10**6
LIMITS = Limits(seconds=9, archive=MOST, file=MOST, answer=MOST, text=99, tools=9)


def git(folder, *words):
    who = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, check=True).stdout


def test_the_tree_id_is_gits(tmp_path):
    data = tmp_path / "data"
    (data / "a" / "b").mkdir(parents=True)
    (data / "a.txt").write_text("x")  # sorts before the folder a, whose name counts as a/
    (data / "a-z").write_bytes(b"\0\xff")
    (data / "a" / "b" / "run.sh").write_text("#!")
    (data / "a" / "b" / "run.sh").chmod(0o755)
    (data / "a" / "link").symlink_to("../a.txt")
    (data / "é").write_text("")
    (tmp_path / "else").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    packed = git(tmp_path, "archive", "--format=tar.gz", "--prefix=top/", "HEAD")
    entries = archives.read_archive(packed, "x", most=MOST)
    assert entries["data/a-z"] == ("100644", b"\0\xff")
    assert archives.tree_id(entries, "data") == git(tmp_path, "rev-parse", "HEAD:data").decode().strip()


def hostile(*members, size=0, pax=None):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, kind in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.pax_headers = kind, "/etc/passwd", pax or {}
            member.size = size
            tar.addfile(member)  # without a content, whatever its head states
    return packed.getvalue()


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "4000000000"}


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (hostile(("top/../../etc/x", tarfile.REGTYPE)), "unsafe name"),
        (hostile(("/etc/x", tarfile.REGTYPE)), "unsafe name"),
        (hostile(("top/./x", tarfile.REGTYPE)), "unsafe name"),
        (hostile(("top/x", tarfile.LNKTYPE)), "not a plain file"),
        (hostile(("top/x", tarfile.CHRTYPE)), "not a plain file"),
        (hostile(("top/x", tarfile.REGTYPE), ("top/x", tarfile.REGTYPE)), "named twice"),
        (hostile(("top/x", tarfile.REGTYPE), ("top/x/y/z", tarfile.REGTYPE)), "named twice"),
        (hostile(("top/x/y/z", tarfile.REGTYPE), ("top/x", tarfile.SYMTYPE)), "named twice"),
        (hostile(("top/\udcff", tarfile.REGTYPE)), "cannot be read"),
        (hostile(("top/x", tarfile.GNUTYPE_SPARSE)), "not a plain file"),
        (hostile(("top/x", tarfile.REGTYPE), pax={"GNU.sparse.size": "4000000000", "GNU.sparse.map": "0,1"}), "plain"),
        (hostile(("top/x", tarfile.REGTYPE), pax={"GNU.sparse.size": "1", "GNU.sparse.map": "a"}), "cannot be read"),
        (hostile(("top/x", tarfile.REGTYPE), pax=SPARSE), "cannot be read"),
        (hostile(("top/x", tarfile.REGTYPE), pax={"size": "4000000000"}), "plain|cannot be read"),
        (hostile(("top/x", tarfile.CONTTYPE)), "not a plain file"),
        (hostile(("top/x", tarfile.REGTYPE), size=4_000_000_000), "plain|cannot be read"),
        (gzip.compress(b"\0" * (MOST + 1)), "more than 1,000,000 bytes"),
        (pack({"a": "b"})[:-20], "cannot be read"),
        (b"no archive", "cannot be read"),
        (gzip.compress(b"no tar" * 200), "cannot be read"),
    ],
    ids=itertools.count(),  # an archive holds the time at which it was packed, so its bytes are no name of a test
)
def test_a_hostile_archive_is_refused(packed, said):
    with pytest.raises(StudyError, match=said):
        archives.read_archive(packed, "x", most=MOST)


def test_a_hostile_archive_takes_no_memory(monkeypatch):
    """What a head states is never reserved: 226 bytes may state 4 GB."""
    packed = hostile(("top/x", tarfile.GNUTYPE_SPARSE), pax={"GNU.sparse.size": "4000000000", "GNU.sparse.map": "0,1"})
    monkeypatch.setattr(tarfile.ExFileObject, "__init__", lambda *_: pytest.fail("its content is read"))
    with pytest.raises(StudyError):
        archives.read_archive(packed, "x", most=MOST)


def test_a_link_is_not_read_as_a_file(tmp_path, monkeypatch):
    packed = hostile(("top/packages/c/x.json", tarfile.SYMTYPE))
    folders = {"packages": archives.tree_id(archives.read_archive(packed, "x", most=MOST), "packages")}
    (tmp_path / "o" / "n").mkdir(parents=True)
    (tmp_path / "o" / "n" / "c.tar.gz").write_bytes(packed)
    monkeypatch.setenv("T2M_MIRROR", str(tmp_path))
    assert archives.archive_files(archives.Archive("o/n", "c", folders), LIMITS) == {}
    with pytest.raises(StudyError, match="expected 0000"):
        archives.archive_files(archives.Archive("o/n", "c", {"packages": "0000"}), LIMITS)
    with pytest.raises(StudyError, match="the file is missing"):
        archives.archive_files(archives.Archive("o/n", "d", folders), LIMITS)


class Forge(BaseHTTPRequestHandler):
    def do_GET(self):
        found = self.path == "/o/n/archive/c.tar.gz"
        body = pack({"packages/c/a.json": "{}", "else/x": "y"}) if found else b""
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_an_archive_is_downloaded_without_a_mirror(monkeypatch):
    monkeypatch.delenv("T2M_MIRROR", raising=False)
    expected = archives.tree_id({"packages/c/a.json": ("100644", b"{}")}, "packages")
    with ThreadingHTTPServer(("127.0.0.1", 0), Forge) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        monkeypatch.setattr(archives, "UPSTREAM", f"http://127.0.0.1:{server.server_port}")
        found = archives.archive_files(archives.Archive("o/n", "c", {"packages": expected}), LIMITS)
        assert found == {"packages/c/a.json": b"{}"}
        for commit, most, said in (("d", MOST, "404"), ("c", 50, "more than 50 bytes")):
            with pytest.raises(StudyError, match=said):
                archives.archive_files(
                    archives.Archive("o/n", commit, {"packages": expected}), replace(LIMITS, archive=most)
                )
        server.shutdown()


@pytest.mark.mirror
@pytest.mark.parametrize(("source", "count"), [("toolsdk", 4908), ("docker", 328), ("toolhive", 67)])
def test_the_pinned_archives_are_what_they_were(source, count):
    settings = Sources.read()
    files = archives.archive_files(settings.archives[source], settings.limits)
    reader = records.Reader(source, settings.limits.text, settings.limits.tools)
    found = READERS[source](files, reader, settings.limits.file)
    assert len(found) == count
    assert [item for item in reader.refused if item.what in ("entry", "tool", "index")] == []
    assert [records.Record.of_json(item.to_json()) for item in found] == found
    if source == "toolsdk":
        started = [item for item in found if any(way.vouched for way in (*item.packages, *item.remotes))]
        assert 700 < len(started) <= 815
        assert sum(len(item.tools) for item in found) == 8010
