"""Archives: git's own tree ids, and everything hostile refused before it is read as data."""

import gzip
import io
import json
import subprocess
import tarfile
from dataclasses import replace

import pytest

from study.advisor.catalog import archives, records
from study.advisor.catalog.archived import READERS
from study.advisor.catalog.archives import Archive
from study.advisor.catalog.settings import Limits, Sources
from study.advisor.catalog.trust import flags
from study.base.errors import StudyError
from tests.advisor.catalog.sources import pack
from tests.advisor.loopback import Quiet, listening

MOST = 10**6
LIMITS = Limits(seconds=9, archive=MOST, file=MOST, answer=MOST, text=99, tools=9)


def git(folder, *words):
    who = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, check=True).stdout


def test_the_tree_id_is_gits(tmp_path):
    data = tmp_path / "data"
    (data / "a" / "b").mkdir(parents=True)
    # a.txt sorts before the folder a, whose name counts as a/
    contents = {"a.txt": b"x", "a-z": b"\0\xff", "a/b/run.sh": b"#!", "\u00e9": b"", "../else": b""}
    for name, content in contents.items():
        (data / name).write_bytes(content)
    (data / "a" / "b" / "run.sh").chmod(0o755)
    (data / "a" / "link").symlink_to("../a.txt")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    packed = git(tmp_path, "archive", "--format=tar.gz", "--prefix=top/", "HEAD")
    entries = archives.read_archive(packed, "x", most=MOST)
    assert entries["data/a-z"] == ("100644", b"\0\xff")
    assert archives.tree_id(entries, "data") == git(tmp_path, "rev-parse", "HEAD:data").decode().strip()


def hostile(*names, kind=tarfile.REGTYPE, size=0, pax=None):
    """An archive of members without a content, whatever their heads state."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.pax_headers, member.size = kind, "/etc/passwd", pax or {}, size
            tar.fileobj.write(member.tobuf(tar.format, tar.encoding, tar.errors))  # `addfile` of 3.13 wants the content
    return packed.getvalue()


HUGE = {"GNU.sparse.size": "4000000000", "GNU.sparse.map": "0,1"}
MAJOR = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "4000000000"}
ARCHIVES = [
    *((hostile(name), "unsafe name") for name in ("top/../../etc/x", "/etc/x", "top/./x")),
    *((hostile("top/x", kind=kind), "plain") for kind in (tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE)),
    (hostile("top/x", kind=tarfile.CONTTYPE), "plain"),
    *((hostile(*names), "named twice") for names in (("top/x", "top/x"), ("top/x", "top/x/y/z"))),
    (hostile("top/x/y/z", "top/x", kind=tarfile.SYMTYPE), "named twice"),
    (hostile("top/\udcff"), "cannot be read"),
    (hostile("top/x", pax=HUGE), "plain"),
    (hostile("top/x", pax={"GNU.sparse.size": "1", "GNU.sparse.map": "a"}), "cannot be read"),
    (hostile("top/x", pax=MAJOR), "cannot be read"),
    (hostile("top/x", pax={"size": "4000000000"}), "plain|cannot be read"),
    (hostile("top/x", size=4_000_000_000), "plain|cannot be read"),
    (gzip.compress(b"\0" * (MOST + 1)), "more than 1,000,000 bytes"),
    (pack({"a": "b"})[:-20], "cannot be read"),
    (b"no archive", "cannot be read"),
    (gzip.compress(b"no tar" * 200), "cannot be read"),
]


@pytest.mark.parametrize(("packed", "said"), ARCHIVES, ids=range(len(ARCHIVES)))
def test_a_hostile_archive_is_refused_and_takes_no_memory(monkeypatch, packed, said):
    """What a head states is never reserved: 226 bytes may state 4 GB."""
    if said != "named twice":
        monkeypatch.setattr(tarfile.ExFileObject, "__init__", lambda *_: pytest.fail("its content is read"))
    with pytest.raises(StudyError, match=said):
        archives.read_archive(packed, "x", most=MOST)


def test_a_link_is_not_read_as_a_file(tmp_path, monkeypatch):
    packed = hostile("top/packages/c/x.json", kind=tarfile.SYMTYPE)
    folders = {"packages": archives.tree_id(archives.read_archive(packed, "x", most=MOST), "packages")}
    (tmp_path / "o" / "n").mkdir(parents=True)
    (tmp_path / "o" / "n" / "c.tar.gz").write_bytes(packed)
    monkeypatch.setenv("T2M_MIRROR", str(tmp_path))
    assert archives.archive_files(Archive("o/n", "c", folders), LIMITS) == {}
    for archive, said in (
        (Archive("o/n", "c", {"packages": "0"}), "expected 0"),
        (Archive("o/n", "d", folders), "missing"),
    ):
        with pytest.raises(StudyError, match=said):
            archives.archive_files(archive, LIMITS)


class Forge(Quiet):
    def do_GET(self):
        if self.path == "/o/n/archive/moved.tar.gz":
            return self.answer(302, b"", Location="c.tar.gz")
        exists = self.path == "/o/n/archive/c.tar.gz"
        return self.answer(*((200, pack({"packages/c/a.json": "{}", "else/x": "y"})) if exists else (404, b"")))


def test_an_archive_is_downloaded_without_a_mirror(monkeypatch):
    monkeypatch.delenv("T2M_MIRROR", raising=False)
    folders = {"packages": archives.tree_id({"packages/c/a.json": ("100644", b"{}")}, "packages")}
    with listening(Forge) as server:
        monkeypatch.setattr(archives, "UPSTREAM", f"http://127.0.0.1:{server.server_port}")
        assert archives.archive_files(Archive("o/n", "c", folders), LIMITS) == {"packages/c/a.json": b"{}"}
        cases = ("d", MOST, "404"), ("c", 50, "more than 50 bytes"), ("moved", MOST, "must use https")
        for commit, most, said in cases:
            with pytest.raises(StudyError, match=said):
                archives.archive_files(Archive("o/n", commit, folders), replace(LIMITS, archive=most))


@pytest.mark.mirror
@pytest.mark.parametrize(
    ("source", "count", "tools", "flagged"),
    [("toolsdk", 4908, 8010, 14), ("docker", 328, 755, 1), ("toolhive", 67, 1141, 0)],
)
def test_the_pinned_archives_are_what_they_were_and_so_many_tools_are_flagged(source, count, tools, flagged):
    settings = Sources.read()
    files = archives.archive_files(settings.archives[source], settings.limits)
    reader = records.Reader(source, settings.limits.text, settings.limits.tools)
    items = READERS[source](files, reader, settings.limits.file)
    assert len(items) == count
    assert [item for item in reader.refused if item.what in ("entry", "tool", "index")] == []
    texts = [
        {"name": "", "description": "", "tools": json.dumps([vars(tool)])} for item in items for tool in item.tools
    ]
    assert (len(texts), sum(bool(flags(text)) for text in texts)) == (tools, flagged)  # docs/advisor.md
    assert [records.Record.of_json(item.to_json()) for item in items] == items
