"""What keeps a row of the tables true to its name: other settings need another name, and a stale row is marked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from study.base.errors import StudyError
from study.base.registry import system_file
from study.config.changes import changed, with_tuned_values
from study.config.compose import GROUPS, choices, load, plain
from study.evaluation.records import read_record
from study.runner.identity import identity, normal_settings

SHOWN = 3  # differences that a message names
# What a record says beside its settings (`study.runner.identity.identity`), as a message puts its change.
IDENTITY = {
    "version": "its system's scores",
    "evaluator": "the evaluator's scores",
    "reads": "what it reads",
    "data": "the prepared data",
    "split": "the split",
}
CURRENT, UNCHECKED, SETTINGS, INPUTS = "no", "unchecked", "settings", "code or data"
_ABSENT = object()


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every key at which two trees of settings differ, as ``key: ours, not theirs``, in the order of the keys. Values
    are compared as JSON holds them, so that a record read back equals what was written."""
    found = []
    for key in sorted(ours.keys() | theirs.keys(), key=str):
        one, other = (tree.get(key, _ABSENT) for tree in (ours, theirs))
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differences(one, other, f"{prefix}{key}.")
            continue
        shown = ["nothing" if value is _ABSENT else json.dumps(value) for value in (one, other)]
        same = one is other or (_ABSENT not in (one, other) and json.loads(shown[0]) == json.loads(shown[1]))
        found += [] if same else [f"{prefix}{key}: {shown[0]}, not {shown[1]}"]
    return found


def summary(found: list[str]) -> str:
    """The first few differences, and how many more there are."""
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more


def as_configured(config: DictConfig) -> DictConfig:
    """What ``conf/`` alone composes for the names that `config` bears; a group with a name of its own is taken over."""
    known = [group for group in GROUPS if config[group].name in choices(group)]
    base = load([f"{group}={config[group].name}" for group in known])
    return changed(base, {group: config[group] for group in GROUPS if group not in known}, merge=False)


def require_own_row(config: DictConfig) -> None:
    """Raise unless the system is as ``conf/system/<name>.yaml`` says, or bears a name that has no file there. The seeds
    count as a setting. So do the threads, which change the last digits of a training; workers do not."""
    name = config.system.name
    if name not in choices("system"):
        return
    base = as_configured(config)
    found = differences(plain(config.system), plain(base.system), "system.")
    found += differences({"threads": config.profile.threads}, {"threads": base.profile.threads}, "profile.")
    if found:
        reason = f"these settings are not those of {name!r}: {summary(found)}; the results would stand in its row"
        fix = f"name the variant, for example system.name={name}_variant (it gets a row of its own)"
        fix += ", and system.tuned=null to run with the values given" if config.system.tuned is not None else ""
        raise StudyError(reason, file=system_file(name), fix=fix)


def require_same_profile(path: Path, config: DictConfig) -> None:
    """Raise if the record at `path`, if there is one, was made under another profile than the configured one."""
    if path.exists():
        require_profile_of(read_record(path), config, path)


def require_profile_of(record: Mapping[str, Any], config: DictConfig, file: Path) -> None:
    """Raise if a record was made under another profile than the configured one. `file`: where it lies."""
    wanted = config.profile.name
    earlier = record.get("profile") or record.get("config", {}).get("profile", {}).get("name")
    if earlier != wanted:
        reason = f"the results there were made under profile {earlier!r}, and this would replace them by {wanted!r}"
        fix = f"profile={earlier}, or a name of its own (a row: system.name={config.system.name}_{wanted}; a sweep: "
        fix += "--name), or --replace"
        raise StudyError(reason, file=file, fix=fix)


def todays_config(record: Mapping[str, Any]) -> DictConfig | None:
    """The settings that the names in a record stand for today, tuned values included; None for a variant, which only
    its record describes."""
    names = {group: str(record["config"][group]["name"]) for group in GROUPS}
    if names["system"] not in choices("system"):
        return None
    config = with_tuned_values(load([f"{group}={names[group]}" for group in GROUPS if group != "protocol"]))
    return changed(config, {"protocol.name": names["protocol"]})  # the seeds of ablations depend on it


def changed_settings(record: Mapping[str, Any], today: Mapping[str, Any]) -> list[str]:
    """The differences between the settings that a record holds and plain ones of today, both in normal form."""
    return differences(normal_settings(record["config"]), normal_settings(today))


def state(record: Mapping[str, Any]) -> tuple[str, str]:
    """How a run's record stands to the present state of the study: ``no`` (not stale), ``settings``, ``code or data``
    or ``unchecked`` (the record does not say what it was made of, or the prepared data is not here), and a sentence
    that says what differs."""
    try:
        today = todays_config(record)
        config = OmegaConf.create(dict(record["config"])) if today is None else today
        assert isinstance(config, DictConfig)
        if found := changed_settings(record, plain(config)):
            return SETTINGS, f"made with other settings: {summary(found)}"
    except StudyError as error:
        return SETTINGS, f"its settings cannot be composed any more: {error.reason}"
    except (KeyError, TypeError):
        return SETTINGS, "its record does not say which settings it was made with"
    if missing := [name for name in IDENTITY if name not in record]:
        return UNCHECKED, f"its record does not state: {', '.join(missing)}"
    try:
        now = identity(config)
    except StudyError as error:
        return UNCHECKED, f"what it was made of cannot be checked: {error.file} is missing"
    if record["reads"] != now["reads"]:
        return SETTINGS, f"it read others: {summary(differences(record['reads'], now['reads']))}"
    changes = [text for name, text in IDENTITY.items() if record[name] != now[name]]
    return (INPUTS, f"{' and '.join(changes)} changed since") if changes else (CURRENT, "")


def is_current(record: Mapping[str, Any], config: DictConfig) -> bool:
    """Whether a record was made of what `config`, tuned values included, stands for today. Raises StudyError: the data
    or the split is not there."""
    now = identity(config)
    return not changed_settings(record, plain(config)) and all(record.get(name) == now[name] for name in IDENTITY)
