"""A registry with the official interface that pages, stalls, fails, repeats and deletes, by script."""

import contextlib
import json
import time
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from study.advisor.catalog import official, store
from study.advisor.catalog.settings import Sources
from study.advisor.catalog.sync import sync
from study.base.errors import StudyError
from tests.advisor.catalog.sources import killed_at
from tests.advisor.loopback import Quiet, listening

META = "io.modelcontextprotocol.registry/official"
OLD = "2026-01-01T00:00:00Z"
ALL = {f"s{number}" for number in range(5)}


def entry(name, updated=OLD, status="active", **more):
    package = {"registryType": "npm", "identifier": name.rpartition("/")[2], "version": "1.0.0"}
    server = {"name": name, "description": "d", "version": "1.0.0", "packages": [package]}
    about = {"status": status, "publishedAt": OLD, "updatedAt": updated, "isLatest": True}
    return {"server": server | more, "_meta": {META: about}}


class Handler(Quiet):
    """`entries` in pages; `script`: what to do instead at the next requests; `asked`: their queries."""

    def do_GET(self):
        registry = self.server
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        registry.asked.append(query)
        step = registry.script.pop(0) if registry.script else None
        if step == "stall":
            time.sleep(1)
        elif step in ("head", "body"):  # a byte now and then, without end
            with contextlib.suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX: " if step == "head" else b"HTTP/1.1 200 OK\r\n\r\n")
                for _ in range(200):
                    self.wfile.write(b"x")
                    time.sleep(0.1)
        elif step == "endless":
            registry.script.append(step)
            count = len(registry.asked)
            self.answer(200, {"servers": [entry(f"io.github.o/n{count}")], "metadata": {"nextCursor": f"c{count}"}})
        elif isinstance(step, int):
            self.answer(step, b"no", Location="/v0.1/servers?limit=9")  # which answers, if it is followed
        elif step is not None:
            self.answer(200, step)
        else:
            self.known(query)

    def known(self, query):
        since, hits = query.get("updated_since", ""), []
        for each in self.server.entries:
            about = each["_meta"][META]
            if about["updatedAt"] >= since and (since or query.get("include_deleted") or about["status"] != "deleted"):
                hits.append(each)
        first, size = int(query.get("cursor", "0")), int(query["limit"])
        more = {"nextCursor": str(first + size)} if first + size < len(hits) else {}
        self.answer(200, {"servers": hits[first : first + size], "metadata": {"count": size} | more})


def configure(root, part, **values):
    path = root / "conf" / "catalog" / "sources.yaml"
    settings = yaml.safe_load(path.read_text())
    settings[part] |= values
    path.write_text(yaml.safe_dump(settings))


@pytest.fixture
def registry(conf_root, monkeypatch):
    configure(conf_root, "registry", page=2, timeout=0.5, pause=0.01, retries=2)
    entries = [entry(f"io.github.o/s{number}") for number in range(5)]
    with listening(Handler, script=[], asked=[], entries=entries) as server:
        monkeypatch.setenv("T2M_REGISTRY", f"http://127.0.0.1:{server.server_port}")
        yield server


def refused(said, **how):
    with pytest.raises(StudyError, match=said):
        sync(["official"], **how)


def active():
    rows = store.read(store.current(), "servers")
    return set(rows[rows["status"] == "active"]["name"])


def cursors(registry):
    """The pages asked for since the last look."""
    pages = [query.get("cursor") for query in registry.asked]
    registry.asked.clear()
    return pages


def later(monkeypatch, seconds):
    """The same program, some time later."""
    moment = datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    monkeypatch.setattr(official, "now", lambda: moment)


def test_pages_are_followed_and_repeats_are_one_server(registry):
    registry.entries.insert(0, entry("io.github.o/s3", "2026-02-01T00:00:00Z", description="newest"))
    registry.entries.append(entry("io.github.o/s3", "2025-02-01T00:00:00Z", description="oldest"))
    sync(["official"])
    assert active() == ALL
    assert {query["version"] for query in registry.asked} == {"latest"}
    assert cursors(registry) == [None, "2", "4", "6"]
    assert not list((store.folder() / "official").glob("page-*"))
    assert store.find("s3", store.read(store.current(), "servers"))["description"] == "newest"


@pytest.mark.parametrize("step", ["stall", 500, 503, 429])
def test_a_stall_or_failure_is_tried_again(registry, step):
    registry.script = [None, step, step, None]
    sync(["official"])
    assert active() == ALL
    assert cursors(registry) == [None, "2", "2", "2", "4"]


def test_a_poll_goes_on_where_it_failed_and_is_not_repeated_where_the_catalogue_could_not_be_written(registry):
    registry.script = [None, 500, 500, 500]
    refused("HTTP 500")
    assert store.current() is None
    cursors(registry)
    with killed_at(store, "commit"):
        sync(["official"])
    assert cursors(registry) == ["2", "4"]
    sync(["official"])
    assert (cursors(registry), active()) == ([], ALL)


