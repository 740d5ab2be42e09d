"""What may be shown of data without a licence: explanations, but no word of a stranger."""

import re

import pytest

from study.agent.conversation import Conversation
from study.agent.presentation import QUOTING, claim_line, markdown
from study.agent.text import content_words, escape_markdown

TASK = "fast captions and summary of videos without an API key, MIT licence, in Python, Go or TypeScript"


@pytest.fixture(scope="module")
def shown(agent):
    talk = Conversation(agent)
    turns = [
        talk.say("fast captions and summary of videos, in Python, Go or TypeScript"),
        talk.say("compare 1 and 2"),
        talk.say("set up 1"),
        talk.say("why 2"),
    ]
    return "\n".join(markdown(turn, agent.settings.limits, texts=False) for turn in turns), turns


def test_the_sentences_of_rules_are_there(shown):
    text, _ = shown
    assert "of your request" in text
    assert "as you asked" in text
    assert "of the whole catalogue" in text
    assert re.search(r"Prefer id \d+", text)
    assert "Python servers are usually installed" in text or "Go servers are usually built" in text


def test_no_name_description_address_or_value_is_there(shown, agent):
    text, turns = shown
    own = content_words(
        "fast captions and summary of videos, in Python, Go or TypeScript. "
        + " ".join([*agent.setup.languages.values(), agent.setup.docker, agent.setup.general])
    )
    words = content_words(re.sub(r"[a-z]+._[a-z]+, servers", "", text.replace(chr(92), "")).replace("adopt_key", ""))
    for item in turns[0].answer.recommendations:
        fields = item.evidence.fields
        assert fields["name"] not in text
        assert fields["description"] not in text
        assert "git clone" not in text
        strange = set(content_words(f"{fields['name']} {fields['description']} {fields['tools']}")) - set(own)
        assert not strange & set(words), strange & set(words)


def test_a_sentence_that_quotes_a_stranger_is_hidden(shown, agent):
    _, turns = shown
    quoted = [claim for claim in turns[0].answer.claims() if claim.rule in QUOTING]
    assert {"adopt_code", "less_licence"} <= {claim.rule for claim in quoted}
    for claim in quoted:
        assert claim_line(claim, set()).startswith(claim.rule.replace("_", "\\_"))
        assert claim_line(claim, None).startswith(escape_markdown(claim.text))


def test_with_texts_everything_is_there(agent):
    talk = Conversation(agent)
    turn = talk.say(TASK)
    text = markdown(turn, agent.settings.limits)
    assert all(item.evidence.fields["name"] in text for item in turn.answer.recommendations)
