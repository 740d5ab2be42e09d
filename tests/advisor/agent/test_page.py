"""The page in a headless browser: a conversation by keyboard, hostile texts, a phone, chips and choices."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest

from study.advisor.agent import web
from study.advisor.engine.intent.feedback import FeedbackStore
from tests.advisor.agent import browser as agent_browser
from tests.advisor.agent.browser import say, turns, waited
from tests.advisor.agent.conftest import serving
from tests.advisor.agent.messages import IDS, MESSAGES

pytestmark = pytest.mark.skipif(agent_browser.CHROMIUM is None, reason="Chromium is not installed")
# What the page may consist of; anything else came from a stranger's text.
TAGS = set(MESSAGES["page_tags"])
LAST = "[...document.querySelectorAll('#log > li.agent')].at(-1)"
STATUS = "document.getElementById('status').textContent"
OUTCOME = "document.querySelector('.outcome').offsetHeight"


def page_of(name):
    """A fixture: the page over the agent of a fixture, for the tests of this file."""

    @pytest.fixture(scope="module")
    def opened(request, service, tmp_path_factory):
        folder = tmp_path_factory.mktemp("browser")
        store = FeedbackStore(folder / "feedback.sqlite")
        app = web.create_app(request.getfixturevalue(name), store, replace(service, keep_words=True))
        with serving(app) as address, agent_browser.opened(folder, address) as browser:
            browser.store = store
            yield browser

    return opened


page, toy_page = page_of("hostile"), page_of("agent")


@contextmanager
def quiet(page):
    """The page anew; in the end it has logged nothing and asked no other host."""
    page.open(page.address)
    page.until("state.catalogue !== null")
    yield page
    assert page.logged == []
    assert any(url.startswith(page.address) for url in page.requested)
    assert [url for url in page.requested if not url.startswith((page.address, "about:", "data:"))] == []


@pytest.fixture
def fresh(page):
    with quiet(page):
        yield page


@pytest.fixture
def asked(toy_page):
    """The page over the toy catalogue after a request of three languages."""
    with quiet(toy_page):
        say(toy_page, "captions for videos in Python, Go or TypeScript")
        yield toy_page


def texts(page, selector, within="document"):
    return page.run(f"[...{within}.querySelectorAll({selector!r})].map(e => e.textContent)")


def last(page, selector):
    """Texts of the elements of the last turn."""
    return texts(page, selector, LAST)


def test_a_whole_conversation_by_keyboard(fresh):
    say(fresh, "captions for videos")
    assert last(fresh, ".options button")[-1] == "any"
    say(fresh, "Go")
    assert last(fresh, ".card h3") == ["1. Subtitle Fastid 17", "2. Postgres Queryid 13"]
    assert "It is written in Go, as you asked." in " ".join(last(fresh, ".claims li"))
    say(fresh, "or TypeScript")
    assert len(last(fresh, ".card")) == 3
    say(fresh, "compare 1 and 2")
    assert any("stars" in text for text in last(fresh, "table th"))
    say(fresh, "set up 1")
    assert any("git clone https://github.com/example/" in text for text in last(fresh, "li"))
    say(fresh, "undo")
    assert last(fresh, ".card h3")[0].startswith("1. Subtitle Fast")
    assert len(last(fresh, ".card")) == 2
    assert len(fresh.screenshot()) > 10_000


def test_everything_is_reached_with_the_tab_key(fresh):
    say(fresh, "captions for videos in Go")
    fresh.run("document.body.focus(), document.activeElement.blur()")
    active, words = "document.activeElement", ""
    for _ in range(60):
        fresh.press("Tab")
        words += fresh.run(f"{active}.textContent + '|' + ({active}.getAttribute('aria-label') || '') + ' '")
    for wanted in MESSAGES["page_controls"]:
        assert wanted in words, wanted
    # The marked place can be seen.
    assert fresh.run(f"{active} !== document.body")
    assert fresh.run(f"getComputedStyle({active}).outlineStyle") != "none"
    assert fresh.run(f"parseFloat(getComputedStyle({active}).outlineWidth)") >= 2


def test_chips_change_the_constraints(fresh):
    say(fresh, "captions for videos in Go")
    fresh.run("document.querySelector('.chip button').focus()")
    waited(fresh, lambda: fresh.press("Enter"))
    assert last(fresh, ".options button")[-1] == "any"
    say(fresh, "any")
    assert fresh.run("document.querySelectorAll('.chip').length") == 0
    put(fresh, 'select[aria-label="Add language"]', "TypeScript")
    fresh.until("[...document.querySelectorAll('.chip')].some(e => e.textContent.includes('language: TypeScript'))")
    assert last(fresh, ".card h3") == ["1. Caption Writerid 11"]


def press(page, server, label):
    """Click a button of the first card of the page that shows a server; returns what is said then."""
    page.run("document.getElementById('status').textContent = ''")
    card = f"document.querySelector('.card[data-id=\"{server}\"]')"
    page.run(f"{card}.querySelectorAll('button').forEach(e => {{ if (e.textContent === {label!r}) e.click(); }})")
    page.until(f"{STATUS} !== ''")
    return page.run(STATUS)


def requests(events):
    return [json.loads(event.words)["intent"] for event in events]


def test_a_card_of_an_earlier_answer_is_judged_for_its_own_request(fresh):
    say(fresh, "captions for videos in Go")
    say(fresh, "query a postgres database plan in Python")
    say(fresh, "undo")
    say(fresh, "MIT licence")
    before = len(fresh.store.events())
    assert press(fresh, 17, "Useful") == "Noted on this machine: useful, id 17."
    assert press(fresh, 14, "Not useful") == "Noted on this machine: not useful, id 14."
    events = fresh.store.events()[before:]
    assert [(event.kind, event.selected) for event in events] == [("accepted", "17"), ("rejected", "14")]
    assert requests(events) == ["captions for videos in Go", "query a postgres database plan in Python"]
    assert [json.loads(event.words)["licences"] for event in events] == [[], []]


def test_outcomes_can_be_told_of_accepted_servers(fresh):
    say(fresh, "captions for videos in Go")
    before = len(fresh.store.events())
    assert fresh.run(OUTCOME) == 0
    press(fresh, 17, "Useful")
    assert fresh.run(OUTCOME) > 0
    press(fresh, 17, "It worked")
    press(fresh, 17, "It failed")
    assert texts(fresh, "[aria-pressed=true]", "document.querySelector('.card')") == ["Useful", "It failed"]
    press(fresh, 17, "Not useful")
    assert fresh.run(OUTCOME) == 0
    assert [event.kind for event in fresh.store.events()[before:]] == ["accepted", "worked", "failed", "rejected"]


def test_a_card_keeps_to_its_conversation(fresh):
    say(fresh, "captions for videos in Go")
    fresh.run("state.name = null")  # as after the conversation was dropped
    say(fresh, "query a postgres database plan in Python")
    before = len(fresh.store.events())
    press(fresh, 17, "Useful")
    assert requests(fresh.store.events()[before:]) == ["captions for videos in Go"]


def is_harmless(page):
    """Nothing on the page came from a stranger's text but letters."""
    assert set(page.run("[...new Set([...document.querySelectorAll('*')].map(e => e.tagName))]")) <= TAGS
    assert page.run("document.title") == "T2MAgent"
    strange = ", ".join(f"main {tag}" for tag in ("script", "img", "iframe", "style", "[style]"))
    assert page.run(f"document.querySelectorAll('{strange}').length") == 0
    attributes = "[...document.querySelectorAll('main *')].flatMap(e => [...e.attributes].map(a => a.name))"
    assert not [name for name in page.run(attributes) if name.startswith("on")]
    links = page.run("[...document.querySelectorAll('main a')].map(e => [e.protocol, e.rel])")
    assert all(protocol == "https:" and "noopener" in rel for protocol, rel in links)


