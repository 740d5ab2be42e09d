"""The one engine: read a request, rank, adjust, leave out repeats, add facts. Every interface calls `ask`.

Any `saved.contract.SavedModel` can be ranked with; what is added to a score appears among its parts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, overload

from study.advisor.engine.catalogue import SYNC, Catalogue
from study.advisor.engine.facts import Facts, prior, stars_share
from study.advisor.engine.limits import Limits, names_in, task_and_limits
from study.advisor.engine.request import WORD, Understood, plain, reversed_only, understand, vocabulary
from study.advisor.saved.contract import Recommendation, SavedModel, rounded
from study.advisor.saved.saved import DATASET
from study.advisor.saved.settings import Answering, BetterKnown, Filtered
from study.base.errors import StudyError, printable, require_one_of

if TYPE_CHECKING:
    from study.advisor.engine.tools import ToolAnswer, ToolOptions, Tools
    from study.advisor.retrieval.route import Request

# Descriptions shorter than this may be alike by chance.
LONG = 40
# Two repositories of one name with fewer stars may have the same number by chance; of those of Task2MCP with more, the
# six that do are one each.
ALIKE = 30
EVERY_NAME = frozenset({"mcp", "server"})
ONE_WORD = re.compile("[A-Za-z]?[a-z]*")
RERANKERS = ("llm", "distilled")
# How often packages are asked for after missing ones gave way to others.
CHECK_ROUNDS = 5
FIRST = 5  # servers of an answer


@dataclass(frozen=True)
class Options:
    """How a request is answered.

    Attributes:
        k: servers in the answer; None for `FIRST`, or all of a smaller catalogue.
        attributes: language, category, subcategory and theme, as far as the model reads them; the language takes the
            place of those that clauses of the request state.
        verified: only servers of the open catalogue that a source vouches for.
        limits: what servers must be; None reads the limits that clauses of the request state. Of a large catalogue, the
            answer then names only servers that fit by themselves.
        prior: False ranks by the model alone.
        unfit: True names the nearest servers even where nothing fits.
        check: ask npm and pip for the packages of the answer; a missing one starts no server.
        rerank: one of `RERANKERS`, for the first `grading.DEPTH` servers.
    """

    k: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    verified: bool = False
    limits: Limits | None = None
    prior: bool = True
    unfit: bool = False
    check: bool = False
    rerank: str | None = None

    def __post_init__(self) -> None:
        if self.rerank:
            require_one_of(self.rerank, "re-ranker", RERANKERS, column="--rerank")

    def first(self, catalogue: Catalogue) -> int:
        """How many servers of a catalogue the answer has."""
        return min(FIRST, len(catalogue.model.servers)) if self.k is None else self.k


@dataclass(frozen=True)
class Item:
    """One server of an answer."""

    server: Recommendation
    facts: Facts
    same: tuple[str, ...] = ()  # names or addresses of entries that are the same server, left out


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    request: str
    understood: Understood
    items: tuple[Item, ...]  # best first; empty where nothing fits
    notes: tuple[str, ...]  # what was understood, and what the data cannot say
    fits: bool
    closeness: float | None = None
    left_out: int = 0  # servers that fit, too, but that a filter leaves out
    warnings: tuple[str, ...] = ()  # another system answers, what it cannot use of the request, what was not checked
    caption: str = ""  # what the score is
    reranked_by: str = ""
    limits: Limits = field(default_factory=Limits)  # what servers had to be


@overload
def ask(catalogue: Catalogue, request: str, options: Options | None = None) -> Answer: ...


@overload
def ask(catalogue: Tools, request: str | Request, options: ToolOptions | None = None) -> ToolAnswer: ...


def ask(catalogue: Any, request: Any, options: Any = None) -> Answer | ToolAnswer:
    """The best servers of a catalogue for a request, with what is known of each; of a catalogue of tools, tools.

    Raises StudyError: a limit or a check that is for the open catalogue alone; as `SavedModel.recommend`, `Tools.find`.
    """
    if not isinstance(catalogue, Catalogue):
        tool_answer: ToolAnswer = catalogue.find(request, options)
        return tool_answer
    options = options or Options()
    if options.verified and catalogue.table is None:
        raise StudyError("--verified is for the open catalogue", column="--verified", fix=SYNC)
    if options.rerank:
        return _reranked(catalogue, request, options)
    read = task_and_limits(request)
    limits = read.limits if options.limits is None else options.limits
    stated = {name: value for name, value in options.attributes.items() if value}
    if options.limits is None and "language" in stated and (limits.languages or limits.unwanted_languages):
        limits = limits.with_(Limits(languages=names_in(stated["language"])))
    themes = bool(catalogue.themes)
    options = replace(options, limits=limits, attributes=limits.attributes(themes=themes) | stated)
    answer = _answered(catalogue, read.text, options)
    unasked: list[str] = []
    if options.check:
        answer, unasked = _checked(catalogue, read.text, options, answer)
    model = catalogue.model
    # A language that servers are left out by has its effect, whether the model reads it or not.
    read_by_model = {
        name: value for name, value in options.attributes.items() if name != "language" or not limits.languages
    }
    warnings = tuple(filter(None, (catalogue.instead, *model.warnings(request, **read_by_model), *unasked)))
    notes = (*limits.notes(themes=themes), *answer.notes)
    return replace(answer, request=request, limits=limits, notes=notes, warnings=warnings, caption=model.caption)


def _reranked(catalogue: Catalogue, request: str, options: Options) -> Answer:
    from study.advisor.saved import grading  # the client of an endpoint takes a second to load

    grader: grading.Grader | grading.DistilledGrader = (
        grading.Grader.configured()
        if options.rerank == "llm"
        else grading.DistilledGrader.load(DATASET, catalogue.model)
    )
    k = options.first(catalogue)
    depth = max(k, min(grading.DEPTH, len(catalogue.model.servers)))
    answer = ask(catalogue, request, replace(options, rerank=None, k=depth))
    items_by_id = {item.server.server_id: item for item in answer.items}
    graded = grading.graded(grader, request, [item.server for item in answer.items])[:k]
    items = tuple(replace(items_by_id[server.server_id], server=server) for server in graded)
    # The hash is in the JSON answer.
    graded_by = f"{grader.weight:g} x grade by {printable(grader.named).split('@')[0]}"
    caption = f"score: {graded_by} + score of {catalogue.model.title}, both from 0 to 1"
    before, after = (_wish_notes(answer.understood, shown) for shown in (answer.items, items))
    of_these = dict(zip(before, after, strict=True))
    notes = tuple(of_these.get(note, note) for note in answer.notes)
    return replace(answer, items=items, notes=notes, caption=caption, reranked_by=grader.named)


def _checked(catalogue: Catalogue, request: str, options: Options, answer: Answer) -> tuple[Answer, list[str]]:
    """An answer with what npm and pip say today of its servers' packages, and what they could not be asked. Verified
    servers that have turned out to be missing give way to others, which are asked for in turn."""
    from study.advisor.catalog import checks

    if catalogue.open_servers is None:
        raise StudyError("--check is for the open catalogue", column="--check", fix=SYNC)
    seen: set[str] = set()
    problems: list[str] = []
    for _ in range(CHECK_ROUNDS if options.verified else 1):
        new = {item.facts.id for item in answer.items} - {"", *seen}
        if not new:
            break
        seen |= new
        servers = catalogue.open_servers[catalogue.open_servers["id"].isin(new)].to_dict("records")
        problems += [problem.reason for problem in checks.ask_all(checks.packages_of(servers))]
        answer = _answered(catalogue, request, options)
    return answer, problems


def _answered(catalogue: Catalogue, request: str, options: Options) -> Answer:
    model, settings, k = catalogue.model, Answering.read(), options.first(catalogue)
    read, near, fits = read_request(model, request, settings)
    text = read.text if read.text.strip() else request
    notes = [*read.notes, *not_understood(read, fits)]
    size = len(model.servers)
    by, named = named_by(model, request) if model.standardised else ("", frozenset())
    keeps: list[Callable[[Recommendation], bool]] = [catalogue.is_verified] if options.verified else []
    if (limits := options.limits) is not None and limits.filters():
        keeps.append(lambda server: limits.allow(catalogue.facts(server)))
    # A number outside the catalogue is the model's to refuse.
    depth = k if not 1 <= k <= size else size if keeps else min(size, max(k, settings.pool))
    ranked = model.recommend(text, **options.attributes, k=depth)
    if named - {server.server_id for server in ranked}:
        ranked = model.recommend(text, **options.attributes, k=size)
    if not fits and not options.unfit and not named:
        return Answer(request, read, (), tuple(notes), False, near)
    fits, left_out = fits or bool(named), 0
    alone = frozenset(server.server_id for server in ranked)
    if tells := fits and size >= settings.large:
        described = (f"{server.name}\n{server.description}" for server in ranked)
        fitting = fitting_alone(text, [server.score for server in ranked], described, settings.filtered)
        alone = named | {server.server_id for server, fit in zip(ranked, fitting, strict=True) if fit}
    if keeps:
        may = (server for server in ranked if options.unfit or server.server_id in alone)
        fit_ids = {server.server_id for server in may if all(keep(server) for keep in keeps)}
        left_out = len(alone - fit_ids)
        fits = fits and len(alone) > left_out
        ranked = [server for server in ranked if server.server_id in fit_ids]
    first = max(k, settings.pool)
    ranked = [server for position, server in enumerate(ranked) if position < first or server.server_id in named]
    pool = [Item(server, catalogue.facts(server)) for server in ranked]
    if model.standardised:
        words = dict.fromkeys(named, by)
        pool = [_adjusted(item, read, settings, options.prior, words) for item in pool]
        pool.sort(key=lambda item: -item.server.score)  # stable: equal scores keep the model's order
    pool = without_repeats(pool)
    items = pool[:k]
    notes += _wish_notes(read, items)
    if options.prior and tells:
        sound = [item.server.server_id in alone and not item.facts.marks for item in pool[k:]]
        stars = [item.facts.stars or 0 for item in pool]
        notes += better_known([item.server.name for item in pool], stars, sound, settings.known)
    ordered = (replace(item, server=replace(item.server, rank=rank)) for rank, item in enumerate(items, start=1))
    return Answer(request, read, tuple(ordered), tuple(notes), fits, near, left_out)


def fitting_alone(request: str, scores: Sequence[float], texts: Iterable[str], rule: Filtered) -> list[bool]:
    """Which servers fit a request by themselves, whatever else a filter leaves.

    A server fits if it has at least `rule.score` of the best score, and holds the words of the request that a share of
    `rule.share` of the first `rule.best` servers hold: what those have in common is what the request is about.

    `scores`, `texts`: of all servers, best first. Returns: as many values.
    """
    low = [text.lower() for text in texts]
    words = {word for word in WORD.findall(request.lower()) if len(word) >= rule.letters}
    first = low[: rule.best]
    common = [word for word in words if sum(word in text for text in first) >= rule.share * len(first)]
    least = rule.score * max(scores, default=0.0)
    return [score >= least and all(word in text for word in common) for score, text in zip(scores, low, strict=True)]


def read_request(model: SavedModel, request: str, settings: Answering) -> tuple[Understood, float | None, bool]:
    """What a request is read as, its closeness to the catalogue if the model has one, and whether anything fits."""
    large = len(model.servers) >= settings.large
    read = understand(request, _words(model) if large else Counter(), settings)
    if not large or not request.strip():
        return read, None, True
    if not read.text.strip():
        return read, None, False
    near = model.closeness(read.text, settings.nearest)
    if near is None or near[0] not in settings.fit:
        return read, None, True
    return read, near[1], near[1] >= settings.fit[near[0]]


def better_known(names: Sequence[str], stars: Sequence[int], sound: Sequence[bool], rule: BetterKnown) -> list[str]:
    """What is said of a server below those shown that is much better known than each of them.

    `names`, `stars`: of all servers, best first. `sound`: of those that are not shown, whether one may be named.
    """
    n_items = len(stars) - len(sound)
    may = [position for position, right in enumerate(sound, start=n_items) if right]
    position = max(may, key=stars.__getitem__, default=None)
    if position is None or stars[position] < max(rule.stars, rule.times * max(stars[:n_items], default=0)):
        return []
    return [f"much better known, in place {position + 1}: {names[position]} ({stars[position]:,} stars)"]


# Both read every text of a catalogue, which an answer need not wait for twice.
@lru_cache(maxsize=4)
def _words(model: SavedModel) -> Counter[str]:
    texts = zip(model.servers["name"], model.servers["description"], strict=True)
    return vocabulary(f"{name} {text}" for name, text in texts)


def named_by(model: SavedModel, request: str) -> tuple[str, frozenset[int]]:
    """What a whole request is, "its name" or "its tool", and the ids of the servers that have it, none for other
    requests. A tool is named as it is written, and never by one plain word, which says what is to be done."""
    names, tools = _bearers(model)
    if ids := names.get(plain(request)):
        return "its name", frozenset(ids)
    return "its tool", frozenset(tools.get(request.strip().casefold(), ()))


@lru_cache(maxsize=4)
def _bearers(model: SavedModel) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    names, tools = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
    lists = model.servers.get("tools", [""] * len(model.servers))
    for server, name, listed in zip(model.servers["id"], model.servers["name"], lists, strict=True):
        if word := plain(name):  # what has no letter and no digit is no name
            names[word].add(int(server))
        for tool in map(str.strip, listed.split(",")):
            if not ONE_WORD.fullmatch(tool):
                tools[tool.casefold()].add(int(server))
    return names, tools


def not_understood(read: Understood, fits: bool) -> list[str]:
    """What is said of words that no server's text holds."""
    if not read.unknown or (fits and not read.partly):
        return []
    notes = [f"no server's text holds {', '.join(map(repr, read.unknown))}; most servers are described in English"]
    return [f"understood: {read.text}", *notes] if fits else notes


