"""Label forensics: what the order and the repetition of the released lists say about how they were made."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from study.analysis.audit import labels_settings, labels_simulation
from study.analysis.audit.labels_settings import Labels, table
from study.data.dataset import Dataset, IntArray, load
from study.data.lists import (
    close_gap,
    order_measures,
    padded,
    places,
    repetition_measures,
    set_keys,
    shuffled,
)
from study.evaluation.records import record
from study.files import write_csv, write_json

ATTRIBUTES = {"theme": "theme_clean", "language": "language_tokens", "subcategory": "subcategory_clean"}


def redealt(matrix: IntArray, rng: np.random.Generator) -> IntArray:
    """All labels dealt anew over all lists: every server keeps its number of labels, every list its length."""
    dealt = matrix.copy()
    dealt[matrix >= 0] = rng.permutation(matrix[matrix >= 0])
    return dealt


def against_chance(
    measure: Callable[[IntArray], dict[str, float]],
    change: Callable[[IntArray, np.random.Generator], IntArray],
    matrix: IntArray,
    *,
    chance: str,
    permutations: int,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Each measure beside its values on changed lists.

    Returns: columns measure, observed, chance (mean), chance_low, chance_high (2.5 and 97.5 %), p (share of all
        permutations, the observed one among them, that reach the observed value), permutations, model (what chance is).
    """
    observed = measure(matrix)
    drawn = pd.DataFrame([measure(change(matrix, rng)) for _ in range(permutations)])
    rows = []
    for name, value in observed.items():
        values = drawn[name].to_numpy()
        low, high = np.quantile(values, [0.025, 0.975])
        rows.append(
            {
                "measure": name,
                "observed": value,
                "chance": values.mean(),
                "chance_low": low,
                "chance_high": high,
                "p": (1 + int((values >= value).sum())) / (1 + permutations),
                "permutations": permutations,
                "model": chance,
            }
        )
    return pd.DataFrame(rows)


def list_table(data: Dataset, settings: Labels) -> pd.DataFrame:
    """Order and repetition of the lists against chance; columns of `against_chance` and n_lists."""
    matrix, rng = padded(data.lists, places(data)), np.random.default_rng(settings.seed)
    gap = close_gap(settings, data.n_servers)
    parts = (
        (lambda lists: order_measures(lists, gap, settings.long_run), shuffled, "each list in random order"),
        (repetition_measures, redealt, "labels dealt anew, popularity and lengths kept"),
    )
    frames = [
        against_chance(measure, change, matrix, chance=chance, permutations=settings.permutations, rng=rng)
        for measure, change, chance in parts
    ]
    return pd.concat(frames, ignore_index=True).assign(n_lists=len(matrix))


def group_table(data: Dataset) -> pd.DataFrame:
    """Groups of tasks with the same set of servers, by size.

    Returns: columns size, groups, tasks, pairs, then the share of pairs within groups that agree in theme, language and
        subcategory and in the order of the list (same_...), and the same shares over all pairs of tasks (chance_...).
        The last row, size 0, holds all groups together.
    """
    matrix = padded(data.lists, places(data))
    key = set_keys(matrix)
    names = {name: pd.factorize(data.tasks[column].str.casefold())[0] for name, column in ATTRIBUTES.items()}
    names["order"] = np.unique(matrix, axis=0, return_inverse=True)[1].ravel()
    chance = {name: _pair_share(values) for name, values in names.items()}
    counts = np.bincount(key)
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
    return pd.DataFrame(rows).assign(**{f"chance_{name}": value for name, value in chance.items()})


def _pair_share(values: IntArray) -> float:
    """Share of all pairs that agree."""
    counts, n = np.bincount(values).astype(np.float64), len(values)
    return float((counts * (counts - 1)).sum() / (n * (n - 1)))


def compute(config: DictConfig) -> list[Path]:
    """Write label_lists.csv, label_groups.csv, mixture.csv and mixture_fit.csv; returns their paths."""
    settings, dataset = labels_settings.read(Labels), str(config.dataset.name)
    data = load(dataset)
    tables = {"label_lists": list_table(data, settings), "label_groups": group_table(data)}
    tables |= labels_simulation.tables(data, settings)
    written = []
    for name, frame in tables.items():
        write_csv(table(dataset, name), frame)
        written.append(table(dataset, name))
    write_json(table(dataset, "labels").with_suffix(".json"), record(dataset=dataset, settings=vars(settings)))
    return written
