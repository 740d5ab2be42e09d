"""Learning the weights from feedback: a pairwise logistic loss on the probability simplex.

The design says "gradient descent" without a loss. Here a use of tool s, chosen among candidates o, is a set of pairs
(s, o); with factor vectors f and weights w the loss of a pair is log(1 + exp(-w . (f_s - f_o) / T)) (RankNet, Burges
et al. 2005). Pairs of one query count together as one query. The loss is convex, so projected gradient descent with
the step 1 / L, L a bound of its curvature, reaches its minimum on the simplex.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from study.errors import StudyError
from study.tools.intent.feedback import Event
from study.tools.intent.settings import CORRECTED, FACTORS, Float64Array, Rules, Tuning

# The design's own step, of which it takes 100.
DESIGN_RATE, DESIGN_STEPS = 0.01, 100
# Uses below which a few single ones settle the five weights.
FEW = 50


def project(vector: Float64Array) -> Float64Array:
    """The nearest point of the probability simplex (Duchi et al. 2008, figure 1), shape of `vector` (n,)."""
    ordered = np.sort(vector)[::-1]
    above = np.cumsum(ordered) - 1
    count = np.arange(1, len(vector) + 1)
    last = np.flatnonzero(ordered - above / count > 0)[-1]
    nearest: Float64Array = np.maximum(vector - above[last] / count[last], 0)
    return nearest


def differences(factors: Float64Array, selected: Sequence[int], candidates: Sequence[int]) -> Float64Array:
    """Factor differences between every selected candidate and every other one, shape (pairs, n_factors).

    A selected tool that is no candidate cannot be moved by any weights and gives no pair.
    """
    chosen = [row for row in candidates if row in set(selected)]
    others = [row for row in candidates if row not in set(selected)]
    return (factors[chosen][:, None] - factors[others][None]).reshape(-1, factors.shape[1])


def lessons(events: Iterable[Event]) -> list[Float64Array]:
    """Factor differences of every successful use among what was shown with it, each of shape (pairs, n_factors).

    A use that failed, or whose outcome is unknown, does not say that the tool should have stood higher.
    """
    return [
        differences(np.array(event.factors), [event.shown.index(event.selected)], range(len(event.shown)))
        for event in events
        if event.success and event.factors and event.selected in event.shown
    ]


def loss(weights: Float64Array, queries: Sequence[Float64Array], temperature: float) -> tuple[float, Float64Array]:
    """The mean loss over queries and its gradient, shape (n_factors,).

    Args:
        queries: factor differences per query, each of shape (pairs, n_factors), pairs > 0.
    """
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

    Args:
        queries: from `differences`; those without pairs say nothing and are left out. With none left the start stays.
        start: weights to begin with.

    Raises:
        StudyError: the design's division by the sum met a sum that is not positive.
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


def named(weights: Float64Array) -> dict[str, float]:
    """Weights by factor."""
    return {name: float(value) for name, value in zip(FACTORS, weights, strict=True)}
