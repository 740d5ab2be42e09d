"""What is known of a recommended server beside its score, each with its source: for people and for the prior.

A server of Task2MCP and one of the open catalogue are the same if they name the same repository, and the catalogue has
one server there: its start command and the data set's stars then stand beside each other.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import log
from typing import Any

import pandas as pd

from study.advisor.catalog import checks, store
from study.advisor.catalog.merge import GONE
from study.advisor.catalog.records import repository
from study.advisor.catalog.settings import Sources
from study.advisor.catalog.start import known_start
from study.advisor.catalog.trust import flags, sources_of
from study.advisor.saved.saved import DATASET
from study.advisor.saved.settings import Answering, Prior
from study.base import paths
from study.base.errors import StudyError

# Columns of its servers that are read here.
COLUMNS = ("id", "name", "url", "description", "stars_count", "license_clean", "language_tokens", "is_official")
# Marks of servers that are better not begun with.
ASIDE = frozenset({"archived", "deprecated", "moved"})
# Entries of one repository that may be one server.
FEW = 3
# Registry -> the languages that its packages are written in.
RUNTIMES = {"pypi": ("Python",), "npm": ("JavaScript", "TypeScript")}
_OPENING = re.compile(
    r"^(?:(?:an?|the|this(?:\s+is\s+an?)?)\s+)?(?:[\w-]+\s+)?(?:model\s+context\s+protocol\s+)?(?:\(?mcp\)?\s*)?[- ]?"
    r"server\s+(?:that|which|to|for|implementation\s+(?:that|for))\s+",
    re.I,
)
# A repository that says of itself that it is an archive.
_ARCHIVED = re.compile(r"[-_/]archived?$")
_SENTENCE = re.compile(r"(?<=[.!?。])\s+(?=[A-Z0-9\W])|\n")


@dataclass(frozen=True)
class Facts:
    """What is known of one server; `sources` names where each fact comes from, with a date where it has one."""

    id: str  # in the open catalogue, where it is one: what `study install` takes
    address: str  # where it alone lives; empty where others live there, too
    does: str  # the first sentence of its description
    stars: int | None = None
    licence: str = ""
    official: bool | None = None  # None: the source does not say
    languages: tuple[str, ...] = ()  # one of which it is written in
    status: str = ""
    updated: str = ""
    vouched: tuple[str, ...] = ()
    start: str = ""  # a command or an address, where a source vouches for it
    marks: tuple[str, ...] = ()  # of conf/recommend/answering.yaml: an attack demonstration, archived, ...
    flags: tuple[str, ...] = ()  # of conf/catalog/rules.yaml
    checked: str = ""  # what was found out of the ways to start it, here or by a source, with the day
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Where it runs, local or remote; '' where nobody knows its start."""
        return "" if not self.start else "remote" if self.start.startswith(("http://", "https://")) else "local"

    @property
    def language(self) -> str:
        """The languages in words; empty where none is known."""
        return " or ".join(self.languages)

    def data(self) -> dict[str, Any]:
        """As plain data, the languages in words."""
        values = asdict(self) | {"languages": self.language}
        return {name.replace("languages", "language"): value for name, value in values.items()}


def first_sentence(description: str) -> str:
    """The first sentence of a description without "A Model Context Protocol server that"."""
    plain = " ".join(description.split())
    sentence = _SENTENCE.split(plain, maxsplit=1)[0] if plain else ""
    short = _OPENING.sub("", sentence)
    return short[:1].upper() + short[1:] if len(short) > 10 else sentence


def stars_share(stars: int | None, settings: Prior) -> float:
    """From 0 without stars to 1 from `settings.full` stars on, by their logarithm."""
    return min(1.0, log(1 + max(0, stars or 0)) / log(1 + settings.full))


def prior(facts: Facts, settings: Prior, *, named: bool = False) -> dict[str, float]:
    """What speaks for a server whatever the request, by name; values add up to a weight at most. `named`: whether the
    request names its product."""
    shares = {
        "stars": settings.stars * stars_share(facts.stars, settings),
        "official": settings.official * bool(facts.official),
        "verified start": settings.verified * bool(facts.vouched),
        "aside": -settings.aside * bool(ASIDE & {*facts.marks, facts.status}),
    }
    weight = settings.named if named else settings.weight
    return {name: weight * share for name, share in shares.items() if share}


