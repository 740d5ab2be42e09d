"""The label ranker without what the audit of the labels found."""

from __future__ import annotations

import numpy as np

from baselines.label_ranker import LabelRanker
from study.data.dataset import FloatArray, IntArray

# Of the features of `LabelRanker.features`, counted from the last: the server's place in the catalogue.
CATALOGUE_PLACE = -4


class LabelRankerPlain(LabelRanker):
    """`LabelRanker` whose trees do not see a server's place in the catalogue.

    The audit read all lists, those of test tasks too, and found that lists follow the order of the catalogue and of the
    file. With kernels without ``near`` this class uses neither.
    """

    def features(self, tasks: IntArray, chosen: IntArray, first: FloatArray) -> FloatArray:
        """Those of `LabelRanker` but one, shape (len(tasks), candidates, n_features)."""
        return np.delete(super().features(tasks, chosen, first), CATALOGUE_PLACE, axis=-1)

    @property
    def n_features(self) -> int:
        """Features per candidate."""
        return super().n_features - 1
