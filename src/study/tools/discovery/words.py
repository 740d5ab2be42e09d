"""Search by words: BM25 (bm25s) and TF-IDF (scikit-learn) over one tokenisation made for tool names."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import bm25s
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from study.data.dataset import FloatArray

# It tells of every index that it builds, at a level that it sets for itself.
logging.getLogger("bm25s").setLevel(logging.WARNING)
# A lower-case letter before an upper-case one: getUserToken is three words.
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
# One CJK ideograph, or a run of other letters, or a run of digits; so snake_case and kebab-case fall apart too.
WORD = re.compile(r"[\u4e00-\u9fff]|[^\W\d_\u4e00-\u9fff]+|\d+")


def tokens(text: str) -> list[str]:
    """The words of a text in lower case."""
    return [word.lower() for word in WORD.findall(CAMEL.sub(" ", text))]


class Bm25:
    """BM25 with Lucene's idf (Robertson & Zaragoza 2009); a word that the query repeats counts each time."""

    def __init__(self, documents: Sequence[str], *, k1: float = 1.5, b: float = 0.75) -> None:
        """Index the documents.

        Args:
            documents: shape (n,), n > 0.
            k1: saturation of a word's frequency.
            b: normalisation by document length, 0 (none) to 1 (full).
        """
        listed = [tokens(document) for document in documents]
        self.vocabulary = {
            word: number for number, word in enumerate(dict.fromkeys(w for words in listed for w in words))
        }
        self.size = len(listed)
        self.index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
        if self.vocabulary:
            ids = [[self.vocabulary[word] for word in words] for words in listed]
            self.index.index((ids, self.vocabulary), show_progress=False)

    def scores(self, queries: Sequence[str]) -> FloatArray:
        """Scores >= 0, shape (len(queries), n)."""
        found = np.zeros((len(queries), self.size), dtype=np.float32)
        for row, query in enumerate(queries):
            known = [self.vocabulary[word] for word in tokens(query) if word in self.vocabulary]
            if known:
                found[row] = self.index.get_scores_from_ids(known)
        return found


class TfIdf:
    """Cosine of TF-IDF vectors with logarithmic term frequency (Salton & Buckley 1988)."""

    def __init__(self, documents: Sequence[str]) -> None:
        """Fit on the documents, shape (n,), of which one at least has a word."""
        self.vectorizer = TfidfVectorizer(
            tokenizer=tokens, token_pattern=None, lowercase=False, sublinear_tf=True, dtype=np.float32
        )
        self.documents = self.vectorizer.fit_transform(documents)

    def scores(self, queries: Sequence[str]) -> FloatArray:
        """Cosines in [0, 1], shape (len(queries), n)."""
        found: FloatArray = (self.vectorizer.transform(queries) @ self.documents.T).toarray()
        return found
