"""How unlike each other the ten answers of a system are, how much of the catalogue it uses, and cold servers.

Computed from judged runs on test topics. A list of random servers is diverse and useless, so likeness is also compared
topic by topic between systems that found equally many useful servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from study.analysis.usefulness.calibration import share
from study.data.dataset import FloatArray, IntArray
from study.encoders.sentence import encode
from study.errors import StudyError
from study.evaluation.statistics import mean_interval
from study.judging import collection as measures
from study.judging.collection import DEPTH, Collection
from study.judging.evaluate import MOST_UNJUDGED, all_runs
from study.judging.pools import load_split


@dataclass(frozen=True)
class Diversity:
    """``conf/usefulness/diversity.yaml``, where every key is explained."""

    reference: str
    near_duplicate: float
    seed: int


@dataclass(frozen=True)
class Answers:
    """The ten answers of one system to every topic: server rows (-1 where unfilled) and grades (negative where unjudged
    or unfilled), both of shape (n_topics, 10)."""

    rows: IntArray
    grades: measures.GradeArray

    @classmethod
    def of(cls, run: pd.DataFrame, collection: Collection, server_ids: IntArray) -> Answers:
        """The first seed of a run (task_id, seed, rank, server_id), which answers every topic."""
        first = run[run["seed"] == run["seed"].min()]
        asked, _, grades = collection.look_up(first)
        if len(asked) != len(collection.topics):
            raise StudyError(f"{len(collection.topics) - len(asked)} topics have no answer", fix="study judge pool")
        place = pd.Index(collection.topics["task_id"])
        kept = first[first["task_id"].isin(place)].sort_values(["task_id", "rank"])
        rank = kept.groupby("task_id").cumcount().to_numpy()
        kept, rank = kept[rank < DEPTH], rank[rank < DEPTH]
        rows = np.full(grades.shape, -1, dtype=np.int64)
        found = pd.Index(server_ids).get_indexer(pd.Index(kept["server_id"]))
        if (found < 0).any():
            raise StudyError("an answer is no server of the catalogue", column="server_id", fix="study judge pool")
        rows[place.get_indexer(pd.Index(kept["task_id"])), rank] = found
        return cls(rows, grades)

    @property
    def useful(self) -> np.ndarray:
        """Whether each place has a grade of at least 1, shape (n_topics, 10)."""
        return np.asarray(self.grades >= 1)


def similarity(rows: IntArray, vectors: FloatArray, kept: np.ndarray | None = None) -> np.ndarray:
    """Mean cosine over the pairs of a topic's answers (intra-list similarity, Ziegler et al. 2005), shape (b,).

    `rows` are server rows, shape (b, k), where -1 and what is not `kept` do not count; `vectors` have length 1, shape
    (n_servers, d). NaN where fewer than two places count.
    """
    counted = (rows >= 0) if kept is None else (rows >= 0) & kept
    own = np.where(counted[:, :, None], vectors[rows], 0)
    n, total = counted.sum(axis=1), (own.sum(axis=1) ** 2).sum(axis=1)
    pairs = n * (n - 1)
    found = np.full(len(rows), np.nan)
    # |sum of vectors|^2 = n + twice the sum over pairs, as every vector has length 1.
    np.divide(total - n, pairs, out=found, where=pairs > 0)
    return found


def repeated(rows: IntArray, vectors: FloatArray, least: float) -> np.ndarray:
    """Whether an answer is a near duplicate of one above it: cosine of at least `least`; shape (b, k), bool."""
    own = vectors[rows]
    near = np.einsum("bid,bjd->bij", own, own) >= least
    near &= (rows >= 0)[:, :, None] & (rows >= 0)[:, None, :]
    return np.asarray(np.tril(near, k=-1).any(axis=2))


def spread(
    answers: Mapping[str, Answers], vectors: FloatArray, *, reference: str, near: float, seed: int
) -> pd.DataFrame:
    """One row per system, the least alike answers last.

    The others are compared with `reference` on topics where both found equally many useful servers; `near` is the
    cosine from which two servers are near duplicates.

    Returns: columns system, answers, unjudged (share), useful (share; empty where more than 5 % are unjudged),
    similarity, ci_low, ci_high (mean over topics), similarity_useful (within the useful answers, topics with at least
    two), near_duplicates (share), servers (different ones over all topics), useful_servers, equal_topics (as many
    useful answers as the reference), diff, diff_ci_low, diff_ci_high (of the similarity there).
    """
    rows = []
    base = answers[reference]
    alike_base = similarity(base.rows, vectors)
    for name, own in answers.items():
        filled = own.rows >= 0
        unjudged = float((own.grades == measures.UNJUDGED).sum() / filled.sum())
        comparable = unjudged <= MOST_UNJUDGED
        alike = similarity(own.rows, vectors)
        useful = own.useful.sum() / filled.sum() if comparable else np.nan
        row = {"system": name, "answers": int(filled.sum()), "unjudged": unjudged, "useful": useful}
        row |= mean_interval(alike[~np.isnan(alike)], seed=seed, name="similarity")
        row |= {"similarity_useful": np.nan, "near_duplicates": repeated(own.rows, vectors, near).sum() / filled.sum()}
        row["servers"] = len(np.unique(own.rows[filled]))
        if comparable:
            within = similarity(own.rows, vectors, own.useful)
            row["similarity_useful"] = np.nanmean(within) if not np.isnan(within).all() else np.nan
            row["useful_servers"] = len(np.unique(own.rows[filled & own.useful]))
        if comparable and name != reference:
            equal = own.useful.sum(axis=1) == base.useful.sum(axis=1)
            row["equal_topics"] = int(equal.sum())
            row |= mean_interval((alike - alike_base)[equal], seed=seed, name="diff", prefix="diff_")
        rows.append(row)
    return pd.DataFrame(rows).sort_values("similarity", ascending=False, kind="stable", ignore_index=True)


def cold(answers: Mapping[str, Answers], warm: np.ndarray, useful_cold: int, useful_warm: int) -> pd.DataFrame:
    """Answers that no training task lists, apart from the others; systems with at most 5 % unjudged answers.

    `warm`: whether a training task lists the server, shape (n_servers,), bool. `useful_cold` and `useful_warm`: useful
    (topic, server) pairs that are known of each kind, what could be found.

    Returns: columns system, servers (cold or warm), answers, share (of all answers), useful (number), useful_share,
    ci_low, ci_high (exact 95 % binomial interval; topics share servers, so it is somewhat narrow), found (share of
    the known useful pairs).
    """
    rows = []
    for name, own in answers.items():
        filled = own.rows >= 0
        if (own.grades == measures.UNJUDGED).sum() > MOST_UNJUDGED * filled.sum():
            continue
        for kind, wanted, known in (("cold", ~warm, useful_cold), ("warm", warm, useful_warm)):
            kept = filled & wanted[own.rows]
            n, good = int(kept.sum()), int((kept & own.useful).sum())
            row = {"system": name, "servers": kind, "answers": n, "share": n / filled.sum(), "useful": good}
            if n:
                row |= dict(zip(("useful_share", "ci_low", "ci_high"), share(own.useful[kept]), strict=True))
            rows.append(row | {"found": good / known if known else np.nan})
    return pd.DataFrame(rows)


def diversity_tables(dataset: str, settings: Diversity) -> dict[str, pd.DataFrame]:
    """`spread` and `cold` of every run that answers the test topics, as diversity and cold_servers. The last rows of
    cold_servers, `catalogue`, hold all servers (answers, share) and all known useful pairs (useful)."""
    data, split = load_split(dataset)
    collection = Collection.load(dataset).part("test")
    ids, topics = data.servers["id"].to_numpy(np.int64), set(collection.topics["task_id"])
    runs = {name: run for name, run in all_runs(dataset).items() if topics <= set(run["task_id"])}
    answers = {name: Answers.of(run, collection, ids) for name, run in runs.items()}
    reference, near, seed = settings.reference, settings.near_duplicate, settings.seed
    if reference not in answers:
        raise StudyError(f"there is no run of {reference}", column="reference", fix="study judge pool")
    warm = np.asarray(split.train.sum(axis=0)).ravel() > 0
    judged_warm = warm[pd.Index(ids).get_indexer(pd.Index(collection.servers))]
    pairs = (collection.grades >= 1).sum(axis=0)
    useful_cold, useful_warm = int(pairs[~judged_warm].sum()), int(pairs[judged_warm].sum())
    apart = cold(answers, warm, useful_cold, useful_warm)
    whole = pd.DataFrame({"system": "catalogue", "servers": ["cold", "warm"], "useful": [useful_cold, useful_warm]})
    whole = whole.assign(answers=[int((~warm).sum()), int(warm.sum())], share=[(~warm).mean(), warm.mean()])
    vectors = encode(data.server_texts())
    return {
        "diversity": spread(answers, vectors, reference=reference, near=near, seed=seed),
        "cold_servers": pd.concat([apart, whole], ignore_index=True),
    }
