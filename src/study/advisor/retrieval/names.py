"""Requests that name a product ("post it to Slack"): which words are product names, and which servers bear them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from study.advisor.arrays import FloatArray

_WORD = re.compile(r"[A-Za-z0-9][\w.+#-]*[\w+#]|[A-Za-z0-9]")
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n")
# Parts of a server's name that name no product.
_PLUMBING = (
    "mcp mcps server servers model context protocol api client connector integration tool tools service app cli sdk"
)
_QUALITY = "official community simple my ai plugin extension wrapper bridge remote local enhanced lite pro plus"
_SMALL = "the a an for of and to with by in on python typescript node rust go js ts"
_GENERIC = frozenset(f"{_PLUMBING} {_QUALITY} {_SMALL}".split())
# A word is a product's if it is capitalised inside sentences at least this often. If it was met there `SEEN` times and
# is nearly always, it is one in lower case too ("post it to slack").
NAMELIKE, ALWAYS, SEEN = 0.7, 0.9, 5
# Shorter words, and short ones with several capitals (IoT, SaaS, JSON), are technologies or branches more often than
# products.
SHORTEST, ACRONYM = 3, 4
# Above this share of capitalised words a line is a title, where capitals say nothing.
TITLE = 0.5
LONGEST = 3  # words of a product's name

Product = tuple[str, ...]


def words(text: str) -> list[str]:
    """The words of a text unchanged; dots, hyphens and the like inside a word do not split it."""
    return _WORD.findall(text)


def key(name: str) -> Product:
    """A server's name as lower-case words without those that name no product: ``Slack MCP Server`` is ("slack",)."""
    spaced = re.sub(r"[@/_\-:|(),]+", " ", name)
    return tuple(word for word in map(str.lower, words(spaced)) if word not in _GENERIC)


def capitalised(word: str) -> bool:
    """Whether a word is written as names are: with a capital or a digit anywhere."""
    return any(letter.isdigit() or letter.isupper() for letter in word)


@dataclass(frozen=True)
class Spelling:
    """How often words are written as names; the first word of a sentence, where a capital says nothing, is left out."""

    capital: Mapping[str, int]  # uses with a capital, by word in lower case
    total: Mapping[str, int]  # all uses
    acronyms: frozenset[str]  # what was written with two capitals or more

    @classmethod
    def of(cls, descriptions: Sequence[str]) -> Spelling:
        """Count the words of a catalogue's descriptions."""
        capital, total, upper = Counter[str](), Counter[str](), set[str]()
        for text in descriptions:
            for sentence in _SENTENCE.split(text):
                for word in words(sentence)[1:]:
                    total[word.lower()] += 1
                    capital[word.lower()] += capitalised(word)
                    if sum(map(str.isupper, word)) > 1:
                        upper.add(word.lower())
        return cls(capital, total, frozenset(upper))

    def share(self, word: str) -> float:
        """The share of capitalised uses of a word (lower case); 1 for one that was never met."""
        return self.capital[word] / self.total[word] if self.total.get(word) else 1.0

    def namelike(self, word: str) -> bool:
        """Whether the word may be a product's name."""
        short = len(word) < SHORTEST or (word in self.acronyms and len(word) <= ACRONYM)
        return not short and any(map(str.isalpha, word)) and self.share(word) >= NAMELIKE

    def sure(self, word: str) -> bool:
        """Whether the word is a name even where it is written in lower case."""
        return self.total.get(word, 0) >= SEEN and self.share(word) >= ALWAYS


@dataclass(frozen=True)
class ProductNames:
    """Names of products and the servers that bear them."""

    bearers: Mapping[Product, list[int]]  # rows of the servers whose name is that product and nothing else
    also: Mapping[Product, list[int]]  # of those whose name holds it beside other words
    spelling: Spelling  # of the catalogue's descriptions
    n_servers: int

    @classmethod
    def of(cls, servers: pd.DataFrame) -> ProductNames:
        """Read the names of a catalogue (columns name and description). A server's name is a product's if most uses of
        each of its words inside the sentences of the catalogue's own descriptions are capitalised: "Slack" is, "memory"
        and "search" are not. The first word of a longer name is one if it is so nearly always: "Shopify" of "Shopify
        Admin"."""
        spelling = Spelling.of(servers["description"].tolist())
        keys = [key(name) for name in servers["name"]]
        bearers, also = defaultdict[Product, list[int]](list), defaultdict[Product, list[int]](list)
        for row, product in enumerate(keys):
            if 0 < len(product) <= LONGEST and all(map(spelling.namelike, product)):
                bearers[product].append(row)
        starts = {product[0] for product in keys if product}
        first = {(word,) for word in starts if spelling.namelike(word) and spelling.share(word) >= ALWAYS}
        for row, product in enumerate(keys):
            for part in dict.fromkeys(run for _, run in enumerate_runs(product)):  # in an order that does not change
                if part != product and (part in bearers or part in first):
                    also[part].append(row)
        return cls(dict(bearers), dict(also), spelling, len(servers))

    def mentioned(self, text: str) -> set[Product]:
        """The products that a text names; a name inside a longer one ("Google" in "Google Maps") does not count."""
        products: set[Product] = set()
        for sentence in _SENTENCE.split(text):
            written = words(sentence)
            title = sum(map(capitalised, written)) > TITLE * len(written)
            for start, run in enumerate_runs(written):
                product = tuple(map(str.lower, run))
                telling = not title and start > 0 and all(map(capitalised, run))
                is_product = product in self.bearers or product in self.also
                if is_product and (telling or all(map(self.spelling.sure, product))):
                    products.add(product)
        return {run for run in products if not any(run != longer and inside(run, longer) for longer in products)}

    def named(self, requests: Sequence[str]) -> FloatArray:
        """1 for servers whose name is a product that the request names, 1/2 for those whose name holds it.
        Returns: shape (len(requests), n_servers), float32."""
        scores = np.zeros((len(requests), self.n_servers), dtype=np.float32)
        for number, text in enumerate(requests):
            for product in self.mentioned(text):
                rows = self.also.get(product, [])
                scores[number, rows] = np.maximum(scores[number, rows], 0.5)
                scores[number, self.bearers.get(product, [])] = 1.0
        return scores


def enumerate_runs(written: Sequence[str]) -> list[tuple[int, tuple[str, ...]]]:
    """Every run of at most `LONGEST` words with the place of its first word."""
    return [(i, tuple(written[i : i + n])) for n in range(1, LONGEST + 1) for i in range(len(written) - n + 1)]


def inside(run: Product, longer: Product) -> bool:
    """Whether the words of `run` follow one another in `longer`."""
    return any(longer[i : i + len(run)] == run for i in range(len(longer) - len(run) + 1))
