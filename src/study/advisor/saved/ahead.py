"""A saved system's quick start: one thread for its products, and the larger encoder read while the rest is loaded."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from threading import Thread

from threadpoolctl import threadpool_limits

from study.advisor.saved.saved import USEFUL, exists
from study.base.errors import StudyError

# Begun by `read_ahead`.
_READING: list[Thread] = []


def limit_threads(threads: int) -> None:
    """Let the numerical libraries use `threads` threads, those already loaded and those loaded later."""
    for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
        os.environ[f"{library}_NUM_THREADS"] = str(threads)
    threadpool_limits(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def read_ahead(dataset: str, *systems: str) -> None:
    """Begin to check and read the larger encoder, if the first of the systems that was saved needs it.

    Call `wait` before it is used: two threads would read it twice.
    """
    system = next((name for name in systems if exists(dataset, name)), None)
    if system is None:
        return
    limit_threads(1)  # a request is too small to share: idle threads would spin
    if system != USEFUL[0]:
        return
    from study.advisor.encoders import mpnet

    def read() -> None:
        with suppress(StudyError):  # who asks the encoder is told
            mpnet.encode([""], store=False)

    mpnet.version()  # imports what it needs, which two threads should not do at a time
    _READING.append(Thread(target=read, daemon=True))
    _READING[-1].start()


def wait() -> None:
    """Wait for what `read_ahead` began."""
    while _READING:
        _READING.pop().join()
