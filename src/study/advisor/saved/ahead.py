"""A saved system's quick start: one thread for its products, and the larger encoder read while the rest is loaded."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from threading import Thread

from threadpoolctl import threadpool_limits

from study.advisor.saved.saved import USEFUL, exists
from study.base.errors import StudyError


def limit_threads(threads: int) -> None:
    """Let the numerical libraries use `threads` threads, those already loaded and those loaded later."""
    for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
        os.environ[f"{library}_NUM_THREADS"] = str(threads)
    threadpool_limits(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def read_ahead(dataset: str, system: str) -> Thread | None:
    """Begin to check and read the larger encoder, if a system was saved and needs it, in a thread that must be joined
    before the encoder is used: two threads would read it twice."""
    if not exists(dataset, system):
        return None
    limit_threads(1)  # a request is too small to share: idle threads would spin
    if system != USEFUL[0]:
        return None
    from study.advisor.encoders import mpnet

    def read() -> None:
        with suppress(StudyError):  # who asks the encoder is told
            mpnet.encode([""], store=False)

    mpnet.version()  # imports what it needs, which two threads should not do at a time
    thread = Thread(target=read, daemon=True)
    thread.start()
    return thread
