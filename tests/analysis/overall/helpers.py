"""Results without files, for tests on hand-made values."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from study.analysis.report.results import Results


def results(dataset: str, protocols: list[str], names: Iterable[str], **given: Any) -> Results:
    """Results of some systems whose titles are their names in capitals; what is not given is empty."""
    names = list(names)
    fields: dict[str, Any] = {"titles": {name: name.upper() for name in names}, "families": {}, "applies": {}}
    fields |= {"planned": []} | {name: pd.DataFrame() for name in ("metrics", "overall", "significance", "costs")}
    return Results(dataset, dataset.title(), protocols, **(fields | given))


def means(rows: Iterable[tuple[str, str, str, float]]) -> dict[str, pd.DataFrame]:
    """The tables `metrics` and `overall` of one seed from (protocol, system, metric@10, value)."""
    cells = [(protocol, system, metric, 10, value) for protocol, system, metric, value in rows]
    table = pd.DataFrame(cells, columns=["protocol", "system", "metric", "k", "value"])
    return {"metrics": table, "overall": table.rename(columns={"value": "mean"})}
