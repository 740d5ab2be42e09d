"""The entries of the pinned archives: toolsdk, docker, toolhive. Each reader yields records and notes refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from study.advisor.catalog.records import (
    BAD,
    Package,
    Reader,
    Record,
    RefusedError,
    Remote,
    Tool,
    Variable,
    command_word,
    package,
    remote,
    repository,
    variable,
)

Files = Mapping[str, bytes]
_DEPTH = 100
_OPENING = (
    *(yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken),
    *(yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken),
)
_CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)


def _yaml(content: bytes) -> Any:
    """The content of a file without aliases, which could stand for billions of values, nested at most `_DEPTH` deep.

    Read with libyaml, in a tenth of the time; its Python binding dies of deeper nesting.
    """
    depth = 0
    try:
        for token in yaml.scan(content, yaml.CSafeLoader):
            if isinstance(token, yaml.AliasToken):
                raise RefusedError("the file uses a YAML alias")
            depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
            if depth > _DEPTH:
                raise RefusedError(f"the file is nested more than {_DEPTH} deep")
        return yaml.load(content, yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _bounded(content: bytes, most: int) -> bytes:
    if len(content) > most:
        raise RefusedError(f"the file has {len(content):,} bytes, at most {most:,}")
    return content


def _records(
    files: Files,
    pattern: str,
    reader: Reader,
    most: int,
    parse: Callable[[bytes], Any],
    make: Callable[[str, dict[str, Any]], Record],
) -> list[Record]:
    """A record from path and content of each matching file; one too large or broken is refused, not the rest."""

    def record(path: str) -> Record:
        value = parse(_bounded(files[path], most))
        if not isinstance(value, dict):
            raise RefusedError(f"the file holds no object but {type(value).__name__}")
        return make(path, value)

    paths = sorted(path for path in files if re.fullmatch(pattern, path))
    return [each for path in paths for each in reader.taken(path, "entry", [path], record)]


def toolsdk(files: Files, reader: Reader, most: int) -> list[Record]:
    """Records of toolsdk. A package is vouched for if the registry started it (`validated`); its name is then real.

    ``false`` says that it tried in vain: within five seconds no tool was listed, with invented values for variables.
    """
    try:
        listed = json.loads(files["indexes/packages-list.json"])
        index = {str(item["path"]): item for item in listed.values() if isinstance(item, dict) and "path" in item}
    except BAD as error:
        reader.refuse("indexes/packages-list.json", "index", error)
        index = {}

    def record(path: str, value: dict[str, Any]) -> Record:
        about = index.get(path.removeprefix("packages/"), {})
        start = {"vouched": about.get("validated") is True, "failed": about.get("validated") is False}
        licence, tools = reader.words(value.get("license")), about.get("tools")
        address, inside = repository(value.get("url"))
        away = value.get("remotes") or []
        remotes = reader.taken(
            path, "remote", away, lambda item: remote(item.get("type"), item.get("url"), (), **start)
        )
        return Record(
            reader.source,
            path.removeprefix("packages/"),
            reader.words(value.get("name") or value.get("packageName")),
            reader.description(value.get("description")),
            address,
            inside,
            licence="" if licence.lower() in ("unknown", "other") else licence,
            category=path.split("/")[1],
            tools=reader.tool_list(path, list(tools.values()) if isinstance(tools, dict) else []),
            # For an entry with remote servers the name of the package is made up.
            packages=() if remotes else reader.taken(path, "package", [value], lambda item: _toolsdk(item, start)),
            remotes=remotes,
        )

    return _records(files, r"packages/[^/]+/[^/]+\.json", reader, most, json.loads, record)


def _toolsdk(value: Mapping[str, Any], start: Mapping[str, bool]) -> Package:
    runtime = value.get("runtime")
    registry = {"node": "npm", "python": "pypi", "docker": "oci"}.get(str(runtime), runtime)
    # Without a program of their own, the listed arguments are names of options, not a command.
    binary = str(value.get("bin") or "")
    # Descriptions of variables are not read, and examples in them are no values.
    variables = tuple(
        variable(name, required=bool(about.get("required")), secret=bool(about.get("secret")))
        for name, about in (value.get("env") or {}).items()
    )
    arguments = tuple(map(str, value.get("binArgs") or ())) if binary else ()
    parts: dict[str, Any] = {"binary": binary, "arguments": arguments, "variables": variables, **start}
    return package(registry, value.get("packageName"), value.get("packageVersion"), **parts)


def docker(files: Files, reader: Reader, most: int) -> list[Record]:
    """Records of Docker's registry, which reviews every entry; images ``mcp/...`` are built by Docker."""

    def tools(path: str) -> tuple[Tool, ...]:
        content = _bounded(files.get(path, b"[]"), most)
        return reader.tool_list(path.rpartition("/")[0], json.loads(content.strip() or b"[]"))

    def record(path: str, value: dict[str, Any]) -> Record:
        about, meta, source = value.get("about") or {}, value.get("meta") or {}, value.get("source") or {}
        address, inside = repository(source.get("project"))
        folder, away = path.rpartition("/")[0], value.get("remote")
        # The folder of its Dockerfile is that of the server in a repository of several.
        subfolder = source.get("directory") or str(source.get("dockerfile") or "").rpartition("/")[0]
        packages = () if away else reader.taken(path, "package", [value], _docker_package)
        remotes = reader.taken(path, "remote", [away], _docker_remote) if away else ()
        return Record(
            reader.source,
            folder.removeprefix("servers/"),
            reader.words(about.get("title") or value.get("name")),
            reader.description(about.get("description")),
            address,
            inside or reader.words(subfolder).strip("/."),
            category=reader.words(meta.get("category")),
            tags=tuple(reader.words(tag) for tag in meta.get("tags") or []),
            tools=next(iter(reader.taken(f"{folder}/tools.json", "tools", [f"{folder}/tools.json"], tools)), ()),
            packages=packages,
            remotes=remotes,
        )

    return _records(files, r"servers/[^/]+/server\.yaml", reader, most, _yaml, record)


