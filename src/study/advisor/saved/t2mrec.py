"""Answering one request from a saved T2MRec model: no training library, no data set, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from study.advisor.arrays import FloatArray, IntArray
from study.advisor.retrieval.fields import TASK_FIELDS, join_values
from study.advisor.retrieval.fusion import centroids, expand, fuse
from study.advisor.retrieval.lexical import TfIdf
from study.advisor.retrieval.ranking import tie_order
from study.advisor.retrieval.settings import Scoring
from study.advisor.retrieval.structure import (
    COLUMNS,
    FEATURES,
    StructuralFeatures,
    languages,
    operating_systems,
    structural_score,
)
from study.advisor.retrieval.towers import TowerWeights, embed
from study.advisor.saved import files
from study.advisor.saved.contract import Recommendation, nearest, require_request, rounded, stated

# What a recommendation shows of a server, and what the structural score reads.
TEXTS = "id name url description author license language category subcategory system stars_count"
CARD = tuple(TEXTS.split())
FORM = {"format": 1}
VECTORIZER = "vectorizer.json"


class Ranked(NamedTuple):
    """Rows of servers by request, best first, and what decided: arrays of a row per request (`features` second)."""

    rows: IntArray
    embedding: FloatArray
    semantic: FloatArray
    structural: FloatArray
    fused: FloatArray
    features: FloatArray


@dataclass(eq=False)
class Recommender:
    """A saved T2MRec model (`study.advisor.saved.contract.SavedModel`)."""

    task_tower: TowerWeights  # the trained task tower
    server_embeddings: np.ndarray  # z_m of the catalogue, shape (n_servers, d')
    saved_vectorizer: dict[str, Any]  # what `TfIdf.of_saved` reads
    servers: pd.DataFrame  # the catalogue, columns `CARD`
    scoring: Scoring  # fusion and expansion
    seed: int  # of the tie order
    # The application domains that tasks of the data set name; empty where they are not known.
    themes: tuple[str, ...] = ()

    standardised = False
    title = "T2MRec"
    caption = "score: fused score of an anchor, centroid similarity of an expansion"

    def __post_init__(self) -> None:
        self.structure = StructuralFeatures(self.servers)
        self.cards = self.servers.to_dict("records")
        self.order = tie_order(len(self.servers), self.seed)

    @cached_property
    def vectorizer(self) -> TfIdf:
        """Makes the lexical vectors of texts."""
        return TfIdf.of_saved(self.saved_vectorizer)

    def save(self, folder: Path) -> None:
        """Write model.safetensors, vectorizer.json, catalogue.json, model.json and their manifest into `folder`."""
        arrays = self.task_tower.arrays("task") | {"servers": self.server_embeddings}
        about = FORM | {"seed": self.seed, "scoring": asdict(self.scoring), "themes": list(self.themes)}
        files.write(folder, files.Saved(about, arrays, self.servers[list(CARD)], self.saved_vectorizer), VECTORIZER)

    @classmethod
    def load(cls, folder: Path) -> Recommender:
        """Read what `save` wrote; StudyError where there is no model, or a damaged one."""
        with files.reading(folder, VECTORIZER, CARD, FORM) as (about, arrays, servers, vectorizer):
            tower, scoring = TowerWeights.from_arrays(arrays, "task"), Scoring(**about["scoring"])
            return cls(tower, arrays["servers"], vectorizer, servers, scoring, about["seed"], tuple(about["themes"]))

    def recommend(self, text: str, *, k: int = 5, **attributes: str) -> list[Recommendation]:
        """See `study.advisor.saved.contract.SavedModel`: Algorithm 1 of the paper without its last step."""
        require_request(text, k, len(self.servers))
        ranked = self.ranked([text], {name: [value] for name, value in stated(attributes).items()}, k)
        servers, anchors = self.server_embeddings, self._anchors(k)
        centroid = servers @ (ranked.embedding[0] + servers[ranked.rows[0, :anchors]].sum(0)) / (anchors + 1)
        items = []
        for position, row in enumerate(ranked.rows[0, :k]):
            anchor = position < anchors
            score = ranked.fused[0, row] if anchor else centroid[row]
            parts = {"semantic": ranked.semantic[0, row], "structural": ranked.structural[0, row]}
            stage = "anchor" if anchor else "expansion"
            named = rounded(dict(zip(FEATURES, ranked.features[:, 0, row], strict=True)))
            items.append(Recommendation.of(position + 1, self.cards[row], score, parts, stage=stage, features=named))
        return items

    def ranked(self, texts: Sequence[str], attributes: Mapping[str, Sequence[str]], k: int) -> Ranked:
        """The `k` best servers, or more, for several requests. `attributes`: of each, all that may be stated."""
        fields = {"name": texts, "description": [""] * len(texts), **attributes}
        words = [join_values(values) for values in zip(*(fields[name] for name in TASK_FIELDS), strict=True)]
        embedding = embed(self.task_tower, self.vectorizer.transform(words))
        features, servers = self.structure.between(*(attributes[name] for name in COLUMNS)), self.server_embeddings
        semantic = embedding @ servers.T
        structural = structural_score(features, self.scoring.structure_weights)
        fused = fuse(semantic, structural, weight=self.scoring.semantic_weight)
        how: Any = {"anchors": self._anchors(k), "pool": max(k, self.scoring.pool), "order": self.order}
        rows, _ = expand(fused, lambda anchors: centroids(embedding, servers, anchors) @ servers.T, **how)
        return Ranked(rows, embedding, semantic, structural, fused, features)

    def _anchors(self, k: int) -> int:
        return self.scoring.anchors if self.scoring.expansion else k

    def closeness(self, text: str, nearest: int) -> None:
        """T2MRec's similarities do not tell a request that fits nothing."""

    def warnings(self, text: str, **attributes: str) -> list[str]:
        """See `study.advisor.saved.contract.SavedModel`."""
        language, category, subcategory, theme = stated(attributes).values()
        messages = []
        if text.strip() and not len(self.vectorizer.transform([text]).data):
            messages.append("no word of the request occurs in the model's vocabulary; the ranking does not rest on it")
        for name in sorted(languages(language) - self.structure.language_index.keys()):
            messages.append(f"no server is written in {name!r}{nearest(name, self.structure.language_index)}")
        categories = set(self.structure.category.tolist()) - {""}
        if category and category not in categories:
            messages.append(f"unknown category {category!r}{nearest(category, categories)}")
        if subcategory and not category:
            messages.append("a subcategory counts only together with its category (--category), so it has no effect")
        elif subcategory:
            leaves = set(self.structure.subcategory[self.structure.category == category].tolist()) - {""}
            if category in categories and subcategory not in leaves:
                messages.append(f"unknown subcategory {subcategory!r} of {category!r}{nearest(subcategory, leaves)}")
        themes = {name.casefold() for name in self.themes}
        if theme and themes and theme.casefold() not in themes and not operating_systems(theme):
            messages.append(f"unknown theme {theme!r}{nearest(theme, self.themes)}")
        return messages
