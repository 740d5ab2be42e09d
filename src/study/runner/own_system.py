"""A system of one's own: its two files made, the system examined on toys, and everything of it removed."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from omegaconf import DictConfig

from study import paths
from study.config.compose import build_system, load
from study.config.reader import read_yaml
from study.config.registry import (
    NAME,
    OWN,
    choices,
    folder_of,
    parents,
    require_choice,
    stated_settings,
    system_file,
)
from study.data.dataset import Dataset, FloatArray
from study.data.splits import Split, make
from study.data.toys import block_dataset, with_other_answers
from study.errors import StudyError, require_file
from study.evaluation.runs import rank_tasks
from study.files import sha256, write_text
from study.runner import row_store
from study.runner.doctor import FAULT, OK, OPTIONAL, Check
from study.runner.identity import read_versions
from study.runner.reference import update

ORACLE = "oracle"  # the family whose systems read the answers
FEW = 5  # places of a ranking that are looked at
LEARNED = 0.9  # share of them in a task's own block by which a system has learned the toys
LONGEST = 60  # letters of a name, which becomes that of files
SEED = 1
SEEDED, NO_LEAK = "same seed, same scores", "no leak"
LOG = logging.getLogger(__name__)
Made = TypeVar("Made")
Ranking = FloatArray  # servers and scores side by side, shape (tasks, 2 n_servers)


def class_file(name: str) -> Path:
    """Where `new_system` puts the class of a system."""
    return paths.root() / "baselines" / f"{name}.py"


def new_system(name: str) -> list[Path]:
    """Write class and yaml of a new system, which runs as it stands. Returns: both files.

    Raises StudyError: no name for a module, one that is taken, or a template is missing.
    """
    if not (NAME.fullmatch(name) and name.isidentifier()) or len(name) > LONGEST:
        fix = f"a letter, then lower-case letters, digits and underscores, {LONGEST} at most"
        raise StudyError(f"{name!r:.80} is no name for a system", fix=fix)
    made = [class_file(name), system_file(name)]
    if name in choices("system") or any(path.exists() for path in made):
        there = next((path for path in made if path.exists()), system_file(name))
        raise StudyError(f"there is a system {name!r} already", file=there, fix="take another name")
    title, camel = name.replace("_", " ").capitalize(), "".join(part.capitalize() for part in name.split("_"))
    texts = []
    for template in (class_file("_template"), paths.conf() / "system" / "_template.yaml"):
        try:
            text = require_file(template, "take it from git").read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise StudyError("is not UTF-8", file=template, fix="take it from git") from error
        text = text.replace("_template.MySystem", f"{name}.{camel}").replace("MySystem", camel)
        lines = text.replace("My system", title).splitlines(keepends=True)
        texts.append("".join(line for line in lines if not line.startswith("#")))
    try:
        for path, text in zip(made, texts, strict=True):
            write_text(path, text)
    except StudyError:
        made[0].unlink(missing_ok=True)  # no class without a yaml
        raise
    return made


def belongings(name: str) -> tuple[list[Path], list[tuple[str, str]]]:
    """The files of a system (yaml, class, begun runs, searches, saved models) and (dataset, protocol) of its rows.

    Raises StudyError: there is no such system, it is part of the repository, or another system needs it.
    """
    require_choice("system", name)
    own = [system_file(name)]
    if own[0].stem != name:
        raise StudyError(f"{name} is a variant in the file of {own[0].stem}", file=own[0], fix="remove it there")
    others = [other for other in choices("system") if system_file(other) != own[0]]
    module, ties = f"baselines.{name}.", (f"baselines.{name}.", f"'model_of': '{name}'")
    if users := [
        other for other in others if name in parents(other) or any(tie in str(stated_settings(other)) for tie in ties)
    ]:
        fix = f"remove them first: {', '.join(users[:5])}"
        raise StudyError(f"{len(users)} systems need {name}", file=system_file(users[0]), fix=fix)
    if module in str(read_yaml(own[0])) and class_file(name).is_file():
        own.append(class_file(name))
    for path in own:
        if _in_git(path):
            raise StudyError("the file is part of the repository", file=path, fix=f"git rm {path}, if it is to go")
    rows = []
    for dataset in choices("dataset"):
        rows += [(dataset, protocol) for protocol, system in row_store.list_rows(dataset) if system == name]
        files = [paths.tuned(dataset, name), paths.models(dataset) / name]
        files += [paths.cache() / "runs" / dataset / protocol / name for protocol in choices("protocol")]
        files += (paths.cache() / "locks" / dataset).glob(f"*/{name}.lock")
        records = (paths.results(dataset) / "sweeps").glob("*/record.json")
        files += [path.parent for path in records if json.loads(path.read_text(encoding="utf-8"))["system"] == name]
        own += [path for path in files if path.exists()]
    return own + [path for path in [_checked(name)] if path.exists()], rows


def _checked(name: str) -> Path:
    """What says with which files a system was examined."""
    return paths.cache() / "checked" / f"{name}.txt"


def remove(name: str, files: list[Path], rows: list[tuple[str, str]]) -> None:
    """Remove a system's rows, files and folders (`belongings`), and its reference scores."""
    for cell in rows:
        row_store.remove_row(*cell, name)
    for path in files:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if name in read_versions():
        update({})


