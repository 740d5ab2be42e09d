"""What a language model adds to T2MRec's pools, on validation tasks: its order against other ways to order a pool, that
is the same pools in random orders (any ten may be named), with another prompt, with the paper's cards, by the listwise
re-ranker, and random orders within the model's rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy.stats import kendalltau

from study.advisor.llm.client import Client
from study.advisor.llm.settings import endpoint_settings
from study.analysis.framework import Context, Tables, analysis
from study.base import paths
from study.config.compose import build_system, load
from study.data.dataset import Dataset, IntArray
from study.evaluation.metrics import ndcg
from study.evaluation.statistics import mean_interval
from study.reranking.language_model import LanguageModelReranker, Question, condensed
from study.reranking.listwise import candidate_pools
from study.reranking.prompt import ATTRIBUTES
from study.reranking.replies import cassette
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads

CASSETTE = "contribution"
BASE = "t2mrec_same_training"  # whose pools are shown
EXPLANATION = 300  # characters, about two sentences; the paper asks for a brief one


@dataclass(frozen=True)
class Contribution:
    """A language model and a trained re-ranker over the same pools, and how often these are shown in other orders."""

    system: str
    listwise: str
    protocol: str
    part: str
    tasks: int
    permutations: int
    prompt_file: str
    full_cards: int
    draws: int
    k: int
    seed: int


Pools = Sequence[IntArray]
Answers = dict[str, tuple[Pools, Pools]]


@analysis("usefulness", slow=True)
def contribution(study: Context) -> Tables:
    """What does a language model add to T2MRec's pools?

    Asks it, or replays; trains the listwise re-ranker, and T2MRec where no pools are kept.
    """
    settings, dataset = study.settings(Contribution), study.dataset
    shared = [f"dataset={dataset}", f"protocol={settings.protocol}"]
    base, system, listwise = (
        build_system(load([*shared, f"system={name}"]).system) for name in (BASE, settings.system, settings.listwise)
    )
    limit_threads(study.config.profile.threads)
    data, split = load_inputs(dataset, settings.protocol)
    order = np.random.default_rng(settings.seed).permutation(split.tasks(settings.part))
    tasks, workdir = np.sort(order[: settings.tasks]), paths.cache() / "contribution" / dataset
    (workdir / "pools").mkdir(parents=True, exist_ok=True)
    base.fit(data, split, seed=settings.seed, workdir=workdir / "pools")
    pools = candidate_pools(base, tasks)
    client = endpoint_settings(system.endpoint).client(cassette(dataset, CASSETTE))
    client.condense = lambda reply: without_texts(condensed(reply))
    answers, counts = ask_variants(client, system.question, data, tasks, pools, settings)
    few = np.flatnonzero(np.isin(tasks, order[: settings.full_cards])).tolist()
    some = [pools[row] for row in few]
    with_cards, counted = ask_full_cards(client, system.question, data, tasks[few], some)
    with_cards["short cards"] = some, [answers["model"][1][row] for row in few]  # on the same tasks
    listwise.fit(data, split, seed=settings.seed, workdir=workdir)
    answers["listwise"] = pools, listwise.rerank(tasks, pools)
    study.facts.update({"answers": counts | counted, "models": sorted(client.usage.models)})
    relevant = split.part(settings.part)[tasks]
    tables = summary(answers, pools, relevant, settings), summary(with_cards, some, relevant[few], settings)
    return {"contribution": pd.concat(tables)}


def ask_variants(
    client: Client, question: Question, data: Dataset, tasks: IntArray, pools: Pools, settings: Contribution
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
        "order 0": (free, pools),
    }
    for number in range(1, 1 + settings.permutations):
        variants[f"order {number}"] = free, [rng.permutation(pool) for pool in pools]
    answers, counts = Answers(), dict[str, Any]()
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


def ask_full_cards(
    client: Client, question: Question, data: Dataset, tasks: IntArray, pools: Pools
) -> tuple[Answers, dict[str, Any]]:
    """As `ask_variants`, with the cards of the paper's figure 5: id, name, description and metadata, as long as a large
    model is shown them, and with an explanation."""
    large, fields = Question(question.model), ("id", "name", "description", *ATTRIBUTES)
    shown = replace(question, longest=large.longest, fields=fields, tokens=large.tokens, explanation=EXPLANATION)
    reranker = LanguageModelReranker(client, shown)
    answers: Answers = {"full cards": (pools, reranker.many(data, tasks, pools))}
    return answers, {"full cards": {"answered": reranker.answered, "fallbacks": dict(sorted(reranker.faults.items()))}}


def without_texts(reply: Any) -> Any:
    """A reply whose JSON answer keeps its identifiers alone: a task's name is not ours to pass on."""
    message = reply["choices"][0]["message"]
    try:
        answer = json.loads(message["content"])
        kept = {key: "" if isinstance(value, str) else value for key, value in answer.items()}
    except (ValueError, AttributeError):
        kept = {}
    message["content"] = json.dumps(kept)
    return reply


def summary(answers: Answers, pools: Pools, relevant: sp.csr_matrix, settings: Contribution) -> pd.DataFrame:
    """One row per way to order the pools.

    Args:
        answers: name -> the pools as they were shown, and their orders (server rows, best first). Names that differ in
            their number alone make one row.
        pools: T2MRec's own order.
        relevant: labelled servers, shape (len(pools), n_servers).

    Returns: columns variant, runs, tasks, ndcg@k and diff, its difference from T2MRec's order, with a 95 % interval
        over tasks; shown_tau, Kendall's tau of the first k with the order they were shown in; shown_first, the share of
        the first k shown that are among the first k (k / pool by chance); jaccard, the mean Jaccard index of the first
        k of two runs of the same row.
    """
    k, rows = settings.k, []
    kinds = {name: name.rstrip("0123456789").strip() if name != "order 0" else name for name in answers}
    firsts = {name: np.stack([order[:k] for order in orders]) for name, (_, orders) in answers.items()}
    before = ndcg(np.stack([pool[:k] for pool in pools]), relevant, k)
    for kind in dict.fromkeys(kinds.values()):
        own = [name for name in answers if kinds[name] == kind]
        shown = [pair for name in own for pair in zip(answers[name][0], firsts[name], strict=True)]
        twice = [pair for a, b in combinations(own, 2) for pair in zip(firsts[a], firsts[b], strict=True)]
        values = np.mean([ndcg(firsts[name], relevant, k) for name in own], axis=0)
        places = [pd.Index(pool).get_indexer(first) for pool, first in shown]
        row = {"variant": kind, "runs": len(own), "tasks": len(pools), f"ndcg@{k}": values.mean()}
        row |= mean_interval(values - before, seed=settings.seed, name="diff", prefix="diff_")
        row["shown_tau"] = np.nanmean([kendalltau(range(k), place).statistic for place in places])
        row["shown_first"] = np.mean([(place < k).mean() for place in places])
        row["jaccard"] = np.mean([len({*a} & {*b}) / len({*a} | {*b}) for a, b in twice]) if twice else np.nan
        rows.append(row)
    return pd.DataFrame(rows)
