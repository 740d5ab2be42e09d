"""Trials that several workers share: none is lost, none is run twice, and a dead worker's trial is begun anew.

Optuna keeps the trials (a journal file, or a database). What it does not settle between workers is settled by locks in
one folder: who may ask for the next trial, and whether the worker of a running trial still lives. A worker holds its
trial's lock while it works; when the worker dies, the operating system lets go of the lock, and whoever asks next sees
a running trial that nobody holds.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState

from study.errors import StudyError
from study.files import write_text
from study.search.locks import claimed, exclusive
from study.search.settings import Sweep
from study.search.tune import suggest

# (settings below system.model, seed) -> measures such as "valid/ndcg@10".
Objective = Callable[[dict[str, Any], int], dict[str, float]]
LOG = logging.getLogger(__name__)
PLACE = "locks-"  # begins the names of a study's attributes that say where its workers' locks are
PAUSE = 0.5  # seconds between two looks at trials that others still run


@dataclass
class Trials:
    """The shared trials of one sweep.

    Args:
        sweep: what is varied.
        folder: locks, shared by all workers of the sweep.
        storage: a database's address, or None for a journal file in `folder`.
        key: names the study in the storage; another state of configuration, code or data has another key.
    """

    sweep: Sweep
    folder: Path
    key: str
    storage: str | None = None
    study: optuna.Study = field(init=False, repr=False)

    def __post_init__(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(self.folder / "ask.lock"):
            self.study = optuna.create_study(
                storage=self._open(),
                study_name=f"{self.sweep.name}-{self.key}",
                direction="maximize",
                load_if_exists=True,
            )
            if self.storage is not None:
                self._require_one_folder(self.storage)
            self._enqueue_missing()

    def _open(self) -> BaseStorage:
        if self.storage is not None:
            return optuna.storages.get_storage(self.storage)
        journal = self.folder / "trials.journal"
        lock = JournalFileSymlinkLock(str(journal))
        lock.acquire()
        try:
            mend(journal)
        finally:
            lock.release()
        return JournalStorage(JournalFileBackend(str(journal), lock))

    def _require_one_folder(self, storage: str) -> None:
        """Raise unless all workers of a database's study have their locks in this one folder.

        Workers that cannot see each other's locks would take each other for dead.
        """
        mark = self.folder / "folder.id"
        if not mark.exists():
            write_text(mark, uuid.uuid4().hex)
        own = PLACE + mark.read_text()
        users = self._folders()
        if not users:
            self.study.set_user_attr(own, f"{socket.gethostname()}:{self.folder}")
            users = self._folders()
        others = sorted(place for name, place in users.items() if name != own)
        if others:
            if own in users:  # both began at once: both give way
                self.study.set_user_attr(own, None)
            raise StudyError(
                f"the trials of {self.sweep.name} in {storage} belong to workers with locks in {', '.join(others)}",
                file=self.folder,
                fix="start all workers in one project folder that they share, or name another database",
            )

    def _folders(self) -> dict[str, str]:
        """Folders of locks that the study knows: attribute -> host and path."""
        attributes = self.study.user_attrs.items()
        return {name: place for name, place in attributes if name.startswith(PLACE) and place is not None}

    def _enqueue_missing(self) -> None:
        """Queue what a stop or a longer list of values left out."""
        wanted = self.sweep.enqueue if self.sweep.kind == "search" else self.sweep.points()
        present = {trial.user_attrs.get("point") for trial in self.study.trials}
        for number, point in enumerate(wanted):
            if number not in present:
                seed = {"seed": point.get("seed", self.sweep.seeds[0])}
                self.study.enqueue_trial(
                    {name: point[name] for name in self.sweep.space} | seed, user_attrs={"point": number}
                )

    @property
    def budget(self) -> int:
        """How many trials are to be finished."""
        return self.sweep.trials if self.sweep.kind == "search" else len(self.sweep.points())

    def finished(self) -> list[FrozenTrial]:
        """The finished trials in the order of asking."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

    def _requeue_orphans(self) -> None:
        """Begin anew what dead workers ran or failed at. Call with the asking lock held.

        Raises:
            StudyError: a trial was begun as often as the sweep allows.
        """
        trials = self.study.get_trials(deepcopy=False)
        for trial in trials:
            if trial.state == TrialState.RUNNING:
                with claimed(self._held(trial.number)) as free:
                    # Its worker may have finished it, and let go of the lock, after the look above.
                    if free and self.study.get_trials(deepcopy=False)[trial.number].state == TrialState.RUNNING:
                        self.study.tell(trial.number, state=TrialState.FAIL)
        again = {trial.user_attrs.get("retry_of") for trial in trials}
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.FAIL,)):
            if trial.number in again:
                continue
            # A kill is no fault of the trial; only errors count.
            errors = trial.user_attrs.get("errors", 0) + ("error" in trial.user_attrs)
            if errors >= self.sweep.attempts:
                raise StudyError(
                    f"trial {trial.number} of {self.sweep.name} failed {errors} times: {trial.user_attrs['error']}",
                    file=self.folder,
                    fix="mend what the error names; finished trials are kept unless that changes what a trial is",
                )
            kept = {name: value for name, value in trial.user_attrs.items() if name == "point"}
            # A worker may have died before it read the values that were queued.
            values = trial.system_attrs.get("fixed_params", {}) | trial.params
            self.study.enqueue_trial(values, user_attrs=kept | {"retry_of": trial.number, "errors": errors})

    def _held(self, number: int) -> Path:
        return self.folder / f"trial-{number}.lock"

    def _ask(self) -> tuple[optuna.Trial, dict[str, Any]] | None:
        """The next trial, or None where all are finished or being run. Call with the asking lock held."""
        self._requeue_orphans()
        states = [trial.state for trial in self.study.get_trials(deepcopy=False)]
        taken = states.count(TrialState.COMPLETE) + states.count(TrialState.RUNNING)
        if TrialState.WAITING not in states and (self.sweep.kind != "search" or taken >= self.budget):
            return None
        # The sampler's state is not stored; seeding it by trial makes a resumed search of one worker equal an
        # undisturbed one. Running trials count as bad ones, so that workers do not try the same place.
        self.study.sampler = optuna.samplers.TPESampler(seed=self.sweep.sampler_seed + len(states), constant_liar=True)
        trial = self.study.ask()
        values = suggest(trial, self.sweep.space)
        values["seed"] = trial.suggest_categorical("seed", list(self.sweep.seeds))
        return trial, values

    def work(self, objective: Objective) -> None:
        """Run trials until all of the sweep are finished, by this worker or by others.

        Raises:
            StudyError: a trial failed too often.
        """
        while True:
            with ExitStack() as held:
                with exclusive(self.folder / "ask.lock"):
                    asked = self._ask()
                    if asked is not None:
                        held.enter_context(claimed(self._held(asked[0].number)))
                if asked is not None:
                    self._run(*asked, objective)
                elif self._others_run():
                    time.sleep(PAUSE)
                else:
                    return

    def _others_run(self) -> bool:
        """Whether trials are being run or waiting, by whomever."""
        return bool(self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING)))

    def _run(self, trial: optuna.Trial, values: dict[str, Any], objective: Objective) -> None:
        started = time.perf_counter()
        settings = self.sweep.settle({name: values[name] for name in self.sweep.space})
        try:
            measures = objective(settings, int(values["seed"]))
            gc.collect()  # trainer and module hold each other, and with them hundreds of MB per trial
        except Exception as error:
            LOG.exception("%s: trial %d failed", self.sweep.name, trial.number)
            trial.set_user_attr("error", f"{type(error).__name__}: {error}")
            self.study.tell(trial, state=TrialState.FAIL)
            return
        trial.set_user_attr("measures", measures)
        trial.set_user_attr("seconds", round(time.perf_counter() - started, 3))
        trial.set_user_attr("worker", os.getpid())
        self.study.tell(trial, measures[f"valid/{self.sweep.objective}"])


def mend(journal: Path) -> None:
    """Cut off a last line that a killed worker left half-written; what follows it would be unreadable."""
    if not journal.exists():
        return
    content = journal.read_bytes()
    if content and not content.endswith(b"\n"):
        with journal.open("rb+") as file:
            file.truncate(content.rfind(b"\n") + 1)
