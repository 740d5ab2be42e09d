"""One provenance class per released label, from stated detectors in a stated order, each beside its rate by chance.

Detectors (``conf/audit/labels.yaml`` holds their thresholds and their order):

* theme_token: the server's name or description holds a word of the task's theme.
* language_run: the label lies in a run of the list that walks through the servers of the task's language by id.
* alphabetical: the label lies in a run of the list that walks through the catalogue by id in small steps.
* theme_pool: more other lists of the theme hold the server than its popularity elsewhere explains.
* text_token: the server's name or description holds a rare word of the task's name or description.
* balancing: the label lies in an ascending run, of any gap, over servers that equally many lists hold.
* language: the server is written in the task's language.
* long_run: the label lies in a long ascending run of any gap.

A class says which rule is enough to explain a label, not that the rule made it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp
from omegaconf import DictConfig
from scipy import stats
from sklearn.feature_extraction.text import CountVectorizer

from study import paths
from study.analysis.audit import labels_settings
from study.analysis.audit.labels_lists import (
    BoolArray,
    Float64Array,
    close_gap,
    padded,
    places,
    run_lengths,
    set_keys,
    shuffled,
    steps,
)
from study.analysis.audit.labels_settings import Labels, table
from study.data.dataset import Dataset, IntArray, load
from study.data.normalise import tokens
from study.errors import StudyError
from study.evaluation.records import record
from study.files import write_csv, write_json, write_parquet

NONE = "none"
BY_CONTENT = ("theme_token", "theme_pool", "text_token", "language")
BY_ORDER = ("language_run", "alphabetical", "balancing", "long_run")
DETECTORS = (*BY_CONTENT, *BY_ORDER)
BLOCK = 100


class Evidence:
    """What the detectors need, computed once per data set.

    Attributes:
        matrix: the lists as places in the order of ids, shape (n_tasks, width), -1 fills up.
        theme_words, text_words: words of tasks and of servers, pairs of CSR matrices.
        in_language: whether a task's language is one of a server's, CSR (n_tasks, n_servers by place).
        language_place: per language, the number of each server (by place) among its servers, -1 outside.
        theme: number of each task's theme.
        used: how many lists hold each server (by place).
    """

    def __init__(self, data: Dataset, settings: Labels) -> None:
        place = places(data)
        self.settings = settings
        self.n_servers = data.n_servers
        self.gap = close_gap(settings, data.n_servers)
        self.matrix = padded(data.lists, place)
        self.used: IntArray = np.bincount(self.matrix[self.matrix >= 0], minlength=data.n_servers)
        servers = data.servers.iloc[np.argsort(place)]
        texts = [f"{name} {text}" for name, text in zip(servers["name"], servers["description"], strict=True)]
        tasks = data.tasks
        both = [f"{name} {text}" for name, text in zip(tasks["name"], tasks["description"], strict=True)]
        self.theme_words = shared_words(tasks["theme"].tolist(), texts, settings.theme_words)
        self.text_words = shared_words(both, texts, settings.text_words)
        self.theme: IntArray = pd.factorize(tasks["theme_clean"].str.casefold())[0].astype(np.int64)
        spoken = [[word.casefold() for word in tokens(value)] for value in servers["language_tokens"]]
        wanted = [(tokens(value) or [""])[0].casefold() for value in tasks["language_tokens"]]
        numbers, names = pd.factorize(np.array(wanted, dtype=object))
        self.language: IntArray = numbers.astype(np.int64)
        member = np.array([[name in row for row in spoken] for name in names], dtype=bool).reshape(len(names), -1)
        self.language_place: IntArray = np.where(member, member.cumsum(axis=1) - 1, -1).astype(np.int64)
        self.in_language = sp.csr_matrix(member[self.language].astype(np.float32))

    def content(self, matrix: IntArray) -> dict[str, BoolArray]:
        """The detectors that compare a task with a server, each of the shape of `matrix`."""
        task, place = np.nonzero(matrix >= 0)
        server = matrix[task, place]
        flags = {
            "theme_token": _any_shared(*self.theme_words, task, server),
            "text_token": _any_shared(*self.text_words, task, server),
            "language": self.language_place[self.language[task], server] >= 0,
            "theme_pool": self._pool(matrix, task, server),
        }
        return {name: _laid_out(matrix, flag) for name, flag in flags.items()}

    def _pool(self, matrix: IntArray, task: IntArray, server: IntArray) -> BoolArray:
        """Binomial tail of the number of other lists of the theme, different as sets, that hold the server."""
        # A list that stands twice in a theme is evidence once.
        key = np.stack([self.theme, set_keys(matrix)], axis=1)
        _, first, kind = np.unique(key, axis=0, return_index=True, return_inverse=True)
        lists = _indicator(matrix[first], self.n_servers)
        theme_of_list = self.theme[first]
        n_themes = int(self.theme.max()) + 1
        ones = np.ones(len(first), np.float32)
        by_theme = sp.csr_matrix((ones, (theme_of_list, np.arange(len(first)))), shape=(n_themes, len(first)))
        held = sp.csr_matrix(by_theme @ lists)
        per_theme = np.bincount(theme_of_list, minlength=n_themes)
        overall = np.asarray(lists.sum(axis=0)).ravel()
        theme = theme_of_list[kind.ravel()[task]]
        inside = np.asarray(held[theme, server]).ravel()
        rate = (overall[server] - inside + 1) / (len(first) - per_theme[theme] + 1)
        tail = stats.binom.sf(inside - 2, np.maximum(per_theme[theme] - 1, 0), np.minimum(rate, 1))
        found: BoolArray = (inside - 1 >= self.settings.pool_tasks) & (tail < self.settings.pool_p)
        return found

    def order(self, matrix: IntArray) -> dict[str, BoolArray]:
        """The detectors that look at the order of a list, each of the shape of `matrix`."""
        s, filled = self.settings, matrix >= 0
        close, ascending = run_lengths(steps(matrix, self.gap)), run_lengths(steps(matrix))
        own = np.where(filled, self.language_place[self.language[:, None], np.maximum(matrix, 0)], -1)
        walk = run_lengths(steps(own, s.language_gap))
        used = self.used[np.maximum(matrix, 0)]
        level = steps(matrix) & (np.abs(used[:, 1:] - used[:, :-1]) <= s.use_difference)
        return {
            "alphabetical": filled & (close >= s.close_run),
            "balancing": filled & (run_lengths(level) >= s.level_run),
            "long_run": filled & (ascending >= s.long_run),
            "language_run": (own >= 0) & (walk >= s.language_run),
        }

    def detect(self) -> dict[str, BoolArray]:
        """Every detector on the released lists."""
        return self.content(self.matrix) | self.order(self.matrix)

    def by_chance(self, rng: np.random.Generator) -> dict[str, float]:
        """The share of labels that each detector marks when its kind of evidence is destroyed.

        Content: lists go to other tasks. Order: each list in random order.
        """
        filled = self.matrix >= 0
        moved = self.matrix[rng.permutation(len(self.matrix))]
        flags = {name: flag[moved >= 0] for name, flag in self.content(moved).items()}
        flags |= {name: flag[filled] for name, flag in self.order(shuffled(self.matrix, rng)).items()}
        return {name: float(flag.mean()) for name, flag in flags.items()}


def shared_words(tasks: list[str], servers: list[str], most: float) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Binary word matrices of tasks and servers over the words that some task has and at most a share `most` of the
    servers has, English function words left out; shapes (n_tasks, words), (n_servers, words)."""
    counter = CountVectorizer(binary=True, stop_words="english", dtype=np.float32).fit(tasks + servers)
    of_tasks, of_servers = counter.transform(tasks), counter.transform(servers)
    frequency = np.asarray(of_servers.sum(axis=0)).ravel()
    kept = (frequency <= most * len(servers)) & (frequency > 0) & (np.asarray(of_tasks.sum(axis=0)).ravel() > 0)
    return sp.csr_matrix(of_tasks[:, kept]), sp.csr_matrix(of_servers[:, kept])


