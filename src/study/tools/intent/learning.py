"""Learning from feedback: weights, comparisons of variants, online metrics.

The specification says "gradient descent" without a loss. Here a use of tool s, chosen among candidates o, is a set of
pairs (s, o); with factor vectors f and weights w the loss of a pair is log(1 + exp(-w . (f_s - f_o) / T)) (RankNet,
Burges et al. 2005). Pairs of one query count together as one query. The loss is convex, so projected gradient descent
with the step 1 / L, L a bound of its curvature, reaches its minimum on the simplex.

Variants are compared by agent, since assignment is by agent: an observation is the mean outcome of an agent's first
uses. Each arm's mean gets a confidence sequence that holds at all times at once (predictable plug-in empirical
Bernstein, Waudby-Smith and Ramdas 2024, theorem 2). So stopping at the first clear difference keeps the stated error
rate; a fixed-sample test that is looked at again and again does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from study.advisor.engine.intent.feedback import Event
from study.advisor.engine.intent.ranking import assign
from study.advisor.engine.intent.settings import CONTROL, CORRECTED, Comparison, Float64Array, Rules, Tuning
from study.errors import StudyError
from study.evaluation.statistics import share_interval

DESIGN_RATE, DESIGN_STEPS = 0.01, 100  # the specification's own
FEW = 50  # uses below which a few single ones settle the five weights


def project(vector: Float64Array) -> Float64Array:
    """The nearest point of the probability simplex (Duchi et al. 2008, figure 1), shape of `vector` (n,)."""
    ordered = np.sort(vector)[::-1]
    above = np.cumsum(ordered) - 1
    count = np.arange(1, len(vector) + 1)
    last = np.flatnonzero(ordered - above / count > 0)[-1]
    nearest: Float64Array = np.maximum(vector - above[last] / count[last], 0)
    return nearest


def differences(factors: Float64Array, selected: Sequence[int], candidates: Sequence[int]) -> Float64Array:
    """Factor differences between every selected candidate and every other one, shape (pairs, n_factors). A selected
    tool that is no candidate cannot be moved by any weights and gives no pair."""
    chosen = [row for row in candidates if row in set(selected)]
    others = [row for row in candidates if row not in set(selected)]
    return (factors[chosen][:, None] - factors[others][None]).reshape(-1, factors.shape[1])


def lessons(events: Iterable[Event]) -> list[Float64Array]:
    """Factor differences of every successful use among what was shown with it, each of shape (pairs, n_factors). A use
    that failed, or whose outcome is unknown, does not say that the tool should have stood higher."""
    return [
        differences(np.array(event.factors), [event.shown.index(event.selected)], range(len(event.shown)))
        for event in events
        if event.success and event.factors and event.selected in event.shown
    ]


def loss(weights: Float64Array, queries: Sequence[Float64Array], temperature: float) -> tuple[float, Float64Array]:
    """The mean loss over queries and its gradient, shape (n_factors,). `queries`: factor differences per query, each of
    shape (pairs, n_factors), pairs > 0."""
    stacked = np.concatenate(queries)
    shares = np.repeat([1 / (len(queries) * len(own)) for own in queries], [len(own) for own in queries])
    margin = stacked @ weights / temperature
    value = float(shares @ np.logaddexp(0, -margin))
    slope: Float64Array = -((shares * np.exp(-np.logaddexp(0, margin))) @ stacked) / temperature
    return value, slope


def tune(
    queries: Sequence[Float64Array], start: Float64Array, tuning: Tuning, rules: Rules = CORRECTED
) -> Float64Array:
    """The weights of least loss, shape (n_factors,), non-negative with sum 1.

    `queries`: from `differences`; those without pairs say nothing and are left out. With none left the start stays.
    Raises StudyError: the specification's division by the sum met a sum that is not positive.
    """
    told = [own for own in queries if len(own)]
    weights = start.copy()
    if not told:
        return weights
    if rules.sum_normalised:
        for _ in range(DESIGN_STEPS):
            weights = weights - DESIGN_RATE * loss(weights, told, tuning.temperature)[1]
            if weights.sum() <= 0:
                raise StudyError("the weights' sum is not positive", fix="use the projection: sum_normalised False")
            weights = weights / weights.sum()
        return weights
    # The logistic function's curvature is at most 1/4; ||d||^2 bounds that of w . d.
    bound = float(np.mean([(own**2).sum(axis=1).mean() for own in told])) / (4 * tuning.temperature**2)
    if not bound:
        return weights
    for _ in range(tuning.iterations):
        weights = project(weights - loss(weights, told, tuning.temperature)[1] / bound)
    return weights


def confidence_sequence(
    values: Sequence[float] | Float64Array, alpha: float, largest_bet: float
) -> tuple[Float64Array, Float64Array]:
    """Bounds of the mean after each observation, valid at all times together with probability 1 - alpha.

    `values`: observations in [0, 1], in order, shape (n,); their conditional means are equal. Returns: lower and upper
    bounds, both of shape (n,), within [0, 1]; they only ever narrow.
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
    """A variant against the control, now."""

    variant: str
    agents: int  # agents, control_agents: observations of each
    control_agents: int
    difference: float
    low: float  # low, high: bounds of the difference variant - control, valid at all times
    high: float
    decision: str  # ``better``, ``worse`` or ``open``


