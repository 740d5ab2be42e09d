"""``conf/tools/intent.yaml``, and which defects of its specification are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from study.advisor.arrays import Float64Array as Float64Array
from study.base import paths
from study.base.errors import StudyError
from study.base.settings import read_settings

FILE = "conf/tools/intent.yaml"
CONTROL = "control"  # the variant that the others are compared with
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
FACTORS = ("relevance", "success_rate", "popularity", "performance", "user_rating")


# Defects of the specification, all corrected. `designed` keeps the first seven.
DEFECTS = (
    "substring_domains",  # a domain keyword matches inside words ("test" in "latest", "api" in "capital")
    "bare_verbs",  # words are split at white space alone, so "verify," is no verb
    "first_seen_ties",  # candidates with equal counts stay in the order of their first signal, not of their relevance
    "unused_fails",  # a tool without calls has success rate 0, so a new tool is punished for being new
    "extreme_unknowns",  # a tool without latencies counts as the fastest, one without ratings as the worst
    "e_folding_decay",  # exp(-days / half life), whose half-life is 0.69 of what it is called
    "fixed_cap",  # popularity is 1 at 1,000 calls, whatever the log's size, and the agent's bias may push it above 1
    # These four change no ranking of a log; the record of `intent_as_designed` names them, too.
    "lost_zero_ratings",  # a rating of 0 is not recorded
    "filter_last",  # the list is cut first and filtered then, so that fewer tools than asked for remain
    "query_only_cache",  # the cache's key is the query alone, so agents and contexts get each other's answers
    "sum_normalised",  # tuned weights are divided by their sum, which keeps negative ones, not projected
)


@dataclass(frozen=True)
class Ranking:
    """Key ``ranking`` of the file, where every value is explained."""

    document: str
    candidates: Count | None
    common_term: Positive
    prior_strength: Positive
    neutral: Annotated[float, Field(ge=0, le=1)]
    popularity_cap: Count | None
    half_life_days: Positive
    slowest_ms: Positive
    rating_scale: Positive


@dataclass(frozen=True)
class Tuning:
    """Key ``tuning``."""

    temperature: float
    iterations: int


@dataclass(frozen=True)
class Limit:
    """Key ``rate_limit``: so many calls in so many seconds."""

    calls: int
    seconds: float


@dataclass(frozen=True)
class CacheSize:
    """Key ``cache``."""

    seconds: float
    entries: int


@dataclass(frozen=True)
class Comparison:
    """Key ``comparison``."""

    alpha: Annotated[float, Field(gt=0, lt=1)]
    uses_per_agent: Count
    largest_bet: Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True)
class Sessions:
    """Key ``sessions``: what an agent used a moment ago, and which tools follow each other."""

    seconds: Positive
    weight: Annotated[float, Field(ge=0)]
    prior_strength: Positive
    least: Count


@dataclass(frozen=True)
class Intentions:
    """The whole file."""

    verbs: frozenset[str]  # all action verbs
    domains: Mapping[str, tuple[str, ...]]  # domain -> keywords
    ranking: Ranking
    variants: Mapping[str, Any]  # name -> weights in the order of `FACTORS`, each on the simplex
    tuning: Tuning
    cache: CacheSize
    rate_limit: Limit
    comparison: Comparison
    sessions: Sessions

    def __post_init__(self) -> None:
        checked = {name: weights(values, name) for name, values in self.variants.items()}
        object.__setattr__(self, "variants", checked)


def intent_settings() -> Intentions:
    """Read ``conf/tools/intent.yaml``."""
    return read_settings(Intentions, paths.conf() / "tools" / "intent.yaml")


def weights(values: Any, name: str) -> Float64Array:
    """Weights of the five factors, shape (5,), checked to be non-negative with sum 1."""
    try:
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        vector = np.empty(0)
    if vector.shape != (len(FACTORS),) or not (vector >= 0).all() or abs(vector.sum() - 1) > 1e-9:
        reason, fix = f"the weights of {name!r} are not {len(FACTORS)} shares of 1", f"give {', '.join(FACTORS)}"
        raise StudyError(reason, file=FILE, column="variants", fix=fix)
    return vector