def test_every_hostile_server_is_letters_on_the_page(fresh):
    say(fresh, "captions for videos in Python")
    for server in IDS:
        say(fresh, f"{'set up' if server % 2 else 'why'} id {server}")
        assert last(fresh, ".card .id") == [f"id {server}"]
    shown = fresh.run("[...document.querySelectorAll('.card')].map(e => Number(e.dataset.id))")
    assert set(IDS) <= set(shown)
    is_harmless(fresh)


@pytest.mark.parametrize("text", MESSAGES["hostile_requests_on_the_page"])
def test_hostile_servers_are_letters_on_the_page(fresh, text):
    say(fresh, text)
    if not last(fresh, ".card"):
        say(fresh, "any")
    assert last(fresh, ".card")
    is_harmless(fresh)


def test_a_phone_needs_no_sideways_scrolling(fresh):
    fresh.size(390, 844, mobile=True)
    try:
        say(fresh, "captions for videos in Python")
        say(fresh, "compare 1 and 2")
        # A start command on one line, which scrolls by itself.
        start = "const [box, pre] = ['div', 'pre'].map(name => document.createElement(name)); box.className = 'copied';"
        start += "pre.textContent = 'x'.repeat(200); box.append(pre); document.querySelector('.card').append(box)"
        fresh.run(f"(() => {{{start}}})()")
        assert fresh.run("document.documentElement.scrollWidth") <= 390
        heights = fresh.run("[...document.querySelectorAll('button, select')].map(e => e.offsetHeight)")
        assert min(filter(None, heights)) >= 30
        assert fresh.run("document.querySelector('footer').offsetHeight") < 844 / 2
    finally:
        fresh.size(1000, 900)


