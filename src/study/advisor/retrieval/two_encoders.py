"""Field-aware dense ranking with a second, larger sentence encoder beside the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from study.advisor.arrays import FloatArray
from study.advisor.encoders import mpnet
from study.advisor.retrieval.field_dense import FieldDense, encoded_views, weighted
from study.advisor.retrieval.fields import FIELDS, texts


@dataclass
class TwoEncoders(FieldDense):
    """`FieldDense` whose sum has further terms, in which E is all-mpnet-base-v2 (`study.advisor.encoders.mpnet`)."""

    large: Sequence[Mapping[str, str | float]] = ()  # these terms, with view, field and weight as in `parts`

    def __post_init__(self) -> None:
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
        views = encoded_views(self.large_terms, requests, partial(mpnet.encode, store=store))
        large = weighted(self.large_terms, views, self.large_fields, ", mpnet")
        return super().contributions(requests, store=store) | large
