"""Every interval, test, share, rank correlation and area of the study: how sure we are over tasks, not over data sets.

A paired comparison is of two systems on the same tasks, over values averaged over seeds: ``system - reference``. Beside
the paper's Wilcoxon test stands a randomisation test, since with many tasks the former rejects too often where
differences are not symmetric ("Inference at Scale", SIGIR 2023), and an interval and an effect size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from study.base.errors import StudyError
from study.evaluation import per_task
from study.evaluation.metrics import harmonic_mean as harmonic_mean

Float64Array = NDArray[np.float64]
Alternative = Literal["two-sided", "greater", "less"]

RESAMPLES = 10_000
FEW_RESAMPLES = 2_000  # where intervals are many and read at a glance
NORMAL = 1.96  # standard errors to either side of a 95 % interval
# Per-task files hold six significant digits and averages over seeds add float noise: a smaller difference is a tie.
TIE_DECIMALS = 5
# Up to this many differences Wilcoxon's p-value is exact; above, it is approximated (to a quarter near .002).
EXACT = 50
# Sign flips are drawn this many numbers at a time (32 MB of float64).
BATCH = 4_000_000


def holm(p_values: ArrayLike, size: int | None = None) -> NDArray[np.float64]:
    """Holm's step-down adjusted p-values (Holm 1979), in the order given; they control the family-wise error rate
    under any dependence.

    `size`: of the family, by default the number of p-values; members without a value count as 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("p-values lie in [0, 1]")
    if (size := len(p) if size is None else size) < len(p):
        raise ValueError(f"{len(p)} p-values in a family of {size}")
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * (size - np.arange(len(p))))
    # Four lines in place of statsmodels' `multipletests`, which collects garbage at every call: a third of a second.
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted


def wilcoxon(difference: Float64Array, alternative: Alternative = "two-sided") -> float:
    """p-value of Wilcoxon's signed-rank test, zeros left out and ties given their mean rank; 1 where all are zero.

    Up to `EXACT` differences the p-value is exact, by all sign patterns of these ranks (Pratt and Gibbons 1981, section
    3.7); above, it is the normal approximation with tie correction.
    """
    moved = difference[difference != 0]
    if not len(moved):
        return 1.0
    if len(moved) > EXACT:
        return float(stats.wilcoxon(moved, alternative=alternative, method="asymptotic").pvalue)
    ranks = np.rint(2 * stats.rankdata(np.abs(moved))).astype(np.int64)  # doubled, so that mean ranks are whole
    patterns = np.zeros(ranks.sum() + 1, dtype=np.int64)  # sum of the positive ranks -> sign patterns that have it
    patterns[0] = 1
    for rank in ranks:
        patterns[rank:] += patterns[:-rank].copy()
    positive = ranks[moved > 0].sum()
    total = float(2 ** len(moved))
    greater, less = patterns[positive:].sum() / total, patterns[: positive + 1].sum() / total
    return float({"greater": greater, "less": less, "two-sided": min(1.0, 2 * min(greater, less))}[alternative])


def randomisation(
    difference: Float64Array, alternative: Alternative = "two-sided", *, seed: int, resamples: int = RESAMPLES
) -> float:
    """p-value of the paired randomisation test of the mean difference (Fisher): signs are flipped at random.

    All 2^n sign patterns of the differences that are not 0 are used where they are no more than `resamples`; otherwise
    `resamples` are drawn and the observed pattern is counted as one of them (Phipson and Smyth 2010), so the value is
    never 0.
    """
    return float(randomisations(difference[:, None], alternative, seed=seed, resamples=resamples)[0])


