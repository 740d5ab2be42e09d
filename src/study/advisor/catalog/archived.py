"""The entries of the pinned archives: toolsdk, docker, toolhive. Each reader yields records and notes refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from study.advisor.catalog.records import (
    Package,
    Reader,
    Record,
    RefusedError,
    Variable,
    command_word,
    package,
    remote,
    repository,
    variable,
)

Files = Mapping[str, bytes]
# What a reader of hostile data may meet; a bug elsewhere is not hidden by it.
_BAD = (RefusedError, ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError)


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
    for token in yaml.scan(content, yaml.CSafeLoader):
        if isinstance(token, yaml.AliasToken):
            raise RefusedError("the file uses a YAML alias")
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if depth > _DEPTH:
            raise RefusedError(f"the file is nested more than {_DEPTH} deep")
    return yaml.load(content, yaml.CSafeLoader)


def _each(
    files: Files, pattern: str, reader: Reader, most: int, parse: Callable[[bytes], Any]
) -> Iterator[tuple[str, Any]]:
    """Path and parsed content of the matching files; one that is too large or broken is refused, not the rest."""
    for path in sorted(path for path in files if re.fullmatch(pattern, path)):
        try:
            if len(files[path]) > most:
                raise RefusedError(f"the file has {len(files[path]):,} bytes, at most {most:,}")
            value = parse(files[path])
            if not isinstance(value, dict):
                raise RefusedError(f"the file holds no object but {type(value).__name__}")
            yield path, value
        except _BAD as error:
            reader.refuse(path, "entry", error)


def toolsdk(files: Files, reader: Reader, most: int) -> list[Record]:
    """Records of toolsdk. A package is vouched for if the registry started it (`validated`); its name is then real.

    ``false`` says that it tried in vain: within five seconds no tool was listed, with invented values for variables.
    """
    try:
        listed = json.loads(files["indexes/packages-list.json"])
        index = {str(item["path"]): item for item in listed.values() if isinstance(item, dict) and "path" in item}
    except _BAD as error:
        reader.refuse("indexes/packages-list.json", "index", error)
        index = {}
    records = []
    for path, value in _each(files, r"packages/[^/]+/[^/]+\.json", reader, most, json.loads):
        about = index.get(path.removeprefix("packages/"), {})
        start = {"vouched": about.get("validated") is True, "failed": about.get("validated") is False}
        try:
            licence = reader.words(value.get("license"))
            address, inside = repository(value.get("url"))
            tools = about.get("tools")
            remotes = _toolsdk_remotes(value, reader, path, start)
            records.append(
                Record(
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
                    packages=() if remotes else _toolsdk_package(value, reader, path, start),
                    remotes=remotes,
                )
            )
        except _BAD as error:
            reader.refuse(path, "entry", error)
    return records


def _toolsdk_package(
    value: Mapping[str, Any], reader: Reader, path: str, start: Mapping[str, bool]
) -> tuple[Package, ...]:
    kinds = {"node": "npm", "python": "pypi", "docker": "oci"}
    try:
        # Without a program of their own, the listed arguments are names of options, not a command.
        binary = str(value.get("bin") or "")
        words = tuple(map(str, value.get("binArgs") or ())) if binary else ()
        result = package(
            kinds.get(str(value.get("runtime")), value.get("runtime")),
            value.get("packageName"),
            value.get("packageVersion"),
            binary=binary,
            arguments=words,
            variables=_toolsdk_variables(value),
            **start,
        )
    except _BAD as error:
        reader.refuse(path, "package", error)
        return ()
    return (result,)


def _toolsdk_variables(value: Mapping[str, Any]) -> tuple[Variable, ...]:
    """The variables; their descriptions are not read, and examples in them are no values."""
    return tuple(
        variable(name, required=bool(about.get("required")), secret=bool(about.get("secret")))
        for name, about in (value.get("env") or {}).items()
    )


def _toolsdk_remotes(value: Mapping[str, Any], reader: Reader, path: str, start: Mapping[str, bool]) -> tuple[Any, ...]:
    remotes = []
    for item in value.get("remotes") or []:
        try:
            remotes.append(remote(item.get("type"), item.get("url"), (), **start))
        except _BAD as error:
            reader.refuse(path, "remote", error)
    return tuple(remotes)


def docker(files: Files, reader: Reader, most: int) -> list[Record]:
    """Records of Docker's registry, which reviews every entry; images ``mcp/...`` are built by Docker."""
    records = []
    for path, value in _each(files, r"servers/[^/]+/server\.yaml", reader, most, _yaml):
        try:
            about, meta, source = value.get("about") or {}, value.get("meta") or {}, value.get("source") or {}
            address, inside = repository(source.get("project"))
            folder = path.rpartition("/")[0]
            packages: tuple[Package, ...] = ()
            remotes: tuple[Any, ...] = ()
            try:
                if value.get("remote"):
                    away = value["remote"]
                    remotes = (
                        remote(away.get("transport_type"), away.get("url"), _docker_headers(away), vouched=True),
                    )
                else:
                    packages = (_docker_package(value),)
            except _BAD as error:
                reader.refuse(path, "remote" if value.get("remote") else "package", error)
            records.append(
                Record(
                    reader.source,
                    folder.removeprefix("servers/"),
                    reader.words(about.get("title") or value.get("name")),
                    reader.description(about.get("description")),
                    address,
                    inside or reader.words(source.get("directory") or _parent(source.get("dockerfile"))).strip("/."),
                    category=reader.words(meta.get("category")),
                    tags=tuple(reader.words(tag) for tag in meta.get("tags") or []),
                    tools=_docker_tools(files, folder, reader, most),
                    packages=packages,
                    remotes=remotes,
                )
            )
        except _BAD as error:
            reader.refuse(path, "entry", error)
    return records