def _any_shared(tasks: sp.csr_matrix, servers: sp.csr_matrix, task: IntArray, server: IntArray) -> BoolArray:
    found: BoolArray = np.asarray(tasks[task].multiply(servers[server]).sum(axis=1)).ravel() > 0
    return found


def _indicator(matrix: IntArray, n_servers: int) -> sp.csr_matrix:
    row, place = np.nonzero(matrix >= 0)
    values = np.ones(len(row), np.float32)
    return sp.csr_matrix((values, (row, matrix[row, place])), shape=(len(matrix), n_servers))


def _laid_out(matrix: IntArray, flag: BoolArray) -> BoolArray:
    found = np.zeros(matrix.shape, dtype=bool)
    found[matrix >= 0] = flag
    return found


def classify(flags: dict[str, BoolArray], order: list[str]) -> np.ndarray:
    """The first detector of `order` that fires, `none` where none does; shape of the flags, str.

    Raises:
        StudyError: the order names an unknown detector, or leaves one out.
    """
    if sorted(order) != sorted(flags):
        raise StudyError(
            f"the order of classes is {', '.join(order)}",
            file=paths.conf() / "audit" / "labels.yaml",
            column="order",
            fix=f"name each of these once: {', '.join(sorted(flags))}",
        )
    found: np.ndarray = np.select([flags[name] for name in order], order, default=NONE)
    return found


