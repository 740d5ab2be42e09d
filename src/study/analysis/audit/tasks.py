"""The tasks themselves: near-duplicates between the test and the training part, and tasks whose parts disagree.

Labels decide which test tasks have a near-duplicate in training, so such tasks are easier even for systems that cannot
copy. `excess` is a system's difference between the two groups of tasks minus that of systems that read no label. The
excess may have other reasons than copying.

Do the parts of a task speak of the same thing? Their similarity, the cosine of all-MiniLM-L6-v2 vectors, stands against
that of shuffled pairs, beside a sample that was read. AUC is the share of (own, shuffled) pairs in which the own one is
more alike, ties by half: 0.5 where the columns are independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray
from omegaconf import DictConfig
from scipy import stats
from sklearn.feature_extraction.text import TfidfVectorizer

from study import paths
from study.analysis.audit.settings import Leakage, TaskQuality, read, settings_file
from study.analysis.audit.tables import folder, wilson, write_tables
from study.analysis.report.runs import run_frames
from study.config.compose import choices
from study.data import split_files
from study.data.dataset import Dataset, FloatArray, IntArray, load
from study.data.splits import WORD, Split
from study.encoders.sentence import encode
from study.errors import StudyError
from study.evaluation.metrics import Float64Array
from study.evaluation.statistics import bootstrap_interval

Frames = dict[str, pd.DataFrame]  # system or protocol -> table of tasks
KINDS = ("same_labels", "near_labels", "same_text", "near_text", "any_near_duplicate")
RESAMPLES = 2_000
# What a language model says of a task that it read, and what that means; the read sample keeps these codes.
CODES = {
    "coherent": "the description is about doing what the name says, to the same object",
    "partly": "the description is generic, or names a neighbouring object of the same field",
    "contradictory": "the description names a concrete object of another field than the name's",
}
# Tasks of each kind from which the reading is compared with the similarity.
FEWEST = 5
SCOPES = ("all tasks", "within subcategory")


def near_duplicates(data: Dataset, split: Split, *, near_labels: float, near_text: float) -> pd.DataFrame:
    """For every test task, whether training holds a near-duplicate of it: 0 or 1 for each of `KINDS`.

    label_overlap: the largest share of its test labels that one training list holds. text_similarity: the largest
    cosine of the TF-IDF of name and description. Near means at least `near_labels` or `near_text`.
    """
    test, train = split.tasks("test"), split.tasks("train")
    shared = sp.csr_matrix(split.test[test] @ split.train[train].T)
    overlap = largest_of_rows(shared) / np.diff(split.test.indptr)[test]
    asked = [frozenset(row.indices.tolist()) for row in split.test[test]]
    known_sets = {frozenset(row.indices.tolist()) for row in split.train[train]}
    texts = data.task_texts(("name", "description"))
    vectors = TfidfVectorizer(sublinear_tf=True, token_pattern=WORD).fit_transform(texts)
    similarity = largest_of_rows(sp.csr_matrix(vectors[test] @ vectors[train].T))
    known_texts = {texts[row] for row in train}
    frame = pd.DataFrame({"task_id": data.tasks["id"].to_numpy()[test], "label_overlap": overlap})
    frame = frame.assign(text_similarity=similarity, same_labels=[key in known_sets for key in asked])
    frame["near_labels"] = overlap >= near_labels - 1e-9
    frame["same_text"] = [texts[row] in known_texts for row in test]
    frame["near_text"] = similarity >= near_text - 1e-9
    frame["any_near_duplicate"] = frame[list(KINDS[:-1])].any(axis=1)
    return frame.astype(dict.fromkeys(KINDS, "int8"))


def largest_of_rows(matrix: sp.csr_matrix) -> Float64Array:
    """The largest entry of each row, 0 for an empty one."""
    return np.asarray(matrix.max(axis=1).toarray(), dtype=np.float64).ravel()


def share_table(found: Frames) -> pd.DataFrame:
    """How many test tasks have a near-duplicate: protocol, kind, tasks, n, share, ci_low, ci_high (95 %, Wilson)."""
    rows = []
    for protocol, frame in found.items():
        for kind in KINDS:
            count = int(frame[kind].sum())
            rows.append((protocol, kind, count, len(frame), *wilson(count, len(frame))))
    return pd.DataFrame(rows, columns=["protocol", "kind", "tasks", "n", "share", "ci_low", "ci_high"])


def difference_interval(a: Float64Array, b: Float64Array, *, seed: int, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of mean(a) - mean(b) for two independent samples; NaN if one has under two."""
    if min(len(a), len(b)) < 2:
        return np.nan, np.nan
    rng = np.random.default_rng(seed)
    means = [values[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1) for values in (a, b)]
    tail = (1 - level) / 2
    low, high = np.quantile(means[0] - means[1], [tail, 1 - tail])
    return float(low), float(high)