def _in_git(path: Path) -> bool:
    try:
        words = ["git", "ls-files", "--error-unmatch", "--", str(path)]
        return not subprocess.run(words, cwd=path.parent, capture_output=True, timeout=20, check=False).returncode  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return False


def require_sound(name: str) -> None:
    """Examine a system of ``conf/system/own`` before its first row, and again once its files have changed. Raises
    StudyError: it reads held-out labels, or the same seed gives other scores; other faults are warnings, since the toys
    are small."""
    if name not in choices("system") or folder_of(name) != OWN:
        return
    files = [path for path in (system_file(name), class_file(name)) if path.is_file()]
    key, mark = " ".join(map(sha256, files)), _checked(name)
    if mark.is_file() and mark.read_text(encoding="utf-8") == key:
        return
    LOG.info("%s is new: it is examined on toys first", name)
    for each in examine(name):
        if each.state == FAULT and each.what.endswith((SEEDED, NO_LEAK)):
            raise StudyError(f"{each.what}: {each.found}", file=files[-1], fix=f"{each.fix}; study check {name}")
        if each.state == FAULT:
            LOG.warning("%s: %s: %s; study check %s", name, each.what, each.found, name)
    write_text(mark, key)


def examine(name: str) -> Iterator[Check]:
    """What a system does on two blocks of toy tasks, under each protocol that it is for: does it rank every task by
    numbers, the same with the same seed, whatever the held-out labels are, and does it find a task's own block?

    Yields one check at a time. A protocol ends with its first fault.
    """
    require_choice("system", name)
    settings = yield from _tried("yaml", lambda: load([f"system={name}", "profile=smoke"]))
    if settings is None or (yield from _tried("class and arguments", lambda: build_system(settings.system))) is None:
        return
    data = block_dataset()
    for protocol in settings.system.protocols:
        yield from _under(load([f"system={name}", "profile=smoke", f"protocol={protocol}"]), data)


def _under(config: DictConfig, data: Dataset) -> Iterator[Check]:
    protocol = config.protocol.name
    split = make(data, protocol, negatives=data.n_servers // 2)
    said = yield from _tried(f"{protocol}: shapes and numbers", lambda: _ranked(config, data, split, split))
    if said is None:
        return
    again = yield from _tried(f"{protocol}: fitted again", lambda: _ranked(config, data, split, split), say=False)
    if again is None:
        return
    yield (same := _same(f"{protocol}: {SEEDED}", said, again, "draw every random number from seed"))
    if same.state == FAULT:
        return
    if config.system.family == ORACLE:
        yield Check(f"{protocol}: {NO_LEAK}", OPTIONAL, "an oracle reads the answers")
    else:
        parts = ("test",) if getattr(build_system(config.system), "uses_validation", False) else ("valid", "test")
        other = with_other_answers(data, split, parts)
        leaked = yield from _tried(f"{protocol}: other answers", lambda: _ranked(config, *other, split), say=False)
        if leaked is None:
            return
        fix = "fit reads held-out labels: use split.train alone, or say uses_validation = True for split.valid"
        yield (same := _same(f"{protocol}: {NO_LEAK}", said, leaked, fix))
        if same.state == FAULT:
            return
    yield _found(f"{protocol}: finds the toys' blocks", said, data, split)


def _ranked(config: DictConfig, data: Dataset, split: Split, asked: Split) -> Ranking:
    """What a freshly fitted system ranks for the test tasks of `asked`."""
    system, tasks = build_system(config.system), asked.tasks("test")
    with tempfile.TemporaryDirectory() as folder:
        system.fit(data, split, seed=SEED, workdir=Path(folder))
        ranked = rank_tasks(system, asked, tasks, part="test", k=data.n_servers, seed=SEED)
    return np.concatenate([part.astype(np.float32) for part in ranked], axis=1)


def _tried(what: str, make_it: Callable[[], Made], *, say: bool = True) -> Generator[Check, None, Made | None]:
    """Yields whether it works, that it does only where `say`; returns what was made, None if it does not."""
    try:
        made = make_it()
    except StudyError as error:
        said = str(StudyError(error.reason, file=error.file, row=error.row, column=error.column))
        yield Check(what, FAULT, said, error.fix or "")
    except Exception as error:  # whatever a new class may raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        yield Check(what, FAULT, f"{type(error).__name__}: {error}", f"{last.filename}, line {last.lineno}")
    else:
        if say:
            yield Check(what, OK, "")
        return made
    return None


def _same(what: str, first: Ranking, second: Ranking, fix: str) -> Check:
    differ = int((first != second).any(axis=1).sum())
    return Check(what, FAULT, f"{differ} of {len(first)} tasks differ", fix) if differ else Check(what, OK, "")


def _found(what: str, said: Ranking, data: Dataset, split: Split) -> Check:
    """Whether the first places hold servers of a task's own block; half of them do so by chance."""
    servers, tasks = said[:, :FEW], split.tasks("test")
    own = (servers >= data.n_servers // 2) == (tasks >= data.n_tasks // 2)[:, None]
    share = float((own & (servers >= 0)).mean())
    found, hint = f"{share:.2f} of the first {FEW}", f"chance is 0.50, a system that learns reaches {LEARNED}"
    return Check(what, OK, found) if share >= LEARNED else Check(what, OPTIONAL, found, hint)
