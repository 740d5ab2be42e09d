"""Grades from log probabilities, and the pool that they order."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from study.advisor.llm.client import Usage
from study.advisor.llm.grades import expected_grade
from study.reranking.language_model import GradingReranker, Question, condensed
from study.reranking.system import Rules


def reply(*pairs):
    top = [{"token": token, "logprob": math.log(chance), "bytes": [1]} for token, chance in pairs]
    choice = {
        "message": {"content": pairs[0][0], "role": "assistant"},
        "logprobs": {"content": [{"top_logprobs": top}]},
    }
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
    return {"choices": [choice], "model": "tiny@sha256:1", "usage": usage, "id": "x"}


def test_the_expected_grade_is_the_mean_of_the_digits():
    # (0.1 * 0 + 0.2 * 1 + 0.1 * 2) / 0.4; other tokens do not count, spellings of a digit add up
    mixed = reply(("1", 0.15), (" 1", 0.05), ("Yes", 0.5), ("0", 0.1), ("2\n", 0.1))
    assert expected_grade(mixed) == pytest.approx(1.0)
    assert expected_grade(reply(("2", 0.2))) == 2.0
    assert expected_grade(reply(("0", 0.9), ("3", 0.1))) == 0.0


ODD = [reply(("Yes", 0.9)), {"choices": [{"message": {"content": "2"}}]}, {"choices": [{"logprobs": None}]}, []]
ODD += [
    {"choices": [{"logprobs": {"content": [{"top_logprobs": [{"token": "2", "logprob": value}]}]}}]}
    for value in (1e9, math.nan)
]


@pytest.mark.parametrize("odd", ODD)
def test_a_reply_without_digits_has_no_grade(odd):
    assert expected_grade(odd) is None


def test_what_is_kept_of_a_reply_gives_the_same_grade_and_nothing_else():
    whole = reply(("1", 0.2), ("Yes", 0.5), (" 2", 0.2))  # spellings with a space are digits too
    short = condensed(whole)
    assert expected_grade(short) == pytest.approx(expected_grade(whole), abs=1e-4)
    assert set(short) == {"model", "choices", "usage"}
    assert [entry["token"] for entry in short["choices"][0]["logprobs"]["content"][0]["top_logprobs"]] == ["1", " 2"]
    assert "Yes" not in json.dumps(short)
    assert condensed([1]) == [1]


@pytest.mark.parametrize(("substitutions", "first"), [(2, [19, 18, 0, 1]), (1, [19, 0, 1, 2]), (0, [0, 1, 2, 3])])
def test_a_pool_is_ordered_by_grade_within_the_rules(toy, substitutions, first):
    pool = np.arange(30, 50)
    names = list(toy.servers["name"].to_numpy()[pool])
    assert len(set(names)) == 20

    def post(path, body):
        position = names.index(json.loads(body["messages"][1]["content"].splitlines()[4])["name"])
        return reply(("2", 0.9 if position == 19 else 0.5), ("0", 0.1 if position >= 18 else 0.5))

    client = SimpleNamespace(mode="off", post=post, usage=Usage(), adapted={})
    question = Question("m", rules=Rules(4, substitutions), approach="pointwise", fields=("name",))
    order = GradingReranker(client, question)(toy, 4, pool)
    assert list(order[:4] - 30) == first
    assert sorted(order) == list(pool)


def test_one_missing_grade_leaves_the_pool_as_it_was(toy):
    replies = iter([reply(("2", 1.0)), reply(("Yes", 1.0))])
    client = SimpleNamespace(mode="off", post=lambda path, body: next(replies), usage=Usage(), adapted={})
    reranker = GradingReranker(client, Question("m", approach="pointwise"))
    np.testing.assert_array_equal(reranker(toy, 4, np.arange(20)), np.arange(20))
    assert reranker.faults == {"wrong_form": 1}
