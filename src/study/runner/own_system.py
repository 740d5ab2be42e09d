"""A system of one's own: its files made, the rules that every system keeps examined on toys, and all of it removed."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from study.base import paths
from study.base.errors import StudyError
from study.base.files import read_text, write_text
from study.base.registry import NAME, OWN, choices, folder_of, parents, require_choice, stated_settings, system_file
from study.base.settings import read_yaml
from study.config.compose import build_system, load
from study.runner import reference, row_store
from study.runner.contract import SystemContract
from study.runner.identity import read_versions, versions_file

LONGEST = 60  # letters of a name, which becomes that of files
# What there may be of a system and of a sweep beside their files and rows.
OF_SYSTEM = ["results/*/tuned/{}", "results/*/unfinished/{}-*.csv", "models/*/{}", ".cache/locks/*/*/{}.lock"]
OF_SYSTEM += [".cache/runs/*/*/{}", ".cache/tune/*/*/{}"]
OF_SWEEP = ("results/*/sweeps/{}", "results/*/unfinished/{}-*.csv", ".cache/sweeps/*/{}", "figures/*/sweep_{}.png")
LOG = logging.getLogger(__name__)


def class_file(name: str) -> Path:
    """Where `new_system` puts the class of a system."""
    return paths.root() / "baselines" / f"{name}.py"


def new_system(name: str) -> list[Path]:
    """Write yaml and class of a new system, which runs as it stands. Returns: both files.

    Raises StudyError: no name for a module, one that is taken, or a template is missing.
    """
    if not (NAME.fullmatch(name) and name.isidentifier()) or len(name) > LONGEST:
        fix = f"a letter, then lower-case letters, digits and underscores, {LONGEST} at most"
        raise StudyError(f"{name!r:.80} is no name for a system", fix=fix)
    files = {paths.conf() / "system" / "_template.yaml": system_file(name), class_file("_template"): class_file(name)}
    if name in choices("system") or any(path.exists() for path in files.values()):
        raise StudyError(f"there is a system {name!r} already", file=system_file(name), fix="take another name")
    title, camel = name.replace("_", " ").capitalize(), "".join(part.capitalize() for part in name.split("_"))
    texts = [read_text(template, fix="take it from git") for template in files]
    for path, text in zip(files.values(), texts, strict=True):
        text = text.replace("_template.MySystem", f"{name}.{camel}").replace("MySystem", camel)
        lines = text.replace("My system", title).splitlines(keepends=True)
        write_text(path, "".join(line for line in lines if not line.startswith("#")))
    return list(files.values())


def remove_system(name: str, *, really: bool) -> list[str]:
    """Everything that there is of a system and of the variants in its file, or of a sweep, which is removed if
    `really`: yaml, class, sweeps, rows, reference scores, begun runs, searches, saved models. A name that no file
    describes any more has rows and what follows.

    Raises StudyError: nothing of that name, a system or sweep that git holds, or a system that others need.
    """
    if not NAME.fullmatch(name):
        require_choice("system", name)
    names, files = _of_system(name) if name in choices("system") else ([name], [])
    patterns = [pattern.format(system) for system in names for pattern in OF_SYSTEM]
    sweeps = {file.stem: read_yaml(file).get("system") for file in (paths.conf() / "sweep").glob("*.yaml")}
    for record in paths.root().glob("results/*/sweeps/*/record.json"):
        sweeps.setdefault(record.parent.name, json.loads(record.read_bytes())["system"])
    for sweep in sorted(each for each, system in sweeps.items() if each == name or system in names):
        file = paths.conf() / "sweep" / f"{sweep}.yaml"
        if sweep == name:
            _require_own([file])
        files += [] if _in_git(file) or not file.exists() else [file]
        patterns += [pattern.format(sweep) for pattern in OF_SWEEP]
    there = list(dict.fromkeys([*files, *(path for each in patterns for path in paths.root().glob(each))]))
    rows = [(data, *row) for data in choices("dataset") for row in row_store.list_rows(data) if row[1] in names]
    if not there and not rows:
        require_choice("system", name)
    if really:
        for cell in rows:
            row_store.remove_row(*cell)
        for path in there:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if read_versions().keys() & {*names}:
            reference.update({})
    return [*map(str, there), *(f"row of {system} on {dataset} under {protocol}" for dataset, protocol, system in rows)]


def _of_system(name: str) -> tuple[list[str], list[Path]]:
    """A system with the variants of its file, and the files of one's own that describe them."""
    file, module = system_file(name), f"baselines.{name}."
    if file.stem != name:
        raise StudyError(f"{name} is a variant in the file of {file.stem}", file=file, fix="remove it there")
    names = [each for each in choices("system") if system_file(each) == file]
    stated = {other: str(stated_settings(other)) for other in choices("system") if other not in names}
    if users := [
        other
        for other, text in stated.items()
        if module in text or any(variant in parents(other) or f"'model_of': '{variant}'" in text for variant in names)
    ]:
        fix = f"remove them first: {', '.join(users[:5])}"
        raise StudyError(f"other systems need {name}: {len(users)}", file=system_file(users[0]), fix=fix)
    files = [file, class_file(name)] if module in str(read_yaml(file)) else [file]
    _require_own(files)
    return names, files


def _require_own(files: list[Path]) -> None:
    """Raise if git holds one of the files."""
    if held := next(filter(_in_git, files), None):
        raise StudyError("the file is part of the repository", file=held, fix=f"git rm {held}, if it is to go")


def _in_git(path: Path) -> bool:
    words = ["git", "ls-files", "--error-unmatch", "--", str(path)]
    return bool(shutil.which("git")) and not subprocess.run(words, cwd=path.parent, capture_output=True).returncode  # noqa: S603


def require_sound(name: str, *, store: bool = True) -> bool:
    """Examine a system of ``conf/system/own`` before its first row, and again once it computes something else, and
    store its reference scores, by which its rows are then stale. Returns: whether it computes something else.

    `store`: False examines and stores nothing. Raises StudyError: it breaks a rule.
    """
    if name not in choices("system") or folder_of(name) != OWN:
        return False
    LOG.info("%s: its scores on toy data are compared with the stored ones (RecBole: minutes)", name)
    try:
        checked = reference.check([name])
    except Exception as error:  # code of others: whatever it raises is its own fault
        list(examine(name))  # says what it is, with its place
        fix = f"see: study check {name}"
        raise StudyError(f"it fails on toy data: {error}", file=system_file(name), fix=fix) from error
    changed = bool(checked) and checked[name].changed
    if checked and store:
        for line in examine(name) if changed else ():
            LOG.info("%s: %s", name, line)
        reference.update(checked)
        LOG.info("%s: its scores on toy data are stored below %s", name, versions_file().parent)
    return changed


def examine(name: str) -> Iterator[str]:
    """Whether yaml and class of a system can be read, and whether it keeps the rules of `SystemContract`; what is
    found, in a line each. Raises StudyError: the first rule that it breaks."""
    require_choice("system", name)
    build_system(load([f"system={name}", "profile=smoke"]).system)
    yield "yaml, class and arguments: there"

    class Examined(SystemContract):
        system = name

    for rule in (each for each in vars(SystemContract) if each.startswith("test_")):
        Examined.notes.clear()
        getattr(Examined(), rule)()
        yield f"{rule.removeprefix('test_').replace('_', ' ')}: yes"
        yield from Examined.notes