def randomisations(
    differences: Float64Array, alternative: Alternative = "two-sided", *, seed: int, resamples: int = RESAMPLES
) -> Float64Array:
    """`randomisation` of each column of `differences`, shape (n, m), with shared patterns: p-values, shape (m,)."""
    n, m = differences.shape
    found, few = np.empty(m), np.zeros(m, dtype=bool)
    for column, own in enumerate(differences.T):
        moved = own[own != 0]
        few[column] = len(moved) < 63 and 2 ** len(moved) <= resamples
        if few[column]:
            every = (np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved))) & 1
            found[column] = _extreme(every, moved[:, None], alternative)[0] / len(every)
    drawn = np.ascontiguousarray(differences[:, ~few])
    if drawn.shape[1]:
        rng, extreme = np.random.default_rng(seed), np.zeros(drawn.shape[1], dtype=np.int64)
        step = max(1, BATCH // max(n, m))
        for start in range(0, resamples, step):
            # Whole words of 64 signs: the stream of patterns does not depend on the step.
            words = rng.integers(0, 2**64, size=(min(step, resamples - start), -(-n // 64)), dtype=np.uint64)
            extreme += _extreme(np.unpackbits(words.view(np.uint8), axis=1)[:, :n], drawn, alternative)
        found[~few] = (extreme + 1) / (resamples + 1)
    return found


def _extreme(flips: NDArray[np.integer], differences: Float64Array, alternative: Alternative) -> NDArray[np.int64]:
    """How many patterns, shape (patterns, n), 1 where a sign is turned, give a sum at least as extreme as the observed
    one, per column of `differences`."""
    sign, totals = -1.0 if alternative == "less" else 1.0, differences.sum(axis=0)
    observed = np.abs(totals) if alternative == "two-sided" else sign * totals
    # A pattern that gives the observed sum again must count although its terms are added in another order.
    thresholds = observed - 1e-9 * np.abs(differences).sum(axis=0)
    sums = sign * (totals - 2.0 * (flips.astype(np.float64) @ differences))
    return np.asarray(((np.abs(sums) if alternative == "two-sided" else sums) >= thresholds).sum(axis=0))


def bootstrap_means(values: Float64Array, *, seed: int, resamples: int = RESAMPLES) -> Float64Array:
    """Means of bootstrap resamples of the rows of `values`, shape (n, m): shape (resamples, m). They depend on n, the
    seed and a column's own values alone, so that systems over the same tasks may be subtracted draw by draw."""
    n, values = len(values), in_exact_units(values)
    whole = n * resamples <= BATCH
    drawn = [_one_batch(n, seed, resamples)] if whole else _batches(n, seed, resamples)
    return np.concatenate([counts @ values / n for counts in drawn])


def in_exact_units(values: Float64Array) -> Float64Array:
    """Columns of `values`, shape (n, m), rounded so that a sum of n of a column's values is exact and so the same in
    whatever order a processor adds them. A mean of them moves by at most n * 2e-16 of the largest one."""
    _, exponent = np.frexp(np.abs(values).max(axis=0, initial=0.0) * len(values))
    unit = np.ldexp(1.0, exponent - 53)
    return np.asarray(np.round(values / unit) * unit)


def percentile_limits(draws: ArrayLike) -> tuple[float, float]:
    """The ends of the 95 % percentile interval of draws of one number, NaN ones left out; NaN where none is left."""
    known = np.asarray(draws, dtype=np.float64)
    known = known[~np.isnan(known)]
    low, high = np.quantile(known, [0.025, 0.975]).tolist() if len(known) else (float("nan"),) * 2
    return low, high


def bootstrap_intervals(differences: Float64Array, *, seed: int, resamples: int = RESAMPLES) -> Float64Array:
    """`bootstrap_interval` of each column of `differences`, shape (n, m), from the same resamples: shape (2, m)."""
    n, m = differences.shape
    if n < 2:
        return np.full((2, m), np.nan)
    tail = 50 * (1 - 0.95)  # a hair more than 2.5, by which the committed limits were computed
    means = bootstrap_means(differences, seed=seed, resamples=resamples)
    return np.asarray(np.percentile(means, [tail, 100 - tail], axis=0))


def _batches(n: int, seed: int, resamples: int) -> Iterator[Float64Array]:
    """How often each of n tasks is in a resample, shape (b, n), some resamples at a time."""
    rng, step = np.random.default_rng(seed), max(1, BATCH // n)
    for start in range(0, resamples, step):
        drawn = rng.integers(0, n, size=(min(step, resamples - start), n))
        rows = np.arange(len(drawn))[:, None]
        counts = np.bincount((rows * n + drawn).ravel(), minlength=len(drawn) * n).reshape(len(drawn), n)
        yield counts.astype(np.float64)


@lru_cache(maxsize=16)  # many means over the same few groups of tasks share their resamples; at most 32 MB each
def _one_batch(n: int, seed: int, resamples: int) -> Float64Array:
    return next(_batches(n, seed, resamples))


def bootstrap_interval(difference: Float64Array, *, seed: int, resamples: int = RESAMPLES) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean difference over tasks; NaN for fewer than two."""
    low, high = bootstrap_intervals(difference[:, None], seed=seed, resamples=resamples)[:, 0].tolist()
    return low, high


def mean_interval(
    values: ArrayLike, *, seed: int, resamples: int = RESAMPLES, name: str = "mean", prefix: str = ""
) -> dict[str, float]:
    """The mean under `name`, and its 95 % bootstrap interval under ``ci_low`` and ``ci_high`` behind the prefix; NaN
    without a value."""
    numbers = np.asarray(values, dtype=np.float64)
    low, high = bootstrap_interval(numbers, seed=seed, resamples=resamples)
    mean = float(numbers.mean()) if len(numbers) else float("nan")
    return {name: mean, f"{prefix}ci_low": low, f"{prefix}ci_high": high}


def cluster_interval(
    values: Float64Array, clusters: ArrayLike, *, seed: int, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of `values`, shape (n,), of which whole clusters are drawn; NaN for one."""
    _, place = np.unique(clusters, return_inverse=True)
    sums, sizes = np.bincount(place, values), np.bincount(place)
    if len(sums) < 2:
        return float("nan"), float("nan")
    (drawn,) = resampled(len(sums), seed=seed, resamples=resamples)
    return percentile_limits(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))


def difference_interval(a: Float64Array, b: Float64Array, *, seed: int, resamples: int) -> tuple[float, float]:
    """95 % bootstrap interval of mean(a) - mean(b) for two independent samples; NaN if one has under two values."""
    if min(len(a), len(b)) < 2:
        return float("nan"), float("nan")
    first, second = _two_samples(len(a), len(b), seed, resamples)
    return percentile_limits(a[first].mean(axis=1) - b[second].mean(axis=1))


@lru_cache(maxsize=16)  # as `_one_batch`
def _two_samples(n: int, m: int, seed: int, resamples: int) -> list[NDArray[np.int64]]:
    return resampled(n, m, seed=seed, resamples=resamples)


def resampled(*sizes: int, seed: int | Sequence[int], resamples: int) -> list[NDArray[np.int64]]:
    """Rows drawn with replacement from samples of these sizes, one after another from one stream: each of shape
    (resamples, size)."""
    rng = np.random.default_rng(seed)
    return [rng.integers(size, size=(resamples, size)) for size in sizes]


def resample_counts(n: int, *, seed: int, resamples: int) -> NDArray[np.int64]:
    """How often each of n units is in a bootstrap resample of them: shape (resamples, n)."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)


def share_interval(hits: int, n: int, method: Literal["wilson", "beta"] = "wilson") -> tuple[float, float, float]:
    """A share with its 95 % interval: Wilson's (1927), or the exact one (``beta``: Clopper and Pearson 1934)."""
    low, high = proportion_confint(hits, n, method=method)
    return hits / n, float(low), float(high)


def clustered_share(flag: NDArray[np.bool_], cluster: ArrayLike) -> tuple[float, float, float]:
    """A share with its 95 % interval; members of one cluster are not taken as independent. Both of shape (n,).

    The ratio estimator's linearised variance over clusters (Cochran 1977, eq. 6.13), cut at 0 and 1.
    """
    if not len(flag):
        return float("nan"), float("nan"), float("nan")
    p = float(flag.mean())
    _, cluster = np.unique(cluster, return_inverse=True)
    excess = np.bincount(cluster, weights=flag - p)
    k = len(excess)
    error = NORMAL * float(np.sqrt((excess**2).sum() * k / max(k - 1, 1))) / len(flag)
    return p, max(0.0, p - error), min(1.0, p + error)


def auc(positive: Float64Array, negative: Float64Array) -> float:
    """Area under the ROC curve: the probability that a positive value is above a negative one, ties by half (Mann and
    Whitney 1947); NaN where a side is empty. Over a few values at a time it is faster than scikit-learn's."""
    if not len(positive) or not len(negative):
        return float("nan")
    other = np.sort(negative)
    below, upto = np.searchsorted(other, positive, "left"), np.searchsorted(other, positive, "right")
    return float((below + upto).mean() / (2 * len(other)))


def rank_correlation(a: Float64Array, b: Float64Array) -> tuple[float, float]:
    """Kendall's tau-b and Spearman's rho of two lists of values; NaN where one has a single value."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan"), float("nan")
    return float(stats.kendalltau(a, b).statistic), float(stats.spearmanr(a, b).statistic)


def tau_b(one: Float64Array, other: Float64Array) -> Float64Array:
    """Kendall's tau-b of each row of two arrays of shape (b, n), as `scipy.stats.kendalltau` takes a millisecond for;
    NaN where all values of a row tie."""
    first, second = np.triu_indices(one.shape[1], k=1)
    left, right = (np.sign(values[:, first] - values[:, second]) for values in (one, other))
    pairs = np.sqrt(np.abs(left).sum(axis=1)), np.sqrt(np.abs(right).sum(axis=1))
    with np.errstate(invalid="ignore"):
        return np.asarray(np.clip((left * right).sum(axis=1) / pairs[0] / pairs[1], -1, 1))


def rank_biserial(difference: Float64Array) -> float:
    """Matched-pairs rank-biserial correlation (Kerby 2014): (W+ - W-) / (W+ + W-) over non-zero differences, from -1
    (the reference wins every task that differs) to 1; 0 where none differs."""
    moved = difference[difference != 0]
    if not len(moved):
        return 0.0
    ranks = stats.rankdata(np.abs(moved))
    return float((np.sign(moved) * ranks).sum() / ranks.sum())


def paired(system: pd.DataFrame, reference: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The two systems' values per task, averaged over seeds, for tasks that have relevant servers: index task_id,
    columns system and reference.

    `system`, `reference`: per-task tables; the numbers of seeds may differ, the tasks must not.
    """
    first, second = (_task_means(*side, [metric]) for side in (("system", system), ("reference", reference)))
    return _pair(first[metric], second[metric])


def _task_means(name: str, frame: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    for metric in metrics:
        if metric not in frame:
            raise StudyError(f"the per-task table of the {name} lacks a metric", column=metric, fix="evaluate it again")
    return per_task.check(frame, measures=metrics).groupby("task_id")[list(metrics)].mean(skipna=False)


def _pair(system: pd.Series, reference: pd.Series) -> pd.DataFrame:
    fix, metric = "use one split for both", str(system.name)
    if not system.index.equals(reference.index):
        raise StudyError("the two systems were not asked the same tasks", column="task_id", fix=fix)
    pairs = pd.DataFrame({"system": system, "reference": reference})
    undefined = pairs.isna()
    if (undefined["system"] != undefined["reference"]).any():
        raise StudyError("a task has relevant servers for one system only", column=metric, fix=fix)
    if undefined.all(axis=None):
        raise StudyError("no task has relevant servers", column=metric, fix="use a split with test labels")
    return pairs.dropna()


def compare(
    system: pd.DataFrame,
    reference: pd.DataFrame,
    metric: str,
    seed: int,
    *,
    alternative: Alternative = "two-sided",
    resamples: int = RESAMPLES,
) -> dict[str, float | int | str]:
    """One paired comparison, with the entries of `compare_all` from metric to alternative.

    `resamples`: of the randomisation test; the interval always uses `RESAMPLES`.
    """
    frames = {"system": system, "reference": reference}
    how: dict[str, Any] = {"alternative": alternative, "resamples": resamples, "per_comparison": 0}
    (row,) = compare_all(frames, "reference", [metric], seed, **how).to_dict("records")
    family = ("system", "reference", "family", "wilcoxon_p_holm", "randomisation_p_holm")
    return {str(name): value for name, value in row.items() if name not in family}


def compare_all(
    frames: Mapping[str, pd.DataFrame],
    reference: str,
    metrics: Sequence[str],
    seed: int,
    *,
    alternative: Alternative = "two-sided",
    resamples: int = RESAMPLES,
    per_comparison: int = 100,
    family: Collection[str] | None = None,
) -> pd.DataFrame:
    """Every other system against the reference on every metric: one declared family, corrected as a whole by Holm.

    Args:
        frames: per-task tables by system, the reference among them.
        metrics: columns of the tables, also such as have no cutoff.
        alternative: ``greater`` asks whether the system is better than the reference.
        resamples: of the randomisation test, at least this many, and `per_comparison` times the size of the family, so
            that its smallest possible p-value stays below 1 / per_comparison after correction.
        family: the systems that are corrected together, by default all others in `frames`. One without a run counts as
            p = 1, so that a later run can only lower the corrected p-values of the others.

    Returns: one row per system and metric with system, reference, metric, n (tasks compared), undefined (tasks left
    out, as they have no relevant server), wins, ties and losses of the system (Wilcoxon's test leaves ties out), zeros
    (ties at which both systems score 0), mean_system, mean_reference, diff, diff_ci_low, diff_ci_high (95 %),
    rank_biserial, wilcoxon_p, randomisation_p, alternative, family (its size), wilcoxon_p_holm and randomisation_p_holm
    (NaN for systems outside the family).
    """
    others = [name for name in frames if name != reference]
    if reference not in frames:
        raise StudyError(f"no per-task table of the reference {reference!r}", fix=f"one of: {', '.join(frames)}")
    if not others or not metrics or len(set(metrics)) < len(metrics):
        raise StudyError("the family of comparisons is empty or repeats a metric", fix="name each metric once")
    members = set(others if family is None else family) - {reference}
    size = len(members) * len(metrics)
    enough = max(resamples, per_comparison * size)
    means = {name: _task_means("system", frames[name], metrics) for name in others}
    base = _task_means("reference", frames[reference], metrics)
    pairs = {(name, metric): _pair(means[name][metric], base[metric]) for name in others for metric in metrics}
    # Comparisons over the same tasks share their draws.
    over: dict[bytes, list[tuple[str, str]]] = {}
    for cell, own in pairs.items():
        over.setdefault(str(own.index.tolist()).encode(), []).append(cell)
    gains = {cell: (own["system"] - own["reference"]).to_numpy(np.float64) for cell, own in pairs.items()}
    limits, p = dict[tuple[str, str], Float64Array](), dict[tuple[str, str], float]()
    for cells in over.values():
        exact = np.stack([gains[cell] for cell in cells], 1)
        limits |= zip(cells, bootstrap_intervals(exact, seed=seed).T, strict=True)
        tested = randomisations(exact.round(TIE_DECIMALS), alternative, seed=seed, resamples=enough)
        p |= zip(cells, tested.tolist(), strict=True)
    rows = []
    for (name, metric), own in pairs.items():
        difference = gains[name, metric].round(TIE_DECIMALS)
        row = {"system": name, "reference": reference, "metric": metric, "n": len(own)}
        row |= {"undefined": frames[name]["task_id"].nunique() - len(own), "wins": int((difference > 0).sum())}
        row |= {"ties": int((difference == 0).sum()), "losses": int((difference < 0).sum())}
        row |= {"zeros": int((own == 0).all(axis=1).sum()), "mean_system": float(own["system"].mean())}
        row |= {"mean_reference": float(own["reference"].mean()), "diff": float(gains[name, metric].mean())}
        row |= dict(zip(("diff_ci_low", "diff_ci_high"), limits[name, metric].tolist(), strict=True))
        row |= {"rank_biserial": rank_biserial(difference), "wilcoxon_p": wilcoxon(difference, alternative)}
        row |= {"randomisation_p": p[name, metric], "alternative": alternative, "family": size}
        rows.append(row)
    table = pd.DataFrame(rows)
    inside = table["system"].isin(members).to_numpy()
    for test in ("wilcoxon_p", "randomisation_p"):
        table[f"{test}_holm"] = np.nan
        table.loc[inside, f"{test}_holm"] = holm(table.loc[inside, test].to_numpy(), size)
    return table
