"""The parts of the score of `best`: one decomposition for `study recommend` and for the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from study.data.dataset import TASK_FIELDS, FloatArray

if TYPE_CHECKING:
    from study.usefulness.field_dense import FieldDense


def request_of(text: str, **attributes: str) -> pd.DataFrame:
    """A request in words as a table of one task, whose description it is.

    Args:
        attributes: other columns of `Dataset.tasks`, such as theme.
    """
    return pd.DataFrame([dict.fromkeys(TASK_FIELDS, "") | {"description": text} | attributes])


def explain(system: FieldDense, request: pd.DataFrame) -> tuple[FloatArray, dict[str, FloatArray]]:
    """The scores of a catalogue for one request, in standard deviations, and parts that add up to them.

    The score of `FieldDense` is z(sum of weighted standardised cosines) + priors + product, where z subtracts the mean
    over the catalogue and divides by the standard deviation. Divided by the same deviation, the cosines add up to it.

    Args:
        system: with an indexed catalogue.
        request: one row, columns as in `Dataset.tasks`; its texts are not kept.

    Returns: the scores, shape (n_servers,), float32, equal to `FieldDense.score_requests`; and by name the parts, each
        of that shape: ``semantic (<server field>)``, the names of the priors, ``product``.
    """
    from study.usefulness.field_dense import standardised
    from study.usefulness.texts import VIEWS, texts

    terms = system.contributions(request, store=False)
    summed = np.asarray(sum(terms.values()), dtype=np.float32)
    spread = float(summed.std()) or 1.0
    parts: dict[str, FloatArray] = {}
    for name, values in terms.items():
        # Named by the server's field; the views of a request of one sentence differ little.
        part = f"semantic ({name.partition(' x ')[2]})"
        parts[part] = parts.get(part, np.float32(0)) + (values[0] - values[0].mean()) / np.float32(spread)
    total = standardised(summed)[0] + system.prior
    if system.priors:
        parts[" and ".join(system.priors)] = np.broadcast_to(system.prior, total.shape)
    if system.products is not None:
        named = system.products.named(texts(request, VIEWS, "request"))[0]
        parts["product"] = np.float32(system.product_bonus) * named
        total = total + parts["product"]
    return total, parts