def outcomes(events: Iterable[Event], variants: Sequence[str], experiment: str, uses: int) -> dict[str, list[float]]:
    """Per variant one observation per agent: the mean success of its first `uses` uses, in order of completion. Only
    events of this experiment count: elsewhere another variant may have ranked the tools."""
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


def compare_variants(observed: Mapping[str, Sequence[float]], settings: Comparison) -> list[Verdict]:
    """Every variant against the control; `observed`: from `outcomes`. All bounds hold together with probability 1 -
    alpha: alpha is shared by the arms (union bound)."""
    if CONTROL not in observed or len(observed) < 2:
        raise StudyError("a comparison needs the control and a variant", fix=f"name {CONTROL!r} among the variants")
    level, bounds, verdicts = settings.alpha / len(observed), {}, []
    for name, values in observed.items():
        lows, highs = confidence_sequence(values, level, settings.largest_bet)
        bounds[name] = (float(lows[-1]), float(highs[-1])) if len(lows) else (0.0, 1.0)
    for name in (name for name in observed if name != CONTROL):
        low, high = bounds[name][0] - bounds[CONTROL][1], bounds[name][1] - bounds[CONTROL][0]
        sizes = len(observed[name]), len(observed[CONTROL])
        difference = float(np.mean(observed[name]) - np.mean(observed[CONTROL])) if all(sizes) else float("nan")
        decision = "better" if low > 0 else "worse" if high < 0 else "open"
        verdicts.append(Verdict(name, *sizes, difference, low, high, decision))
    return verdicts


class Metric(NamedTuple):
    """One metric; shares with their 95 % Wilson interval. NaN where no event bears on it."""

    name: str
    value: float
    low: float
    high: float
    n: int


def online_metrics(events: Sequence[Event], keys: Sequence[str] = ()) -> list[Metric]:
    """Click-through rate, success rate, time to success (median seconds), satisfaction (mean rating) and coverage (the
    share of the catalogue's tools, `keys`, that were ever shown). Click-through counts recommendations that showed
    something; success counts uses with a known outcome."""
    shown = [event for event in events if event.shown]
    known = [event for event in events if event.selected is not None and event.success is not None]
    timed = [(one.asked, one.finished) for one in known if one.success]
    times = [end - start for start, end in timed if start is not None and end is not None]
    ratings = [event.rating for event in events if event.rating is not None]
    covered = len({key for event in events for key in event.shown}.intersection(keys))
    return [
        _share("click_through_rate", sum(event.selected in event.shown for event in shown), len(shown)),
        _share("success_rate", sum(bool(event.success) for event in known), len(known)),
        Metric("time_to_success_s", float(np.median(times)) if times else np.nan, np.nan, np.nan, len(times)),
        Metric("satisfaction", float(np.mean(ratings)) if ratings else np.nan, np.nan, np.nan, len(ratings)),
        Metric("coverage", covered / len(keys) if keys else np.nan, np.nan, np.nan, len(keys)),
    ]


def _share(name: str, part: int, whole: int) -> Metric:
    """A share with its Wilson interval."""
    if not whole:
        return Metric(name, np.nan, np.nan, np.nan, 0)
    return Metric(name, *share_interval(part, whole), whole)
