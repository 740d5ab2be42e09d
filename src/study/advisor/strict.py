"""Plain data as hosts, pages and language models send it."""

from __future__ import annotations

import json
from contextlib import suppress
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator


def _written(value: Any, hint: Any) -> Any:
    """A value as its type has it, which hosts write otherwise: 3.0 for 3, a text (also of JSON) for a list of one."""
    inner = get_args(hint)
    if get_origin(hint) is list:
        if isinstance(value, str):
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
            value = value if isinstance(value, list) else [value] if value else []
        return [_written(one, inner[0]) for one in value] if isinstance(value, list) else value
    if get_origin(hint) in (Annotated, Union, UnionType):
        for one in inner:
            value = _written(value, one)
        return value
    return int(value) if hint is int and isinstance(value, float) and value.is_integer() else value


class Strict(BaseModel):
    """Plain data without further keys; the most similar key is named. A null counts as left out, as strict hosts send
    it; values may be written as `_written` reads them."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def only_known(cls, values: Any) -> Any:
        """Refuse keys that the model does not have."""
        keys = list(cls.model_fields)
        if not isinstance(values, dict):
            return values
        for key in values:
            if key not in keys:
                near = get_close_matches(str(key), keys, n=1, cutoff=0.5)
                meant = f"did you mean {near[0]}?" if near else f"known: {', '.join(keys) or 'none'}"
                raise ValueError(f"{str(key)[:80]!r} is not permitted; {meant}")
        given = {key: value for key, value in values.items() if value is not None}
        return {key: _written(value, cls.model_fields[key].annotation) for key, value in given.items()}


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that a text holds, also between other words; empty where there is none."""
    try:
        value = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
