"""Reading a yaml file of ``conf/`` strictly: UTF-8, no key twice, no alias, and the keys and types of a dataclass."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from study.base.errors import StudyError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

KEYS = {"missing": "missing key", "unexpected_keyword_argument": "unknown key"}
Kind = TypeVar("Kind", bound="DataclassInstance")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's safe loader, which refuses a key that is written twice and reads ``1e-3`` as a number."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"the key {twice.pop()!r} is written twice, line {node.start_mark.line + 1}")
        return dict(super().construct_mapping(node, deep))


_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)|[-+]?(\d+\.\d*|\.\d+)|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"^(?:{_FLOAT.pattern})$"), list("-+0123456789."))


def parse_yaml(text: str) -> Any:
    """YAML as plain values. Raises ValueError, yaml.YAMLError, RecursionError: it is not YAML, has a key twice, or an
    alias, by which a few lines stand for billions."""
    if "*" in text and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
        raise ValueError("it holds an alias, *NAME: write the part out again")
    return yaml.load(text, _Loader)  # noqa: S506 - a safe loader


def read_yaml(path: Path, *, fix: str = "correct the file") -> dict[str, Any]:
    """The mapping that a yaml file holds; nobody changes it. Raises StudyError: no file, one that is not UTF-8 or not
    YAML, or no mapping."""
    try:
        return _mapping(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise StudyError(f"cannot be read ({error})", file=path, fix=fix) from error


@lru_cache(maxsize=1024)
def _mapping(text: str) -> dict[str, Any]:
    value = parse_yaml(text)
    if not isinstance(value, dict):
        raise ValueError(f"{type(value).__name__} instead of a mapping")
    return value


def read_keys(path: Path, keys: Collection[str], *, fix: str = "correct the file") -> dict[str, Any]:
    """The values of a yaml file, which must have exactly `keys` at its top. Raises StudyError: as `read_yaml`, or other
    keys; names the file and the keys."""
    value = read_yaml(path, fix=fix)
    wrong = [f"unknown key {key!r}" for key in value if key not in keys]
    wrong += [f"missing key {key!r}" for key in keys if key not in value]
    if wrong:
        raise StudyError(", ".join(wrong), file=path, fix=f"its keys are: {', '.join(keys)}")
    return value


def read_settings(kind: type[Kind], path: Path) -> Kind:
    """A yaml file as a dataclass, whose fields are the keys. Raises StudyError: as `read_yaml`, an unknown or missing
    key, a value of another type, or what the class itself finds wrong."""
    return build_settings(kind, read_yaml(path), path)


def build_settings(kind: type[Kind], values: Any, file: Path | None, prefix: str = "") -> Kind:
    """A mapping as a dataclass; keys with a default may be missing. `prefix`: where it stands in the file, such as
    ``systems.bm25``."""
    try:
        built: Kind = _adapter(kind).validate_json(json.dumps(values, default=str), strict=True)
    except StudyError as error:
        error.file = error.file or file
        raise
    except ValidationError as error:
        # An unknown key first: it is often a missing one, misspelt.
        first = min(error.errors(), key=lambda wrong: wrong["type"] != "unexpected_keyword_argument")
        *above, key = (prefix, *first["loc"])
        column = ".".join(str(part) for part in above if part != "")
        inside = len(first["loc"]) > 1
        hint = "correct the key" if inside else f"its keys are: {', '.join(field.name for field in fields(kind))}"
        if first["type"] in KEYS:
            raise StudyError(f"{KEYS[first['type']]} {key!r}", file=file, column=column or None, fix=hint) from error
        message = first["msg"].removeprefix("Value error, ")
        reason = f"{first['input']!r:.80}: {message[0].lower()}{message[1:]}"
        raise StudyError(reason, file=file, column=f"{column}.{key}".strip("."), fix="correct the value") from error
    return built


@lru_cache(maxsize=256)
def _adapter(kind: type[Kind]) -> TypeAdapter[Kind]:
    _forbid_other_keys(kind)
    return TypeAdapter(kind)


def _forbid_other_keys(kind: Any) -> None:
    """Let pydantic refuse an unknown key of a dataclass, and of those within it."""
    if isinstance(kind, type) and is_dataclass(kind):
        pydantic_class: Any = kind
        pydantic_class.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
        for hint in get_type_hints(kind).values():
            _forbid_other_keys(hint)
    for inner in get_args(kind):
        _forbid_other_keys(inner)
