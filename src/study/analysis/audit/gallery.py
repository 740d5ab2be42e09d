"""All figures of the audit that are drawn from its tables alone, for the notebook."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from matplotlib.figure import Figure

from study.analysis.audit.paper_cells import AuditTables
from study.errors import StudyError

# Modules whose functions `plot_*(tables)` draw one figure each.
MODULES = ("figures_labels", "figures_robustness")


def figures(tables: AuditTables) -> Iterator[tuple[str, Figure | str]]:
    """Name and figure of every plot function in `MODULES`, or why its table is missing."""
    for module in MODULES:
        content = vars(import_module(f"study.analysis.audit.{module}"))
        for name in sorted(name for name in content if name.startswith("plot_")):
            try:
                yield name.removeprefix("plot_"), content[name](tables)
            except StudyError as problem:
                yield name.removeprefix("plot_"), f"{problem.reason} ({problem.fix})"
