"""`field_dense` as it is saved and answers: vectors of the catalogue's fields, priors and product names.

A saved model needs no data set, no torch and no network. `explain` serves the agent, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.advisor.arrays import FloatArray
from study.advisor.encoders import mpnet
from study.advisor.encoders.sentence import DIMENSION, WITHOUT_TORCH, cosines, encode, model_version, without_torch
from study.advisor.retrieval.field_dense import FieldDense
from study.advisor.retrieval.fields import TASK_FIELDS, VIEWS, texts
from study.advisor.retrieval.names import Product, ProductNames, Spelling
from study.advisor.retrieval.ranking import tie_order, top_k
from study.advisor.retrieval.two_encoders import TwoEncoders
from study.advisor.saved import files
from study.advisor.saved.contract import Recommendation, require_request

FORM = {"kind": "field_dense", "format": 1}
PRODUCTS = "products.json"
# What an answer says of a server.
CARD = ("id", "name", "url", "description", "language", "tools")


def request_of(text: str, **attributes: str) -> pd.DataFrame:
    """A request in words as a table of one task, whose description it is. `attributes`: other columns of
    `Dataset.tasks`, such as theme."""
    return pd.DataFrame([dict.fromkeys(TASK_FIELDS, "") | {"description": text} | attributes])


def explain(system: FieldDense, request: pd.DataFrame) -> tuple[FloatArray, dict[str, FloatArray]]:
    """The scores of a catalogue for one request, in standard deviations, and parts that add up to them.

    The score of `FieldDense` is z(sum of weighted standardised cosines) + priors + product, where z subtracts the mean
    over the catalogue and divides by the standard deviation. Divided by the same deviation, the cosines add up to it.

    `system`: with an indexed catalogue.
    `request`: one row, columns as in `Dataset.tasks`; its texts are not kept.
    Returns: the scores, shape (n_servers,), float32, equal to `FieldDense.score_requests`; and by name the parts, each
        of that shape: ``semantic (<server field>)``, the names of the priors, ``product``.
    """
    terms = system.contributions(request, store=False)
    summed = np.asarray(sum(terms.values()), dtype=np.float32)
    spread = float(summed.std()) or 1.0
    parts: dict[str, FloatArray] = {}
    for name, values in terms.items():
        # Named by the server's field; the views of a request of one sentence differ little.
        part = f"semantic ({name.partition(' x ')[2]})"
        parts[part] = parts.get(part, np.float32(0)) + (values[0] - values[0].mean()) / np.float32(spread)
    if system.priors:
        parts[" and ".join(system.priors)] = system.prior
    if (bonus := system.bonus(request)) is not None:
        parts["product"] = bonus[0]
    return system.total(terms, bonus)[0], parts


@dataclass(eq=False)
class SavedFieldDense:
    """A system of class `FieldDense` over a catalogue, as it is saved (`study.advisor.saved.contract.SavedModel`)."""

    name: str  # of the system
    system: FieldDense  # with the catalogue's vectors, prior and product names
    servers: pd.DataFrame  # the catalogue, columns `CARD`
    seed: int  # of the tie order
    # A saved system of the same data set that reads what this one does not of a request, if there is one.
    reader: str = ""

    standardised = True
    caption = "score: the sum of the parts, in standard deviations over the catalogue"

    def __post_init__(self) -> None:
        self.title, self.cards = self.name, self.servers.to_dict("records")
        self.order = tie_order(len(self.servers), self.seed)

    def save(self, folder: Path) -> None:
        """Write model.safetensors, products.json, catalogue.json, model.json and their manifest into `folder`."""
        system = self.system
        arrays = {f"field.{name}": vectors for name, vectors in system.fields.items()} | {"prior": system.prior}
        settings = {
            "parts": [dict(part) for part in system.parts],
            "priors": dict(system.priors),
            "product_bonus": system.product_bonus,
            "encoder": system.encoder,
        }
        if isinstance(system, TwoEncoders):
            arrays |= {f"large.{name}": vectors for name, vectors in system.large_fields.items()}
            settings["large"] = [dict(part) for part in system.large]
        about = FORM | {"name": self.name, "seed": self.seed, "settings": settings, "weights": _versions(system)}
        products = None if system.products is None else _product_data(system.products)
        files.write(folder, files.Saved(about, arrays, self.servers[list(CARD)], products), PRODUCTS)

    @classmethod
    def load(cls, folder: Path, *, reader: str = "") -> SavedFieldDense:
        """Read what `save` wrote; StudyError where it is damaged or another version of the encoder made the vectors."""
        with files.reading(folder, PRODUCTS, CARD, FORM) as (about, arrays, servers, products):
            encoder = about["settings"]["encoder"]
            kind = TwoEncoders if "large" in about["settings"] else FieldDense
            system = kind(**about["settings"] | {"encoder": WITHOUT_TORCH.get(encoder, encoder)})
            if (installed := _versions(system)) != about["weights"]:
                raise ValueError(f"its vectors are of {about['weights']}, installed is {installed}")
            system.fields = {name: arrays[f"field.{name}"] for name in sorted({term.field for term in system.terms})}
            if isinstance(system, TwoEncoders):
                names = {term.field for term in system.large_terms}
                system.large_fields = {name: arrays[f"large.{name}"] for name in sorted(names)}
            system.prior = arrays["prior"]
            system.products = None if products is None else _product_names(products, len(servers))
            _require_whole(system, len(servers))
            return cls(about["name"], system, servers, seed=about["seed"], reader=reader)

    def recommend(
        self, text: str, *, language: str = "", category: str = "", subcategory: str = "", theme: str = "", k: int = 5
    ) -> list[Recommendation]:
        """See `study.advisor.saved.contract.SavedModel`; the words are read as a task's description."""
        require_request(text, k, len(self.servers))
        task = request_of(text, language=language, category=category, subcategory=subcategory, theme=theme)
        total, parts = explain(self.system, task)
        rows = top_k(total[None], k, self.order)[0][0]
        return [
            Recommendation.of(rank, self.cards[row], total[row], {name: part[row] for name, part in parts.items()})
            for rank, row in enumerate(rows, start=1)
        ]

    @property
    def encoder(self) -> str:
        """The encoder's name, whether torch computes it or not."""
        names = {quick: name for name, quick in WITHOUT_TORCH.items()}
        return names.get(self.system.encoder, self.system.encoder)

    def closeness(self, text: str, nearest: int) -> tuple[str, float]:
        """The encoder's name, and the mean over the `nearest` servers of the mean cosine over the fields.

        Unlike a score, it is not relative to the catalogue's other servers, so it tells a request that fits nothing.
        """
        vector, fields = self.vector(text), self.system.fields
        near = sum(cosines(vector, vectors)[0] for vectors in fields.values()) / len(fields)
        return self.encoder, float(np.sort(near)[-nearest:].mean())

    def vector(self, text: str) -> FloatArray:
        """The vector of a request's description, shape (1, dimension)."""
        return encode(texts(request_of(text), VIEWS, "description"), model=self.system.encoder, store=False)

    def warnings(
        self, text: str, *, language: str = "", category: str = "", subcategory: str = "", theme: str = ""
    ) -> list[str]:
        """See `study.advisor.saved.contract.SavedModel`."""
        messages = []
        if text.strip() and not re.search(r"\w", text):
            messages.append("there is no word in the request; the ranking does not rest on it")
        encoder = WITHOUT_TORCH.get(self.system.encoder, self.system.encoder)
        if encoder in WITHOUT_TORCH.values() and without_torch(encoder).cut(text):
            longest = without_torch(encoder).longest
            messages.append(f"only the first {longest} tokens of the request are read, except for names of products")
        given = {"language": language, "category": category, "subcategory": subcategory, "theme": theme}
        for name, value in given.items():
            if value and self._read(text, given) == self._read(text, given | {name: ""}):
                messages.append(f"the {name} {value!r} has no effect: {self.name} ranks by the words of the request")
                # T2MRec, too, reads no subcategory without its category.
                if self.reader and (category or name != "subcategory"):
                    messages[-1] += f"; --system {self.reader} uses it, and shows a semantic and a structural part"
        return messages

    def _read(self, text: str, attributes: Mapping[str, str]) -> list[str]:
        """Every text that the score reads of a request."""
        views = {term.view for term in self.system.terms} | ({"request"} if self.system.products else set())
        return [texts(request_of(text, **attributes), VIEWS, view)[0] for view in sorted(views)]


