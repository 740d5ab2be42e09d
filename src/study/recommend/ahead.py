"""Reading the larger encoder on another core, while a command loads the rest of what answers."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread

from study.errors import StudyError
from study.recommend.saved import USEFUL, exists

_READING: list[Thread] = []


def read_ahead(dataset: str) -> None:
    """Begin to check and read the weights, where a saved system of the data set needs them.

    Call `wait` before they are used: two threads would read them twice.
    """
    if not exists(dataset, USEFUL[0]):
        return
    from study.encoders import mpnet

    def read() -> None:
        with suppress(StudyError):  # who asks the encoder is told
            mpnet.encode([""], store=False)

    mpnet.described()  # imports what it needs, which two threads should not do at a time
    _READING.append(Thread(target=read, daemon=True))
    _READING[-1].start()


def wait() -> None:
    """Wait for what `read_ahead` began."""
    while _READING:
        _READING.pop().join()