def _adjusted(item: Item, read: Understood, settings: Answering, with_prior: bool, named: Mapping[int, str]) -> Item:
    """A server with what its facts and the request add to its score. `named`: servers that it names, by what."""
    product = item.server.parts.get("product", 0) > 0
    parts = prior(item.facts, settings.prior, named=product) if with_prior else {}
    if item.server.server_id in named:
        parts[named[item.server.server_id]] = settings.named
    server_text = f"{item.server.name}\n{item.server.description}"
    if read.direction[0] and reversed_only(server_text, read.direction, settings.formats):
        parts["direction"] = -settings.direction
    if "popular" in read.wishes and item.facts.stars:
        parts["wish: popular"] = settings.wish * stars_share(item.facts.stars, settings.prior)
    if "official" in read.wishes and item.facts.official:
        parts["wish: official"] = settings.wish
    if not parts:
        return item
    score = round(item.server.score + sum(parts.values()), 6)
    return replace(item, server=replace(item.server, score=score, parts={**item.server.parts, **rounded(parts)}))


def without_repeats(pool: Sequence[Item]) -> list[Item]:
    """Each server once: entries of one address, of one name in a repository of several servers, and of one description
    (forks) are shown as their first."""
    first: dict[str, int] = {}
    items: list[Item] = []
    for item in pool:
        address = item.facts.address or _named_there(item.server)
        keys = same_keys(address, item.server.description, item.facts.stars or 0)
        row = next((first[key] for key in keys if key in first), None)
        if row is None:
            row = len(items)
            items.append(item)
        else:
            same, facts = (*items[row].same, item.facts.id or item.server.url or item.server.name), items[row].facts
            items[row] = replace(items[row], same=same, facts=replace(facts, does=facts.does or item.facts.does))
        for key in keys:
            first.setdefault(key, row)
    return items


