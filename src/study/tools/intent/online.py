"""Online metrics of the feedback store, each with the number of events that it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest

from study.tools.intent.feedback import Event


class Metric(NamedTuple):
    """One metric; shares with their 95 % Wilson interval. NaN where no event bears on it."""

    name: str
    value: float
    low: float
    high: float
    n: int


def metrics(events: Sequence[Event]) -> list[Metric]:
    """Click-through rate, success rate, time to success (median seconds) and satisfaction (mean rating).

    Click-through counts recommendations that showed something; success counts uses with a known outcome.
    """
    shown = [event for event in events if event.shown]
    known = [event for event in events if event.selected is not None and event.success is not None]
    times = [
        event.finished - event.asked
        for event in known
        if event.success and event.asked is not None and event.finished is not None
    ]
    ratings = [event.rating for event in events if event.rating is not None]
    return [
        share("click_through_rate", sum(event.selected in event.shown for event in shown), len(shown)),
        share("success_rate", sum(bool(event.success) for event in known), len(known)),
        Metric("time_to_success_s", float(np.median(times)) if times else np.nan, np.nan, np.nan, len(times)),
        Metric("satisfaction", float(np.mean(ratings)) if ratings else np.nan, np.nan, np.nan, len(ratings)),
    ]


def share(name: str, part: int, whole: int) -> Metric:
    """A share with its Wilson interval."""
    if not whole:
        return Metric(name, np.nan, np.nan, np.nan, 0)
    interval = binomtest(part, whole).proportion_ci(method="wilson")
    return Metric(name, part / whole, float(interval.low), float(interval.high), whole)
