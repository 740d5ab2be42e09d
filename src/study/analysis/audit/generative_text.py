"""The sentences of `study audit run --part codebooks` and `--part wordings`, for the notebook."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd


def about_codebooks(table: pd.DataFrame, titles: Mapping[str, str]) -> list[str]:
    """One sentence per system: whether its codebooks have collapsed, by the bounds at which the training warns."""
    said = []
    for name, rows in table.groupby("system", sort=False):
        first = rows[rows["level"] == 1]
        said.append(
            f"{titles[str(name)]}: codebooks collapsed in {first['collapsed'].sum()} of {len(first)} seeds, by the "
            f"bounds at which training warns. Least use of a level {rows['usage'].min():.0%}, least entropy "
            f"{rows['entropy'].min():.2f} of its most; servers with the codes of another {first['shared'].min():.1%} "
            f"to {first['shared'].max():.1%}, {first['shared_after'].max():.1%} at most once the last level is spread."
        )
    return said


def about_wordings(table: pd.DataFrame, metric: str) -> list[str]:
    """One sentence per protocol: the spread over wordings within a training beside that over trainings."""
    said = []
    for protocol, rows in table.groupby("protocol", sort=False):
        by_seed = rows.groupby("seed")[metric]
        spread, own = by_seed.max() - by_seed.min(), rows[rows["wording"] == 0].set_index("seed")[metric]
        mean = rows[metric].mean()
        text = (
            f"{protocol}: {metric} of the first wording {own.mean():.3f}, mean over {rows['wording'].nunique()} "
            f"wordings {mean:.3f}; within one training the wordings differ by {spread.max():.3f} at most"
        )
        if len(own) > 1:
            text += f", while the trainings differ by {own.max() - own.min():.3f} in the same wording"
        said.append(f"{text}.")
    return said
