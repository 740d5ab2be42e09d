"""What a language model adds to a pool: planted models whose answers follow the order shown, or the servers alone."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from study.advisor.llm.client import Usage
from study.analysis.framework import load_settings
from study.analysis.usefulness.contribution import Contribution, ask_full_cards, ask_variants, summary
from study.reranking.language_model import Question
from study.reranking.system import Rules
from tests.reranking.misbehaving_endpoint import pool_of, task_of
from tests.t2mrec.conftest import make_data

TASKS, POOL, K = 30, 8, 4
SETTINGS = replace(load_settings(Contribution), permutations=3, draws=40, k=K)


def planted(choose):
    """A client whose model names the first K of what `choose` makes of the ids in the order shown."""

    def chat(model, messages, **options):
        if len(messages) == 1:  # the other wording, whose candidates stand between two fixed sentences
            lines = [json.loads(line) for line in messages[0]["content"].split("\n") if line.startswith('{"id"')]
            answer = {"Task": "t", "MCP_servers": choose([line["id"] for line in lines[1:]])[:K], "Explanation": ""}
        else:
            text = messages[1]["content"]
            answer = {"task": task_of(text), "servers": choose(pool_of(text))[:K], "explanation": ""}
        return json.dumps(answer)

    return SimpleNamespace(mode="off", chat=chat, usage=Usage(), concurrency=2, adapted={})


def table(choose):
    """The summary for T2MRec pools of servers 0 ... 7 of which 6 and 7 are listed."""
    data, pools = make_data(TASKS, 50), [np.arange(POOL)] * TASKS
    question = Question("m", rules=Rules(K, 2))
    answers, counts = ask_variants(planted(choose), question, data, np.arange(TASKS), pools, SETTINGS)
    relevant = sp.csr_matrix(np.tile(np.isin(np.arange(50), [6, 7]).astype(np.float32), (TASKS, 1)))
    return summary(answers, pools, relevant, SETTINGS).set_index("variant"), counts


def test_a_model_that_copies_the_order_shown():
    found, counts = table(lambda ids: ids)
    for variant in ("model", "other wording", "order 0"):
        row = found.loc[variant]
        assert (row["ndcg@4"], row["diff"], row["shown_tau"], row["shown_first"]) == (0, 0, 1, 1)
    shuffled = found.loc["order"]
    assert (shuffled["runs"], shuffled["shown_tau"], shuffled["shown_first"]) == (3, 1, 1)
    # Two random sets of 4 of 8: the mean Jaccard index is the sum over overlaps m of p(m) m / (8 - m).
    chance = sum(n * m / (8 - m) for m, n in enumerate((1, 16, 36, 16, 1))) / 70
    assert shuffled["jaccard"] == pytest.approx(chance, abs=0.06)
    assert counts["order 1"] == {"answered": TASKS, "fallbacks": {}}


def test_a_model_that_follows_the_servers_alone():
    found, counts = table(lambda ids: sorted(ids, reverse=True))
    shuffled = found.loc["order"]
    assert shuffled["jaccard"] == 1
    assert shuffled["ndcg@4"] == pytest.approx(1)
    assert found.loc["order 0", ["ndcg@4", "diff"]].tolist() == [1, 1]
    assert found.loc["order 0", "shown_tau"] == -1
    assert found.loc["order 0", "shown_first"] == 0
    # Four from below the first four break the configured rules, so that T2MRec's order stays.
    assert found.loc["model", "diff"] == 0
    assert counts["model"] == {"answered": 0, "fallbacks": {"too_many_substitutions": TASKS}}


def test_full_cards_show_every_field_in_full_where_short_ones_cut_two():
    data, pools = make_data(TASKS, 50), [np.arange(POOL)] * TASKS
    data.servers["description"] = "word " * 40
    question = Question("m", rules=Rules(K, 2), longest=80, fields=("name", "description"), explanation=0)
    shown = []

    def client():
        copying = planted(lambda ids: ids)
        return SimpleNamespace(
            **vars(copying) | {"chat": lambda *words, **how: shown.append(words[1]) or copying.chat(*words, **how)}
        )

    ask_variants(client(), replace(question, fields=("id", *question.fields)), data, np.arange(TASKS), pools, SETTINGS)
    short = shown[0][1]["content"]
    shown.clear()
    answers, counts = ask_full_cards(client(), question, data, np.arange(TASKS), pools)
    assert counts == {"full cards": {"answered": TASKS, "fallbacks": {}}}
    assert [order[:K].tolist() for order in answers["full cards"][1]] == [[0, 1, 2, 3]] * TASKS
    full = shown[0][1]["content"]
    cards = [json.loads(line) for text in (short, full) for line in text.split("\n") if line.startswith('{"id"')]
    few, many = cards[1], cards[-1]
    assert {*few} == {"id", "name", "description"} < {*many}
    assert {"language", "category", "license", "official"} <= {*many}
    assert len(few["description"]) <= 81 < len(many["description"])


def test_random_answers_keep_the_rules():
    found, _ = table(lambda ids: ids)
    row = found.loc["random"]
    # At most two of four come from below.
    assert row["runs"] == SETTINGS.draws
    assert 0.5 <= row["shown_first"] < 0.6
    assert row["diff_ci_low"] <= row["diff"] <= row["diff_ci_high"]
    assert row["diff"] > 0


def test_by_hand():
    """Two tasks, k = 2: the listed server moves from place 3 to 1 in the first, and stays out in the second."""
    pools = [np.array([4, 3, 2]), np.array([4, 3, 2])]
    relevant = sp.csr_matrix(np.array([[0, 0, 1, 0, 0], [0, 0, 0, 0, 1]], dtype=np.float32))
    answers = {"model": (pools, [np.array([2, 4, 3]), np.array([3, 4, 2])])}
    (row,) = summary(answers, pools, relevant, replace(SETTINGS, k=2)).to_dict("records")
    second = 1 / np.log2(3)
    assert row["ndcg@2"] == pytest.approx((1 + second) / 2)
    assert row["diff"] == pytest.approx((1 + (second - 1)) / 2)
    assert row["shown_tau"] == -1
    assert row["shown_first"] == pytest.approx((0.5 + 1) / 2)
    assert pd.isna(row["jaccard"])