def mean_columns(name: str, values: Float64Array, seed: int) -> dict[str, float]:
    """The mean with its 95 % interval, as columns `name`, `name`_ci_low, `name`_ci_high; NaN for no task."""
    low, high = bootstrap_interval(values, seed=seed, resamples=RESAMPLES)
    return {name: float(values.mean()) if len(values) else np.nan, f"{name}_ci_low": low, f"{name}_ci_high": high}


def excess(
    frame: pd.DataFrame, reference: pd.DataFrame | None, metric: str, has: pd.Series, *, seed: int
) -> tuple[float, float, float]:
    """How much more a system gains on tasks with a near-duplicate than a reference that cannot copy; 95 % interval.

    (with - without) of the system less that of the reference, on the tasks that both were asked; NaN where there is
    none. Tables have the index task_id, like `has`, which says whether a task has a near-duplicate.
    """
    if reference is None:
        return np.nan, np.nan, np.nan
    ahead = (frame[metric] - reference[metric]).dropna()
    flag = has.loc[ahead.index].to_numpy()
    values = ahead.to_numpy(np.float64)
    low, high = difference_interval(values[flag], values[~flag], seed=seed)
    found = float(values[flag].mean() - values[~flag].mean()) if 0 < flag.sum() < len(flag) else np.nan
    return found, low, high


def copying_table(
    scores: Frames, found: pd.DataFrame, metrics: list[str], *, seed: int, references: Sequence[str] = ()
) -> pd.DataFrame:
    """How every system's score differs between test tasks with and without a near-duplicate in training.

    One row per system, metric and kind. Every mean has _low and _high (95 %, over tasks). from_duplicates: share of the
    summed score that tasks with a near-duplicate give. lost: share of the mean that goes when only the other tasks are
    asked. excess_<name>: `excess` over each of the `references`, systems that cannot copy.
    """
    flags, rows = found.set_index("task_id"), []
    for system, frame in scores.items():
        if not frame.index.isin(flags.index).all():
            said = f"{system} was scored on tasks that are not test tasks of the split"
            raise StudyError(said, column="task_id", fix="split and run again")
        for metric in metrics:
            known = frame[metric].dropna()
            every, total = known.to_numpy(np.float64), float(known.to_numpy(np.float64).sum())
            overall = mean_columns("mean", every, seed)
            for kind in KINDS:
                has = flags.loc[known.index, kind].to_numpy() == 1
                ends = difference_interval(every[has], every[~has], seed=seed)
                row: dict[str, Any] = {"system": system, "metric": metric, "kind": kind, "n": len(every)}
                row |= {"n_duplicate": int(has.sum())} | overall | mean_columns("mean_duplicate", every[has], seed)
                row |= mean_columns("mean_other", every[~has], seed)
                row["diff"] = row["mean_duplicate"] - row["mean_other"]
                row |= {"diff_ci_low": ends[0], "diff_ci_high": ends[1]}
                row["from_duplicates"] = float(every[has].sum()) / total if total else np.nan
                row["lost"] = 1 - row["mean_other"] / row["mean"] if total else np.nan
                for name in references:
                    beyond = excess(frame, scores.get(name), metric, flags[kind] == 1, seed=seed)
                    columns = (f"excess_{name}{end}" for end in ("", "_ci_low", "_ci_high"))
                    row |= zip(columns, beyond, strict=True)
                rows.append(row)
    return pd.DataFrame(rows)


