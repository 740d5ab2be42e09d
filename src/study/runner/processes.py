"""Worker processes: how many threads they use, how they speak, and that they end with their parent."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from study.advisor.saved.ahead import limit_threads as limit_threads


def end_with_parent() -> None:
    """Let this worker end within a second of its parent's death; an orphan would write beside the run that goes on."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Workers that speak as this process does and end with it, at Ctrl-C in the middle of their work, too. Each is a
    fresh interpreter: forking a process that has started threads can hang."""
    spawn, level = multiprocessing.get_context("spawn"), logging.getLogger("study").getEffectiveLevel()
    with ProcessPoolExecutor(workers, spawn, initializer=_start, initargs=(level,)) as pool:
        try:
            yield pool
        except (KeyboardInterrupt, SystemExit):
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.kill()  # Lightning takes SIGTERM for itself, and a seed waits in the queue
            raise


def _start(level: int) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for name in ("study", "baselines"):
        logging.getLogger(name).setLevel(level)
    end_with_parent()
