"""Reading a file of ``conf/`` that Hydra does not compose, strictly, so that a misspelt key is an error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from study.errors import StudyError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind", bound="DataclassInstance")


def parsed(text: str) -> Any:
    """YAML as plain values. ValueError, yaml.YAMLError: it is not YAML, or holds aliases, see `require_no_alias`."""
    require_no_alias(text)
    return yaml.safe_load(text)


def require_no_alias(text: str) -> None:
    """Raise ValueError if YAML names parts of itself again, by which a few lines stand for billions."""
    if "*" in text and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
        raise ValueError("it holds an alias, *NAME: write the part out again")


def read_keys(path: Path, keys: Collection[str], *, fix: str = "correct the file") -> dict[str, Any]:
    """The values of a YAML file, which must have exactly `keys` at its top.

    Args:
        fix: what to do about a file that cannot be read.

    Raises:
        StudyError: no file, one that is not UTF-8 or not YAML, or other keys; names the file and the keys.
    """
    try:
        value = parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StudyError(f"cannot be read ({error})", file=path, fix=fix) from error
    expected = f"its keys are: {', '.join(keys)}"
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise StudyError(f"holds other keys than expected: {kind} instead of a mapping", file=path, fix=expected)
    if wrong := _wrong_keys(value, dict.fromkeys(keys, True)):
        raise StudyError(f"holds other keys than expected: {', '.join(wrong)}", file=path, fix=expected)
    return value


def read_settings(kind: type[Kind], path: Path) -> Kind:
    """The settings of a YAML file as the dataclass `kind`, whose fields are the keys; all of them must be there.

    Values are checked by the type hints of the fields. A field that is a dataclass is a mapping in the file; lists
    become tuples or frozen sets where the hint says so, plain items of lists are not checked.

    Raises:
        StudyError: as `read_keys`, a value of another type, or what `kind` finds wrong with the values.
    """
    return build_settings(kind, read_keys(path, [field.name for field in fields(kind)]), path)


def build_settings(kind: type[Kind], values: Any, file: Path, place: str = "") -> Kind:
    """A mapping as the dataclass `kind`; keys with a default may be missing.

    Args:
        place: where the mapping stands in the file, such as ``systems.bm25``.
    """
    known = {field.name: field.default is MISSING and field.default_factory is MISSING for field in fields(kind)}
    if not isinstance(values, dict):
        raise StudyError(f"{type(values).__name__} instead of a mapping", file=file, column=place, fix=", ".join(known))
    if wrong := _wrong_keys(values, known):
        fix = f"its keys are: {', '.join(known)}"
        raise StudyError(", ".join(wrong), file=file, column=place or None, fix=fix)
    hints, front = get_type_hints(kind), f"{place}." if place else ""
    return kind(**{key: _typed(hints[key], value, file, f"{front}{key}") for key, value in values.items()})


def _wrong_keys(values: Mapping[str, Any], known: Mapping[str, bool]) -> list[str]:
    """What is wrong with the keys of `values`, where `known` says of every key whether it must be there."""
    wrong = [f"unknown key {key!r}" for key in values if key not in known]
    return wrong + [f"missing key {key!r}" for key, needed in known.items() if needed and key not in values]


def _typed(hint: Any, value: Any, file: Path, place: str) -> Any:
    """`value` as the type `hint` wants it; hints that say more than YAML can are not checked."""
    origin, inner = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return build_settings(hint, value, file, place)
    if origin in (Union, UnionType):
        options = [option for option in inner if option is not NoneType]
        if (value is None and NoneType in inner) or len(options) > 1:
            return value
        return _typed(options[0], value, file, place)
    if origin in (list, tuple, frozenset) and isinstance(value, list):
        several = origin is tuple and inner[-1] is not Ellipsis
        if several and len(inner) != len(value):
            raise StudyError(f"{len(value)} values", file=file, column=place, fix=f"give {len(inner)} values")
        kinds = inner if several else (inner[0],) * len(value)
        checked = (
            _typed(one, part, file, place) if is_dataclass(one) else part
            for one, part in zip(kinds, value, strict=True)
        )
        return origin(checked)
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {key: _typed(inner[1], part, file, f"{place}.{key}") for key, part in value.items()}
    plain: dict[Any, Any] = dict.fromkeys((list, tuple, frozenset), list) | {float: (int, float)}
    plain |= {kind: kind for kind in (int, str, bool)}
    wanted = plain.get(origin or hint, dict if origin in (dict, Mapping) else object)
    if not isinstance(value, wanted) or (isinstance(value, bool) and hint in (int, float)):
        name = getattr(origin or hint, "__name__", str(hint)).lower()
        raise StudyError(f"{value!r} is no {name}", file=file, column=place, fix=f"give a value of type {name}")
    return value
