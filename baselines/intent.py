"""Intent-based ranking for the servers of a data set: what Task2MCP knows of the five factors.

Popularity is the servers' stars; the filter is project compatibility. Success, performance and ratings are unknown for
every server, so they are the same constant and leave the order alone. Categories of tasks and of servers have no name
in common in Task2MCP, so that the candidate stage would only cut, and all servers are scored.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from study.advisor.encoders.sentence import encode
from study.advisor.engine.intent.recommender import Context, Requirements, obstacle
from study.advisor.engine.intent.settings import FACTORS
from study.advisor.retrieval.structure import languages, operating_systems
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split


@dataclass
class IntentServers:
    """score(t, m) = w_relevance cos(t, m) + w_popularity log(1 + stars) / log(1 + most stars) + a constant.

    `weights`: of `FACTORS`. `compatible`: do not rank servers whose language or system is not the task's, where both
    state one. `neutral`: value of the unknown factors.
    """

    weights: tuple[float, ...]
    compatible: bool = False
    neutral: float = 0.5

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Embed texts and scale stars; labels are not looked at and nothing is random."""
        self.tasks, self.servers = encode(data.task_texts()), encode(data.server_texts())
        counts = pd.to_numeric(data.servers["stars_count"], errors="coerce").fillna(0)  # a catalogue may not know them
        stars = np.log1p(counts.to_numpy(np.float64).clip(0))
        self.popularity = stars / max(float(stars.max()), 1e-12)
        self.contexts = [
            Context(languages=languages(language), systems=operating_systems(theme))
            for language, theme in zip(data.tasks["language"], data.tasks["theme"], strict=True)
        ]
        needs = [
            Requirements(languages=languages(language), systems=operating_systems(system))
            for language, system in zip(data.servers["language"], data.servers["system"], strict=True)
        ]
        self.kind, self.kinds = pd.factorize(pd.Series(needs, dtype=object))

    def score(self, tasks: IntArray) -> FloatArray:
        """Scores, shape (len(tasks), n_servers); -inf where the filter removes a server."""
        weight = dict(zip(FACTORS, self.weights, strict=True))
        unknown = self.neutral * sum(weight[name] for name in ("success_rate", "performance", "user_rating"))
        relevance = np.clip(self.tasks[tasks] @ self.servers.T, 0, 1)
        scores = weight["relevance"] * relevance + weight["popularity"] * self.popularity + unknown
        if self.compatible:
            for row, task in enumerate(tasks):
                blocked = [obstacle(need, self.contexts[task]) is not None for need in self.kinds]
                scores[row, np.array(blocked)[self.kind]] = -np.inf
        return np.asarray(scores, dtype=np.float32)