def _require_whole(system: FieldDense, n_servers: int) -> None:
    """Raise ValueError unless every array is finite and fits the catalogue."""
    shapes = [((n_servers,), {"prior": system.prior}), ((n_servers, DIMENSION), system.fields)]
    if isinstance(system, TwoEncoders):
        shapes.append(((n_servers, mpnet.DIMENSION), system.large_fields))
    for shape, arrays in shapes:
        for name, array in arrays.items():
            if array.shape != shape or not np.isfinite(array).all():
                raise ValueError(f"{name!r} is no array of finite numbers of shape {shape}")


def _versions(system: FieldDense) -> str:
    """The encoders of a system, with their versions."""
    version = model_version(system.encoder)
    return f"{version} and {mpnet.version()}" if isinstance(system, TwoEncoders) else version


def _product_data(products: ProductNames) -> dict[str, Any]:
    """Product names as JSON holds them."""
    spelling = products.spelling
    return {
        "bearers": [[list(product), rows] for product, rows in products.bearers.items()],
        "also": [[list(product), rows] for product, rows in products.also.items()],
        "spelling": {word: [spelling.capital.get(word, 0), uses] for word, uses in spelling.total.items()},
        "acronyms": sorted(spelling.acronyms),
    }


def _product_names(data: Mapping[str, Any], n_servers: int) -> ProductNames:
    """What `_product_data` described; ValueError where a row is outside the catalogue."""

    def rows_of(pairs: Sequence[tuple[Sequence[str], list[int]]]) -> dict[Product, list[int]]:
        by_product = {tuple(product): rows for product, rows in pairs}
        if any(type(row) is not int or not 0 <= row < n_servers for rows in by_product.values() for row in rows):
            raise ValueError("a product names a server outside the catalogue")
        return by_product

    uses = data["spelling"]
    spelling = Spelling(
        {word: int(pair[0]) for word, pair in uses.items()},
        {word: int(pair[1]) for word, pair in uses.items()},
        frozenset(data["acronyms"]),
    )
    return ProductNames(rows_of(data["bearers"]), rows_of(data["also"]), spelling, n_servers)