def share(flag: BoolArray, cluster: IntArray) -> tuple[float, float, float]:
    """Share of labels with its 95 % interval; labels of one cluster are not taken as independent.

    The ratio estimator's linearised variance over clusters (Cochran 1977, eq. 6.13), cut at 0 and 1.

    Args:
        flag: shape (n_labels,). cluster: number of each label's cluster, same shape.
    """
    if not len(flag):
        return float("nan"), float("nan"), float("nan")
    p = float(flag.mean())
    _, cluster = np.unique(cluster, return_inverse=True)
    excess = np.bincount(cluster, weights=flag - p)
    k = len(excess)
    error = 1.96 * float(np.sqrt((excess**2).sum() * k / max(k - 1, 1))) / len(flag)
    return p, max(0.0, p - error), min(1.0, p + error)


def labels_frame(data: Dataset, evidence: Evidence) -> pd.DataFrame:
    """One row per label: task_id, server_id, position (from 1, in the cleaned list), class, and every detector's flag.

    Also cluster, the number of the label's set of servers: tasks with the same set are one observation.
    """
    flags, matrix = evidence.detect(), evidence.matrix
    task, place = np.nonzero(matrix >= 0)
    ids = np.sort(data.servers["id"].to_numpy())
    frame = pd.DataFrame({
        "task_id": data.tasks["id"].to_numpy()[task], "server_id": ids[matrix[task, place]], "position": place + 1,
        "class": classify(flags, evidence.settings.order)[task, place],
    })  # fmt: skip
    detected = {name: flag[task, place] for name, flag in flags.items()}
    return frame.assign(**detected, cluster=set_keys(matrix)[task])


