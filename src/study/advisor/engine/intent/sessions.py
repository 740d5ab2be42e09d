"""Session context and tool chains: what an agent used a moment ago, and what the log says is used after it.

A session is a run of one agent's successful uses with less than a stated time between them. A tool follows another one
where a session uses it at any later time; per session that counts once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from study import paths
from study.advisor.engine.intent.feedback import Event
from study.advisor.engine.intent.settings import Float64Array
from study.config.reader import read_settings
from study.errors import StudyError

FILE = "conf/tools/sessions.yaml"


@dataclass(frozen=True)
class Sessions:
    """The whole file, where every value is explained."""

    seconds: float
    weight: float
    prior_strength: float
    least: int

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.weight >= 0 and self.prior_strength > 0 and self.least >= 1):
            raise StudyError("a value is out of its range", file=FILE, fix="see the comments there")


def session_settings() -> Sessions:
    """Read ``conf/tools/sessions.yaml``."""
    return read_settings(Sessions, paths.conf() / "tools" / "sessions.yaml")


def sessions_of(events: Iterable[Event], seconds: float) -> dict[str, list[list[tuple[str, float]]]]:
    """The sessions of every agent, oldest first: keys of the tools that it used with success, and when it finished."""
    found: dict[str, list[list[tuple[str, float]]]] = defaultdict(list)
    for event in events:
        moment = event.finished if event.finished is not None else event.asked
        if not event.success or event.selected is None or moment is None:
            continue
        own = found[event.agent]
        if not own or moment - own[-1][-1][1] >= seconds:
            own.append([])
        own[-1].append((event.selected, moment))
    return found


class Chains:
    """How often one tool follows another, counted over sessions. `sessions`: tool rows in the order of use."""

    def __init__(self, sessions: Iterable[Sequence[int]], n_tools: int, settings: Sessions) -> None:
        self.n_tools, self.settings = n_tools, settings
        self.begun: Counter[int] = Counter()
        self.after: dict[int, Counter[int]] = defaultdict(Counter)
        for used in sessions:
            self.begun.update(set(used))
            pairs = {(one, other) for place, one in enumerate(used) for other in used[place + 1 :] if one != other}
            for one, other in pairs:
                self.after[one][other] += 1

    def following(self, recent: Iterable[int]) -> Float64Array:
        """Per tool, shape (n_tools,): the greatest share of the sessions with a recent tool in which it came later; a
        share is drawn to 0 by `prior_strength` sessions. 0 where nothing is known."""
        found = np.zeros(self.n_tools)
        for one in set(recent):
            for other, count in self.after.get(one, {}).items():
                found[other] = max(found[other], count / (self.begun[one] + self.settings.prior_strength))
        return found

    def next_of(self, row: int, most: int) -> list[int]:
        """The tools that most often came after one, in at least `least` sessions; at most `most`, best first."""
        counts: Mapping[int, int] = self.after.get(row, {})
        often = [(-count, other) for other, count in counts.items() if count >= self.settings.least]
        return [other for _, other in sorted(often)[:most]]
