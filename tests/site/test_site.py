"""The site: links, texts of pictures, escaping; in a browser no error, no request, contrast, tables, search."""

import os
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pandas as pd
import pytest
from markupsafe import Markup

from study.analysis.report.main import report
from study.base.errors import StudyError
from study.config.compose import load, sound_systems
from study.runner.row_store import read_per_task
from study.site import content, markup
from study.site.build import build
from tests.advisor.agent import browser as agent_browser
from tests.tiny_study import REPOSITORY, TINY

# One page of every template, and the notebook with the most tables.
KINDS = ("index", "findings", "verdicts", "leaderboards", "systems", "system-t2mrec", "topics", "notebooks", "search")
PAGES = [f"{name}.html" for name in (*KINDS, "02_rq1_overall", "10_explore")]
NO_ROOM = "no page is wider than a phone"
browsing = pytest.mark.skipif(agent_browser.CHROMIUM is None, reason="Chromium is not installed")


class Page(HTMLParser):
    """What a page refers to, and what it says of its pictures."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.tags: dict[str, list[dict[str, str | None]]] = defaultdict(list)
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags[tag].append(found)
        if found.get("id"):
            self.anchors.add(str(found["id"]))
        self.addresses += [str(found["href"])] if tag == "a" else []
        self.loaded += [str(found[name]) for name in ("src", "href") if tag != "a" and found.get(name)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the committed results."""
    assert "T2M_ROOT" not in os.environ
    return build("task2mcp", tmp_path_factory.mktemp("built") / "site").parent


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, Page]:
    return {path.name: Page(path) for path in sorted(folder.glob("*.html"))}


def test_no_link_is_broken(folder: Path, pages: dict[str, Page]) -> None:
    assert set(PAGES) <= set(pages)
    for name, page in pages.items():
        for address in page.addresses:
            if address.startswith("https://"):
                continue
            path, _, anchor = unquote(address).partition("#")
            target = path or name
            assert (folder / target).is_file(), (name, address)
            assert not anchor or anchor in pages[target].anchors, (name, address)


