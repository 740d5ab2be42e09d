"""What stands in for a part of the program while systems are fitted on toys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class StandIn(Generic[T]):
    """None, or within a block what stands in for a part; whoever has the part asks for it at every use."""

    def __init__(self) -> None:
        self._values: list[T] = []

    def __call__(self) -> T | None:
        """What stands in now."""
        return self._values[-1] if self._values else None

    @contextmanager
    def within(self, value: T) -> Iterator[None]:
        """In the block, in all threads, `value` stands in; of blocks within each other the inner one's."""
        self._values.append(value)
        try:
            yield
        finally:
            self._values.pop()
