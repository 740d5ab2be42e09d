"""Vocabularies, published tokenizers, and a task's text in few tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.generative.text import BytePairs, Published, device, task_tokens
from study.errors import StudyError
from tests.baselines.toys import make_dataset

TEXTS = ["Query a PostgreSQL database", "Render an image of a database", "naïve café \N{SNOWMAN}"]


@given(st.text(max_size=60))
@settings(max_examples=60)
def test_any_text_is_spelled_and_read_back_in_lower_case(text):
    words = BytePairs(TEXTS * 3, 300)
    tokens = words.encode(text)
    assert all(2 <= token < words.size for token in tokens)
    spelled = text.encode("utf-8", "replace").decode()
    assert words.decode(tokens) == spelled.lower().strip() or spelled.lower() != spelled.casefold()


def test_no_text_spells_a_special_token():
    words = BytePairs(TEXTS * 3, 300)
    for text in ("<pad>", "</s>", "<a_1><b_2>", "[PAD]", "\x00\x01", "<0>"):
        assert not {words.pad, words.end} & set(words.encode(text))
    assert words.encode("database " * 50, 7) == words.encode("database " * 50)[:7]


def test_a_model_that_is_not_here_says_what_to_do(tmp_path):
    with pytest.raises(StudyError, match="hf download no/such-model"):
        Published("no/such-model")
    with pytest.raises(StudyError, match="cannot be read"):
        Published(str(tmp_path))


def test_the_processor_is_used_where_there_is_no_accelerator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device("auto").type == device("cpu").type == "cpu"


@pytest.fixture(scope="module")
def told():
    """A task with a long description and one with a name alone, their texts, and a vocabulary."""
    about = "Write a query, look at its plan and add the index that is missing"
    attributes = {"language": "SQL", "category": "Databases", "theme": "Finance"}
    tasks = [
        {"name": "Query tables", "description": about, **attributes},
        dict.fromkeys(attributes, "") | {"name": "Render", "description": "", "theme": "Finance"},
    ]
    data = make_dataset(tasks, [{"name": "alone"}], [[0], [0]])
    texts = data.task_texts()
    return data, texts, BytePairs(texts * 3, 300)


@pytest.mark.parametrize("limit", [200, None, 1, 3, 8])
def test_name_and_description_are_cut_at_their_end(limit, told):
    data, texts, words = told
    ends = words.encode(" \n SQL \n Databases \n Finance")
    limit = limit or len(ends) + 9
    found = task_tokens(data, words, limit)
    assert all(len(tokens) <= limit for tokens in found)
    if limit == 200:  # all fits
        assert found == [words.encode(text) for text in texts]
    elif limit > len(ends):
        assert found[0] == [*words.encode(texts[0])[:9], *ends]
        assert "finance" not in words.decode(words.encode(texts[0], limit))  # a plain cut leaves the theme out
    else:
        assert found[0] == ends[:limit]