def test_nothing_is_loaded_from_elsewhere_and_no_script_is_in_a_page(folder: Path, pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        for address in page.loaded:
            assert address == "data:," or (folder / unquote(address)).is_file(), (name, address)
        assert all("src" in script for script in page.tags["script"])
        assert not [key for found in page.tags.values() for tag in found for key in tag if key.startswith("on")]


def test_pages_have_a_title_a_language_a_heading_and_texts_of_pictures(pages: dict[str, Page]) -> None:
    titles = [page.text.partition("<title>")[2].partition("</title>")[0] for page in pages.values()]
    assert all(len(title) > 10 for title in titles)
    for name, page in pages.items():
        assert page.tags["html"][0]["lang"] == "en"
        assert len(page.tags["h1"]) == 1, name
        assert all((image.get("alt") or "").strip() for image in page.tags["img"]), name


def test_no_text_of_the_data_is_on_the_site(folder: Path) -> None:
    """Names of servers are on no page; whoever has the data can look."""
    servers = REPOSITORY / "data" / "prepared" / "task2mcp" / "servers.parquet"
    if not servers.exists():
        pytest.skip("the data is not here")
    texts = pd.read_parquet(servers)["description"]
    written = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.html"))
    assert not [text for text in texts if len(text) > 60 and text[:60] in written]


def test_markdown_is_escaped_and_leads_nowhere_unknown() -> None:
    hostile = "# <img src=x onerror=alert(1)>\n<script>alert(1)</script> [a](javascript:alert(1)) ![b](http://x/y.png)"
    html = markup.markdown(hostile, lambda address: None)
    assert "<script" not in html
    assert "<img" not in html
    assert "href" not in html
    assert markup.markdown("0.5<!--#key-->", str) == "<p>0.5</p>\n"


def test_a_fold_of_a_notebook_is_one_and_no_other_html_is() -> None:
    rows = "\n".join(f"| {number} |" for number in range(2 * markup.LONG_TABLE))
    html = markup.markdown(
        f"<details>\n<summary>a &lt;b&gt;</summary>\n\n| n |\n|---|\n{rows}\n\n</details>\n\nend\n", str
    )
    assert html.startswith("<details><summary>a &lt;b&gt;</summary>\n<div")
    assert html.count("<details>") == html.count("</details>") == 1  # long as it is, the table is folded once
    assert html.endswith("</details>\n<p>end</p>\n")
    for hostile in ("</details>", "<details>\n<summary><b>x</b></summary>", "<details open>\n<summary>x</summary>"):
        assert "<" not in markup.markdown(f"{hostile}\n", str).replace("<p>", "").replace("</p>", ""), hostile


def test_a_docstring_is_paragraphs_and_a_list_of_its_arguments() -> None:
    html = markup.docstring("s = `a` * b\n+ c * d\n\nArgs:\n    one: its\n        text.\n    two: <b>\n")
    assert html.startswith("<p>s = <code>a</code> * b\n+ c * d</p>\n<p>Args:</p>\n<ul>\n<li><code>one</code>: its")
    assert html.count("<li>") == 2
    assert "<b>" not in html


def test_the_cause_of_a_verdict_names_systems_by_their_titles() -> None:
    table = content.verdicts("task2mcp")
    assert table is not None
    causes = {row[table.columns.index("cause")].text.split(" needs ")[0] for row in table.rows}
    assert "NeuMF" in causes
    assert not causes & set(sound_systems())


def test_a_repeated_heading_has_an_anchor_of_its_own() -> None:
    html = markup.markdown("## A, b!\n## A b\n", str)
    assert [part.anchor for part in markup.sections(html)] == ["a-b", "a-b-1"]


def test_the_text_of_a_section_is_plain() -> None:
    html = Markup('<h2 id="a">A</h2><p>say "b" &amp; <code>c</code></p>')
    assert [part.text for part in markup.sections(html)] == ['say "b" & c']


def test_a_small_study_has_a_site_of_the_parts_that_it_has(root: Path, tmp_path: Path) -> None:
    file = root / "conf" / "system" / "simple" / "tfidf.yaml"
    text = file.read_text(encoding="utf-8").replace("title: ", "title: <img src=x onerror=alert(1)> ", 1)
    file.write_text(text, encoding="utf-8")
    report(load(TINY))
    start = build("synthetic", tmp_path / "site")
    page = Page(start.with_name("systems.html"))
    assert page.tags["img"] == []
    assert "&lt;img src=x" in page.text
    assert not start.with_name("verdicts.html").exists()
    assert "verdicts.html" not in start.read_text(encoding="utf-8")
    build("synthetic", tmp_path / "site")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work.txt").touch()
    with pytest.raises(StudyError):
        build("synthetic", tmp_path / "mine")


def test_names_of_judged_servers_need_to_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = pd.read_csv(REPOSITORY / "results/task2mcp/judged/judgements.csv", usecols=["task_id", "server_id"])
    named = [pd.DataFrame({"id": part.unique(), "name": "a name"}) for _, part in ids.items()]
    data = SimpleNamespace(tasks=named[0], servers=named[1])
    assert all(not topic.text and not topic.names for topic in content.topics("task2mcp", texts=False))
    monkeypatch.setattr(content.datasets, "load", lambda _: data)
    topics = content.topics("task2mcp", texts=True)
    listed = [server for topic in topics for servers in topic.servers.values() for server in servers]
    assert sum(len(topic.names) for topic in topics) == len(listed) > 0


@pytest.fixture(scope="module")
def browser(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[agent_browser.Browser]:
    with agent_browser.opened(tmp_path_factory.mktemp("browser"), folder.as_uri()) as found:
        yield found


@pytest.fixture
def quiet(browser: agent_browser.Browser) -> Iterator[agent_browser.Browser]:
    """The browser; in the end no page has logged anything or asked for anything but files."""
    browser.logged.clear()
    browser.requested.clear()
    yield browser
    assert browser.logged == []
    assert [url for url in browser.requested if not url.startswith((browser.address, "data:"))] == []


def show(browser: agent_browser.Browser, name: str) -> None:
    """Open a page; a busy machine may take its time."""
    browser.call("Page.navigate", url=f"{browser.address}/{name}")
    browser.until("document.readyState === 'complete'", seconds=300)


@browsing
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_quiet_has_contrast_and_fits_a_phone(quiet: agent_browser.Browser, name: str) -> None:
    quiet.size(1280, 900)
    show(quiet, name)
    script = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8").removesuffix(";\n")
    assert quiet.run(script) == []
    quiet.size(390, 844, mobile=True)
    assert quiet.run("document.documentElement.scrollWidth") <= 390, NO_ROOM


@browsing
def test_the_verdicts_are_filtered_and_sorted(quiet: agent_browser.Browser) -> None:
    show(quiet, "verdicts.html")
    rows = "[...document.querySelectorAll('tbody tr')].filter(row => !row.hidden)"
    assert quiet.run(f"{rows}.length") == 136
    quiet.run("list = document.querySelectorAll('.filters select')[3]; list.value = 'not reproduced'")
    quiet.run("list.dispatchEvent(new Event('input', {bubbles: true}))")
    assert quiet.run(f"{rows}.length") == 78
    quiet.run("document.querySelectorAll('thead button')[3].click()")
    printed = quiet.run(f"{rows}.map(row => Number(row.cells[3].textContent))")
    assert printed == sorted(printed, reverse=True)
    quiet.run("document.querySelectorAll('thead button')[3].click()")
    assert quiet.run(f"{rows}.map(row => Number(row.cells[3].textContent))") == sorted(printed)


@browsing
def test_two_systems_are_compared_on_the_tasks_that_a_reader_chooses(quiet: agent_browser.Browser) -> None:
    folder = REPOSITORY / "results/task2mcp"
    value = read_per_task("task2mcp", "cold", ("t2mrec", "bm25", "item_knn_transfer"))
    ndcg = {name: table.groupby("task_id")["ndcg@10"].mean().round(4) for name, table in value.items()}
    twins = pd.read_csv(folder / "audit/leakage_tasks.csv").query("protocol == 'cold'").set_index("task_id")
    alone = twins.index[twins["any_near_duplicate"] == 0]
    show(quiet, "10_explore.html")
    quiet.until("document.querySelectorAll('.view svg').length === 3", seconds=120)
    choose = "{{const list = document.querySelector('select[name={}]'); list.value = {!r};"
    choose += "list.dispatchEvent(new Event('change'))}}"
    for name, chosen in (("across", "bm25"), ("up", "item_knn_transfer"), ("only_twin", "no")):
        quiet.run(choose.format(name, chosen))
    across, up = ndcg["bm25"].loc[alone], ndcg["item_knn_transfer"].loc[alone]
    words = (
        f"{len(alone)} tasks. Mean across {across.mean():.4f}, up {up.mean():.4f}. "
        f"Better across: {(across > up).sum()}, up: {(up > across).sum()}"
    )
    quiet.until(f"document.querySelector('.view svg').textContent.includes({words!r})")


@browsing
def test_the_search_finds_a_system_and_a_finding(quiet: agent_browser.Browser) -> None:
    show(quiet, "search.html?q=simple%20methods")
    links = "[...document.querySelectorAll('#found a')].map(link => link.getAttribute('href'))"
    assert any(address.startswith("findings.html#") for address in quiet.run(links))
    quiet.run("box.value = 'zzqqxx'; box.dispatchEvent(new Event('input'))")
    assert quiet.run(links) == []
