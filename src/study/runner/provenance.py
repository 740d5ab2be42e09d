"""What keeps a row of the tables true to its name: other settings need another name, and a stale row is marked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from study.base.errors import StudyError
from study.base.registry import system_file
from study.config.changes import change_settings, with_tuned_values
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
    lines = []
    for key in sorted(ours.keys() | theirs.keys(), key=str):
        one, other = pair = [tree.get(key, _ABSENT) for tree in (ours, theirs)]
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            lines += differences(one, other, f"{prefix}{key}.")
            continue
        texts = ["nothing" if value is _ABSENT else json.dumps(value) for value in pair]
        if _ABSENT in pair or json.loads(texts[0]) != json.loads(texts[1]):
            lines.append(f"{prefix}{key}: {texts[0]}, not {texts[1]}")
    return lines


def summary(lines: list[str]) -> str:
    """The first few differences, and how many more there are."""
    more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return "; ".join(lines[:SHOWN]) + more


def changes_of_own(config: DictConfig) -> list[str]:
    """How a system differs from what ``conf/`` says of its name; nothing for a name that has no file there. The seeds
    count as a setting. So do the threads, which change the last digits of a training; workers do not."""
    if config.system.name not in choices("system"):
        return []
    groups = [group for group in GROUPS if config[group].name in choices(group)]
    base = load([f"{group}={config[group].name}" for group in groups])
    # A group with a name of its own is taken over.
    base = change_settings(base, {group: config[group] for group in GROUPS if group not in groups}, merge=False)
    lines = differences(plain(config.system), plain(base.system), "system.")
    return lines + differences({"threads": config.profile.threads}, {"threads": base.profile.threads}, "profile.")


def require_own_row(config: DictConfig) -> None:
    """Raise unless the system is as ``conf/system/<name>.yaml`` says, or bears a name that has no file there."""
    name = config.system.name
    if lines := changes_of_own(config):
        reason = f"these settings are not those of {name!r}: {summary(lines)}; the results would stand in its row"
        fix = f"name the variant, for example system.name={name}_variant (it gets a row of its own)"
        fix += ", and system.tuned=null to run with the values given" if config.system.tuned is not None else ""
        raise StudyError(reason, file=system_file(name), fix=fix)


def require_same_profile(file: Path, config: DictConfig, record: Mapping[str, Any] | None = None) -> None:
    """Raise if results were made under another profile than the configured one. `record`: theirs, by default the one in
    the file, if there is one."""
    if record is None and not file.exists():
        return
    earlier, now = (record or read_record(file)).get("profile"), config.profile.name
    if earlier != now:
        reason = f"the results there were made under profile {earlier!r}, and this would replace them by {now!r}"
        fix = f"profile={earlier}, or a name of its own (a row: system.name={config.system.name}_{now}; a sweep: "
        fix += "--name), or --replace"
        raise StudyError(reason, file=file, fix=fix)


def todays_config(record: Mapping[str, Any]) -> DictConfig:
    """The settings that the names in a record stand for today, tuned values included; for a variant those of its
    record, since nothing else describes it."""
    names = {group: str(record["config"][group]["name"]) for group in GROUPS}
    if names["system"] not in choices("system"):
        return OmegaConf.create(dict(record["config"]))
    config = with_tuned_values(load([f"{group}={names[group]}" for group in GROUPS if group != "protocol"]))
    return change_settings(config, {"protocol.name": names["protocol"]})  # the seeds of ablations depend on it


def changed_settings(record: Mapping[str, Any], today: Mapping[str, Any]) -> list[str]:
    """The differences between the settings that a record holds and plain ones of today, both in normal form."""
    return differences(normal_settings(record["config"]), normal_settings(today))


def state(record: Mapping[str, Any], config: DictConfig | None = None) -> tuple[str, str]:
    """How a run's record stands to the present state of the study: ``no`` (not stale), ``settings``, ``code or data``
    or ``unchecked`` (the record does not say what it was made of, or the prepared data is not here), and a sentence
    that says what differs. `config`: what the names in the record stand for today, tuned values included."""
    try:
        config = todays_config(record) if config is None else config
        if lines := changed_settings(record, plain(config)):
            return SETTINGS, f"made with other settings: {summary(lines)}"
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
