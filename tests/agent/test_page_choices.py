"""The page in a headless browser: servers chosen for a comparison, and every constraint set by hand."""

import pytest

from study.agent import web
from tests.agent import browser as agent_browser
from tests.agent.browser import say, turns, waited

pytestmark = pytest.mark.skipif(agent_browser.CHROMIUM is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def page(agent, service, serve, tmp_path_factory):
    from study.agent.feedback import Feedback

    folder = tmp_path_factory.mktemp("browser")
    page = web.create_app(agent, Feedback(folder / "feedback.sqlite", 10.0), service)
    with serve(page) as address, agent_browser.opened(folder, address) as browser:
        yield browser


@pytest.fixture
def fresh(page):
    page.open(page.address)
    page.until("state.catalogue !== null")
    say(page, "captions for videos in Python, Go or TypeScript")
    return page


def said(page):
    """The developer's last message."""
    return page.run("[...document.querySelectorAll('#log > li.you > p')].at(-1).textContent")


def tick(page, answer, *places):
    """Tick boxes of the cards of an answer, by places from 0; returns the ids of these servers."""
    return page.run(
        f"(() => {{ const cards = [...document.querySelectorAll('.cards')][{answer}].children; return {list(places)}"
        ".map(n => { cards[n].querySelector('input').click(); return Number(cards[n].dataset.id); }); })()"
    )


def compare(page, answer):
    """Press the button of an answer."""
    page.run(
        "[...document.querySelectorAll('button')].filter(e => e.textContent === 'Compare the chosen servers')"
        f"[{answer}].click()"
    )


def heads(page):
    """Heads of the table in the last turn."""
    return page.run(
        "[...[...document.querySelectorAll('#log > li.agent')].at(-1).querySelectorAll('th[scope=col]')]"
        ".map(e => e.textContent).filter(t => t)"
    )


def test_the_chosen_servers_are_compared_and_no_others(fresh):
    ids = tick(fresh, 0, 2, 0)
    waited(fresh, lambda: compare(fresh, 0))
    assert said(fresh) == f"compare id {ids[0]} and {ids[1]}"
    assert [text.rpartition("(")[2] for text in heads(fresh)] == [f"id {server})" for server in ids]
    assert fresh.logged == []


def test_one_chosen_server_is_compared_with_the_best_of_the_others(fresh):
    (server,) = tick(fresh, 0, 2)
    waited(fresh, lambda: compare(fresh, 0))
    assert said(fresh) == f"compare id {server}"
    assert heads(fresh)[0].endswith(f"(id {server})")
    assert len(heads(fresh)) == 2


def test_without_a_choice_nothing_is_asked(fresh):
    before = turns(fresh)
    compare(fresh, 0)
    assert "tick" in fresh.run("document.getElementById('status').textContent")
    tick(fresh, 0, 1)
    tick(fresh, 0, 1)
    compare(fresh, 0)
    assert turns(fresh) == before
    assert fresh.logged == []


def test_every_answer_has_a_choice_of_its_own(fresh):
    first = tick(fresh, 0, 0, 1)
    say(fresh, "at least 1 stars")
    compare(fresh, 1)
    assert "tick" in fresh.run("document.getElementById('status').textContent")
    second = tick(fresh, 1, 1, 2)
    waited(fresh, lambda: compare(fresh, 1))
    assert said(fresh) == f"compare id {second[0]} and {second[1]}"
    # The boxes of the first answer are still ticked, and still mean these servers.
    waited(fresh, lambda: compare(fresh, 0))
    assert said(fresh) == f"compare id {first[0]} and {first[1]}"
    assert fresh.logged == []


def test_a_place_that_is_not_there_is_said_without_an_error(fresh):
    say(fresh, "compare 9 and 1")
    shown = fresh.run("[...document.querySelectorAll('#log > li.agent')].at(-1).textContent")
    assert "there is no number 9" in shown
    assert fresh.logged == []


def put(page, selector, value):
    """Set a field as a reader would."""
    waited(
        page,
        lambda: page.run(
            f"(() => {{ const e = document.querySelector({selector!r}); e.focus();"
            f" if (e.type === 'checkbox') e.click();"
            f" else {{ e.value = {value!r}; e.dispatchEvent(new Event('change')); }} }})()"
        ),
    )


def specification(page, name):
    return page.run(f"state.specification.{name}")


def test_stars_the_mark_and_the_domain_are_set_by_hand(fresh):
    put(fresh, "#set-least-stars", "15")
    assert specification(fresh, "stars") == 15
    assert fresh.run("[...document.querySelectorAll('.chip span')].some(e => e.textContent === 'stars ≥ 15')")
    put(fresh, "#set-official", None)
    assert specification(fresh, "official") is True
    put(fresh, "#set-domain", "Marketing")
    assert specification(fresh, "domain") == "Marketing"
    assert fresh.run("document.getElementById('set-domain').value") == "Marketing"
    assert specification(fresh, "intent") == "captions for videos in Python, Go or TypeScript"
    put(fresh, "#set-official", None)
    put(fresh, "#set-domain", "")
    put(fresh, "#set-least-stars", "-3")
    assert [specification(fresh, name) for name in ("official", "domain", "stars")] == [False, "", 0]
    put(fresh, "#set-least-stars", "99999999999")
    assert specification(fresh, "stars") == 10_000_000
    labels = "[...document.querySelectorAll('#chips input, #chips select')]"
    assert fresh.run(f"{labels}.every(e => (e.labels && e.labels.length) || e.getAttribute('aria-label'))")
    assert fresh.logged == []


def test_a_chip_is_denied_and_wanted_again(fresh):
    deny = "document.querySelector('button[aria-label=\"Not language: Go\"]')"
    waited(fresh, lambda: fresh.run(f"{deny}.click()"))
    assert (specification(fresh, "languages"), specification(fresh, "unwanted_languages")) == (
        ["Python", "TypeScript"],
        ["Go"],
    )
    assert fresh.run(f"{deny}.getAttribute('aria-pressed')") == "true"
    waited(fresh, lambda: fresh.run(f"{deny}.click()"))
    assert specification(fresh, "unwanted_languages") == []
    assert set(specification(fresh, "languages")) == {"Python", "TypeScript", "Go"}
    assert fresh.logged == []
