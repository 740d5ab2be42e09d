"""What a language model adds to T2MRec's pools, on validation tasks: its order against other ways to order a pool.

How much of its answer is the order in which the candidates were shown? The same pools are shown in random orders, and
any ten may be named. How much is wording? The same pools with another prompt. The listwise re-ranker and random orders
keep the same rules as the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy.stats import kendalltau

from study import paths
from study.config.compose import build_system, load
from study.config.reader import read_settings
from study.data.dataset import Dataset, IntArray
from study.evaluation.metrics import ndcg
from study.evaluation.records import record
from study.evaluation.statistics import bootstrap_interval
from study.files import write_csv, write_json
from study.llm.client import Client
from study.reranking import endpoint
from study.reranking.language_model import LanguageModelReranker, Question, T2MRecWithLanguageModel, condensed
from study.reranking.listwise import T2MRecListwise, candidate_pools
from study.reranking.pools import PooledT2MRec
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads

CASSETTE = "contribution"
BASE = "t2mrec_same_training"  # whose pools are shown


@dataclass(frozen=True)
class Contribution:
    """``conf/usefulness/contribution.yaml``, where every key is explained."""

    system: str
    listwise: str
    protocol: str
    part: str
    tasks: int
    permutations: int
    prompt_file: str
    draws: int
    k: int
    seed: int


Answers = Mapping[str, tuple[Sequence[IntArray], Sequence[IntArray]]]


def measure(dataset: str) -> Path:
    """Ask, or replay, and write ``results/<dataset>/usefulness/contribution.csv`` with its record.

    Trains the listwise re-ranker, and T2MRec where no pools are kept; goes on after a stop.
    """
    settings = read_settings(Contribution, paths.conf() / "usefulness" / "contribution.yaml")
    configs = {
        name: load([f"dataset={dataset}", f"protocol={settings.protocol}", f"system={name}"])
        for name in (BASE, settings.system, settings.listwise)
    }
    limit_threads(configs[BASE].profile.threads)
    data, split = load_inputs(dataset, settings.protocol)
    drawn = np.random.default_rng(settings.seed).permutation(split.tasks(settings.part))
    tasks = np.sort(drawn[: settings.tasks])
    base, workdir = build_system(configs[BASE].system), paths.cache() / "contribution" / dataset
    assert isinstance(base, PooledT2MRec)
    (workdir / "pools").mkdir(parents=True, exist_ok=True)
    base.fit(data, split, seed=settings.seed, workdir=workdir / "pools")
    pools = candidate_pools(base, tasks)
    system = build_system(configs[settings.system].system)
    assert isinstance(system, T2MRecWithLanguageModel)
    client = endpoint.endpoint_settings(system.endpoint).client(endpoint.cassette(dataset, CASSETTE))
    client.condense = lambda reply: without_texts(condensed(reply))
    answers, counts = asked(client, system.question, data, tasks, pools, settings)
    listwise = build_system(configs[settings.listwise].system)
    assert isinstance(listwise, T2MRecListwise)
    listwise.fit(data, split, seed=settings.seed, workdir=workdir)
    answers = {**answers, "listwise": (pools, listwise.rerank(tasks, pools))}
    place = paths.results(dataset) / "usefulness" / "contribution.csv"
    write_csv(place, summary(answers, pools, split.part(settings.part)[tasks], settings))
    facts = {"settings": asdict(settings), "answers": counts, "models": sorted(client.usage.models)}
    write_json(place.with_suffix(".json"), record(dataset=dataset, result="contribution", **facts))
    return place


def asked(
    client: Client,
    question: Question,
    data: Dataset,
    tasks: IntArray,
    pools: Sequence[IntArray],
    settings: Contribution,
) -> tuple[Answers, dict[str, Any]]:
    """The model's answers and random ones, in the form of `summary`, and the model's counts by variant.

    ``model`` is the configured question, ``other wording`` the same in other words. From ``order 0`` on, T2MRec's order
    and random ones, any of the pool may be named.
    """
    rng, rules = np.random.default_rng([settings.seed, 1]), question.rules
    free = replace(question, rules=replace(rules, substitutions=rules.k))
    variants = {
        "model": (question, pools),
        "other wording": (replace(question, prompt_file=settings.prompt_file), pools),
    }
    variants["order 0"] = free, pools
    for number in range(1, 1 + settings.permutations):
        variants[f"order {number}"] = free, [rng.permutation(pool) for pool in pools]
    answers, counts = {}, {}
    for name, (own, shown) in variants.items():
        reranker = LanguageModelReranker(client, own)
        answers[name] = shown, reranker.many(data, tasks, shown)
        # The client counts all variants together.
        counts[name] = {"answered": reranker.answered, "fallbacks": dict(sorted(reranker.faults.items()))}
    for number in range(settings.draws):
        orders = [rules.within(rng.permutation(pool).tolist(), pool.tolist())[: rules.k] for pool in pools]
        # Substitutes that the rules let in stand first: any of the answer may.
        answers[f"random {number}"] = pools, [rng.permutation(order) for order in orders]
    return answers, counts | {"tokens": [client.usage.prompt_tokens, client.usage.completion_tokens]}


def without_texts(reply: Any) -> Any:
    """A reply whose JSON answer keeps its identifiers alone: a task's name is not ours to pass on."""
    message = reply["choices"][0]["message"]
    try:
        said = json.loads(message["content"])
        kept = {key: "" if isinstance(value, str) else value for key, value in said.items()}
    except (ValueError, AttributeError):
        kept = {}
    message["content"] = json.dumps(kept)
    return reply


