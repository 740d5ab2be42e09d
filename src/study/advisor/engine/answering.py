"""What stands around a ranking: reading the request, saying that nothing fits, the prior, one line per server.

Any `saved.contract.SavedModel` can be ranked with; what is added to a score appears among its parts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from study.advisor.engine.facts import Facts, prior, stars_share
from study.advisor.engine.understanding import WORD, Understood, plain, reversed_only, understand, vocabulary
from study.advisor.saved.contract import Recommendation, SavedModel, rounded
from study.advisor.saved.settings import Answering, Filtered, Known

# Descriptions shorter than this may be alike by chance.
LONG = 40
# Two repositories of one name with fewer stars may have the same number by chance; of those of Task2MCP with more, the
# six that do are one each.
ALIKE = 30
EVERY_NAME = frozenset({"mcp", "server"})
ONE_WORD = re.compile("[A-Za-z]?[a-z]*")


@dataclass(frozen=True)
class Found:
    """One server of an answer."""

    item: Recommendation
    facts: Facts
    same: tuple[str, ...] = ()  # names or addresses of entries that are the same server, left out


@dataclass(frozen=True)
class Answered:
    """The answer to one request."""

    understood: Understood
    found: tuple[Found, ...]  # best first; empty where nothing fits
    notes: tuple[str, ...]  # what was understood, and what the data cannot say
    fits: bool
    closeness: float | None = None
    left_out: int = 0  # servers that fit, too, but that a filter leaves out


def answer(
    model: SavedModel,
    request: str,
    facts_of: Callable[[Recommendation], Facts],
    settings: Answering,
    *,
    k: int,
    attributes: dict[str, str] | None = None,
    keep: Callable[[Recommendation], bool] | None = None,
    with_prior: bool = True,
    unfit: bool = False,
) -> Answered:
    """The `k` best servers for a request, with what is known of each.

    `facts_of`: facts of a server that the model names. `keep`: leaves out the others; of a large catalogue, it then
    names only servers that fit by themselves. `with_prior`: False ranks by the model alone. `unfit`: True names the
    nearest servers even where nothing fits. Raises StudyError: as `SavedModel.recommend`.
    """
    read, near, fits = read_request(model, request, settings)
    text = read.text if read.text.strip() else request
    notes = [*read.notes, *not_understood(read, fits)]
    size = len(model.servers)
    by, named = named_by(model, request) if model.standardised else ("", frozenset())
    # A number outside the catalogue is the model's to refuse.
    depth = k if not 1 <= k <= size else size if keep else min(size, max(k, settings.pool))
    ranked = model.recommend(text, **(attributes or {}), k=depth)
    if named - {item.server_id for item in ranked}:
        ranked = model.recommend(text, **(attributes or {}), k=size)
    if not fits and not unfit and not named:
        return Answered(read, (), tuple(notes), False, near)
    fits, left_out = fits or bool(named), 0
    alone = frozenset(item.server_id for item in ranked)
    if tells := fits and size >= settings.large:
        described = (f"{item.name}\n{item.description}" for item in ranked)
        fitting = fitting_alone(text, [item.score for item in ranked], described, settings.filtered)
        alone = named | {item.server_id for item, fit in zip(ranked, fitting, strict=True) if fit}
    if keep:
        kept = {item.server_id for item in ranked if keep(item)}
        left_out = len(alone - kept)
        fits = fits and len(alone) > left_out
        ranked = [item for item in ranked if item.server_id in kept and (unfit or item.server_id in alone)]
    first = max(k, settings.pool)
    ranked = [item for place, item in enumerate(ranked) if place < first or item.server_id in named]
    pool = [Found(item, facts_of(item)) for item in ranked]
    if model.standardised:
        words = dict.fromkeys(named, by)
        pool = [_adjusted(one, read, settings, with_prior, words) for one in pool]
        pool.sort(key=lambda one: -one.item.score)  # stable: equal scores keep the model's order
    pool = without_repeats(pool)
    shown = pool[:k]
    notes += _said(read, shown)
    if with_prior and tells:
        sound = [one.item.server_id in alone and not one.facts.marks for one in pool[k:]]
        stars = [one.facts.stars or 0 for one in pool]
        notes += better_known([one.item.name for one in pool], stars, sound, settings.known)
    ordered = (replace(one, item=replace(one.item, rank=rank)) for rank, one in enumerate(shown, start=1))
    return Answered(read, tuple(ordered), tuple(notes), fits, near, left_out)


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


def better_known(names: Sequence[str], stars: Sequence[int], sound: Sequence[bool], rule: Known) -> list[str]:
    """What is said of a server below those shown that is much better known than each of them.

    `names`, `stars`: of all servers, best first. `sound`: of those that are not shown, whether one may be named.
    """
    shown = len(stars) - len(sound)
    may = [place for place, right in enumerate(sound, start=shown) if right]
    place = max(may, key=stars.__getitem__, default=None)
    if place is None or stars[place] < max(rule.stars, rule.times * max(stars[:shown], default=0)):
        return []
    return [f"much better known, in place {place + 1}: {names[place]} ({stars[place]:,} stars)"]


# Both read every text of a catalogue, which an answer need not wait for twice.
@lru_cache(maxsize=4)
def _words(model: SavedModel) -> Counter[str]:
    texts = zip(model.servers["name"], model.servers["description"], strict=True)
    return vocabulary(f"{name} {text}" for name, text in texts)


def named_by(model: SavedModel, request: str) -> tuple[str, frozenset[int]]:
    """What a whole request is, "its name" or "its tool", and the ids of the servers that have it, none for other
    requests. A tool is named as it is written, and never by one plain word, which says what is to be done."""
    names, tools = _bearers(model)
    if found := names.get(plain(request)):
        return "its name", frozenset(found)
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


def _adjusted(one: Found, read: Understood, settings: Answering, with_prior: bool, named: Mapping[int, str]) -> Found:
    """A server with what its facts and the request add to its score. `named`: servers that it names, by what."""
    product = one.item.parts.get("product", 0) > 0
    parts = prior(one.facts, settings.prior, named=product) if with_prior else {}
    if one.item.server_id in named:
        parts[named[one.item.server_id]] = settings.named
    said = f"{one.item.name}\n{one.item.description}"
    if read.direction[0] and reversed_only(said, read.direction, settings.formats):
        parts["direction"] = -settings.direction
    if "popular" in read.wishes and one.facts.stars:
        parts["wish: popular"] = settings.wish * stars_share(one.facts.stars, settings.prior)
    if "official" in read.wishes and one.facts.official:
        parts["wish: official"] = settings.wish
    if not parts:
        return one
    score = round(one.item.score + sum(parts.values()), 6)
    return replace(one, item=replace(one.item, score=score, parts={**one.item.parts, **rounded(parts)}))


def without_repeats(pool: Sequence[Found]) -> list[Found]:
    """Each server once: entries of one address, of one name in a repository of several servers, and of one description
    (forks) are shown as their first."""
    first: dict[str, int] = {}
    kept: list[Found] = []
    for one in pool:
        address = one.facts.address or _named_there(one.item)
        keys = same_keys(address, one.item.description, one.facts.stars or 0)
        place = next((first[key] for key in keys if key in first), None)
        if place is None:
            place = len(kept)
            kept.append(one)
        else:
            same, facts = (*kept[place].same, one.facts.id or one.item.url or one.item.name), kept[place].facts
            kept[place] = replace(kept[place], same=same, facts=replace(facts, does=facts.does or one.facts.does))
        for key in keys:
            first.setdefault(key, place)
    return kept


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


def _said(read: Understood, shown: Sequence[Found]) -> list[str]:
    """What the data can and cannot say about the wishes."""
    notes = []
    facts = [one.facts for one in shown]
    if "popular" in read.wishes:
        known = sum(item.stars is not None for item in facts)
        notes.append(f"popular: read as many stars, which are known for {known} of these {len(facts)}")
    if "official" in read.wishes:
        marked = sum(bool(item.official) for item in facts)
        notes.append(f"official: {marked or 'none'} of these {len(facts)} {'is' if marked == 1 else 'are'} marked so")
    if "maintained" in read.wishes:
        dated = sum(bool(item.updated) for item in facts)
        notes.append(f"maintained: the data cannot say; a last update is known for {dated} of these {len(facts)}")
    return notes