def _parent(dockerfile: object) -> str:
    """The folder of a Dockerfile, which is that of the server in a repository of several."""
    return str(dockerfile or "").rpartition("/")[0]


def _docker_tools(files: Files, folder: str, reader: Reader, most: int) -> tuple[Any, ...]:
    path = f"{folder}/tools.json"
    try:
        content = files.get(path, b"[]")
        if len(content) > most:
            raise RefusedError(f"the file has {len(content):,} bytes, at most {most:,}")
        return reader.tool_list(folder, json.loads(content.strip() or b"[]"))
    except _BAD as error:
        reader.refuse(path, "tools", error)
        return ()


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


def _docker_headers(away: Mapping[str, Any]) -> tuple[Variable, ...]:
    pairs = (away.get("headers") or {}).items()
    return tuple(variable(name, header=True, value=re.sub(r"\$\{(\w+)\}", r"<\1>", str(text))) for name, text in pairs)


def toolhive(files: Files, reader: Reader, most: int) -> list[Record]:
    """Records of ToolHive's registry, which reviews every entry. All are images."""
    records = []
    for path, value in _each(files, r"registry/[^/]+/spec\.yaml", reader, most, _yaml):
        try:
            address, inside = repository(value.get("repository_url"))
            about = value.get("metadata") or {}
            status = str(value.get("status") or "").lower()
            packages: tuple[Package, ...] = ()
            try:
                if value.get("transport") != "stdio":
                    raise RefusedError(f"serves {value.get('transport')!r:.30}, so it must be started by hand")
                variables = tuple(
                    variable(
                        item.get("name"),
                        required=bool(item.get("required")),
                        secret=bool(item.get("secret")),
                        value=item.get("default") or "",
                    )
                    for item in value.get("env_vars") or []
                )
                words = tuple(command_word(str(word)) for word in value.get("args") or [])
                packages = (package("oci", value.get("image"), arguments=words, variables=variables, vouched=True),)
            except _BAD as error:
                reader.refuse(path, "package", error)
            records.append(
                Record(
                    reader.source,
                    path.split("/")[1],
                    reader.words(value.get("name") or path.split("/")[1]),
                    reader.description(value.get("description")),
                    address,
                    inside,
                    status="deprecated" if status == "deprecated" else "active",
                    licence=reader.words(value.get("license")),
                    tags=tuple(reader.words(tag) for tag in value.get("tags") or []),
                    official=str(value.get("tier")).lower() == "official",
                    stars=about.get("stars") if isinstance(about.get("stars"), int) else None,
                    updated=reader.words(str(about.get("last_updated") or "")),
                    tools=reader.tool_list(path, value.get("tools")),
                    packages=packages,
                )
            )
        except _BAD as error:
            reader.refuse(path, "entry", error)
    return records


READERS: Mapping[str, Callable[[Files, Reader, int], list[Record]]] = {
    "toolsdk": toolsdk,
    "docker": docker,
    "toolhive": toolhive,
}
