"""Several workers on one sweep: each a process of its own, replaced when it dies."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

from tqdm import tqdm

from study.errors import StudyError
from study.runner.processes import end_with_parent
from study.search.trials import Objective, Trials

LOOK = 0.5  # seconds between two looks at the workers
# Makes the trials and the objective inside a worker; must be importable there.
Start = Callable[[], tuple[Trials, Objective]]


def _worker(start: Start) -> None:
    """The life of one worker process."""
    end_with_parent()
    trials, objective = start()
    try:
        trials.work(objective)
    except StudyError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


def run(start: Start, *, jobs: int) -> Trials:
    """Finish a sweep with `jobs` workers; returns its trials.

    With one job the work is done in this process. A worker that a signal ended (a kill, too little memory) is
    replaced, as often in all as the sweep allows attempts; its trial is begun anew.

    Raises:
        StudyError: a trial failed too often, or workers died too often.
    """
    trials, objective = start()
    bar = tqdm(
        total=trials.budget,
        initial=len(trials.finished()),
        desc=f"sweep {trials.sweep.name}",
        unit="trial",
        disable=not sys.stderr.isatty(),
    )
    with bar:
        if jobs == 1:

            def counted(values: dict[str, object], seed: int) -> dict[str, float]:
                found = objective(values, seed)
                bar.update()
                return found

            trials.work(counted)
            return trials
        spawn = multiprocessing.get_context("spawn")
        workers: list[BaseProcess] = []

        def begin() -> BaseProcess:
            worker = spawn.Process(target=_worker, args=(start,))
            worker.start()
            return worker

        workers, replaced = [begin() for _ in range(jobs)], 0
        try:
            while workers:
                time.sleep(LOOK)
                bar.update(len(trials.finished()) - bar.n)
                for worker in [worker for worker in workers if not worker.is_alive()]:
                    workers.remove(worker)
                    if worker.exitcode == 0:
                        continue
                    if (worker.exitcode or 0) > 0 or replaced >= trials.sweep.attempts * jobs:
                        raise StudyError(
                            f"a worker of {trials.sweep.name} ended with exit code {worker.exitcode}",
                            file=trials.folder,
                            fix="see the message above; the same command goes on from here",
                        )
                    workers.append(begin())
                    replaced += 1
        finally:
            for worker in workers:
                worker.terminate()
    return trials
