"""What the order and the repetition of the released lists say, against chance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd

from study.analysis.audit.detectors import Labels
from study.analysis.framework import Context, Tables, analysis
from study.data import lists
from study.data.dataset import Dataset, IntArray

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


@analysis("audit")
def labels(study: Context) -> Tables:
    """Do order and repetition in the released lists differ from chance?"""
    return {
        "label_lists": list_table(study.data, study.settings(Labels)),
        "label_groups": group_table(study.data),
    }
