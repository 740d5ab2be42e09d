"""The site: no broken link; in a browser no error, no other host, nothing that keeps people out, no page too wide."""

import os
import subprocess
import sys
from pathlib import Path

import axe_core_python
import pytest

from tests.advisor.agent import browser
from tests.tiny_study import REPOSITORY

PAGES = ["index", "findings", "verdicts", "leaderboards/cold", "figures", "systems/paper"]
PAGES += ["notebooks/02_rq1_overall", "notebooks/09_explore"]
STANDARD = "{iframes: false, runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']}"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", folder]  # a broken link is an error
    own = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=REPOSITORY, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.mirror
def test_no_text_of_the_data_is_on_the_site(site: Path, task2mcp) -> None:
    """Descriptions of servers and tasks are on no page: the data has no licence."""
    texts = [*task2mcp.data.servers["description"], *task2mcp.data.tasks["description"]]
    written = "\n".join(path.read_text(encoding="utf-8") for path in site.rglob("*.html"))
    assert not [text for text in texts if len(text) > 60 and text[:60] in written]


@pytest.mark.skipif(browser.CHROMIUM is None, reason="Chromium is not installed")
def test_pages_are_quiet_accessible_and_fit_a_phone(site: Path, tmp_path: Path) -> None:
    axe = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    with browser.opened(tmp_path, site.as_uri()) as page:
        for name in PAGES:
            page.logged.clear(), page.requested.clear()
            page.size(1280, 900)
            page.call("Page.navigate", url=f"{page.address}/{name}.html")
            page.until("document.readyState === 'complete'", seconds=300)
            page.run(f"{axe};0")
            found = page.run(f"axe.run({STANDARD}).then(all => all.violations.map(one => one.id + one.nodes[0].html))")
            assert (name, found) == (name, [])
            page.size(390, 844, mobile=True)
            assert page.run("document.documentElement.scrollWidth") <= 390, name
            assert (name, page.logged) == (name, [])
            assert not [url for url in page.requested if not url.startswith((page.address, "data:"))], name
        page.run("document.querySelector('[data-md-component=search-query]').focus()")
        page.call("Input.insertText", text="ItemKNN")
        page.until("document.querySelectorAll('.md-search-result__item').length > 0", seconds=60)
