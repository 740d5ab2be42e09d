"""Do the parts of a task speak of the same thing? Similarity against shuffled pairs, and a sample that was read.

The similarity is the cosine of all-MiniLM-L6-v2 vectors. AUC is the share of (own, shuffled) pairs in which the own
one is more alike, ties by half: 0.5 where the columns are independent.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from omegaconf import DictConfig
from scipy import stats

from study.analysis.audit.settings import TaskQuality, read, settings_file
from study.analysis.audit.tables import folder, wilson, write_tables
from study.data.dataset import Dataset, FloatArray, IntArray, load
from study.encoders.sentence import encode
from study.errors import StudyError
from study.evaluation.metrics import Float64Array

# What a language model says of a task that it read, and what that means; the read sample keeps these codes.
CODES = {
    "coherent": "the description is about doing what the name says, to the same object",
    "partly": "the description is generic, or names a neighbouring object of the same field",
    "contradictory": "the description names a concrete object of another field than the name's",
}
# Tasks of each kind from which the reading is compared with the similarity.
FEWEST = 5
SCOPES = ("all tasks", "within subcategory")


def derangements(groups: IntArray, rng: np.random.Generator) -> IntArray:
    """A random partner of each row within its group, never itself; -1 for a row alone. Shape (n,)."""
    partner = np.full(len(groups), -1, dtype=np.int64)
    order = rng.permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    sizes = np.bincount(groups)
    for members in np.split(order, np.cumsum(sizes)[:-1]):
        if len(members) > 1:
            partner[members] = np.roll(members, int(rng.integers(1, len(members))))
    return partner


def auc(own: Float64Array, shuffled: Float64Array) -> float:
    """P(own > shuffled) + P(equal) / 2, (Mann and Whitney 1947); NaN where a side is empty."""
    if not len(own) or not len(shuffled):
        return np.nan
    return float(stats.mannwhitneyu(own, shuffled, method="asymptotic").statistic / (len(own) * len(shuffled)))


def auc_error(own: Float64Array, shuffled: Float64Array) -> float:
    """Standard error of the AUC (DeLong et al. 1988), which takes both sides as independent samples."""
    below = (np.searchsorted(np.sort(shuffled), own, "left") + np.searchsorted(np.sort(shuffled), own, "right")) / 2
    above = (np.searchsorted(np.sort(own), shuffled, "left") + np.searchsorted(np.sort(own), shuffled, "right")) / 2
    parts = below / len(shuffled), 1 - above / len(own)
    return float(np.sqrt(sum(part.var(ddof=1) / len(part) for part in parts)))


def agreement(
    left: FloatArray, right: FloatArray, groups: IntArray, shuffles: int, quantile: float, seed: int
) -> tuple[dict[str, float], Float64Array]:
    """How far own pairs are more alike than shuffled ones; and per task the share of shuffled pairs below its own.

    left, right: unit vectors of both columns, shape (n, d). groups: partners come from a row's own group. shuffles:
    partners per row. auc has a 95 % interval with both sides counted once per task; below: share of the tasks under the
    `quantile` of the shuffled similarities (Wilson).
    """
    rng = np.random.default_rng(seed)
    own = np.einsum("ij,ij->i", left, right).astype(np.float64)
    draws = []
    for partner in (derangements(groups, rng) for _ in range(shuffles)):
        paired = partner >= 0
        draws.append(np.einsum("ij,ij->i", left[paired], right[partner[paired]]).astype(np.float64))
    shuffled = np.concatenate(draws)
    if len(own) < 2 or len(draws[0]) < 2:
        raise StudyError("too few tasks to compare", fix="use a data set with more tasks")
    value, error = auc(own, shuffled), 1.96 * auc_error(own, draws[0])
    threshold = float(np.quantile(shuffled, quantile))
    found = {"n": len(own), "mean": float(own.mean()), "shuffled_mean": float(shuffled.mean()), "auc": value}
    found |= {"auc_ci_low": max(0.0, value - error), "auc_ci_high": min(1.0, value + error), "threshold": threshold}
    below = wilson(int((own < threshold).sum()), len(own))
    found |= zip(("below", "below_ci_low", "below_ci_high"), below, strict=True)
    return found | {"below_chance": quantile}, np.searchsorted(np.sort(shuffled), own) / len(shuffled)


def blocks(data: Dataset, boundary: int | None) -> dict[str, NDArray[np.bool_]]:
    """The parts of the file that are reported: all, and the tasks up to a boundary and after it."""
    ids = data.tasks["id"].to_numpy()
    found = {"all": np.ones(len(ids), dtype=bool)}
    if boundary is not None and (ids <= boundary).any() and (ids > boundary).any():
        found |= {f"up to task {boundary}": ids <= boundary, f"after task {boundary}": ids > boundary}
    return found


def quality_table(data: Dataset, settings: TaskQuality) -> pd.DataFrame:
    """`agreement` of every configured pair of columns per block, shuffled over all of it and within subcategories."""
    columns = sorted({column for pair in settings.pairs for column in pair})
    vectors = {column: encode(data.tasks[column].tolist()) for column in columns}
    subcategory = pd.factorize(data.tasks["subcategory_clean"])[0].astype(np.int64)
    rows = []
    for block, chosen in blocks(data, settings.boundary).items():
        for left, right in settings.pairs:
            filled = chosen & (data.tasks[left] != "").to_numpy() & (data.tasks[right] != "").to_numpy()
            for scope, groups in zip(SCOPES, (np.zeros_like(subcategory), subcategory), strict=True):
                if scope == SCOPES[1] and "subcategory" in (left, right):
                    continue  # partners of one subcategory have the same text
                sides = (vectors[left][filled], vectors[right][filled], groups[filled])
                found, _ = agreement(*sides, settings.shuffles, settings.quantile, settings.seed)
                rows.append({"block": block, "left": left, "right": right, "shuffled_in": scope, **found})
    return pd.DataFrame(rows)


def sample_rows(n_tasks: int, size: int, seed: int) -> IntArray:
    """The rows of the tasks that are read, ascending, shape (min(size, n_tasks),)."""
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(n_tasks, min(size, n_tasks), replace=False)).astype(np.int64)


def read_sample(path: Path, data: Dataset, settings: TaskQuality) -> pd.DataFrame:
    """The read sample: columns task_id, code. An unknown code or other tasks than the seed draws are an error."""
    frame = pd.read_csv(path, comment="#")
    wanted = data.tasks["id"].to_numpy()[sample_rows(data.n_tasks, settings.sample, settings.seed)]
    if frame["task_id"].tolist() != wanted.tolist():
        fix = f"read the tasks that sample and seed of {settings_file(TaskQuality).name} draw"
        raise StudyError("the file does not hold the sampled tasks", file=path, column="task_id", fix=fix)
    unknown = ~frame["code"].isin(list(CODES))
    if unknown.any():
        fix, row = f"one of: {', '.join(CODES)}", int(np.flatnonzero(unknown)[0])
        raise StudyError("an unknown code", file=path, row=row, column="code", fix=fix)
    return frame


def reading_table(codes: pd.DataFrame, data: Dataset, settings: TaskQuality) -> pd.DataFrame:
    """Shares of the codes, overall and per block, with the similarity of name and description beside them.

    similarity_place: mean share of shuffled pairs of the whole file that are less alike than the task's own (95 %,
    normal). auc: how well that place tells coherent from contradictory tasks (DeLong); NaN for fewer than `FEWEST`.
    """
    sides = (encode(data.tasks["name"].tolist()), encode(data.tasks["description"].tolist()))
    everywhere = np.zeros(data.n_tasks, dtype=np.int64)
    _, place = agreement(*sides, everywhere, settings.shuffles, settings.quantile, settings.seed)
    row, rows = pd.Index(data.tasks["id"]).get_indexer(codes["task_id"]), []
    placed = codes.assign(place=place[row])
    for block, chosen in blocks(data, settings.boundary).items():
        part = placed[chosen[row]]
        by_code = {code: part.loc[part["code"] == code, "place"].to_numpy() for code in CODES}
        both = by_code["coherent"], by_code["contradictory"]
        enough = min(map(len, both)) >= FEWEST
        value, error = (auc(*both), 1.96 * auc_error(*both)) if enough else (np.nan, np.nan)
        for code, own in by_code.items():
            middle = float(own.mean()) if len(own) else np.nan
            spread = 1.96 * float(own.std(ddof=1)) / np.sqrt(len(own)) if len(own) > 1 else np.nan
            line = {"block": block, "code": code, "tasks": len(own), "n": len(part)}
            line |= zip(("share", "ci_low", "ci_high"), wilson(len(own), len(part)), strict=True)
            line |= {"similarity_place": middle, "place_ci_low": middle - spread, "place_ci_high": middle + spread}
            line["auc"] = value
            low, high = np.clip([value - error, value + error], 0, 1)
            rows.append(line | {"auc_ci_low": low, "auc_ci_high": high})
    return pd.DataFrame(rows)


def compute(config: DictConfig) -> list[Path]:
    """Write task_quality.csv and, where a read sample lies beside it, task_quality_reading.csv."""
    settings, dataset = read(TaskQuality), str(config.dataset.name)
    data = load(dataset)
    tables = {"task_quality": quality_table(data, settings)}
    sample = folder(dataset) / "task_quality_read.csv"
    if sample.exists():
        tables["task_quality_reading"] = reading_table(read_sample(sample, data, settings), data, settings)
    return write_tables(dataset, tables, "task_quality", settings, rubric=CODES)
