"""What the order and the repetition of the released lists say, against chance."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd

from study.analysis.audit.detectors import Labels
from study.analysis.framework import Context, Tables, analysis
from study.data import lists
from study.data.dataset import Dataset, IntArray
from study.evaluation.statistics import percentile_limits

ATTRIBUTES = {"theme": "theme_clean", "language": "language_tokens", "subcategory": "subcategory_clean"}


def redealt(matrix: IntArray, rng: np.random.Generator) -> IntArray:
    """All labels dealt anew over all lists: every server keeps its number of labels, every list its length."""
    dealt = matrix.copy()
    dealt[matrix >= 0] = rng.permutation(matrix[matrix >= 0])
    return dealt


def list_table(data: Dataset, settings: Labels) -> pd.DataFrame:
    """Order and repetition of the lists beside their values on changed lists.

    chance_low and chance_high are the 2.5 and 97.5 % quantiles; p is the share of all permutations, the observed one
    among them, that reach the observed value; model says what chance is.
    """
    matrix, rng = lists.padded(data.lists, lists.places(data)), np.random.default_rng(settings.seed)
    order = partial(lists.order_measures, gap=settings.widest_gap(data.n_servers), long_run=settings.long_run)
    rows = []
    for measure, change, model in (
        (order, lists.shuffled, "each list in random order"),
        (lists.repetition_measures, redealt, "labels dealt anew, popularity and lengths kept"),
    ):
        drawn = pd.DataFrame([measure(change(matrix, rng)) for _ in range(settings.permutations)])
        for name, observed in measure(matrix).items():
            row = {"measure": name, "observed": observed, "chance": drawn[name].mean()}
            row |= zip(("chance_low", "chance_high"), percentile_limits(drawn[name]), strict=True)
            p = (1 + (drawn[name] >= observed).sum()) / (1 + settings.permutations)
            rows.append(row | {"p": p, "permutations": settings.permutations, "model": model, "n_lists": len(matrix)})
    return pd.DataFrame(rows)


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
    agree = pd.DataFrame({f"same_{name}": values[pairs[:, 0]] == values[pairs[:, 1]] for name, values in names.items()})
    size_of_pair, rows = counts[key[pairs[:, 0]]], []
    for size in [*np.unique(counts[shared]).tolist(), 0]:
        groups = shared if size == 0 else np.flatnonzero(counts == size)
        chosen = agree[(size_of_pair == size) | (size == 0)]
        row = {"size": size, "groups": len(groups), "tasks": int(counts[groups].sum()), "pairs": len(chosen)}
        rows.append(row | chosen.mean().to_dict())
    return pd.DataFrame(rows).assign(**chance)


@analysis("audit")
def labels(study: Context) -> Tables:
    """Do order and repetition in the released lists differ from chance?"""
    return {
        "label_lists": list_table(study.data, study.settings(Labels)),
        "label_groups": group_table(study.data),
    }
