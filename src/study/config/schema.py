"""What the configuration may hold: the names to choose from, the keys of every group, and the range of their values.

Nothing heavy is imported here, so that `study recommend` can check a name and still start fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

from study import paths
from study.errors import StudyError

FEW = 12  # names that an error lists
GROUPS = ("dataset", "protocol", "system", "profile")


def _words(text: str) -> set[str]:
    return set(text.split())


# Group -> keys that it must have, and keys that it may have; "" is conf/config.yaml itself. The values of `generator`,
# `search` and `model` have names of their own, which their readers check.
KEYS: Mapping[str, tuple[set[str], set[str]]] = {
    "": ({*GROUPS, "run_depth", "tuning", "trainer", "logger"}, set()),
    "tuning": (_words("trials startup seed"), set()),
    "dataset": (_words("name title licence labels source generator"), _words("protocols scale leave_out")),
    "protocol": (_words("name title seed"), _words("similarity negatives")),
    "system": (
        _words("name title family reference protocols seeds trains subprocess tuned search rungs model"),
        set(),
    ),
    "profile": (_words("name scale method_seeds seeds workers threads"), set()),
}
# Names become names of files.
NAME = re.compile(r"[a-z0-9][a-z0-9_]*")
LEAST = {"run_depth": 10, "tuning.trials": 1, "tuning.startup": 1, "profile.workers": 1, "profile.threads": 1}
SEEDS = ("system.seeds", "profile.seeds", "profile.method_seeds")
LARGEST_SEED = 2**15 - 1  # kept runs store seeds in 16 bits


# Earlier names of systems and of keys: each stands for its name of today.
KEY_ALIASES = {"keep": "run_depth"}
ALIASES = {
    "best": "field_dense",
    **{
        f"best_{kind}": f"field_dense_{kind}"
        for kind in ("core", "description", "fields", "object", "quality", "template", "theme")
    },
    "label_fit": "label_ranker",
    "label_fit_ridge": "label_ranker_ridge",
    "label_rules": "attribute_counts",
    "label_walks": "list_order",
    "t2mrec_best": "t2mrec_field_dense",
    "t2mrec_best_cards": "t2mrec_field_dense_cards",
    "t2mrec_best_minilm": "t2mrec_field_dense_minilm",
}


def choices(group: str) -> list[str]:
    """The names that a configuration group offers; files that start with an underscore are templates."""
    pattern = "*/*.yaml" if group == "system" else "*.yaml"
    names = (path.stem for path in (paths.conf() / group).glob(pattern))
    return sorted(name for name in names if not name.startswith("_"))


def require_choice(group: str, name: object) -> None:
    """Raise `StudyError` unless ``conf/<group>/<name>.yaml`` exists. It names the nearest; all where there are few, or
    for ``?``."""
    known = choices(group)
    if not known:
        fix = "take the folder from git, or correct T2M_ROOT, which names the study's folder"
        raise StudyError("there are no settings here", file=paths.conf() / group, fix=fix)
    if name not in known:
        shown = f"{name!r:.80}"
        near = get_close_matches(str(name), known, n=3, cutoff=0.6)
        few = len(known) <= FEW or name == "?"
        listed = f"one of: {', '.join(known)}" if few else f"{group}=? lists all {len(known)}"
        fix = f"did you mean {' or '.join(near)}? {listed}" if near else listed
        raise StudyError(f"unknown {group} {shown}", file=paths.conf() / group, fix=fix)


def suggestion(word: str, known: Iterable[str], *, listed: Iterable[str] | None = None) -> str:
    """What to write instead of `word`: the nearest of the `known` names first, then those `listed` (default: all).

    Dotted keys are compared by their last part, since a key is often written with a wrong path or none.
    """
    names = sorted(known)
    leaf = word.rpartition(".")[2]
    leaves = {name.rpartition(".")[2] for name in names}
    close = get_close_matches(leaf, leaves, n=3, cutoff=0.6)
    same_leaf = sorted(
        (name for name in names if name.rpartition(".")[2] in close),
        key=lambda name: (close.index(name.rpartition(".")[2]), name),
    )
    near = sorted(same_leaf, key=lambda name: -_shared_path(name, word))[:3]
    every = f"one of: {', '.join(sorted(names if listed is None else listed))}"
    return f"did you mean {' or '.join(near)}? {every}" if near else every


def _shared_path(first: str, second: str) -> int:
    """How many leading parts two dotted keys share."""
    pairs = zip(first.split(".")[:-1], second.split(".")[:-1], strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of every leaf and every inner mapping of a tree of mappings."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found[f"{prefix}{key}"] = value
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
    return found


def check(config: Mapping[str, Any]) -> None:
    """Raise `StudyError` unless the composed, resolved configuration has the keys of `KEYS` and values in range."""
    for group, (required, optional) in KEYS.items():
        part = config.get(group) if group else config
        file = _file(group, part)
        if not isinstance(part, Mapping):
            raise StudyError(f"{group} is {part!r} and not a group of keys", file=file, fix=f"see {file}")
        for key in part.keys() - required - optional:
            raise StudyError(
                "unknown key", file=file, column=_dotted(group, str(key)), fix=suggestion(str(key), required | optional)
            )
        for key in required - part.keys():
            raise StudyError("a key is missing", file=file, column=_dotted(group, key), fix="put it back")
    for group in GROUPS:
        _check_name(group, config[group])
    if config["dataset"].get("protocols") and not isinstance(config["dataset"]["labels"], str):
        fix = "name the file of labels, or leave out `protocols`, which need one"
        raise StudyError(
            "the data set has no label file", file=_file("dataset", config["dataset"]), column="labels", fix=fix
        )
    values = flat(config)
    for key, least in LEAST.items():
        if not _is_int(values[key]) or values[key] < least:
            raise StudyError(
                f"{values[key]!r} is not a whole number of at least {least}",
                file=_file_of(config, key),
                column=key,
                fix=f"write for example {key}={least}",
            )
    for key in SEEDS:
        _check_seeds(key, values[key], _file_of(config, key))
    if not _is_share(scale := values[key := "profile.scale"]):
        fix = "1.0 is the stated number of epochs"
        raise StudyError(f"{scale!r} is not a number above 0", file=_file_of(config, key), column=key, fix=fix)
    rungs = values[key := "system.rungs"]
    if not rungs or not all(map(_is_share, rungs)) or sorted(set(rungs)) != rungs:
        fix = "write for example [0.11, 0.33, 1.0]; 1.0 is the stated number of epochs"
        raise StudyError(f"{rungs!r} are not rising numbers above 0", file=_file_of(config, key), column=key, fix=fix)
    for key in ("system.protocols", "dataset.protocols"):
        for name in values.get(key) or ():
            require_choice("protocol", name)


def _check_name(group: str, part: Mapping[str, Any]) -> None:
    if not isinstance(part["name"], str) or not NAME.fullmatch(part["name"]):
        raise StudyError(
            f"{part['name']!r} is not a name: lower-case letters, digits and underscores only",
            column=f"{group}.name",
            fix=f"write for example {group}.name=my_variant",
        )


def _check_seeds(key: str, seeds: object, file: Path) -> None:
    fix = f"write for example {key}=[1,2,3]"
    if not isinstance(seeds, list) or not seeds:
        raise StudyError(f"{seeds!r} is not a list of at least one seed", file=file, column=key, fix=fix)
    for place, seed in enumerate(seeds):
        if not _is_int(seed) or not 0 <= seed <= LARGEST_SEED:
            raise StudyError(
                f"{seed!r} is not a seed, a whole number from 0 to {LARGEST_SEED}",
                file=file,
                row=place,
                column=key,
                fix=fix,
            )
    if len(set(seeds)) < len(seeds):
        raise StudyError(f"a seed is named twice: {seeds}", file=file, column=key, fix=fix)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _dotted(group: str, key: str) -> str:
    return f"{group}.{key}" if group else key


def _file(group: str, part: object) -> Path:
    """The file that a group's values come from, as far as its name tells."""
    if group in GROUPS:
        name = part.get("name") if isinstance(part, Mapping) else None
        own = next((paths.conf() / group).rglob(f"{name}.yaml"), paths.conf() / group / f"{name}.yaml")
        return own if own.exists() else paths.conf() / group
    return paths.conf() / "config.yaml"


def _file_of(config: Mapping[str, Any], key: str) -> Path:
    group = key.partition(".")[0]
    return _file(group, config.get(group))
