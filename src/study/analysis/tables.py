"""Tables for people: the same numbers as CSV, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from study.errors import StudyError
from study.files import write_text

# The columns of the paper's Table 3, in its order.
PAPER_METRICS = ("recall@5", "recall@10", "precision@5", "precision@10", "f1@5", "f1@10", "ndcg@5", "ndcg@10")
DIGITS = 4


def read(path: Path) -> pd.DataFrame:
    """Read a table of the report stage."""
    if not path.exists():
        raise StudyError("the table is missing", file=path, fix="run: study report dataset=" + path.parent.parent.name)
    return pd.read_csv(path)


def comparison(
    overall: pd.DataFrame,
    protocol: str,
    titles: dict[str, str],
    metrics: tuple[str, ...] = PAPER_METRICS,
    *,
    not_run: Sequence[str] = (),
) -> pd.DataFrame:
    """One row per system, one column per metric, cells "mean ± sd" over seeds; best system first by the last metric.

    Args:
        overall: columns system, protocol, metric, k, mean, sd, n_seeds.
        titles: system -> how it is printed.
        not_run: systems that could not be run here; their rows say so, below all others, in place of numbers.
    """
    rows = overall[overall["protocol"] == protocol].assign(
        name=lambda part: part["metric"] + "@" + part["k"].astype(str)
    )
    means = rows.pivot_table(index="system", columns="name", values="mean")
    deviations = rows.pivot_table(index="system", columns="name", values="sd")
    order = means.sort_values(metrics[-1], ascending=False).index
    cells = {
        name: [
            cell(means[name][system], deviations[name].get(system) if name in deviations else None) for system in order
        ]
        for name in metrics
    }
    table = pd.DataFrame({"system": [titles.get(system, system) for system in order]} | cells)
    absent = pd.DataFrame({"system": [titles.get(name, name) for name in not_run]} | dict.fromkeys(metrics, "not run"))
    return pd.concat([table, absent], ignore_index=True) if not_run else table


def cell(mean: float, deviation: float | None) -> str:
    """ "0.1602 ± 0.0011", without the deviation where there is a single seed."""
    return f"{mean:.{DIGITS}f}" + ("" if deviation is None or pd.isna(deviation) else f" ± {deviation:.{DIGITS}f}")


def markdown(table: pd.DataFrame) -> str:
    """A Markdown table; the first column to the left, numbers to the right."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"

    rule = ["---"] + ["---:"] * (table.shape[1] - 1)
    rows = [line([str(value) for value in row]) for row in table.itertuples(index=False)]
    return "\n".join([line(list(table.columns)), line(rule), *rows]) + "\n"


def latex(table: pd.DataFrame, caption: str) -> str:
    """A LaTeX table (booktabs)."""
    styled = table.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis=1)
    text: str = styled.to_latex(hrules=True, caption=caption, column_format="l" + "r" * (table.shape[1] - 1))
    return text.replace("±", r"$\pm$")


def write_all(folder: Path, name: str, parts: dict[str, pd.DataFrame], captions: dict[str, str]) -> None:
    """Write ``<name>.md`` and ``<name>.tex`` with one section per part."""
    write_text(
        folder / f"{name}.md", "\n".join(f"### {captions[key]}\n\n{markdown(table)}" for key, table in parts.items())
    )
    write_text(folder / f"{name}.tex", "\n".join(latex(table, captions[key]) for key, table in parts.items()))