def test_a_lost_conversation_is_said_and_begun_again(fresh):
    fresh.run("state.name = 'gone'")
    agent_browser.send(fresh, "captions for videos in Go")
    fresh.until(f"{STATUS}.includes('over')")
    fresh.logged.clear()  # the browser itself notes the 404
    say(fresh, "captions for videos in Go")
    assert last(fresh, ".card h3")[0] == "1. Subtitle Fastid 17"


def tick(page, answer, *places):
    """Tick boxes of the cards of an answer, by places from 0; returns the ids of these servers."""
    cards = f"[...document.querySelectorAll('.cards')][{answer}].children"
    for place in places:
        page.run(f"{cards}[{place}].querySelector('input').click()")
    return [page.run(f"Number({cards}[{place}].dataset.id)") for place in places]


def compare(page, answer):
    """Press the button of an answer."""
    buttons = "[...document.querySelectorAll('button')].filter(e => e.textContent === 'Compare the chosen servers')"
    page.run(f"{buttons}[{answer}].click()")


def compared(page, answer):
    """What was asked when the button of an answer was pressed, and the heads of the table that it gave."""
    waited(page, lambda: compare(page, answer))
    said = texts(page, "#log > li.you > p")[-1]
    return said, [text.rpartition("(")[2] for text in last(page, "th[scope=col]") if text]


def test_the_chosen_servers_are_compared_and_a_single_one_with_the_best_of_the_others(asked):
    (server,) = tick(asked, 0, 2)
    said, heads = compared(asked, 0)
    assert said == f"compare id {server}"
    assert heads[0] == f"id {server})"
    assert len(heads) == 2
    (other,) = tick(asked, 0, 0)
    assert compared(asked, 0) == (f"compare id {server} and {other}", [f"id {server})", f"id {other})"])
    # A place that is not there is said without an error.
    say(asked, "compare 9 and 1")
    assert "there is no number 9" in asked.run(f"{LAST}.textContent")


def test_every_answer_has_a_choice_of_its_own_and_without_one_nothing_is_asked(asked):
    before = turns(asked)
    compare(asked, 0)
    assert "tick" in asked.run(STATUS)
    tick(asked, 0, 1)
    tick(asked, 0, 1)
    compare(asked, 0)
    assert turns(asked) == before
    first = tick(asked, 0, 0, 1)
    say(asked, "at least 1 stars")
    compare(asked, 1)
    assert "tick" in asked.run(STATUS)
    second = tick(asked, 1, 1, 2)
    assert compared(asked, 1)[0] == f"compare id {second[0]} and {second[1]}"
    # The boxes of the first answer are still ticked, and still mean these servers.
    assert compared(asked, 0)[0] == f"compare id {first[0]} and {first[1]}"


def put(page, selector, value):
    """Set a field as a reader would; a box is ticked."""
    element = f"document.querySelector({selector!r})"
    set_value = f"{element}.value = {value!r}, {element}.dispatchEvent(new Event('change'))"
    waited(page, lambda: page.run(f"{element}.focus(), {f'{element}.click()' if value is None else set_value}"))


def specification(page, *names):
    return [page.run(f"state.specification.{name}") for name in names]


def test_stars_the_mark_and_the_domain_are_set_by_hand(asked):
    put(asked, "#set-least-stars", "15")
    assert asked.run("[...document.querySelectorAll('.chip span')].some(e => e.textContent === 'stars ≥ 15')")
    put(asked, "#set-official", None)
    put(asked, "#set-domain", "tools")
    assert specification(asked, "stars", "official", "domain") == [15, True, "tools"]
    assert asked.run("document.getElementById('set-domain').value") == "tools"
    assert specification(asked, "intent") == ["captions for videos in Python, Go or TypeScript"]
    put(asked, "#set-official", None)
    put(asked, "#set-domain", "")
    put(asked, "#set-least-stars", "-3")
    assert specification(asked, "stars", "official", "domain") == [0, False, ""]
    put(asked, "#set-least-stars", "99999999999")
    assert specification(asked, "stars") == [10_000_000]
    labels = "[...document.querySelectorAll('#chips input, #chips select')]"
    assert asked.run(f"{labels}.every(e => (e.labels && e.labels.length) || e.getAttribute('aria-label'))")


def test_a_chip_is_denied_and_wanted_again(asked):
    deny = "document.querySelector('button[aria-label=\"Not language: Go\"]')"
    waited(asked, lambda: asked.run(f"{deny}.click()"))
    assert specification(asked, "languages", "unwanted_languages") == [["Python", "TypeScript"], ["Go"]]
    assert asked.run(f"{deny}.getAttribute('aria-pressed')") == "true"
    waited(asked, lambda: asked.run(f"{deny}.click()"))
    wanted, unwanted = specification(asked, "languages", "unwanted_languages")
    assert (set(wanted), unwanted) == ({"Python", "TypeScript", "Go"}, [])
