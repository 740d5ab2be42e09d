"""The synthetic generator's mixture (study.data.annotation) fitted to released lists by expectation maximisation.

A list is a sequence m_1 ... m_n of servers by place in the order of ids. Each entry has one reason z:

* theme_word: drawn evenly from the servers whose text holds a word of the task's theme;
* topic: a cluster c of servers is drawn from theta[theme], a server of it in proportion to its weight w;
* language: a server of the task's language in proportion to w;
* alphabetical: the first such entry is any server, the next one lies g places behind the last such entry, g being
  geometric with parameter rho (the generator has g = 1);
* random: any server.

Only the sum of a theme and of a reason that draws from everything is determined. By convention a theme's topics are
the clusters that it lists more often than the rest of the mixture explains (`evident`). Repeated lists are left out.

The posterior of all z of a list is exact: a forward-backward pass over "which entry was the last alphabetical one".
theta, w, rho and the mixture are updated in closed form (w by a minorise-maximise step, as in Hunter 2004).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats
from sklearn.cluster import KMeans

from study.analysis.audit.detectors import Evidence
from study.analysis.audit.settings import Labels
from study.data import lists
from study.data.dataset import Dataset, IntArray

Float64Array = lists.Float64Array
REASONS = ("theme_word", "topic", "language", "alphabetical", "random")
THEME_WORD, TOPIC, LANGUAGE, ALPHABETICAL, RANDOM = range(5)
EMPTY = 1e-300


@dataclass(frozen=True)
class Inputs:
    """What the mixture is fitted to, for n tasks and m servers, servers by place."""

    matrix: IntArray  # lists as places, shape (n, width), -1 fills up
    theme: IntArray  # number of each task's theme, shape (n,)
    cluster: IntArray  # of each server, shape (m,)
    word_match: Float64Array  # 1 / (servers with a theme word) where the entry has one, else 0, shape (n, width)
    words: tuple[IntArray, ...]  # the servers with a word of each task's theme
    language: IntArray  # number of each task's language, shape (n,)
    spoken: lists.BoolArray  # whether a server is written in a language, shape (languages, m)
    topics: lists.BoolArray  # whether a cluster is one of a theme's topics, shape (themes, clusters)


@dataclass(frozen=True)
class Mixture:
    """A fitted mixture."""

    weights: Float64Array  # share of each of `REASONS` among draws, shape (5,)
    shares: Float64Array  # the same among the labels; a reason that had no server to give counts as random
    theta: Float64Array  # topics of each theme, shape (themes, clusters)
    weight: Float64Array  # w of each server, mean 1, shape (m,)
    rho: float  # 1 / mean alphabetical step
    log_likelihood: float  # per label, in nats
    steps: int  # of EM


def emissions(x: Inputs, mixture: Mixture) -> Float64Array:
    """p(entry | reason) of the reasons that do not depend on the entries before, shape (n, width, 5).

    A reason that has no server to give for a task gives any server, as in the generator; the alphabetical column is 0.
    """
    m = len(x.cluster)
    server = np.maximum(x.matrix, 0)
    by_cluster = np.bincount(x.cluster, weights=mixture.weight, minlength=mixture.theta.shape[1])
    by_language = x.spoken @ mixture.weight
    found = np.zeros((*x.matrix.shape, len(REASONS)))
    found[..., THEME_WORD], cluster = x.word_match, x.cluster[server]
    found[..., TOPIC] = mixture.theta[x.theme[:, None], cluster] * mixture.weight[server] / by_cluster[cluster]
    own = x.spoken[x.language[:, None], server] * mixture.weight[server]
    found[..., LANGUAGE] = own / np.maximum(by_language[x.language], EMPTY)[:, None]
    found[..., RANDOM] = 1 / m
    for reason, absent in unavailable(x).items():
        found[absent, :, reason] = 1 / m
    return found


def unavailable(x: Inputs) -> dict[int, lists.BoolArray]:
    """The tasks for which a reason has no server to give, each shape (n,)."""
    no_words = np.array([len(row) == 0 for row in x.words])
    has_topics, has_servers = (np.asarray(kind.any(axis=1), dtype=bool) for kind in (x.topics, x.spoken))
    return {THEME_WORD: no_words, TOPIC: ~has_topics[x.theme], LANGUAGE: ~has_servers[x.language]}


def expect(x: Inputs, mixture: Mixture) -> tuple[Float64Array, Float64Array, Float64Array]:
    """The exact posterior.

    Returns p(reason | list) of every entry, shape (n, width, 5), 0 in unfilled places; the log-likelihood of each list,
    shape (n,); the expected number of alphabetical steps and their summed length, shape (2,).
    """
    n, width = x.matrix.shape
    m, filled = len(x.cluster), x.matrix >= 0
    parts = emissions(x, mixture) * mixture.weights
    other = np.where(filled, parts.sum(axis=2), 1.0)
    # State s < width: entry s was the last alphabetical one; state width: there was none yet.
    forward: Float64Array = np.zeros((n, width + 1))
    forward[:, width] = 1.0
    moves: list[Float64Array] = []
    alphas, log_scale = [forward], np.zeros(n)
    for j in range(width):
        step = np.zeros((n, width + 1))
        gap = x.matrix[:, [j]] - x.matrix[:, :j]
        step[:, :j] = np.where(gap > 0, mixture.rho * (1 - mixture.rho) ** np.maximum(gap - 1, 0), 0.0)
        step[:, width] = 1 / m
        move = np.where(filled[:, [j]], mixture.weights[ALPHABETICAL] * step, 0.0)
        following = forward * other[:, [j]]
        following[:, j] = (forward * move).sum(axis=1)
        scale: Float64Array = following.sum(axis=1)
        forward = following / scale[:, None]
        log_scale += np.log(scale)
        moves.append(move / scale[:, None])
        alphas.append(forward)
        other[:, j] /= scale
    backward = np.ones((n, width + 1))
    alphabetical = np.zeros((n, width))
    walked = np.zeros(2)
    for j in range(width - 1, -1, -1):
        taken = alphas[j] * moves[j] * backward[:, [j]]
        alphabetical[:, j] = taken.sum(axis=1)
        gap = x.matrix[:, [j]] - x.matrix[:, :j]
        walked += taken[:, :j].sum(), (taken[:, :j] * gap).sum()
        backward = backward * other[:, [j]] + moves[j] * backward[:, [j]]
    posterior = parts / np.maximum(parts.sum(axis=2, keepdims=True), EMPTY) * (1 - alphabetical)[:, :, None]
    posterior[..., ALPHABETICAL] = alphabetical
    return posterior * filled[:, :, None], log_scale, walked


def maximise(x: Inputs, mixture: Mixture, posterior: Float64Array, walked: Float64Array, smoothing: float) -> Mixture:
    """The parameters that the posterior calls for."""
    filled = x.matrix >= 0
    n_labels = int(filled.sum())
    weights: Float64Array = posterior.sum(axis=(0, 1)) / n_labels
    realised = given(x, posterior)
    server, (task, place) = x.matrix[filled], np.nonzero(filled)
    on_topic, by_language = realised[task, place, TOPIC], realised[task, place, LANGUAGE]
    cell = x.theme[task] * x.topics.shape[1] + x.cluster[server]
    counted = np.bincount(cell, weights=on_topic, minlength=x.topics.size).reshape(x.topics.shape)
    theta: Float64Array = np.asarray((counted + smoothing) * x.topics, dtype=np.float64)
    # MM step for w: draws of a server over how often it could have been drawn, per unit of weight.
    drawn = np.bincount(server, weights=on_topic + by_language, minlength=len(x.cluster)) + smoothing
    n_clusters = theta.shape[1]
    of_cluster = np.bincount(x.cluster[server], weights=on_topic, minlength=n_clusters)
    of_language = np.bincount(x.language[task], weights=by_language, minlength=len(x.spoken))
    cluster_weight = np.bincount(x.cluster, weights=mixture.weight, minlength=n_clusters)
    offered = (of_cluster / np.maximum(cluster_weight, EMPTY))[x.cluster]
    offered += (of_language / np.maximum(x.spoken @ mixture.weight, EMPTY)) @ x.spoken
    weight = drawn / (offered + smoothing)
    return replace(
        mixture,
        weights=weights,
        shares=realised.sum(axis=(0, 1)) / n_labels,
        theta=theta / np.maximum(theta.sum(axis=1, keepdims=True), EMPTY),
        weight=weight / weight.mean(),
        rho=float((walked[0] + smoothing) / (walked[1] + smoothing)),
    )


def given(x: Inputs, posterior: Float64Array) -> Float64Array:
    """The posterior with every draw of a reason without servers counted as random, same shape."""
    realised = posterior.copy()
    for reason, absent in unavailable(x).items():
        realised[absent, :, RANDOM] += realised[absent, :, reason]
        realised[absent, :, reason] = 0
    return realised


def share_intervals(x: Inputs, mixture: Mixture) -> list[tuple[str, float, float, float]]:
    """Name, share and 95 % interval of every reason, over different lists; the other parameters are held fixed."""
    once = distinct(x)
    realised = given(once, expect(once, mixture)[0]).sum(axis=1)
    size = (once.matrix >= 0).sum(axis=1)
    excess = realised - mixture.shares * size[:, None]
    error = 1.96 * np.sqrt((excess**2).sum(axis=0)) / size.sum()
    low, high = np.clip([mixture.shares - error, mixture.shares + error], 0, 1)
    return [(f"share {name}", *values) for name, *values in zip(REASONS, mixture.shares, low, high, strict=True)]


def evident(x: Inputs, topic_share: float, p: float) -> lists.BoolArray:
    """The clusters that a theme lists more often than an even draw explains, shape (themes, clusters).

    topic_share: share of the labels that is due to topics. p: binomial tail below which a cluster is a topic.
    """
    filled = x.matrix >= 0
    task, shape = np.nonzero(filled)[0], x.topics.shape
    cell = x.theme[task] * shape[1] + x.cluster[x.matrix[filled]]
    count = np.bincount(cell, minlength=x.topics.size).reshape(shape)
    size = np.bincount(x.cluster, minlength=shape[1]) / len(x.cluster)
    expected = size * (1 - topic_share)
    found: lists.BoolArray = stats.binom.sf(count - 1, count.sum(axis=1, keepdims=True), expected) < p
    return found


def subset(x: Inputs, rows: IntArray) -> Inputs:
    """The inputs of some tasks; what is known of servers and themes stays."""
    chosen: dict[str, Any] = {name: getattr(x, name)[rows] for name in ("matrix", "theme", "word_match", "language")}
    return replace(x, words=tuple(x.words[row] for row in rows), **chosen)


def distinct(x: Inputs) -> Inputs:
    """Without the lists that repeat an earlier list in servers and order."""
    return subset(x, np.sort(np.unique(x.matrix, axis=0, return_index=True)[1]))


def fit(x: Inputs, settings: Labels) -> tuple[Inputs, Mixture]:
    """Topics and parameters in turn: `rounds` times the topics of each theme, then EM until it stands.

    Returns: the inputs with the topics found, and the mixture.
    """
    shape = x.topics.shape
    chosen, share = distinct(x), 0.0
    even = np.full(len(REASONS), 1 / len(REASONS))
    mixture = Mixture(even, even, np.ones(shape), np.ones(len(x.cluster)), 0.5, -np.inf, 0)
    for _ in range(settings.rounds):
        chosen = replace(chosen, topics=evident(chosen, share, settings.topic_p))
        theta = chosen.topics / np.maximum(chosen.topics.sum(axis=1, keepdims=True), 1)
        mixture = expectation_maximisation(chosen, replace(mixture, theta=theta, log_likelihood=-np.inf), settings)
        share = float(mixture.shares[[THEME_WORD, TOPIC]].sum())
    return replace(x, topics=chosen.topics), mixture


def expectation_maximisation(x: Inputs, mixture: Mixture, settings: Labels) -> Mixture:
    """EM until the log-likelihood per label grows by less than the tolerance."""
    n_labels = int((x.matrix >= 0).sum())
    for _ in range(settings.iterations):
        posterior, log_likelihood, walked = expect(x, mixture)
        value, before = float(log_likelihood.sum()) / n_labels, mixture.log_likelihood
        mixture = maximise(x, mixture, posterior, walked, settings.smoothing)
        mixture = replace(mixture, log_likelihood=value, steps=mixture.steps + 1)
        if abs(value - before) < settings.tolerance:
            break
    return mixture


def inputs(data: Dataset, settings: Labels, cluster: IntArray | None = None) -> Inputs:
    """Everything the fit needs from a data set.

    cluster: of each server row; None makes them from sentence vectors of the servers' texts.
    """
    evidence, order = Evidence(data, settings), np.argsort(lists.places(data))
    if cluster is None:
        from study.encoders.sentence import encode

        vectors = encode(data.server_texts(("name", "description", "category", "subcategory")))
        wanted = min(settings.clusters, data.n_servers // 5)
        means = KMeans(wanted, n_init=1, max_iter=50, random_state=settings.seed)
        cluster = means.fit_predict(vectors).astype(np.int64)
    of_tasks, of_servers = evidence.theme_words
    match = (of_tasks @ of_servers.T).tocsr()
    ends, matrix = zip(match.indptr, match.indptr[1:], strict=False), evidence.matrix
    words = tuple(np.sort(match.indices[a:b]).astype(np.int64) for a, b in ends)
    task = np.repeat(np.arange(len(matrix)), matrix.shape[1])
    hit = np.asarray(match[task, np.maximum(matrix, 0).ravel()]).ravel() > 0
    size = np.array([max(len(row), 1) for row in words])
    word_match = np.where(matrix >= 0, hit.reshape(matrix.shape), False) / size[:, None]
    spoken = evidence.language_place >= 0
    _, numbered = np.unique(cluster, return_inverse=True)
    topics = np.ones((int(evidence.theme.max()) + 1, int(numbered.max()) + 1), dtype=bool)
    return Inputs(matrix, evidence.theme, numbered.ravel()[order], word_match, words, evidence.language, spoken, topics)
