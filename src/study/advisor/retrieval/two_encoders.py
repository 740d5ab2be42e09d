"""Field-aware dense ranking with a second, larger sentence encoder beside the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from study.advisor.arrays import FloatArray
from study.advisor.encoders import mpnet
from study.advisor.encoders.sentence import cosines
from study.advisor.retrieval.field_dense import FieldDense, standardised
from study.advisor.retrieval.fields import FIELDS, VIEWS, texts


@dataclass
class TwoEncoders(FieldDense):
    """`FieldDense` whose sum has further terms, in which E is all-mpnet-base-v2 (`study.advisor.encoders.mpnet`).

    `large`: these terms, with view, field and weight as in `parts`.
    """

    large: Sequence[Mapping[str, str | float]] = ()

    def __post_init__(self) -> None:
        """Refuse parts, priors and terms that do not exist."""
        super().__post_init__()
        self.large_terms = FieldDense(parts=self.large).terms

    def index(self, servers: pd.DataFrame) -> None:
        """Make a catalogue (columns as in `Dataset.servers`) ready for requests."""
        super().index(servers)
        self.large_fields = {
            name: mpnet.encode(texts(servers, FIELDS, name))
            for name in sorted({term.field for term in self.large_terms})
        }

    def contributions(self, requests: pd.DataFrame, *, store: bool = True) -> dict[str, FloatArray]:
        """The weighted terms of the score by ``view x field`` or ``view x field, mpnet``, each of shape (len(requests),
        n_servers)."""
        names = sorted({term.view for term in self.large_terms})
        stacked = [text for name in names for text in texts(requests, VIEWS, name)]
        # Each text once: the views of a user's request are mostly one text.
        row_of = {text: row for row, text in enumerate(dict.fromkeys(stacked))}
        vectors = mpnet.encode(list(row_of), store=store)[[row_of[text] for text in stacked]]
        views = dict(zip(names, vectors.reshape(len(names), len(requests), -1), strict=True))
        return super().contributions(requests, store=store) | {
            f"{term.view} x {term.field}, mpnet": np.float32(term.weight)
            * standardised(cosines(views[term.view], self.large_fields[term.field]))
            for term in self.large_terms
        }
