"""BM25 (Robertson & Zaragoza 2009) with a task's text as the query and servers' texts as the documents, by bm25s."""

import logging
from dataclasses import dataclass
from pathlib import Path

import bm25s
import numpy as np
from bm25s.tokenization import Tokenizer

from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split

logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import lets it tell of every index that it builds


@dataclass
class Bm25:
    """Lucene's variant of BM25; lower case, words of two characters or more, no stemming. It uses no labels."""

    k1: float = 1.2  # saturation of a term's frequency in a document
    b: float = 0.75  # normalisation by document length, 0 (none) to 1 (full)

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Index all servers and tokenise all tasks."""
        tokenizer = Tokenizer(stopwords=None)
        documents = tokenizer.tokenize(data.server_texts(), return_as="tuple", show_progress=False)
        self.index = bm25s.BM25(k1=self.k1, b=self.b, method="lucene", backend="numpy")
        self.index.index(documents, show_progress=False)
        # Words that no server uses get no number, so an alien query is empty and scores zero everywhere.
        self.queries = tokenizer.tokenize(
            data.task_texts(), update_vocab=False, allow_empty=False, return_as="ids", show_progress=False
        )

    def score(self, tasks: IntArray) -> FloatArray:
        """BM25 scores >= 0, shape (len(tasks), n_servers); a word that the task repeats counts each time."""
        rows = [self.index.get_scores_from_ids(self.queries[task]) for task in tasks]
        return np.array(rows, dtype=np.float32).reshape(len(tasks), self.index.scores["num_docs"])