class Shelf:
    """The open catalogue and the servers of Task2MCP, as far as they are here, by place and by repository."""

    def __init__(self, catalogue: pd.DataFrame | None, dataset: pd.DataFrame | None) -> None:
        self.catalogue, self.settings = catalogue, Answering.read()
        self.dataset = pd.DataFrame(columns=list(COLUMNS)) if dataset is None else dataset

    @classmethod
    def here(cls, catalogue: pd.DataFrame | None = None) -> Shelf:
        """What this machine has; `catalogue`: its living servers, where they were read already."""
        if catalogue is None and (version := store.current()) is not None:
            table = store.read(version, "servers")
            catalogue = table[table["status"] != GONE].reset_index(drop=True)
        file = paths.prepared(DATASET) / "servers.parquet"
        if not file.exists():
            return cls(catalogue, None)
        try:
            return cls(catalogue, pd.read_parquet(file, columns=list(COLUMNS)))
        except (OSError, ValueError) as error:
            fix = f"run: study prepare dataset={DATASET}"
            raise StudyError(f"the servers do not load ({error})", file=file, fix=fix) from error

    @cached_property
    def dates(self) -> dict[str, str]:
        """Source -> the date of its data, as far as it is known."""
        return {name: archive.date for name, archive in Sources.read().archives.items() if archive.date}

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """Repository -> rows of the catalogue."""
        rows = {} if self.catalogue is None else self.catalogue.groupby("repository").indices
        return {str(address): list(map(int, of_address)) for address, of_address in rows.items() if address}

    @cached_property
    def listed(self) -> dict[str, int]:
        """Repository -> the row of Task2MCP's server with most stars there; those in folders are left out."""
        rows: dict[str, int] = {}
        stars = self.dataset["stars_count"].to_numpy()
        for row, url in enumerate(self.dataset["url"]):
            address, inside = repository(url)
            if address and not inside and (address not in rows or stars[row] > stars[rows[address]]):
                rows[address] = row
        return rows

    @cached_property
    def rows(self) -> dict[int, int]:
        """Id of Task2MCP -> row."""
        return {int(name): row for row, name in enumerate(self.dataset["id"])}

    def of_catalogue(self, row: int) -> Facts:
        """Facts of a server of the catalogue."""
        server = _row(self.catalogue, row)
        listed = None if server["subfolder"] else self.listed.get(server["repository"])
        return self._facts(server, _row(self.dataset, listed))

    def of_task2mcp(self, server_id: int, name: str = "", description: str = "") -> Facts:
        """Facts of a server of Task2MCP; of one that is not here, those of its name and description."""
        listed = _row(self.dataset, self.rows.get(server_id))
        if listed is None:
            return Facts("", "", first_sentence(description), marks=self.settings.marks_of(name, description))
        address, inside = repository(listed["url"])
        same = [] if inside else self.places.get(address, [])
        return self._facts(_row(self.catalogue, same[0] if len(same) == 1 else None), listed, card=listed)

    def _dated(self, source: str) -> str:
        return f"{source} {self.dates.get(source, '')}".strip()

    def _address(self, server: Any, card: Any) -> str:
        if card is not None:
            address, inside = repository(card["url"])
            return f"{address}/{inside}" if address else str(card["url"]).strip().rstrip("/")
        address, inside = server["repository"], server["subfolder"]
        # A repository that a catalogue lists many times holds several servers.
        return f"{address}/{inside}" if address and (inside or len(self.places[address]) <= FEW) else ""

    def _checked(self, server: Mapping[Any, Any]) -> str:
        """Which source could not start a server of the catalogue, and what was found out of its first two ways."""
        tried = [f"did not start at {self._dated(name)}" for name in sources_of(server, "failed")]
        results = list(checks.of(server).items())[:2]
        return "; ".join([*tried, *(checks.in_words(key, check, server["repository"]) for key, check in results)])

    def _facts(self, server: Any, listed: Any, card: Any = None) -> Facts:
        """From a row of the catalogue and one of Task2MCP, either of which may be None; `card`: the one to describe."""
        described = server if card is None else card
        sources: dict[str, str] = {}
        provenance = {} if server is None else json.loads(server["provenance"])

        def pick(name: str, column: str, listed_column: str, absent: tuple[Any, ...]) -> Any:
            if server is not None and server[column] not in absent:
                sources[name] = self._dated(provenance.get(column, ""))
                return server[column]
            if listed is not None and listed_column and listed[listed_column] not in absent:
                sources[name] = DATASET
                return listed[listed_column]
            return None

        stars = pick("stars", "stars", "stars_count", (-1,))
        licence = pick("licence", "licence", "license_clean", ("", "other"))
        # False of the catalogue means that no source says so.
        official = pick("official", "official", "is_official", (False,))
        status, updated = pick("status", "status", "", ("active",)), pick("updated", "updated", "", ("",))
        language = "" if listed is None else listed["language_tokens"].partition(",")[0]
        spoken: tuple[str, ...] = (language,) if language else ()
        if language:
            sources["language"] = DATASET
        started, start = None if server is None else known_start(server, claimed=True), ""
        if started is not None:
            start = shlex.join([started.command, *started.args]) if started.command else started.url
            if started.vouched:
                sources["start"] = ", ".join(map(self._dated, started.vouched))
            spoken = spoken or RUNTIMES.get(started.method, ())
        name, description = str(described["name"]), str(described["description"])
        marks = self.settings.marks_of(name, description)
        if server is not None and _ARCHIVED.search(server["repository"]) and "archived" not in marks:
            marks = (*marks, "archived")
        return Facts(
            id="" if server is None else str(server["id"]),
            address=self._address(server, card),
            does=first_sentence(description),
            stars=None if stars is None else int(stars),
            licence=licence or "",
            official=True if official else (False if listed is not None else None),
            languages=spoken,
            status=str(status or ""),
            updated=str(updated or "")[:10],
            vouched=() if server is None else tuple(sources_of(server, "vouched")),
            start=start,
            marks=marks,
            flags=() if server is None else tuple(flags(server)),
            checked="" if server is None else self._checked(server),
            sources=sources,
        )


def _row(table: Any, row: int | None) -> Any:
    return None if row is None else table.iloc[row]