def _docker_package(value: Mapping[str, Any]) -> Package:
    run, config = value.get("run") or {}, value.get("config") or {}
    if run.get("volumes"):
        raise RefusedError("mounts folders of this machine (run.volumes)")
    words = [_filled(str(word)) for word in run.get("command") or []]
    secrets = [
        variable(item.get("env"), required=item.get("required", True), secret=True)
        for item in config.get("secrets") or []
    ]
    others = [variable(item.get("name"), value=_filled(str(item.get("value", "")))) for item in config.get("env") or []]
    # Two entries may set one variable; a secret is what is not to be written.
    merged = {item.name: item for item in [*others, *secrets]}
    return package("oci", value.get("image"), arguments=tuple(words), variables=tuple(merged.values()), vouched=True)


def _filled(word: str) -> str:
    """A word in which ``{{server.name}}`` is a value to fill in; templates that compute are refused later."""
    return re.sub(r"\{\{\s*(?:[\w-]+\.)?([\w-]+)\s*\}\}", r"<\1>", word)


def _docker_remote(away: Mapping[str, Any]) -> Remote:
    pairs = (away.get("headers") or {}).items()
    headers = [variable(name, header=True, value=re.sub(r"\$\{(\w+)\}", r"<\1>", str(text))) for name, text in pairs]
    return remote(away.get("transport_type"), away.get("url"), tuple(headers), vouched=True)


def toolhive(files: Files, reader: Reader, most: int) -> list[Record]:
    """Records of ToolHive's registry, which reviews every entry. All are images."""

    def record(path: str, value: dict[str, Any]) -> Record:
        address, inside = repository(value.get("repository_url"))
        about, name = value.get("metadata") or {}, path.split("/")[1]
        packages = reader.taken(path, "package", [value], _toolhive_package)
        return Record(
            reader.source,
            name,
            reader.words(value.get("name") or name),
            reader.description(value.get("description")),
            address,
            inside,
            status="deprecated" if str(value.get("status")).lower() == "deprecated" else "active",
            licence=reader.words(value.get("license")),
            tags=tuple(reader.words(tag) for tag in value.get("tags") or []),
            official=str(value.get("tier")).lower() == "official",
            stars=about.get("stars") if isinstance(about.get("stars"), int) else None,
            updated=reader.words(str(about.get("last_updated") or "")),
            tools=reader.tool_list(path, value.get("tools")),
            packages=packages,
        )

    return _records(files, r"registry/[^/]+/spec\.yaml", reader, most, _yaml, record)


def _toolhive_package(value: Mapping[str, Any]) -> Package:
    if value.get("transport") != "stdio":
        raise RefusedError(f"serves {value.get('transport')!r:.30}, so it must be started by hand")

    def one(item: Mapping[str, Any]) -> Variable:
        marks = {name: bool(item.get(name)) for name in ("required", "secret")}
        return variable(item.get("name"), value=item.get("default") or "", **marks)

    variables = tuple(map(one, value.get("env_vars") or []))
    words = tuple(command_word(str(word)) for word in value.get("args") or [])
    return package("oci", value.get("image"), arguments=words, variables=variables, vouched=True)


READERS = {"toolsdk": toolsdk, "docker": docker, "toolhive": toolhive}