def test_a_later_poll_asks_for_what_changed_and_deletes(registry):
    sync(["official"])
    registry.asked.clear()
    new = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    registry.entries[1] = entry("io.github.o/s1", new, "deleted")
    registry.entries.append(entry("io.github.o/s5", new))
    counts = sync(["official"])
    assert active() == (ALL - {"s1"}) | {"s5"}
    assert counts["sources"]["official"]["read"] == 6  # the overlap holds the old ones, all of one second
    assert registry.asked[0]["updated_since"] == "2025-12-31T23:55:00Z"
    assert sync(["official"])["unchanged"]


def test_a_full_poll_removes_what_it_lacks_and_keeps_what_broken_entries_were(registry, monkeypatch):
    sync(["official"])
    registry.entries[0] = entry("../../etc/passwd")
    registry.entries[1]["server"]["description"] = "x" * 30_000
    refused("full poll began", full=True)
    later(monkeypatch, 3700)
    sync(["official"], full=True)
    assert active() == ALL - {"s0"}
    registry.entries[2] = {"server": 5, "_meta": {META: {"status": "active", "updatedAt": OLD}}}
    later(monkeypatch, 7400)
    counts = sync(["official"], full=True)
    # One without a name could be any of them.
    assert active() == ALL - {"s0"}
    assert counts["sources"]["official"]["refused"] == {"entry": 3}


def test_a_failed_full_poll_counts_and_an_old_one_starts_again(registry, monkeypatch):
    for script, said in (([500] * 3, "HTTP 500"), ([None, 410], "no longer knows the place"), ([], "full poll began")):
        registry.script = script
        refused(said)
    later(monkeypatch, 3700)
    registry.asked.clear()
    sync(["official"])
    assert registry.asked[0].get("cursor") is None
    assert active() == ALL


@pytest.mark.parametrize(
    "odd", ["x" * 10_000_000, float("inf"), float("nan"), "half of a pair: \ud800", 10**400], ids=range(5)
)
def test_an_entry_that_no_file_may_hold_hides_no_other(registry, conf_root, odd):
    configure(conf_root, "registry", timeout=30.0)  # ten megabytes take a while
    registry.entries[1]["server"]["title"] = odd
    assert sync(["official"])["sources"]["official"]["refused"] == {"entry": 1}
    assert active() == ALL - {"s1"}
    rows = store.read(store.current(), "servers")
    assert store.find("io.github.O/s0", rows)["name"] == "s0"
    with pytest.raises(StudyError, match="no server"):
        store.find("io.github.o/s1", rows)


NO_LISTS = [b"{", b"[]", b'{"servers": 5}', b"[" * 100_000, b"x" * 70_000_000]
NO_LISTS += [b'{"servers": [], "metadata": {"nextCursor": 5}}']
CIRCLE = b'{"servers": [], "metadata": {"nextCursor": "2"}}'
# What the registry does, what is said, and the settings.
UNUSABLE = [
    *((body, "fix:", "", {}) for body in NO_LISTS),
    (CIRCLE, "repeats the cursor", "", {}),
    (302, "302", "", {}),
]
UNUSABLE += [
    ("endless", "more than 7 pages", "registry", {"pages": 7}),
    ("endless", "more than 5 entries", "registry", {"entries": 5}),
    ("endless", "more than 2000 bytes", "limits", {"archive": 2_000}),
    ("endless", "a poll may take 0.5 s", "limits", {"seconds": 0.5}),
    ("head", "a poll may take 1 s", "limits", {"seconds": 1.0}),
    ("body", "a poll may take 1 s", "limits", {"seconds": 1.0}),
]


@pytest.mark.parametrize(("step", "said", "part", "bounds"), UNUSABLE, ids=range(len(UNUSABLE)))
def test_a_registry_that_lists_nothing_leads_elsewhere_or_has_no_end_is_refused(
    registry, conf_root, step, said, part, bounds
):
    if part:
        configure(conf_root, part, **bounds)
    registry.script = [step] * 3
    began = time.monotonic()
    refused(said)
    assert time.monotonic() - began < 10
    assert store.current() is None


def test_a_date_in_the_future_does_not_hide_later_changes(registry):
    registry.entries[0] = entry("io.github.o/s0", "9999-01-01T00:00:00Z")
    sync(["official"])
    progress = json.loads((store.folder() / "official" / "progress.json").read_text())
    assert progress["watermark"] <= datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") + "~"


@pytest.mark.parametrize("url", ["", "ftp://x", "https://u:p@x", "file:///etc/passwd", "x"])
def test_an_address_must_be_given(conf_root, monkeypatch, url):
    monkeypatch.setenv("T2M_REGISTRY", url)
    with pytest.raises(StudyError, match="address"):
        official.poll(Sources.read())
