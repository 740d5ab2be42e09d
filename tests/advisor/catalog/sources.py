"""Small sources of a catalogue: archives in a mirror folder with their pins in conf, and records made by hand."""

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import yaml

from study.advisor.catalog import store
from study.advisor.catalog.archives import read_archive, tree_id
from study.advisor.catalog.merge import servers
from study.advisor.catalog.records import Package, Record, Refusal, Remote
from study.advisor.catalog.settings import Sources
from study.advisor.catalog.store import Batch

COMMIT = "0" * 40
ORDER = ("docker", "toolhive", "official", "toolsdk", "mine")


def pack(files: dict[str, str | bytes], top: str = "x-0") -> bytes:
    """A tar.gz as a forge makes it, every path below one folder."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            data = content.encode() if isinstance(content, str) else content
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def pin(root: Path, mirror: Path, source: str, files: dict[str, str | bytes]) -> None:
    """Put an archive into the mirror and its tree ids into the settings of `root`."""
    path = root / "conf" / "catalog" / "sources.yaml"
    settings = yaml.safe_load(path.read_text())
    entry, packed = settings["archives"][source], pack(files)
    entries = read_archive(packed, "test", most=10**7)
    entry |= {"commit": COMMIT, "folders": {folder: tree_id(entries, folder) for folder in entry["folders"]}}
    path.write_text(yaml.safe_dump(settings))
    target = mirror / entry["repository"] / f"{COMMIT}.tar.gz"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(packed)


def toolsdk_files(entries: dict[str, Any], valid: tuple[str, ...] = ()) -> dict[str, str | bytes]:
    """The archive of toolsdk: by file name an entry (or raw text), of which `valid` were started."""
    index = {name: {"category": "c", "path": f"c/{name}.json", "validated": name in valid} for name in entries}
    texts = {name: entry if isinstance(entry, str) else json.dumps(entry) for name, entry in entries.items()}
    files: dict[str, str | bytes] = {f"packages/c/{name}.json": text for name, text in texts.items()}
    return files | {"indexes/packages-list.json": json.dumps(index)}


def toolsdk_entry(package: str, url: str = "", **more: Any) -> dict[str, Any]:
    """One entry of toolsdk."""
    plain = {"type": "mcp-server", "packageName": package, "description": "does things", "url": url, "runtime": "node"}
    return plain | {"license": "mit", "env": {}, "name": package} | more


def record(source: str, key: str, repository: str = "", package: str = "", vouched: bool = True, **more: Any) -> Record:
    """A record with at most one npm package."""
    packages = (Package("npm", package, "1.0.0", vouched=vouched),) if package else ()
    return Record(source, key, key, **{"repository": repository, "packages": packages} | more)


@contextmanager
def killed_at(module: Any, name: str) -> Iterator[None]:
    """A process that is killed where it calls a function. It is a BaseException: what is left is what a killed process
    leaves, at most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            yield


def row(*ways: Package | Remote, **more: Any) -> dict[str, Any]:
    """A server of the catalogue that one source describes, with ways to start it."""
    parts = {"packages": Package, "remotes": Remote}
    about: dict[str, Any] = {name: tuple(way for way in ways if isinstance(way, kind)) for name, kind in parts.items()}
    about |= {"description": "does", "repository": "github.com/o/n"} | more
    return servers([Record("toolsdk", "k", "n", **about)], ORDER, {}).iloc[0].to_dict()


def take(records: list[Record], source: str = "toolsdk", complete: bool = True) -> tuple[dict[str, Any], pd.DataFrame]:
    """Make the records a source's in the catalogue; what was counted, and its servers."""
    refused = [Refusal(source, "k", "package", "r")]
    with store.locked():
        counts = store.commit([Batch(source, records, refused, complete, {})], Sources.read())
    return counts, store.read(store.required(), "servers").set_index("id")
