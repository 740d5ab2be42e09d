"""Phase 3, the five factors and their weighted sum. Every factor lies in [0, 1]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from study.data.dataset import FloatArray
from study.tools.intent.feedback import Statistics
from study.tools.intent.settings import CORRECTED, Ranking, Rules

Float64Array = NDArray[np.float64]
DAY = 86_400.0
DESIGN_CAP = 1_000


def smoothed(part: Float64Array, whole: Float64Array, prior: float, strength: float) -> Float64Array:
    """(part + prior x strength) / (whole + strength): the rate, drawn to `prior` where there is little to go by."""
    rate: Float64Array = (part + prior * strength) / (whole + strength)
    return rate


def success_rate(statistics: Statistics, ranking: Ranking, rules: Rules = CORRECTED) -> Float64Array:
    """Share of calls that worked, drawn to the share over all tools; (n_tools,). Unused tools get that share."""
    calls, successes = statistics.calls, statistics.successes
    if rules.unused_fails:
        return successes / np.maximum(calls, 1)
    overall = successes.sum() / calls.sum() if calls.any() else ranking.neutral
    return smoothed(successes, calls, overall, ranking.prior_strength)


def recency(days: Float64Array, half_life: float, rules: Rules = CORRECTED) -> Float64Array:
    """What is left of popularity after `days` without use: half after a half-life; NaN days (unknown) leave it."""
    age = np.maximum(np.nan_to_num(days, nan=0.0), 0.0)
    left: Float64Array = np.exp(-age / half_life) if rules.e_folding_decay else np.exp2(-age / half_life)
    return left


def popularity(
    statistics: Statistics, ranking: Ranking, now: float, agent: str, rules: Rules = CORRECTED
) -> Float64Array:
    """Calls relative to the cap, decayed, times the agent's bias of 0.5 to 1.5; (n_tools,)."""
    cap = DESIGN_CAP if rules.fixed_cap else ranking.popularity_cap or max(1.0, float(statistics.calls.max(initial=0)))
    base = np.minimum(statistics.calls / cap, 1)
    days = (now - statistics.last_used) / DAY
    # The design counts whole days.
    left = recency(np.floor(days) if rules.e_folding_decay else days, ranking.half_life_days, rules)
    own = statistics.agents.get(agent)
    rate = np.full(len(base), 0.5)
    if own is not None:
        calls, successes = own
        rate = (
            np.where(calls > 0, successes / np.maximum(calls, 1), 0.5)
            if rules.unused_fails
            else smoothed(successes, calls, 0.5, ranking.prior_strength)
        )
    value: Float64Array = base * left * (0.5 + rate)
    return value if rules.fixed_cap else np.minimum(value, 1)


def performance(statistics: Statistics, ranking: Ranking, rules: Rules = CORRECTED) -> Float64Array:
    """1 at 0 ms, 0 at `slowest_ms` and above; neutral where nothing was timed; (n_tools,)."""
    mean = statistics.latency_ms / np.maximum(statistics.timed, 1)
    unknown = 1.0 if rules.extreme_unknowns else ranking.neutral
    return np.where(statistics.timed > 0, 1 - np.minimum(mean / ranking.slowest_ms, 1), unknown)


def user_rating(statistics: Statistics, ranking: Ranking, rules: Rules = CORRECTED) -> Float64Array:
    """Mean rating as a share of the scale, drawn to the mean over all tools; neutral without any; (n_tools,)."""
    shares = statistics.rating / ranking.rating_scale
    if rules.extreme_unknowns:
        return shares / np.maximum(statistics.rated, 1)
    overall = shares.sum() / statistics.rated.sum() if statistics.rated.any() else ranking.neutral
    return smoothed(shares, statistics.rated, overall, ranking.prior_strength)


def factors(
    relevance: FloatArray,
    statistics: Statistics,
    ranking: Ranking,
    *,
    now: float = 0.0,
    agent: str = "",
    rules: Rules = CORRECTED,
) -> Float64Array:
    """The five factors of every tool, shape (n_tools, 5), in the order of `settings.FACTORS`.

    Args:
        relevance: cosines, shape (n_tools,); negative ones count as 0.
        now: seconds since 1970.
    """
    columns = (
        np.clip(relevance.astype(np.float64), 0, 1),
        success_rate(statistics, ranking, rules),
        popularity(statistics, ranking, now, agent, rules),
        performance(statistics, ranking, rules),
        user_rating(statistics, ranking, rules),
    )
    return np.stack(columns, axis=1)