def protocol_table(first: Frames, second: Frames, metrics: list[str], *, seed: int) -> pd.DataFrame:
    """Every system under two protocols with different test tasks: means and difference, 95 % intervals over tasks.

    n_first and n_second count tasks; lost = diff / first.
    """
    rows = []
    for system in sorted(first.keys() & second.keys()):
        for metric in metrics:
            parts = [frame[metric].dropna().to_numpy(np.float64) for frame in (first[system], second[system])]
            row: dict[str, object] = {"system": system, "metric": metric}
            for name, part in zip(("first", "second"), parts, strict=True):
                row |= mean_columns(name, part, seed) | {f"n_{name}": len(part)}
            low, high = difference_interval(*parts, seed=seed)
            difference = float(parts[0].mean() - parts[1].mean())
            lost = difference / parts[0].mean() if parts[0].any() else np.nan
            rows.append(row | {"diff": difference, "diff_ci_low": low, "diff_ci_high": high, "lost": lost})
    return pd.DataFrame(rows)


def compute_leakage(config: DictConfig) -> list[Path]:
    """Write leakage_tasks.csv, leakage.csv, copying.csv.xz and (where both protocols ran) grouped.csv."""
    settings, dataset = read(Leakage), str(config.dataset.name)
    data, found, scores = load(dataset), Frames(), dict[str, Frames]()
    for protocol in settings.protocols:
        path = paths.splits(dataset) / f"{protocol}.parquet"
        if path.exists():
            split = split_files.load(path, data)
            near = {"near_labels": settings.near_labels, "near_text": settings.near_text}
            found[protocol] = near_duplicates(data, split, **near)
            frames = run_frames(dataset, protocol, sorted(choices("system")))
            # Averaged over seeds.
            scores[protocol] = {k: v.drop(columns="seed").groupby("task_id").mean() for k, v in frames.items()}
    if not found:
        fix = f"run: study split dataset={dataset}"
        raise StudyError("there is no split to look at", file=paths.splits(dataset), fix=fix)
    tasks = [frame.assign(protocol=name) for name, frame in found.items()]
    tables = {"leakage_tasks": pd.concat(tasks), "leakage": share_table(found)}
    options: dict[str, Any] = {"seed": settings.seed, "references": settings.references}
    if ran := [name for name in found if scores[name]]:
        copying = [copying_table(scores[name], found[name], settings.metrics, **options) for name in ran]
        tables["copying"] = pd.concat([table.assign(protocol=name) for name, table in zip(ran, copying, strict=True)])
    if len(found) > 1:
        a, b = settings.protocols[:2]
        compared = protocol_table(scores[a], scores[b], settings.metrics, seed=settings.seed)
        if len(compared):
            tables["grouped"] = compared.assign(first_protocol=a, second_protocol=b)
    return write_tables(dataset, tables, "leakage", settings)


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


def compute_quality(config: DictConfig) -> list[Path]:
    """Write task_quality.csv and, where a read sample lies beside it, task_quality_reading.csv."""
    settings, dataset = read(TaskQuality), str(config.dataset.name)
    data = load(dataset)
    tables = {"task_quality": quality_table(data, settings)}
    sample = folder(dataset) / "task_quality_read.csv"
    if sample.exists():
        tables["task_quality_reading"] = reading_table(read_sample(sample, data, settings), data, settings)
    return write_tables(dataset, tables, "task_quality", settings, rubric=CODES)