def _named_there(item: Recommendation) -> str:
    """A server's repository and name without what every server is called; '' if either is empty."""
    name = " ".join(word for word in plain(item.name).split() if word not in EVERY_NAME)
    return f"{item.url} {name}" if item.url and name else ""


def same_keys(address: str, description: str, stars: int = 0) -> list[str]:
    """What two entries of the same server share: the address, a description of some length, or the name of a repository
    and its number of stars, which an address that has moved shows of the new one."""
    address = address.strip().casefold().rstrip("/")
    words = " ".join(description.casefold().split()).strip(" .")
    moved = address and stars >= ALIKE and f"moved {address.rpartition('/')[2]} {stars}"
    return [key for key in (address and f"url {address}", len(words) >= LONG and f"text {words}", moved) if key]


def _wish_notes(read: Understood, items: Sequence[Item]) -> list[str]:
    """What the data can and cannot say about the wishes."""
    facts, of_these = [item.facts for item in items], f"of these {len(items)}"
    marked, dated = sum(bool(one.official) for one in facts), sum(bool(one.updated) for one in facts)
    counted = sum(one.stars is not None for one in facts)
    notes = {
        "popular": f"read as many stars, which are known for {counted} {of_these}",
        "official": f"{marked or 'none'} {of_these} {'is' if marked == 1 else 'are'} marked so",
        "maintained": f"the data cannot say; a last update is known for {dated} {of_these}",
    }
    return [f"{wish}: {notes[wish]}" for wish in read.wishes]