def detector_table(frame: pd.DataFrame, evidence: Evidence) -> pd.DataFrame:
    """How often each detector fires, whether or not an earlier one did, beside its rate by chance.

    Returns: columns detector, labels, n, share, low, high (95 %), chance, chance_low, chance_high (range over the
        permutations), lift (share / chance), permutations.
    """
    rng, times = np.random.default_rng(evidence.settings.seed), max(1, evidence.settings.permutations // 5)
    drawn = pd.DataFrame([evidence.by_chance(rng) for _ in range(times)])
    rows = []
    for name in DETECTORS:
        p, low, high = share(frame[name].to_numpy(), frame["cluster"].to_numpy())
        chance = float(drawn[name].mean())
        rows.append({
            "detector": name, "labels": int(frame[name].sum()), "n": len(frame), "share": p, "low": low, "high": high,
            "chance": chance, "chance_low": drawn[name].min(), "chance_high": drawn[name].max(),
            "lift": p / chance if chance else np.nan, "permutations": times,
        })  # fmt: skip
    return pd.DataFrame(rows)


def class_table(frame: pd.DataFrame, data: Dataset, order: list[str]) -> pd.DataFrame:
    """Shares of the classes overall, by position, by subcategory, by theme's commonness and by block of the file.

    Returns: columns scope, name, class, labels, n, share, low, high (95 %, labels of equal sets as one observation).
    """
    tasks = data.tasks.set_index("id").loc[frame["task_id"]]
    block = np.arange(data.n_tasks) * 12 // data.n_tasks
    in_block = pd.Series(block, index=data.tasks["id"]).loc[frame["task_id"]].to_numpy()
    scopes: dict[str, Float64Array | IntArray | np.ndarray] = {
        "all": np.full(len(frame), "all"),
        "position": frame["position"].to_numpy(),
        "subcategory": tasks["subcategory_clean"].to_numpy().astype(str),
        "twelfth of the file": in_block + 1,
    }
    rows = []
    for scope, names in scopes.items():
        for name in np.unique(names):
            part = frame[names == name]
            for kind in [*order, NONE]:
                flag = (part["class"] == kind).to_numpy()
                p, low, high = share(flag, part["cluster"].to_numpy())
                rows.append((scope, name, kind, int(flag.sum()), len(part), p, low, high))
    return pd.DataFrame(rows, columns=["scope", "name", "class", "labels", "n", "share", "low", "high"])


def use_table(data: Dataset, evidence: Evidence) -> pd.DataFrame:
    """How evenly the catalogue is used, against labels dealt at random over all servers.

    Returns: columns measure, observed, chance, chance_low, chance_high (range over draws), draws.
    """
    n, total = data.n_servers, int((evidence.matrix >= 0).sum())
    rng, draws = np.random.default_rng(evidence.settings.seed), evidence.settings.permutations
    drawn = pd.DataFrame([use_measures(np.bincount(rng.integers(n, size=total), minlength=n)) for _ in range(draws)])
    rows = [
        (name, value, drawn[name].mean(), drawn[name].min(), drawn[name].max(), draws)
        for name, value in use_measures(evidence.used).items()
    ]
    return pd.DataFrame(rows, columns=["measure", "observed", "chance", "chance_low", "chance_high", "draws"])


def use_measures(used: IntArray) -> dict[str, float]:
    """Counts of unused and single-use servers, the largest count, and the Gini coefficient of the counts."""
    ordered, n = np.sort(used), len(used)
    gini = 2 * (np.arange(1, n + 1) * ordered).sum() / (n * ordered.sum()) - (n + 1) / n
    return {
        "servers on no list": float((used == 0).sum()),
        "servers on one list": float((used == 1).sum()),
        "largest number of lists of a server": float(used.max()),
        "Gini coefficient": float(gini),
    }


def first_use_table(data: Dataset, matrix: IntArray) -> pd.DataFrame:
    """Where in the file servers are listed for the first time, per `BLOCK` tasks.

    Drawn without regard to use, a label is a first use as often as an unused server is drawn: at most the share of the
    catalogue unused at the block's start. A higher rate says that unused servers were sought.

    Returns: columns first_task, labels, first_uses, rate, low, high (95 %, Wilson), unused (share of the catalogue).
    """
    order = data.tasks["id"].to_numpy()
    new = np.zeros(data.n_servers, dtype=bool)
    rows = []
    for start in range(0, len(matrix), BLOCK):
        labels = matrix[start : start + BLOCK]
        labels = labels[labels >= 0]
        unused = float(1 - new.mean())
        found = len(np.unique(labels[~new[labels]]))
        new[labels] = True
        interval = stats.binomtest(found, len(labels)).proportion_ci(method="wilson")
        rows.append((order[start], len(labels), found, found / len(labels), interval.low, interval.high, unused))
    return pd.DataFrame(rows, columns=["first_task", "labels", "first_uses", "rate", "low", "high", "unused"])


def compute(config: DictConfig) -> list[Path]:
    """Write provenance.parquet (ids, position and class), provenance.csv, detectors.csv, label_use.csv and
    first_uses.csv."""
    settings, dataset = labels_settings.read(Labels), str(config.dataset.name)
    data = load(dataset)
    evidence = Evidence(data, settings)
    frame = labels_frame(data, evidence)
    labels = paths.results(dataset) / "audit" / "provenance.parquet"
    small = frame[["task_id", "server_id", "position", "class"]]
    write_parquet(labels, small.astype({"task_id": "int32", "server_id": "int32", "position": "int8"}))
    tables = {
        "provenance": class_table(frame, data, settings.order),
        "detectors": detector_table(frame, evidence),
        "label_use": use_table(data, evidence),
        "first_uses": first_use_table(data, evidence.matrix),
    }
    for name, result in tables.items():
        write_csv(table(dataset, name), result)
    made = record(dataset=dataset, settings=vars(settings))
    write_json(labels.with_suffix(".json"), made)
    return [labels, *(table(dataset, name) for name in tables)]
