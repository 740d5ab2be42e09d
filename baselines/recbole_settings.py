"""Which settings a RecBole model has. RecBole takes any key in silence: a misspelt one would be recorded as if it held.

This file stands outside `recbole_bridge`, whose code is part of a run's fingerprint: a check changes no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from study.config.schema import suggestion
from study.errors import StudyError


def known(model: str) -> dict[str, Any]:
    """RecBole's defaults by name: those of every training and those of a model, read from the package's own files.

    Nothing of RecBole is imported: that takes long, and changes numpy.
    """
    spec = find_spec("recbole")
    if spec is None or spec.origin is None:
        raise StudyError("RecBole is not installed", fix="make setup")
    folder = Path(spec.origin).parent / "properties"
    found: dict[str, Any] = {}
    for path in (folder / "overall.yaml", folder / "model" / f"{model}.yaml"):
        if path.exists():
            found |= yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return found


def require_known(arguments: Mapping[str, Any], key: str) -> None:
    """Raise unless every setting below `settings` is one of the model's, or of RecBole's training.

    Args:
        arguments: of `baselines.recbole_bridge.RecBole`, as in a yaml file.
        key: where they stand, for the message.

    Raises:
        StudyError: a key that RecBole does not know; names the nearest ones.
    """
    model = str(arguments.get("model"))
    names = known(model)
    for name, value in dict(arguments.get("settings") or {}).items():
        if name not in names:
            raise StudyError(
                f"RecBole's {model} has no setting {name!r}",
                column=f"{key}.settings.{name}",
                fix=suggestion(str(name), names),
            )
        inner = names[name]
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            for part in value.keys() - inner.keys():
                raise StudyError(
                    f"RecBole's {name} has no key {part!r}",
                    column=f"{key}.settings.{name}.{part}",
                    fix=suggestion(str(part), inner),
                )
