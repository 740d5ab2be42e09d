"""Entries in the registry's own format, server.json, as of 2025-12-11 and in its earlier spellings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from study.advisor.catalog.records import (
    Package,
    Reader,
    Record,
    RefusedError,
    Remote,
    Variable,
    command_word,
    package,
    remote,
    repository,
    variable,
)

META = "io.modelcontextprotocol.registry/official"
_NAME = re.compile(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+")


def one(item: Mapping[str, Any], *keys: str) -> Any:
    """The first of `keys` that `item` has a value for; later keys are earlier spellings."""
    return next((item[key] for key in keys if item.get(key) is not None), None)


def record(reader: Reader, value: object, about: Mapping[str, Any], *, vouched: bool) -> Record:
    """One server.json as a record.

    `about`: what the registry says of it: status, updatedAt. `vouched`: whether the source checked who owns the
    packages. Raises RefusedError: the entry as a whole is of no use. A package or remote server that is not taken is
    noted in `reader`.
    """
    if not isinstance(value, dict):
        raise RefusedError(f"an entry is no object but {type(value).__name__}")
    key = reader.words(value.get("name"), what="name")
    if not _NAME.fullmatch(key) or ".." in key:
        raise RefusedError("not a name of a server (namespace/name)", key)
    code: Any = value.get("repository") or {}
    address, inside = repository(code.get("url"))
    status = str(one(about, "status") or value.get("status") or "active")

    return Record(
        reader.source,
        key,
        reader.words(value.get("title")) or key.rpartition("/")[2],
        reader.description(value.get("description")),
        address,
        inside or reader.words(code.get("subfolder")).strip("/"),
        reader.words(code.get("id")),
        # Anyone may name any repository; the namespace is what the registry has checked.
        owns=f"io.github.{address.removeprefix('github.com/').partition('/')[0]}" == key.partition("/")[0].lower(),
        version=reader.words(one(value, "version") or (value.get("version_detail") or {}).get("version")),
        status=status if status in ("deprecated", "deleted") else "active",
        updated=reader.words(one(about, "updatedAt", "publishedAt")),
        packages=reader.taken(key, "package", value.get("packages") or [], partial(_package, vouched=vouched)),
        remotes=reader.taken(key, "remote", value.get("remotes") or [], partial(_remote, vouched=vouched)),
    )


def _package(item: Mapping[str, Any], vouched: bool) -> Package:
    registry = one(item, "registryType", "registry_type", "registry_name")
    registry = {"docker": "oci"}.get(str(registry), registry)
    if str((item.get("transport") or {}).get("type", "stdio")) != "stdio":
        raise RefusedError("a package that serves HTTP must be started by hand")
    values = [_variable(entry) for entry in one(item, "environmentVariables", "environment_variables") or []]
    for entry in one(item, "runtimeArguments", "runtime_arguments") or []:
        name, text = entry.get("name"), str(entry.get("value") or "")
        if registry == "oci" and name in ("-e", "--env"):
            name, _, text = text.partition("=")
            values.append(_variable({"name": name, "value": text, "isRequired": True}))
        elif (name or text) not in ("-y", "-i", "--rm", "run"):
            raise RefusedError("asks the runtime for an option", name or text)
    words = [word for entry in one(item, "packageArguments", "package_arguments") or [] for word in _words(entry)]
    parts = {"arguments": tuple(words), "variables": tuple(values), "vouched": vouched}
    return package(registry, one(item, "identifier", "name"), item.get("version"), **parts)


def _words(entry: Mapping[str, Any]) -> list[str]:
    """A package's argument as words of the command; an optional one without a value is left out."""
    name = str(entry.get("name") or "") if entry.get("type") == "named" else ""
    value = one(entry, "value", "default")
    if value is None and not one(entry, "isRequired", "is_required"):
        return [command_word(name)] if name and entry.get("format") == "boolean" and entry.get("default") else []
    if value is None:
        value = f"<{one(entry, 'valueHint', 'value_hint') or name.lstrip('-') or 'value'}>"
    return [command_word(word) for word in (name, re.sub(r"\{(\w+)\}", r"<\1>", str(value))) if word]


def _variable(entry: Mapping[str, Any], *, header: bool = False) -> Variable:
    return variable(
        entry.get("name"),
        header=header,
        required=bool(one(entry, "isRequired", "is_required")),
        secret=bool(one(entry, "isSecret", "is_secret")),
        value=re.sub(r"\{(\w+)\}", r"<\1>", str(one(entry, "value", "default") or "")),
    )


def _remote(item: Mapping[str, Any], vouched: bool) -> Remote:
    headers = tuple(_variable(entry, header=True) for entry in item.get("headers") or [])
    return remote(one(item, "type", "transport_type"), item.get("url"), headers, vouched=vouched)
