"""Small sources of a catalogue: archives in a mirror folder with their pins in conf, and records made by hand."""

import io
import json
import tarfile
from pathlib import Path

import yaml

from study.advisor.catalog.archives import read_archive, tree_id
from study.advisor.catalog.records import Package, Record

COMMIT = "0" * 40


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
    entry["commit"] = COMMIT
    entry["folders"] = {folder: tree_id(entries, folder) for folder in entry["folders"]}
    path.write_text(yaml.safe_dump(settings))
    target = mirror / entry["repository"] / f"{COMMIT}.tar.gz"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(packed)


def toolsdk_files(entries: dict[str, object], valid: tuple[str, ...] = ()) -> dict[str, str | bytes]:
    """The archive of toolsdk: by file name an entry (or raw text), of which `valid` were started."""
    index = {name: {"category": "c", "path": f"c/{name}.json", "validated": name in valid} for name in entries}
    files = {
        f"packages/c/{name}.json": text if isinstance(text, str) else json.dumps(text) for name, text in entries.items()
    }
    return files | {"indexes/packages-list.json": json.dumps(index)}


def toolsdk_entry(package: str, url: str = "", **more: object) -> dict[str, object]:
    """One entry of toolsdk."""
    plain = {"type": "mcp-server", "packageName": package, "description": "does things", "url": url, "runtime": "node"}
    return plain | {"license": "mit", "env": {}, "name": package} | more


def record(
    source: str, key: str, repository: str = "", package: str = "", vouched: bool = True, **more: object
) -> Record:
    """A record with at most one npm package."""
    packages = (Package("npm", package, "1.0.0", vouched=vouched),) if package else ()
    return Record(source, key, key, repository=repository, packages=packages, **more)  # type: ignore[arg-type]
