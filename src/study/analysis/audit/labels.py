"""What the order and the repetition of the released lists say, and whether the annotation mixture describes them.

Lists drawn from the fitted mixture stand beside the released ones, and some lists are held out of the fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from study.analysis.audit import labels_mixture as em
from study.analysis.audit.labels_mixture import Inputs, Mixture
from study.analysis.audit.settings import Labels, read
from study.analysis.audit.tables import write_tables
from study.data import lists
from study.data.annotation import PATIENCE, later_repeats
from study.data.dataset import Dataset, IntArray, load

Measure = Callable[[IntArray], dict[str, float]]
Change = Callable[[IntArray, np.random.Generator], IntArray]
ATTRIBUTES = {"theme": "theme_clean", "language": "language_tokens", "subcategory": "subcategory_clean"}


def redealt(matrix: IntArray, rng: np.random.Generator) -> IntArray:
    """All labels dealt anew over all lists: every server keeps its number of labels, every list its length."""
    dealt = matrix.copy()
    dealt[matrix >= 0] = rng.permutation(matrix[matrix >= 0])
    return dealt


def against_chance(
    measure: Measure, change: Change, matrix: IntArray, permutations: int, rng: np.random.Generator, model: str
) -> pd.DataFrame:
    """Each measure beside its values on changed lists.

    chance_low and chance_high are the 2.5 and 97.5 % quantiles; p is the share of all permutations, the
    observed one among them, that reach the observed value; model says what chance is.
    """
    observed = measure(matrix)
    drawn = pd.DataFrame([measure(change(matrix, rng)) for _ in range(permutations)])
    ends = drawn.quantile([0.025, 0.975]).to_numpy()
    rows = pd.DataFrame({"measure": list(observed), "observed": list(observed.values())})
    rows = rows.assign(chance=drawn.mean().to_numpy(), chance_low=ends[0], chance_high=ends[1])
    reached = (drawn.to_numpy() >= rows["observed"].to_numpy()).sum(axis=0)
    return rows.assign(p=(1 + reached) / (1 + permutations), permutations=permutations, model=model)


def list_table(data: Dataset, settings: Labels) -> pd.DataFrame:
    """Order and repetition of the lists against chance; columns of `against_chance` and n_lists."""
    matrix, rng = lists.padded(data.lists, lists.places(data)), np.random.default_rng(settings.seed)
    gap = settings.widest_gap(data.n_servers)
    measure, options = partial(lists.order_measures, gap=gap, long_run=settings.long_run), (settings.permutations, rng)
    order = against_chance(measure, lists.shuffled, matrix, *options, "each list in random order")
    dealt = "labels dealt anew, popularity and lengths kept"
    repetition = against_chance(lists.repetition_measures, redealt, matrix, *options, dealt)
    return pd.concat([order, repetition], ignore_index=True).assign(n_lists=len(matrix))


def group_table(data: Dataset) -> pd.DataFrame:
    """Groups of tasks with the same set of servers, by size; the last row, size 0, holds all groups together.

    same_...: the share of pairs within groups that agree in theme, language, subcategory and the order of the list;
    chance_...: the same over all pairs of tasks.
    """
    matrix = lists.padded(data.lists, lists.places(data))
    key = lists.set_keys(matrix)
    names = {name: pd.factorize(data.tasks[column].str.casefold())[0] for name, column in ATTRIBUTES.items()}
    names["order"] = np.unique(matrix, axis=0, return_inverse=True)[1].ravel()
    n, counts = len(matrix), np.bincount(key)
    same = {name: np.bincount(values).astype(np.float64) for name, values in names.items()}
    chance = {f"chance_{name}": float((size * (size - 1)).sum() / (n * (n - 1))) for name, size in same.items()}
    shared = np.flatnonzero(counts > 1)
    pairs = np.array([pair for group in shared for pair in combinations(np.flatnonzero(key == group), 2)])
    pairs = pairs.reshape(-1, 2)
    size_of_pair = counts[key[pairs[:, 0]]]
    rows = []
    for size in [*np.unique(counts[shared]).tolist(), 0]:
        chosen = pairs if size == 0 else pairs[size_of_pair == size]
        groups = len(shared) if size == 0 else int((counts == size).sum())
        tasks = int(counts[shared].sum()) if size == 0 else groups * size
        agree = {
            f"same_{name}": float((values[chosen[:, 0]] == values[chosen[:, 1]]).mean()) if len(chosen) else np.nan
            for name, values in names.items()
        }
        rows.append({"size": size, "groups": groups, "tasks": tasks, "pairs": len(chosen), **agree})
    return pd.DataFrame(rows).assign(**chance)


def simulate(x: Inputs, mixture: Mixture, rng: np.random.Generator, *, ascending: float, copied: float) -> IntArray:
    """Lists drawn from the mixture, then a share sorted and a share replaced by the list of another task of the theme.

    Shape of ``x.matrix``; no list is longer than the task's own, and a copy of a longer one is cut.
    """
    n, width = x.matrix.shape
    m = len(x.cluster)
    reason: IntArray = rng.choice(len(em.REASONS), (n, width), p=mixture.weights).astype(np.int64)
    walking: lists.BoolArray = reason == em.ALPHABETICAL
    length = np.cumsum(np.where(walking, rng.geometric(mixture.rho, (n, width)), 0), axis=1)
    drawn: IntArray = np.asarray((rng.integers(m, size=(n, 1)) + length) % m, dtype=np.int64)
    pending = ~walking
    for attempt in range(PATIENCE + 1):
        if attempt == PATIENCE:
            reason[pending] = em.RANDOM
        redraw(x, mixture, rng, drawn, np.where(pending, reason, -1))
        pending = later_repeats(drawn)
        reason = np.where(pending & walking, em.RANDOM, reason)
    drawn = np.where(x.matrix >= 0, drawn, -1)
    order = np.argsort(np.where(drawn >= 0, drawn, m), axis=1, kind="stable")
    ordered: lists.BoolArray = np.asarray(rng.random((n, 1)) < ascending)
    drawn = np.where(ordered, np.take_along_axis(drawn, order, axis=1), drawn)
    source = np.arange(n)
    for theme in range(len(mixture.theta)):
        rows = np.flatnonzero(x.theme == theme)
        copying = rows[rng.random(len(rows)) < copied]
        originals = np.setdiff1d(rows, copying)
        if len(originals):
            source[copying] = rng.choice(originals, len(copying))
    copies: IntArray = drawn[source]
    # A copy of a longer list ends where the task's own list ends.
    return np.where(x.matrix >= 0, copies, -1)


def redraw(x: Inputs, mixture: Mixture, rng: np.random.Generator, drawn: IntArray, reason: IntArray) -> None:
    """Draw the entries whose reason is not negative anew, in place; a reason without servers draws from all."""
    m = len(x.cluster)
    chosen = reason >= 0
    drawn[chosen] = rng.integers(m, size=int(chosen.sum()))
    for task, place in zip(*np.nonzero(reason == em.THEME_WORD), strict=True):
        if len(x.words[task]):
            drawn[task, place] = rng.choice(x.words[task])
    by_cluster = np.bincount(x.cluster, weights=mixture.weight, minlength=mixture.theta.shape[1])
    topics = em.TOPIC, x.theme, mixture.theta / by_cluster, x.cluster
    for kind, group, share, column in (topics, (em.LANGUAGE, x.language, x.spoken, np.arange(m))):
        for number in np.unique(group[(reason == kind).any(axis=1)]):
            p = share[number][column] * mixture.weight
            places = (reason == kind) & (group == number)[:, None]
            if p.any():
                drawn[places] = rng.choice(m, int(places.sum()), p=p / p.sum())


def copied_share(matrix: IntArray) -> float:
    """Share of lists that repeat an earlier one exactly, in servers and order."""
    return float(1 - len(np.unique(matrix, axis=0)) / len(matrix))


def sorted_share(matrix: IntArray, settings: Labels) -> float:
    """Share of the lists of `long_run` or more entries that ascend by id (by chance 1 in 720 of those of six)."""
    size = (matrix >= 0).sum(axis=1)
    long = size >= settings.long_run
    whole = lists.run_lengths(lists.steps(matrix))[:, 0] == size
    return float(whole[long].mean()) if long.any() else 0.0


def held_out(x: Inputs, settings: Labels) -> dict[str, float]:
    """The log-likelihood of lists that the mixture has not seen, in nats per label, and how many labels they have.

    Beside it that of servers drawn by_popularity (counts of the other lists, each plus `smoothing`) and evenly. Equal
    label sets are on one side together, and a list that repeats another counts once.
    """
    key, rng = lists.set_keys(x.matrix), np.random.default_rng(settings.seed)
    asked = rng.random(int(key.max()) + 1)[key] < settings.held_out
    fitted, mixture = em.fit(em.subset(x, np.flatnonzero(~asked)), settings)
    new = em.distinct(em.subset(replace(x, topics=fitted.topics), np.flatnonzero(asked)))
    seen, n_servers = em.distinct(fitted).matrix, len(x.cluster)
    used = np.bincount(seen[seen >= 0], minlength=n_servers) + settings.smoothing
    servers = new.matrix[new.matrix >= 0]
    return {
        "mixture": float(em.expect(new, mixture)[1].sum()) / len(servers),
        "by_popularity": float(np.log(used / used.sum())[servers].mean()),
        "evenly": -float(np.log(n_servers)),
        "labels": len(servers),
    }


def statistics(x: Inputs, matrix: IntArray, settings: Labels) -> dict[str, float]:
    """What released and simulated lists are compared by."""
    filled, server = matrix >= 0, np.maximum(matrix, 0)
    used = np.bincount(matrix[filled], minlength=len(x.cluster))
    gap = settings.widest_gap(len(x.cluster))
    language = x.spoken[x.language[:, None], server]
    rows = np.array([np.isin(row, words) for row, words in zip(matrix, x.words, strict=True)])
    most = np.sort(used)[::-1][: len(used) // 10]
    found = {
        "labels with a theme word": float(rows[filled].mean()),
        "labels in the task's language": float(language[filled].mean()),
        "servers on some list (share)": float((used > 0).mean()),
        "labels of the tenth of the servers listed most (share)": float(most.sum() / used.sum()),
    }
    return found | lists.order_measures(matrix, gap, settings.long_run) | lists.repetition_measures(matrix)


def mixture_tables(data: Dataset, settings: Labels, cluster: IntArray | None = None) -> dict[str, pd.DataFrame]:
    """mixture (one row per parameter) and mixture_fit (observed statistics against simulated ones).

    A statistic that is not `inside` the range of the simulations rejects the mixture as a description of it.
    """
    x, mixture = em.fit(em.inputs(data, settings, cluster), settings)
    rng, once = np.random.default_rng(settings.seed), em.distinct(x).matrix
    used = np.bincount(once[once >= 0], minlength=len(x.cluster))
    popularity = float(np.log(np.maximum(used, 1) / used.sum())[once[once >= 0]].mean())
    ascending, copied = sorted_share(x.matrix, settings), copied_share(x.matrix)
    unseen = held_out(x, settings)
    others = {
        "share of lists sorted by id": ascending,
        "share of lists that repeat another": copied,
        "mean step of the alphabetical walk (places)": 1 / mixture.rho,
        "log-likelihood per label (nats)": mixture.log_likelihood,
        "the same for servers drawn evenly": -float(np.log(len(x.cluster))),
        "the same for servers drawn by their popularity": popularity,
        "held out: log-likelihood per label (nats)": unseen["mixture"],
        "held out: the same for servers drawn evenly": unseen["evenly"],
        "held out: the same for servers drawn by their popularity": unseen["by_popularity"],
        "held out: labels": unseen["labels"],
        "labels": int((x.matrix >= 0).sum()),
        "labels of different lists": int(used.sum()),
        "EM steps": mixture.steps,
    }
    rows = em.share_intervals(x, mixture) + [(name, float(value), np.nan, np.nan) for name, value in others.items()]
    observed = statistics(x, x.matrix, settings)
    draws = [simulate(x, mixture, rng, ascending=ascending, copied=copied) for _ in range(settings.simulations)]
    drawn = pd.DataFrame([statistics(x, draw, settings) for draw in draws])
    fitted = pd.DataFrame({"statistic": list(observed), "observed": list(observed.values())})
    fitted = fitted.assign(fitted=drawn.mean().to_numpy(), fitted_low=drawn.min().to_numpy())
    fitted = fitted.assign(fitted_high=drawn.max().to_numpy(), simulations=len(drawn))
    fitted["inside"] = fitted["observed"].between(fitted["fitted_low"], fitted["fitted_high"])
    return {"mixture": pd.DataFrame(rows, columns=["parameter", "value", "ci_low", "ci_high"]), "mixture_fit": fitted}


def compute(config: DictConfig) -> list[Path]:
    """Write label_lists.csv, label_groups.csv, mixture.csv and mixture_fit.csv."""
    settings, dataset = read(Labels), str(config.dataset.name)
    data = load(dataset)
    tables = {"label_lists": list_table(data, settings), "label_groups": group_table(data)}
    return write_tables(dataset, tables | mixture_tables(data, settings), "labels", settings)
