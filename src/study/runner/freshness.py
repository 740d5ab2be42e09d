"""Whether a kept run is still what ``conf/``, the code and the data would give today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from study.config.compose import GROUPS, choices, load, plain
from study.config.registry import with_tuned_values
from study.errors import StudyError
from study.runner.fingerprint import fingerprint
from study.runner.provenance import differences, summary

# What a system is called and where it is also run: a record is none the older when these change.
LABELS = ("title", "reference", "family", "protocols")
CURRENT, UNCHECKED, SETTINGS, INPUTS = "no", "unchecked", "settings", "code or data"


def changed_settings(record: Mapping[str, Any], known: dict[str, Any]) -> list[str]:
    """The differences between the settings a run was made with and those that its names stand for today.

    A system without a file in ``conf/system`` is a variant, which only its record describes: no differences.

    Args:
        record: of the run.
        known: today's settings by names, filled here, since composing takes long and protocols share them.
    """
    names = {group: str(record["config"][group]["name"]) for group in GROUPS}
    if names["system"] not in choices("system"):
        return []
    key = " ".join(names[group] for group in ("dataset", "system", "profile"))
    if key not in known:
        known[key] = with_tuned_values(load([f"{group}={name}" for group, name in names.items()]))
    known[key].protocol.name = names["protocol"]  # some settings, such as the seeds of ablations, depend on it
    then, now = (
        {name: value for name, value in system.items() if name not in LABELS}
        for system in (record["config"]["system"], plain(known[key].system))
    )
    return differences(then, now, "system.")


def state(record: Mapping[str, Any], known: dict[str, Any]) -> tuple[str, str]:
    """How a run's record stands to the present state of the study.

    Returns: ``no`` (not stale), ``settings``, ``code or data`` or ``unchecked`` (the record has no fingerprint, or the
        prepared data is not here), and a sentence that says what differs.
    """
    try:
        changed = changed_settings(record, known)
    except StudyError as error:
        return SETTINGS, f"its settings cannot be composed any more: {error.reason}"
    except (KeyError, TypeError):
        return SETTINGS, "its record does not say which settings it was made with"
    if changed:
        return SETTINGS, f"made with other settings: {summary(changed)}"
    if "fingerprint" not in record:
        return UNCHECKED, "its record has no fingerprint of code and data"
    config = OmegaConf.create(dict(record["config"]))
    assert isinstance(config, DictConfig)
    try:
        same = fingerprint(config) == record["fingerprint"]
    except StudyError as error:
        return UNCHECKED, f"its fingerprint cannot be checked: {error.file} is missing"
    return (CURRENT, "") if same else (INPUTS, "its code, the prepared data or the split has changed since")
