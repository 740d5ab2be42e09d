"""Conversations of many developers at once, each found only by its secret name."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from study.agent.agent import Agent
from study.agent.conversation import Conversation


class Sessions:
    """A bounded store in memory; the longest unused conversation is dropped first.

    Args:
        agent: shared by all conversations.
        most: conversations kept.
        seconds: after which an unused one is dropped.
        clock: seconds that never run backwards.
    """

    def __init__(self, agent: Agent, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.agent, self.most, self.seconds, self.clock = agent, most, seconds, clock
        self.kept: OrderedDict[str, tuple[Conversation, float]] = OrderedDict()
        self.lock = threading.Lock()

    def begin(self) -> str:
        """Start a conversation; returns its name, which nobody can guess."""
        name = secrets.token_urlsafe(24)
        with self.lock:
            self._expire()
            while len(self.kept) >= self.most:
                self.kept.popitem(last=False)
            self.kept[name] = (Conversation(self.agent), self.clock())
        return name

    def find(self, name: str) -> Conversation | None:
        """The conversation of that name, None if there is none any more."""
        with self.lock:
            self._expire()
            if name not in self.kept:
                return None
            conversation = self.kept.pop(name)[0]
            self.kept[name] = (conversation, self.clock())
            return conversation

    def _expire(self) -> None:
        # The order of use is the order of the store, so the expired ones stand in front.
        limit = self.clock() - self.seconds
        while self.kept and next(iter(self.kept.values()))[1] < limit:
            self.kept.popitem(last=False)
