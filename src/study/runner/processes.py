"""Worker processes: how many threads they use, how they speak, and that they end with their parent."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

from study.advisor.saved.ahead import limit_threads as limit_threads


def end_with_parent() -> None:
    """Let this worker end within a second of its parent's death; an orphan would write beside the run that goes on."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """Workers that speak as this process does and end with it. Each is a fresh interpreter: forking a process that has
    started threads can hang."""
    spawn, level = multiprocessing.get_context("spawn"), logging.getLogger("study").getEffectiveLevel()
    return ProcessPoolExecutor(workers, spawn, initializer=_start, initargs=(level,))


def _start(level: int) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for name in ("study", "baselines"):
        logging.getLogger(name).setLevel(level)
    end_with_parent()
