"""The rules that every system keeps, as a class of tests that pytest collects and `study check` runs."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from study.base.errors import StudyError
from study.base.registry import system_file
from study.config.groups import ORACLE
from study.data.dataset import Dataset
from study.data.splits import Split, make
from study.data.toys import block_dataset, relabelled, with_other_answers
from study.evaluation.runs import rank_tasks
from study.runner.devices import placed_on_gpu, uses_gpu
from study.runner.toy_fits import SEED, Case, cases, compose_small, fit, model_settings, stand_ins

FEW = 5  # first ranks of a ranking that are compared
READ = "use split.train alone, or say uses_validation = True for split.valid"


class _Fit(NamedTuple):
    """What a freshly fitted system answers to the test tasks, servers and scores side by side, shape (tasks, 2
    n_servers), whether it uses validation, and whether its training was stopped on the way, and went on."""

    answers: np.ndarray
    uses_validation: bool
    stopped: bool


class SystemContract:
    """What holds for every system, on two blocks of toy tasks. A class that names a system inherits its tests::

        class TestMine(SystemContract):
            system = "mine"

    A method raises StudyError where its rule is broken.
    """

    system: ClassVar[str]  # as conf/system has it
    protocols: ClassVar[tuple[str, ...]] = ()  # by default all that it applies to (of a model of RecBole the first)
    least_own: ClassVar[float] = 0.0  # share of the first servers that are of the task's own block
    least_stay: ClassVar[float] = 0.0  # and of those that stay first if the servers are listed in another order
    notes: ClassVar[list[str]]  # what the rules find out besides, a line each
    _fits: ClassVar[dict[tuple[str, ...], _Fit]]

    def __init_subclass__(cls) -> None:
        cls.notes, cls._fits = [], {}

    def test_every_score_is_a_number(self) -> None:
        """Of the right shape, finite or -inf. Also says which tasks get no server, or the same score for all."""
        for case in self._cases():
            answers = self._fit(case).answers
            scores = answers[:, answers.shape[1] // 2 :]
            if empty := int((answers[:, 0] < 0).sum()):
                self.notes.append(f"{case.protocol}: {empty} of {len(answers)} tasks get no server")
            if same := int((scores.max(axis=1) == scores.min(axis=1)).sum()):
                reason = f"{same} of {len(answers)} tasks get the same score for every server: nothing is ranked"
                self.notes.append(f"{case.protocol}: {reason}")

    def test_the_same_seed_gives_the_same_scores(self) -> None:
        """Twice the same fit."""
        self._require_same("the same seed gives other scores", "draw every random number from seed", "again")

    def test_held_out_labels_change_no_score(self) -> None:
        """Other servers wherever the parts had labels that `fit` must not read; an oracle may."""
        self._require_same("held-out labels change the scores", READ, "others")

    def test_a_stopped_training_goes_on_to_the_same_scores(self) -> None:
        """Stopped at its second checkpoint as by a kill. Also says of what trains whether there was nothing to stop."""
        self._require_same("a stopped training goes on to other scores", "keep its state in workdir", "stopped")
        for case in self._cases():
            if compose_small(case.system).system.trains and not self._fit(case, "others", "stopped").stopped:
                self.notes.append(f"{case.protocol}: nothing was stopped: this process put no two files into workdir")

    def test_the_order_of_the_servers_and_the_blocks(self) -> None:
        """Says how much of the first ranks another order of the servers changes, and how much is of the own block."""
        for case in self._cases():
            answers, again = self._fit(case).answers, self._fit(case, "relabelled").answers
            data, split = _toy(case)
            first, new_row = answers[:, :FEW].astype(int), relabelled(data, split)[2]
            stay = [len({*new_row[row[row >= 0]]} & {*now}) for row, now in zip(first, again[:, :FEW], strict=True)]
            same_block = (first >= data.n_servers // 2) == (split.tasks("test") >= data.n_tasks // 2)[:, None]
            for share, least, what in (
                (np.mean(stay) / FEW, self.least_stay, "stay if servers are listed in another order"),
                ((same_block & (first >= 0)).mean(), self.least_own, "are of the task's own block; chance is 0.50"),
            ):
                self.notes.append(f"{case.protocol}: {share:.2f} of the first {FEW} {what}")
                if share < least:
                    raise StudyError(f"{self.notes[-1]}, not {least:.2f}", file=system_file(case.system))

    def test_a_device_that_it_takes_is_used_or_missed(self) -> None:
        """With its setting `device` at gpu it ranks the same tasks, or says that there is no GPU."""
        for case in self._cases():
            (data, split), model, there = _toy(case), model_settings(case), uses_gpu("auto")
            if not compose_small(case.system).system.trains or (placed := placed_on_gpu(model)) == model:
                continue
            try:
                answers = _fit_toy(case, placed, data, split, split).answers
                sound = there and np.array_equal(answers[:, 0] < 0, self._fit(case).answers[:, 0] < 0)
            except StudyError as error:
                if there or "no GPU" not in error.reason:
                    raise
                sound = True
            if not sound:
                reason = f"{case.protocol}: with device=gpu it ranks other tasks, or trains where there is no GPU"
                raise StudyError(reason, file=system_file(case.system), fix="take tensors from self.tensor")

    def _cases(self) -> list[Case]:
        return [case for case in cases([self.system]) if case.protocol in self.protocols or not self.protocols]

    def _fit(self, case: Case, *ways: str) -> _Fit:
        """A fit in these ways, which is made once for all rules."""
        if (key := (*case, *ways)) not in self._fits:
            data, test = _toy(case)
            split = test
            if "others" in ways and compose_small(case.system).system.family != ORACLE:
                parts = ("test",) if self._fit(case).uses_validation else ("valid", "test")
                data, split = with_other_answers(data, split, parts)
            if "relabelled" in ways:
                data, split, _ = relabelled(data, split)
                test = split
            self._fits[key] = _fit_toy(case, model_settings(case), data, split, test, stop="stopped" in ways)
        return self._fits[key]

    def _require_same(self, rule: str, fix: str, way: str) -> None:
        """Raise unless a fit in this way answers as the plain one; if one in all ways does, no other is made."""
        for case in self._cases():
            answers = self._fit(case).answers
            if np.array_equal(self._fit(case, "others", "stopped").answers, answers):
                continue
            if differ := int((self._fit(case, way).answers != answers).any(axis=1).sum()):
                reason = f"{case.protocol}: {rule}: {differ} of {len(answers)} tasks differ"
                raise StudyError(reason, file=system_file(case.system), fix=fix)


def _toy(case: Case) -> tuple[Dataset, Split]:
    data = block_dataset()
    return data, make(data, case.protocol, negatives=data.n_servers // 2)


def _fit_toy(
    case: Case, model: Mapping[str, Any], data: Dataset, split: Split, test: Split, *, stop: bool = False
) -> _Fit:
    """A fit, asked for the test tasks of `test`. Raises StudyError: whatever its code raises, with its place; the fit's
    folder stays if the error names a log in it."""
    work, log = Path(tempfile.mkdtemp(prefix=f"check-{case.system}-")), False
    try:
        with stand_ins(work / "cache"):
            system, stopped = fit(case, model, data, split, work / "work", stop=stop)
            ranked = rank_tasks(system, test, test.tasks("test"), part="test", k=data.n_servers, seed=SEED)
    except StudyError as error:
        log = work in Path(str(error.file)).parents
        error.reason, error.file = f"{case.protocol}: {error.reason}", error.file or system_file(case.system)
        raise
    except Exception as error:  # whatever a new class may raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        reason, line = f"{case.protocol}: {type(error).__name__}: {error}", f"line {last.lineno}"
        raise StudyError(reason, file=last.filename, row=line, fix="mend the line") from error
    finally:
        if not log:
            shutil.rmtree(work)
    answers = np.concatenate([part.astype(np.float32) for part in ranked], axis=1)
    return _Fit(answers, bool(getattr(system, "uses_validation", False)), stopped)
