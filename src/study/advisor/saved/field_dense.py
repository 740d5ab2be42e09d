"""`field_dense` as it is saved and answers: vectors of the catalogue's fields, priors and product names.

A saved model needs no data set, no torch and no network. `explain` serves the agent, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.advisor.arrays import FloatArray
from study.advisor.encoders import mpnet
from study.advisor.encoders.sentence import DIMENSION, WITHOUT_TORCH, cosines, encode, model_version, without_torch
from study.advisor.retrieval.field_dense import FieldDense, Part
from study.advisor.retrieval.fields import TASK_FIELDS, VIEWS, texts
from study.advisor.retrieval.names import Product, ProductNames, Spelling
from study.advisor.retrieval.ranking import tie_order, top_k
from study.advisor.retrieval.two_encoders import TwoEncoders
from study.advisor.saved import files
from study.advisor.saved.contract import Recommendation, require_request, stated

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
        system, products = self.system, self.system.products
        arrays = {f"field.{name}": vectors for name, vectors in system.fields.items()} | {"prior": system.prior}
        if isinstance(system, TwoEncoders):
            arrays |= {f"large.{name}": vectors for name, vectors in system.large_fields.items()}
        about = FORM | {"name": self.name, "seed": self.seed, "settings": asdict(system), "weights": _versions(system)}
        names = (
            None
            if products is None
            else {
                "bearers": list(products.bearers.items()),
                "also": list(products.also.items()),
                "spelling": {
                    word: [products.spelling.capital.get(word, 0), n] for word, n in products.spelling.total.items()
                },
                "acronyms": sorted(products.spelling.acronyms),
            }
        )
        files.write(folder, files.Saved(about, arrays, self.servers[list(CARD)], names), PRODUCTS)

    @classmethod
    def load(cls, folder: Path, *, reader: str = "") -> SavedFieldDense:
        """Read what `save` wrote; StudyError where it is damaged or another version of the encoder made the vectors."""
        with files.reading(folder, PRODUCTS, CARD, FORM) as (about, arrays, servers, products):
            encoder = about["settings"]["encoder"]
            kind = TwoEncoders if "large" in about["settings"] else FieldDense
            system = kind(**about["settings"] | {"encoder": WITHOUT_TORCH.get(encoder, encoder)})
            if (installed := _versions(system)) != about["weights"]:
                raise ValueError(f"its vectors are of {about['weights']}, installed is {installed}")

            def vectors(kind: str, terms: Sequence[Part], *width: int) -> dict[str, FloatArray]:
                names = sorted({term.field for term in terms})
                return {name: _finite(arrays, f"{kind}.{name}", (len(servers), *width)) for name in names}

            system.fields = vectors("field", system.terms, DIMENSION)
            if isinstance(system, TwoEncoders):
                system.large_fields = vectors("large", system.large_terms, mpnet.DIMENSION)
            system.prior = _finite(arrays, "prior", (len(servers),))
            system.products = None if products is None else _product_names(products, len(servers))
            return cls(about["name"], system, servers, seed=about["seed"], reader=reader)

    def recommend(self, text: str, *, k: int = 5, **attributes: str) -> list[Recommendation]:
        """See `study.advisor.saved.contract.SavedModel`; the words are read as a task's description."""
        require_request(text, k, len(self.servers))
        total, parts = explain(self.system, request_of(text, **attributes))
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

    def warnings(self, text: str, **attributes: str) -> list[str]:
        """See `study.advisor.saved.contract.SavedModel`."""
        messages = []
        if text.strip() and not re.search(r"\w", text):
            messages.append("there is no word in the request; the ranking does not rest on it")
        quick = WITHOUT_TORCH.get(self.encoder)
        if quick and without_torch(quick).cut(text):
            longest = without_torch(quick).longest
            messages.append(f"only the first {longest} tokens of the request are read, except for names of products")
        for name, value in stated(attributes).items():
            if value and self._read(text, attributes) == self._read(text, attributes | {name: ""}):
                messages.append(f"the {name} {value!r} has no effect: {self.name} ranks by the words of the request")
                # T2MRec, too, reads no subcategory without its category.
                if self.reader and (attributes.get("category") or name != "subcategory"):
                    messages[-1] += f"; --system {self.reader} uses it, and shows a semantic and a structural part"
        return messages

    def _read(self, text: str, attributes: Mapping[str, str]) -> list[str]:
        """Every text that the score reads of a request."""
        views = {term.view for term in self.system.terms} | ({"request"} if self.system.products else set())
        return [texts(request_of(text, **attributes), VIEWS, view)[0] for view in sorted(views)]


def _finite(arrays: Mapping[str, FloatArray], name: str, shape: tuple[int, ...]) -> FloatArray:
    """The array of a name; ValueError unless it is finite and of this shape."""
    if arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
        raise ValueError(f"{name!r} is no array of finite numbers of shape {shape}")
    return arrays[name]


def _versions(system: FieldDense) -> str:
    """The encoders of a system, with their versions."""
    version = model_version(system.encoder)
    return f"{version} and {mpnet.version()}" if isinstance(system, TwoEncoders) else version


def _product_names(data: Mapping[str, Any], n_servers: int) -> ProductNames:
    """What `SavedFieldDense.save` wrote of them; ValueError where a row is outside the catalogue."""

    def rows_of(pairs: Sequence[tuple[Sequence[str], list[int]]]) -> dict[Product, list[int]]:
        by_product = {tuple(product): rows for product, rows in pairs}
        if any(type(row) is not int or not 0 <= row < n_servers for rows in by_product.values() for row in rows):
            raise ValueError("a product names a server outside the catalogue")
        return by_product

    capital, total = ({word: int(pair[at]) for word, pair in data["spelling"].items()} for at in (0, 1))
    spelling = Spelling(capital, total, frozenset(data["acronyms"]))
    return ProductNames(rows_of(data["bearers"]), rows_of(data["also"]), spelling, n_servers)
