"""Words, and what is scored by them: BM25, and TF-IDF as scikit-learn computes it, by numpy alone."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from study.advisor.arrays import FloatArray, IntArray

# A lower-case letter before an upper-case one: getUserToken is three words.
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
# One CJK ideograph, or a run of other letters, or a run of digits; so snake_case and kebab-case fall apart too.
WORD = re.compile(r"[\u4e00-\u9fff]|[^\W\d_\u4e00-\u9fff]+|\d+")
# Scikit-learn's words, which T2MRec reads.
TOKEN = re.compile(r"(?u)\b\w\w+\b")


def words_of(text: str) -> list[str]:
    """The words of a text in lower case."""
    return [word.lower() for word in WORD.findall(CAMEL.sub(" ", text))]


def ngrams_of(text: str, shortest: int, longest: int) -> list[str]:
    """The n-grams of a text's words of two characters or more, in lower case."""
    words = TOKEN.findall(text.lower())
    lengths = range(shortest, longest + 1)
    return [" ".join(words[at : at + n]) for n in lengths for at in range(len(words) - n + 1)]


class Bm25:
    """BM25 with Lucene's idf (Robertson & Zaragoza 2009); a word that the query repeats counts each time."""

    def __init__(self, documents: Sequence[str]) -> None:
        """Index the documents, shape (n,), n > 0."""
        import bm25s  # loads much that a figure or an answer in words does not need

        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it tells of every index that it builds
        listed = [words_of(document) for document in documents]
        self.vocabulary = _numbered(word for words in listed for word in words)
        self.size = len(listed)
        self.index = bm25s.BM25(k1=1.5, b=0.75, method="lucene", backend="numpy")
        if self.vocabulary:
            ids = [[self.vocabulary[word] for word in words] for words in listed]
            self.index.index((ids, self.vocabulary), show_progress=False)

    def scores(self, queries: Sequence[str]) -> FloatArray:
        """Scores >= 0, shape (len(queries), n)."""
        scores = np.zeros((len(queries), self.size), dtype=np.float32)
        for row, query in enumerate(queries):
            ids = [self.vocabulary[word] for word in words_of(query) if word in self.vocabulary]
            if ids:
                scores[row] = self.index.get_scores_from_ids(ids)
        return scores


@dataclass(frozen=True)
class SparseRows:
    """A sparse matrix by its entries; those of a row ascend by column, so that products add up in SciPy's order."""

    n: int  # rows
    width: int  # columns
    rows: IntArray  # of each entry, ascending
    indices: IntArray  # columns of the entries
    data: FloatArray  # values of the entries

    def entries(self) -> Iterator[tuple[int, int, np.float32]]:
        """Row, column and value of each entry."""
        return zip(self.rows, self.indices, self.data, strict=True)

    def __matmul__(self, dense: FloatArray) -> FloatArray:
        """The product with a dense matrix, shape (n, dense.shape[1])."""
        product = np.zeros((self.n, dense.shape[1]), np.float32)
        for row, column, value in self.entries():
            product[row] += value * dense[column]
        return product


@dataclass(frozen=True)
class TfIdf:
    """TF-IDF with rows of length 1 (Salton & Buckley 1988)."""

    vocabulary: dict[str, int]  # column of every term
    idf: np.ndarray  # of every column
    terms_of: Callable[[str], list[str]]
    logarithmic: bool = False  # whether a term that occurs n times counts 1 + log n

    @classmethod
    def of(cls, documents: Sequence[str]) -> TfIdf:
        """The words of some documents, with a smoothed idf and logarithmic frequencies."""
        frequency = Counter(word for text in documents for word in set(words_of(text)))
        terms = sorted(frequency)
        counts = np.array([frequency[term] for term in terms], np.float32) + np.float32(1)
        idf = np.log(np.float32(len(documents) + 1) / counts) + np.float32(1)
        return cls(_numbered(terms), idf, words_of, logarithmic=True)

    @classmethod
    def of_saved(cls, saved: Mapping[str, Any]) -> TfIdf:
        """A fitted vectoriser of n-grams from plain data: terms by column, idf, and the shortest and longest n-gram."""
        terms_of = partial(ngrams_of, shortest=saved["ngrams"][0], longest=saved["ngrams"][1])
        return cls(_numbered(saved["terms"]), np.asarray(saved["idf"], np.float64), terms_of)

    def transform(self, texts: Sequence[str]) -> SparseRows:
        """The vectors of some texts, shape (len(texts), len(vocabulary))."""
        columns, values = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        for text in texts:
            counts = Counter(self.vocabulary[term] for term in self.terms_of(text) if term in self.vocabulary)
            ids = np.array(sorted(counts), np.int64)
            row = np.array([counts[column] for column in ids.tolist()], np.float32)
            if self.logarithmic:
                row = np.log(row) + np.float32(1)
            row = (row * self.idf[ids]).astype(np.float32)
            # One square after the other, which NumPy's sum does not do.
            length = np.float64(sum((row * row).astype(np.float64).tolist())) ** 0.5
            columns.append(ids)
            values.append((row / (length or 1.0)).astype(np.float32))
        rows = np.repeat(np.arange(len(texts)), [len(ids) for ids in columns[1:]])
        return SparseRows(len(texts), len(self.vocabulary), rows, np.concatenate(columns), np.concatenate(values))


class TfIdfIndex:
    """Documents that are searched by the cosine of TF-IDF vectors."""

    def __init__(self, documents: Sequence[str]) -> None:
        self.tfidf, self.size = TfIdf.of(documents), len(documents)
        vectors = self.tfidf.transform(documents)
        order = np.argsort(vectors.indices, kind="stable")
        # Where the documents of each term begin, the documents, and their values.
        self.starts = np.searchsorted(vectors.indices[order], np.arange(vectors.width + 1))
        self.rows, self.values = vectors.rows[order], vectors.data[order]

    def scores(self, queries: Sequence[str]) -> FloatArray:
        """Cosines in [0, 1], shape (len(queries), n)."""
        cosines = np.zeros((len(queries), self.size), np.float32)
        for row, column, value in self.tfidf.transform(queries).entries():
            span = slice(self.starts[column], self.starts[column + 1])
            cosines[row, self.rows[span]] += value * self.values[span]
        return cosines


def _numbered(words: Iterable[str]) -> dict[str, int]:
    return {word: number for number, word in enumerate(dict.fromkeys(words))}
