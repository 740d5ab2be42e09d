"""Gate: every system x protocol x profile composes to the configuration of commit 225550bc, and every system is made.

    python tests/gates/configuration.py                     # compare with configuration.csv
    python tests/gates/configuration.py --reference FOLDER  # compare with a work tree at 225550bc, printing differences
    python tests/gates/configuration.py --reference FOLDER --update

The configurations are compared in the normal form of `study.runner.identity`, with keys that a file need not state as
their defaults.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DIGESTS = Path(__file__).with_suffix(".csv")
PROTOCOLS = ("cold", "cold_grouped", "warm", "loo", "loo99")
PROFILES = ("smoke", "laptop", "full")
# Keys that a file of the reference need not state -> what stands for them.
OPTIONAL = {
    "dataset": {"protocols": [], "scale": 1.0, "leave_out": []},
    "protocol": {"similarity": None, "negatives": None},
}
# Systems that came since the reference, as named corrections.
NEW = ("t2mrec_in_batch_set",)


def cases(systems: list[str], datasets: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """Data set, system, protocol and profile of every configuration that is compared."""
    for system in systems:
        yield from (("task2mcp", system, protocol, profile) for protocol in PROTOCOLS for profile in PROFILES)
        yield from (("synthetic", system, "cold", profile) for profile in PROFILES)
    yield from (
        (dataset, "t2mrec", "cold", "laptop") for dataset in datasets if dataset not in ("task2mcp", "synthetic")
    )


def normal(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose model is in the normal form by which rows are compared: classes by their names of today,
    sizes as values, keys that a record may lack as what they stood for."""
    from study.runner.identity import CLASSES_OF, normal_form

    system = config["system"]
    model = normal_form(system["model"])
    for part in ("size", "quantiser"):  # each had a device of its own, which is now one setting of the model
        if isinstance(model.get(part), dict) and model[part].pop("device", "cpu") == "auto":
            model["device"] = "auto"
    same = CLASSES_OF.get(system["name"], {})
    model["_target_"] = same.get(model["_target_"], model["_target_"])
    return config | {"system": system | {"model": model}}


def at_profile(search: dict[str, Any], model: dict[str, Any], profile: str) -> dict[str, Any]:
    """The search space of the reference at the size of a profile: a range over ``rate.laptop`` keeps its proportion."""
    space = {}
    for name, domain in search.items():
        *path, size = name.split(".")
        node: Any = model
        for key in path:
            node = node[key]
        if isinstance(node, dict) and "profile" in node and {"low", "high"} <= domain.keys():
            ratio = node[profile] / node[size]
            name = ".".join([*path, profile])
            domain = domain | {end: domain[end] * ratio for end in ("low", "high")}
        space[name] = domain
    return space


def composed(systems: list[str] | None) -> Iterator[tuple[str, Any]]:
    """Key and values of every configuration of the study in which this process runs."""
    from omegaconf import OmegaConf

    from study.config.compose import choices, load

    for case in cases(systems or choices("system"), choices("dataset")):
        words = [
            f"{group}={name}" for group, name in zip(("dataset", "system", "protocol", "profile"), case, strict=True)
        ]
        config = OmegaConf.to_container(load(words), resolve=True)
        assert isinstance(config, dict)
        for group, defaults in OPTIONAL.items():
            config[group] = defaults | config[group]
        for group in ("trainer", "logger"):  # a name then, a group now
            config[group] = config[group] if isinstance(config[group], str) else config[group]["kind"]
        system = config["system"]
        system["search"] = at_profile(system["search"], system["model"], case[-1])
        yield "/".join(case), config


def digest(value: Any) -> str:
    """A short hash of a configuration, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of every leaf."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    return {
        name: leaf for key, item in value.items() for name, leaf in flat(item, f"{prefix}.{key}".lstrip(".")).items()
    }


def of_reference(folder: Path) -> dict[str, Any]:
    """The configurations of another work tree, composed by its own code."""
    environment = os.environ | {"PYTHONPATH": f"{folder / 'src'}:{folder}", "T2M_ROOT": str(folder)}
    python = folder / ".venv" / "bin" / "python"
    words = [str(python) if python.exists() else sys.executable, str(Path(__file__).resolve()), "--dump"]
    lines = subprocess.run(words, env=environment, cwd=folder, check=True, stdout=subprocess.PIPE).stdout.splitlines()
    return {key: normal(config) for key, config in map(json.loads, lines)}


def made(systems: list[str]) -> list[str]:
    """The systems that cannot be made under each profile, with the reason."""
    from study.config.compose import build_system, load

    wrong = []
    for system in systems:
        for profile in PROFILES:
            try:
                build_system(load([f"system={system}", f"profile={profile}"]).system)
            except Exception as error:  # whatever a class raises is told
                wrong.append(f"{system} {profile}: {error}")
    return wrong


def read_digests() -> dict[str, str]:
    """Case -> digest. The file has a line for each data set and system, a column for each protocol and profile."""
    with DIGESTS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {f"{row['case']}/{key}": value for row in rows for key, value in row.items() if key != "case" and value}


def write_digests(digests: dict[str, str]) -> None:
    """Write the file that `read_digests` reads."""
    rows: dict[str, dict[str, str]] = {}
    for key, value in digests.items():
        dataset, system, cell = key.split("/", 2)
        rows.setdefault(f"{dataset}/{system}", {})[cell] = value
    columns = list(dict.fromkeys(cell for row in rows.values() for cell in row))
    with DIGESTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", *columns])
        writer.writerows([name, *(row.get(cell, "") for cell in columns)] for name, row in rows.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, help="a work tree at 225550bc")
    parser.add_argument("--update", action="store_true", help="write the digests of the reference")
    parser.add_argument("--dump", action="store_true", help="print the configurations of this study")
    parser.add_argument("--systems", nargs="*", help="these alone")
    options = parser.parse_args()
    if options.dump:
        for pair in composed(options.systems):
            print(json.dumps(pair))
        return 0
    reference = of_reference(options.reference.resolve()) if options.reference else {}
    if options.update:
        write_digests({key: digest(value) for key, value in reference.items()})
    known = read_digests()
    today = {key: normal(config) for key, config in composed(options.systems)}
    if options.systems:
        known = {key: value for key, value in known.items() if key in today}
    wrong = [f"missing: {key}" for key in known.keys() - today.keys()]
    wrong += [f"new: {key}" for key in today.keys() - known.keys() if key.split("/")[1] not in NEW]
    for key in known.keys() & today.keys():
        if digest(today[key]) == known[key]:
            continue
        wrong.append(f"differs: {key}")
        if key in reference:
            before, after = flat(reference[key]), flat(today[key])
            pairs = {name: (before.get(name, "absent"), after.get(name, "absent")) for name in before | after}
            wrong += [f"    {name}: {old!r} -> {new!r}" for name, (old, new) in pairs.items() if old != new]
    wrong += made(sorted({key.split("/")[1] for key in today}))
    print("\n".join(wrong) or f"configuration: {len(known)} equal, all systems made")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
