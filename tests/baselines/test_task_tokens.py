"""A task's text in few tokens: what is cut, and what always stands."""

from __future__ import annotations

import pytest

from baselines.generative.text import BytePairs
from baselines.task_tokens import task_tokens
from tests.baselines.toys import make_dataset

TASK = {
    "name": "Query tables",
    "description": "Write a query, look at its plan and add the index that is missing",
    "language": "SQL",
    "category": "Databases",
    "theme": "Finance",
}


@pytest.fixture
def data():
    return make_dataset(
        [TASK, dict.fromkeys(TASK, "") | {"name": "Render", "theme": "Finance"}], [{"name": "alone"}], [[0], [0]]
    )


@pytest.fixture
def words(data):
    return BytePairs(data.task_texts() * 3, 300)


def test_a_text_that_fits_is_all_there(data, words):
    texts = data.task_texts()
    assert task_tokens(data, words, 200) == [words.encode(text) for text in texts]


def test_name_and_description_are_cut_at_their_end(data, words):
    whole, ends = (
        words.encode("Query tables \n " + TASK["description"]),
        words.encode(" \n SQL \n Databases \n Finance"),
    )
    limit = len(ends) + 9
    assert task_tokens(data, words, limit)[0] == [*whole[:9], *ends]
    # A plain cut leaves the theme out.
    assert "finance" not in words.decode(words.encode(data.task_texts()[0], limit))


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_the_limit_holds_even_where_it_cuts_the_attributes(data, words, limit):
    ends = words.encode(" \n SQL \n Databases \n Finance")
    assert task_tokens(data, words, limit)[0] == ends[:limit]
    assert all(len(tokens) <= limit for tokens in task_tokens(data, words, limit))
