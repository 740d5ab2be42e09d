"""A/B variants: deterministic assignment of agents, and a comparison that may be looked at after every observation.

The unit is the agent, since assignment is by agent: its observation is the mean outcome of its first uses. Each arm's
mean gets a confidence sequence that holds at all times at once (predictable plug-in empirical Bernstein, Waudby-Smith
and Ramdas 2024, theorem 2), so that stopping at the first clear difference keeps the stated error rate; a fixed-sample
test looked at again and again does not.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from study.errors import StudyError
from study.tools.intent.feedback import Event
from study.tools.intent.settings import Comparison, Float64Array

CONTROL = "control"


def assign(agent: str, variants: Sequence[str], experiment: str) -> str:
    """The variant of an agent: equal shares, always the same, and independent from one experiment to the next."""
    if not variants:
        raise StudyError("there are no variants", fix="name at least one")
    digest = hashlib.sha256(f"{experiment}\0{agent}".encode("utf-8", "replace")).digest()
    # 64 bits leave a bias of less than 1e-18 for any number of variants.
    return variants[int.from_bytes(digest[:8], "big") % len(variants)]


def confidence_sequence(
    values: Sequence[float] | Float64Array, alpha: float, largest_bet: float
) -> tuple[Float64Array, Float64Array]:
    """Bounds of the mean after each observation, valid at all times together with probability 1 - alpha.

    Args:
        values: observations in [0, 1], in order, shape (n,); their conditional means are equal.

    Returns: lower and upper bounds, both of shape (n,), within [0, 1]; they only ever narrow.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size and not (x.min() >= 0 and x.max() <= 1):
        raise StudyError("an observation lies outside 0 to 1", fix="scale outcomes to shares")
    t = np.arange(1, len(x) + 1)
    mean = (0.5 + np.cumsum(x)) / (t + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (t + 1)
    # What is used at time t was known before it.
    mean_before, variance_before = np.r_[0.5, mean[:-1]], np.r_[0.25, variance[:-1]]
    bet = np.minimum(np.sqrt(2 * np.log(2 / alpha) / (variance_before * t * np.log1p(t))), largest_bet)
    spread = 4 * (x - mean_before) ** 2 * (-np.log1p(-bet) - bet) / 4
    total = np.cumsum(bet)
    centre, radius = np.cumsum(bet * x) / total, (np.log(2 / alpha) + np.cumsum(spread)) / total
    low = np.maximum.accumulate(np.clip(centre - radius, 0, 1))
    return low, np.minimum.accumulate(np.clip(centre + radius, 0, 1))


class Verdict(NamedTuple):
    """A variant against the control, now.

    Attributes:
        agents, control_agents: observations of each.
        low, high: bounds of the difference variant - control, valid at all times.
        decision: ``better``, ``worse`` or ``open``.
    """

    variant: str
    agents: int
    control_agents: int
    difference: float
    low: float
    high: float
    decision: str


def outcomes(events: Iterable[Event], variants: Sequence[str], experiment: str, uses: int) -> dict[str, list[float]]:
    """Per variant one observation per agent: the mean success of its first `uses` uses, in order of completion.

    Only events of this experiment count: elsewhere another variant may have ranked the tools.
    """
    found: dict[str, list[float]] = {name: [] for name in variants}
    begun: dict[str, list[bool]] = defaultdict(list)
    for event in events:
        if event.experiment != experiment or event.success is None or len(begun[event.agent]) >= uses:
            continue
        own = begun[event.agent]
        own.append(event.success)
        if len(own) == uses:
            found[assign(event.agent, variants, experiment)].append(float(np.mean(own)))
    return found


def compare(observed: Mapping[str, Sequence[float]], settings: Comparison, control: str = CONTROL) -> list[Verdict]:
    """Every variant against the control.

    All bounds hold together with probability 1 - alpha: alpha is shared by the arms (union bound).

    Args:
        observed: from `outcomes`.
    """
    if control not in observed or len(observed) < 2:
        raise StudyError("a comparison needs the control and a variant", fix=f"name {control!r} among the variants")
    level = settings.alpha / len(observed)
    bounds = {name: last_bounds(values, level, settings.largest_bet) for name, values in observed.items()}
    verdicts = []
    for name in (name for name in observed if name != control):
        low, high = bounds[name][0] - bounds[control][1], bounds[name][1] - bounds[control][0]
        sizes = len(observed[name]), len(observed[control])
        difference = float(np.mean(observed[name]) - np.mean(observed[control])) if all(sizes) else float("nan")
        decision = "better" if low > 0 else "worse" if high < 0 else "open"
        verdicts.append(Verdict(name, *sizes, difference, low, high, decision))
    return verdicts


def last_bounds(values: Sequence[float], alpha: float, largest_bet: float) -> tuple[float, float]:
    """Bounds of the mean after the last observation, 0 and 1 without any."""
    low, high = confidence_sequence(values, alpha, largest_bet)
    return (float(low[-1]), float(high[-1])) if len(low) else (0.0, 1.0)