def summary(
    answers: Answers,
    pools: Sequence[IntArray],
    relevant: sp.csr_matrix,
    settings: Contribution,
) -> pd.DataFrame:
    """One row per way to order the pools.

    Args:
        answers: name -> the pools as they were shown, and their orders (server rows, best first). Names that differ in
            their number alone make one row.
        pools: T2MRec's own order.
        relevant: listed servers, shape (len(pools), n_servers).

    Returns: columns variant, runs, ndcg@k and diff, its difference from T2MRec's order, with a 95 % interval over
        tasks; shown_tau, Kendall's tau of the first k with the order they were shown in; shown_first, the share of the
        first k shown that are among the first k (k / pool by chance); jaccard, the mean Jaccard index of the first k of
        two runs of the same row.
    """
    k, before = settings.k, _values(pools, relevant, settings.k)
    rows = []
    kinds = {name: name.rstrip("0123456789").strip() if name != "order 0" else name for name in answers}
    for kind in dict.fromkeys(kinds.values()):
        own = [answers[name] for name in answers if kinds[name] == kind]
        values = np.mean([_values(orders, relevant, k) for _, orders in own], axis=0)
        low, high = bootstrap_interval(values - before, seed=settings.seed)
        row = {"variant": kind, "runs": len(own), f"ndcg@{k}": values.mean(), "diff": (values - before).mean()}
        row |= {"diff_ci_low": low, "diff_ci_high": high}
        row["shown_tau"] = np.nanmean(
            [_tau(*pair, k) for shown, orders in own for pair in zip(shown, orders, strict=True)]
        )
        row["shown_first"] = np.mean(
            [
                len({*pool[:k]} & {*order[:k]}) / k
                for shown, orders in own
                for pool, order in zip(shown, orders, strict=True)
            ]
        )
        pairs = [
            _jaccard(first[:k], second[:k])
            for (_, one), (_, other) in combinations(own, 2)
            for first, second in zip(one, other, strict=True)
        ]
        rows.append(row | {"jaccard": np.mean(pairs) if pairs else np.nan})
    return pd.DataFrame(rows)


def _values(orders: Sequence[IntArray], relevant: sp.csr_matrix, k: int) -> np.ndarray:
    ranked = np.full((len(orders), k), -1, dtype=np.int64)
    for row, order in enumerate(orders):
        ranked[row, : len(order[:k])] = order[:k]
    return ndcg(ranked, relevant, k)


def _tau(shown: IntArray, order: IntArray, k: int) -> float:
    place = {server: number for number, server in enumerate(shown)}
    return float(kendalltau(range(len(order[:k])), [place[server] for server in order[:k]]).statistic)


def _jaccard(first: IntArray, second: IntArray) -> float:
    return len({*first} & {*second}) / len({*first} | {*second})
