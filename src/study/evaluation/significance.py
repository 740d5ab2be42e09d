"""Paired comparison of two systems on the same tasks, over per-task values averaged over seeds.

A difference is ``system - reference``: positive means that the system is better. Everything here concerns one split: it
says how sure we are over *tasks*, not over data sets.

The paper uses Wilcoxon's signed-rank test. It is shown beside a paired randomisation test, because with many tasks it
rejects too often where differences are not symmetric ("Inference at Scale", SIGIR 2023), and beside an interval and an
effect size, because with 961 tasks a difference of no use can be significant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from study.errors import StudyError
from study.evaluation import per_task


def holm(p_values: ArrayLike, size: int | None = None) -> NDArray[np.float64]:
    """Holm's step-down adjusted p-values (Holm 1979), in the order given.

    The smallest of m is multiplied by m, the next by m - 1, ..., none below an earlier one, none above 1. Calling every
    adjusted value below alpha significant keeps the chance of any false one below alpha, whatever their dependence.

    Args:
        p_values: shape (m,), each in [0, 1].
        size: of the family, m unless given; members without a value count as 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    size = len(p) if size is None else size
    if size < len(p):
        raise ValueError("a family is no smaller than its p-values")
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("p-values lie in [0, 1]")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(size, size - len(p), -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted


Float64Array = NDArray[np.float64]
Alternative = Literal["two-sided", "greater", "less"]

RESAMPLES = 10_000
# Per-task files hold six significant digits and averages over seeds add float noise: a smaller difference is a tie.
TIE_DECIMALS = 5
# Sign flips are drawn this many numbers at a time (32 MB of float64).
BATCH = 4_000_000


def wilcoxon(difference: Float64Array, alternative: Alternative = "two-sided") -> float:
    """p-value of Wilcoxon's signed-rank test: zeros left out, normal approximation with tie correction.

    Returns: 1 where every difference is zero, as nothing speaks against equality.
    """
    if not difference.any():
        return 1.0
    result = stats.wilcoxon(difference, zero_method="wilcox", alternative=alternative, method="asymptotic")
    return float(result.pvalue)


def randomisation(
    difference: Float64Array, alternative: Alternative = "two-sided", *, seed: int, resamples: int = RESAMPLES
) -> float:
    """p-value of the paired randomisation test of the mean difference (Fisher): signs are flipped at random.

    All 2^n sign patterns are used where they are no more than `resamples`; otherwise `resamples` are drawn and the
    observed pattern is counted as one of them (Phipson and Smyth 2010), so the value is never 0.
    """
    moved = difference[difference != 0]
    n = len(moved)
    if n == 0:
        return 1.0
    exact = n < 63 and 2**n <= resamples
    patterns = 2**n if exact else resamples
    sign = -1.0 if alternative == "less" else 1.0
    # A pattern that gives the observed sum again must count although its terms are added in another order.
    observed = abs(moved.sum()) if alternative == "two-sided" else sign * moved.sum()
    threshold = observed - 1e-9 * np.abs(moved).sum()
    rng = np.random.default_rng(seed)
    total, extreme = moved.sum(), 0
    step = max(1, BATCH // n)
    for start in range(0, patterns, step):
        count = min(step, patterns - start)
        if exact:
            flips = (np.arange(start, start + count)[:, None] >> np.arange(n)) & 1
        else:
            flips = rng.integers(0, 2, size=(count, n), dtype=np.int8)
        sums = sign * (total - 2.0 * (flips @ moved))
        extreme += int(((np.abs(sums) if alternative == "two-sided" else sums) >= threshold).sum())
    return extreme / patterns if exact else (extreme + 1) / (patterns + 1)


def bootstrap_interval(
    difference: Float64Array, *, seed: int, resamples: int = RESAMPLES, level: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean difference over tasks."""
    if len(difference) < 2:
        return float("nan"), float("nan")
    result = stats.bootstrap(
        (difference,),
        np.mean,
        confidence_level=level,
        n_resamples=resamples,
        batch=max(1, BATCH // len(difference)),
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def rank_biserial(difference: Float64Array) -> float:
    """Matched-pairs rank-biserial correlation (Kerby 2014): (W+ - W-) / (W+ + W-) over non-zero differences.

    Returns: from -1 (the reference wins every task that differs) to 1; 0 where none differs.
    """
    moved = difference[difference != 0]
    if not len(moved):
        return 0.0
    ranks = stats.rankdata(np.abs(moved))
    return float((np.sign(moved) * ranks).sum() / ranks.sum())


def paired(system: pd.DataFrame, reference: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The two systems' values per task, averaged over seeds, for tasks that have relevant servers.

    Args:
        system, reference: per-task tables; the numbers of seeds may differ, the tasks must not.
        metric: a column, e.g. ``ndcg@10``.

    Returns: index task_id, columns system and reference.
    """
    sides = {}
    for name, frame in (("system", system), ("reference", reference)):
        if metric not in frame:
            raise StudyError(f"the per-task table of the {name} lacks a metric", column=metric, fix="evaluate it again")
        sides[name] = per_task.check(frame).groupby("task_id")[metric].mean(skipna=False)
    if not sides["system"].index.equals(sides["reference"].index):
        raise StudyError(
            "the two systems were not asked the same tasks", column="task_id", fix="use one split for both"
        )
    pairs = pd.DataFrame(sides)
    undefined = pairs.isna()
    if (undefined["system"] != undefined["reference"]).any():
        raise StudyError("a task has relevant servers for one system only", column=metric, fix="use one split for both")
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
    """One paired comparison.

    Args:
        alternative: ``greater`` asks whether the system is better than the reference.
        seed: of the resampling.
        resamples: of the randomisation test; the interval always uses `RESAMPLES`.

    Returns: metric, n (tasks compared), undefined (tasks left out, as they have no relevant server), wins, ties and
    losses of the system (Wilcoxon's test leaves ties out), zeros (ties at which both systems score 0), mean_system,
    mean_reference, diff, diff_ci_low, diff_ci_high (95 %), rank_biserial, wilcoxon_p, randomisation_p, alternative.
    """
    pairs = paired(system, reference, metric)
    exact = (pairs["system"] - pairs["reference"]).to_numpy(np.float64)
    difference = exact.round(TIE_DECIMALS)
    low, high = bootstrap_interval(exact, seed=seed)
    return {
        "metric": metric,
        "n": len(pairs),
        "undefined": system["task_id"].nunique() - len(pairs),
        "wins": int((difference > 0).sum()),
        "ties": int((difference == 0).sum()),
        "losses": int((difference < 0).sum()),
        "zeros": int((pairs == 0).all(axis=1).sum()),
        "mean_system": float(pairs["system"].mean()),
        "mean_reference": float(pairs["reference"].mean()),
        "diff": float(exact.mean()),
        "diff_ci_low": low,
        "diff_ci_high": high,
        "rank_biserial": rank_biserial(difference),
        "wilcoxon_p": wilcoxon(difference, alternative),
        "randomisation_p": randomisation(difference, alternative, seed=seed, resamples=resamples),
        "alternative": alternative,
    }


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
        resamples: of the randomisation test, at least this many;
        per_comparison: and at least this many times the size of the family, so that its smallest possible p-value stays
            below 1 / per_comparison after correction.
        family: the systems that are corrected together, run or not; without it, all others in `frames`. One without a
            run counts as p = 1, so the corrected p-values of the others do not rest on what has run: a later run can
            only lower them.

    Returns: one row per system and metric with system, reference, the entries of `compare`, then family (its size),
    wilcoxon_p_holm and randomisation_p_holm (NaN for systems outside the family).
    """
    if reference not in frames:
        raise StudyError(f"no per-task table of the reference {reference!r}", fix=f"one of: {', '.join(frames)}")
    others = [name for name in frames if name != reference]
    if not others or not metrics or len(set(metrics)) < len(metrics):
        raise StudyError(
            "the family of comparisons is empty or repeats a metric", fix="name other systems, metrics once"
        )
    members = set(others if family is None else family) - {reference}
    size = len(members) * len(metrics)
    enough = max(resamples, per_comparison * size)
    records = []
    for name in others:
        for metric in metrics:
            record = compare(frames[name], frames[reference], metric, seed, alternative=alternative, resamples=enough)
            records.append({"system": name, "reference": reference, **record, "family": size})
    table = pd.DataFrame(records)
    inside = table["system"].isin(members).to_numpy()
    for test in ("wilcoxon_p", "randomisation_p"):
        table[f"{test}_holm"] = np.nan
        table.loc[inside, f"{test}_holm"] = holm(table.loc[inside, test].to_numpy(), size)
    return table
