"""The core that every face shares: request in, checked answer out. It keeps no state of a conversation."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from pandas.api.types import is_numeric_dtype

from study import paths
from study.advisor.agent.answer import Answer, Checks, ReasonedServer
from study.advisor.agent.claims import (
    DESCRIPTIVE,
    Claim,
    Context,
    Evidence,
    compare,
    composition,
    sections,
    shown_fields,
)
from study.advisor.agent.extraction import Extraction, Extractor
from study.advisor.agent.model import Model, checked, recorded
from study.advisor.agent.retrieval import Retriever, Scores, Useful, build_retriever
from study.advisor.agent.settings import Settings, Setup, Words, read_conf
from study.advisor.agent.specification import (
    KINDS,
    Attributes,
    BoolArray,
    Specification,
    Vocabulary,
    filter_servers,
    filters,
    relaxed,
)
from study.advisor.agent.text import content_words, phrase
from study.advisor.arrays import FloatArray, IntArray
from study.advisor.engine.answer import better_known, fitting_alone, not_understood, same_keys
from study.advisor.engine.facts import Facts, Shelf, prior, stars_share
from study.advisor.engine.request import Understood, reversed_only, understand, vocabulary
from study.advisor.retrieval.ranking import tie_order, top_k
from study.advisor.saved import saved
from study.advisor.saved.settings import Answering
from study.data.dataset import Dataset, load
from study.errors import StudyError, require_one_of

MOST_COMPARED = 5
# Kinds of constraints whose values the catalogue's description lists.
LISTED = ("language", "platform", "licence", "preference")
KEPT_MESSAGES = 2_048
# Columns of the servers that the agent reads beside those of every data set, and whether they hold numbers.
COLUMNS = dict.fromkeys(("language_tokens", "system_tokens", "license_clean", "category_clean"), False)
COLUMNS |= dict.fromkeys(("is_official", "stars_count"), True)


class Agent:
    """T2MAgent over one catalogue. By default the settings name the retriever, and rules and templates answer alone,
    without a language model."""

    def __init__(
        self,
        data: Dataset,
        *,
        retriever: Retriever | None = None,
        model: Model | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.data, self.model = data, model
        self.answering = Answering.read()
        self.settings, self.words, self.setup = settings or read_conf(Settings), read_conf(Words), read_conf(Setup)
        self.vocabulary = Vocabulary.of(data, self.words)
        # Messages are read again and again: as a request, for its search words, for its claims.
        self.extract = lru_cache(maxsize=KEPT_MESSAGES)(Extractor(self.vocabulary, self.words).extract)
        self.attributes = Attributes(data.servers)
        self.ids = data.servers["id"].to_numpy(dtype=np.int64)
        self.row = {int(server): row for row, server in enumerate(self.ids)}
        self.median_stars = float(np.median(self.attributes.stars)) if len(self.ids) else 0.0
        # At most so many servers mention a rare word.
        self.rare = max(self.words.rare_share * data.n_servers, self.words.rare_servers)
        self.order = tie_order(data.n_servers, self.settings.seed)
        self.understand = lru_cache(maxsize=KEPT_MESSAGES)(self._understand)
        self.mentioning = lru_cache(maxsize=KEPT_MESSAGES)(self._mentioning)
        cards = data.servers.to_dict("records")
        self.fields = lru_cache(maxsize=KEPT_MESSAGES)(lambda row: shown_fields(cards[row]))
        texts = data.server_texts(DESCRIPTIVE)
        # Preference -> which servers' own words show it, shape (n_servers,).
        self.shows = {
            name: np.array([bool(phrase(*cues["shown"]).search(text)) for text in texts], dtype=bool)
            for name, cues in self.words.preferences.items()
        }
        # Last: its encoder may still be read meanwhile (`study.advisor.saved.ahead`).
        self.retriever = retriever or build_retriever(self.settings.retriever, data)

    @classmethod
    def load(cls, dataset: str, *, retriever: str | None = None) -> Agent:
        """The agent over a prepared data set, as ``conf/agent`` says."""
        settings = read_conf(Settings)
        if retriever is not None:
            settings = replace(settings, retriever=retriever)
        data, fix = load(dataset), f"run: study prepare dataset={dataset}"
        for part, table in (("servers", data.servers), ("tasks", data.tasks)):
            for column in (str(name) for name in table if not is_numeric_dtype(table[name])):
                if (absent := table[column].isna().to_numpy()).any():
                    file, row = paths.prepared(dataset) / f"{part}.parquet", int(absent.argmax())
                    raise StudyError("a text is missing", file=file, row=row, column=column, fix=fix)
        for column, numbers in COLUMNS.items():
            file = paths.prepared(dataset) / "servers.parquet"
            if column not in data.servers:
                raise StudyError("a column is missing", file=file, column=column, fix=fix)
            if numbers != is_numeric_dtype(data.servers[column]):
                raise StudyError("a column of another kind", file=file, column=column, fix=fix)
        return cls(data, settings=settings, model=model_of(settings))

    def require_readable(self, message: str) -> None:
        """StudyError for an empty or oversized message."""
        longest = self.settings.limits["request"]
        if not message.strip() or len(message) > longest:
            problem = f"has {len(message)} characters, at most {longest} are read" if message.strip() else "is empty"
            fix = "say what is to be done, or what should change"
            raise StudyError(f"the message {problem}", fix=fix)

    def read(self, message: str, asked: str = "") -> Extraction:
        """What a message states: by the language model if there is one and it answers usably, else by rules. `asked`:
        kind of constraint that was just asked for. StudyError: an empty or oversized message."""
        self.require_readable(message)
        by_rules = self.extract(message, asked)
        if self.model is None:
            return by_rules
        try:
            specification, dropped = self.model.read(message, self.vocabulary)
        except StudyError as error:
            return replace(by_rules, problem=error.reason)
        stated = {KINDS[name] for name in specification.constraints() if name in KINDS}
        left = tuple(name for name in by_rules.specification.open if name not in stated)
        return replace(by_rules, specification=replace(specification, open=left), dropped=dropped)

    @cached_property
    def shelf(self) -> Shelf:
        """What is known of the servers beside the data set; nothing of invented ones."""
        return Shelf.here() if self.data.name == saved.DATASET else Shelf(None, None)

    @cached_property
    def known(self) -> Mapping[str, int]:
        """Word -> servers whose name or description holds it; empty for a small catalogue, which knows few words."""
        if self.data.n_servers < self.answering.large:
            return {}
        pairs = zip(self.data.servers["name"], self.data.servers["description"], strict=True)
        return vocabulary(f"{name} {text}" for name, text in pairs)

    def facts(self, server: int) -> Facts:
        """What is said of a server in a line."""
        fields = self.fields(self.row[server])
        return self.shelf.of_task2mcp(server, fields["name"], fields["description"])

    def _understand(self, intent: str) -> Understood:
        """What is searched for: the request without its constraints, which have their own ways and would only blur the
        search, and with typos and short names read."""
        return understand(self.extract(intent).task or intent, self.known, self.answering)

    def fits(self, specification: Specification) -> bool:
        """Whether anything in the catalogue is close to the request, as far as the retriever can tell."""
        read = self.understand(specification.intent)
        if not self.known or not hasattr(self.retriever, "closeness"):
            return True
        if not read.text.strip():
            return False
        encoder, near = self.retriever.closeness(read.text, self.answering.nearest)
        return bool(near >= self.answering.fit.get(encoder, near))

    def rank(self, specification: Specification) -> tuple[IntArray, Scores]:
        """All rankable servers, best first: rows, shape (at most n_servers,), and the scores with their parts.
        StudyError: no intent."""
        if not specification.intent.strip():
            raise StudyError("the request says nothing to be done", fix="describe the task in a few words")
        read = self.understand(specification.intent)
        scores = self.retriever.score(replace(specification, intent=read.text or specification.intent))
        total, parts = scores.total, dict(scores.parts)
        added: dict[str, FloatArray] = {}
        if specification.preferences:
            # Of the stated preferences, what each server's own words show, shape (n_servers,).
            share = np.mean([self.shows[name] for name in specification.preferences], axis=0)
            # In the unit of the scores, which differs between retrievers.
            unit = self.settings.preference_weight * float(np.std(total[np.isfinite(total)]))
            parts["preferences"] = (unit * share).astype(np.float32)
            total = total + parts["preferences"]
        if isinstance(self.retriever, Useful):
            added = self._adjustments(read, total, parts)
            parts |= added
            total = total + np.sum([*added.values(), np.zeros_like(total)], axis=0, dtype=np.float32)
        rows, _ = top_k(total[None, :], self.data.n_servers, self.order)
        return rows[0][rows[0] >= 0], Scores(total, parts, frozenset(added))

    def _adjustments(
        self, read: Understood, total: FloatArray, parts: Mapping[str, FloatArray]
    ) -> dict[str, FloatArray]:
        """What prior, direction and wishes add to the scores of the best-ranked servers: name -> shape (n_servers,)."""
        added: dict[str, FloatArray] = {}
        best, _ = top_k(total[None, :], min(self.answering.pool, len(total)), self.order)
        for row in best[0]:
            fields, named = self.fields(row), parts["product"][row] > 0 if "product" in parts else False
            marks = self.answering.marks_of(fields["name"], fields["description"])
            facts = Facts(
                "", "", "", int(self.attributes.stars[row]), official=bool(self.attributes.official[row]), marks=marks
            )
            values = prior(facts, self.answering.prior, named=bool(named))
            text = f"{fields['name']}\n{fields['description']}"
            if read.direction[0] and reversed_only(text, read.direction, self.answering.formats):
                values["direction"] = -self.answering.direction
            if "popular" in read.wishes:
                values["wish: popular"] = self.answering.wish * stars_share(facts.stars, self.answering.prior)
            for name, value in values.items():
                added.setdefault(name, np.zeros(len(total), dtype=np.float32))[row] = value
        return added

    def recommend(
        self, specification: Specification, *, top: int | None = None, checks: Checks | None = None
    ) -> Answer:
        """The checked answer to a specification. `top`: servers in the answer, by default as the settings say.
        `checks`: what was noted when the request was read (`noted`). StudyError: no intent, or `top` out of range."""
        top = self.settings.top if top is None else top
        if not 1 <= top <= self.settings.pool:
            raise StudyError(f"top = {top} is outside 1 ... {self.settings.pool}", fix="choose another number")
        ranked, scores = self.rank(specification)
        fits = self.fits(specification)
        alone = self._alone(specification, ranked, scores) if fits else np.ones(self.data.n_servers, np.bool_)
        fitting = alone if filters(specification, self.attributes, self.settings.keep_unknown) else np.ones_like(alone)
        kept, removals = filter_servers(specification, self.attributes, ranked, self.ids, self.settings, fitting)
        left_out = int((fitting & ~kept)[ranked].sum())
        rows = self._once(ranked[(kept & fitting)[ranked]], self.answering.pool) if fits else []
        ids = [int(self.ids[row]) for row in rows[:top]]
        context = self.context(specification, ids, ranked, scores)
        answer = Answer(
            specification,
            self.retriever.name,
            tuple(
                ReasonedServer(rank, server, context.evidence[server], *map(tuple, sections(context, server).values()))
                for rank, server in enumerate(ids, start=1)
            ),
            comparison=tuple(compare(context)),
            composition=tuple(composition(context)),
            removals=tuple(removals),
            kept=int(kept[ranked].sum()),
            relax=tuple(relaxed(removals)) if fits and len(ids) < top else (),
            checks=checks or Checks(),
            notes=self._notes(specification, rows, top, alone, fits, left_out if fits and len(ids) < top else 0),
            fits=fits,
        )
        if self.model is None or not ids:
            return answer
        try:
            worded = self.model.explain(answer, context)
        except StudyError as error:
            return replace(answer, checks=replace(answer.checks, problems=(error.reason,), fallback=True))
        share = float(self.settings.llm["support"])
        return checked(worded, answer, context, self.vocabulary, share)

    def _alone(self, specification: Specification, ranked: IntArray, scores: Scores) -> BoolArray:
        """Which servers fit by themselves, shape (n_servers,); all if the retriever cannot tell."""
        found = np.ones(self.data.n_servers, dtype=np.bool_)
        if self.known and isinstance(self.retriever, Useful):
            # By scores without what the prior adds.
            own = scores.total - sum(scores.parts[name] for name in scores.added)
            order = ranked[np.argsort(-own[ranked], kind="stable")]
            texts = (self.lowered[row][0] for row in order)
            words = self.understand(specification.intent).text or specification.intent
            found[order] = fitting_alone(words, own[order].tolist(), texts, self.answering.filtered)
        return found

    def _once(self, rows: IntArray, top: int) -> list[int]:
        """The first `top` rows without repeats of one server."""
        found: list[int] = []
        seen: set[str] = set()
        for row in rows:
            fields = self.fields(row)
            keys = same_keys(fields["repository_link"], fields["description"], int(self.attributes.stars[row]))
            if not seen & set(keys):
                found.append(int(row))
            seen |= set(keys)
            if len(found) == top:
                break
        return found

    def _notes(
        self, specification: Specification, rows: list[int], top: int, alone: BoolArray, fits: bool, left_out: int
    ) -> tuple[str, ...]:
        """What was understood otherwise than written, what was left out that fits, what the data cannot say, and who
        of `rows` is much better known than the `top` first. `alone`: who fits alone; all where this cannot be told."""
        notes = [*(read := self.understand(specification.intent)).notes, *not_understood(read, fits)]
        notes += [f"the constraints leave out {left_out} servers that fit"] if left_out else []
        if "maintained" in understand(specification.intent, {}, self.answering).wishes:
            notes.append("the data cannot say who is maintained: its activity is the same for nearly all servers")
        if not specification.languages and len(main := self._languages(rows[:top])) > 1:
            notes.append(f"these are written in {', '.join(main)}; say which language it must be, if it matters")
        if rows and not alone.all():
            told = [self.fields(row) for row in rows]
            named = [not self.answering.marks_of(fields["name"], fields["description"]) for fields in told]
            stars, sound = self.attributes.stars[rows].tolist(), (alone[rows] & named).tolist()
            notes += better_known([fields["name"] for fields in told], stars, sound[top:], self.answering.known)
        return tuple(notes)

    def _languages(self, rows: list[int]) -> list[str]:
        """The main languages of servers, without repeats."""
        found = (self.fields(row)["languages"].partition(",")[0] for row in rows)
        return list(dict.fromkeys(name for name in found if name))

    def context(self, specification: Specification, ids: list[int], ranked: IntArray, scores: Scores) -> Context:
        """What rules may look at for the servers `ids`, in this order. StudyError: an unknown server."""
        place = np.zeros(self.data.n_servers, dtype=np.int64)
        place[ranked] = np.arange(1, len(ranked) + 1)
        evidence = {}
        for server in ids:
            self.require_known(server)
            row = self.row[server]
            parts: dict[str, Any] = {"total": scores.total[row], "rank": place[row]}
            # What was added to some servers alone is a part of theirs.
            parts |= {
                name: values[row] for name, values in scores.parts.items() if values[row] or name not in scores.added
            }
            shown = {name: round(float(value), 4) for name, value in parts.items() if np.isfinite(value)}
            evidence[server] = Evidence(server, self.fields(row), shown)
        asked = self.extract(specification.intent).rest
        mentioned = {word: self.mentioning(word) for word in asked}
        return Context(specification, asked, self.words, self.setup, self.median_stars, mentioned, self.rare, evidence)

    def require_known(self, server: int) -> None:
        """StudyError: no server has this id."""
        if server not in self.row:
            fix = "use an id of a recommendation"
            raise StudyError(f"no server has the id {server}", column="server_id", fix=fix)

    def _mentioning(self, word: str) -> int:
        """How many servers mention a content word, given in its singular form, with which the word itself begins."""
        return sum(word in low and word in content_words.__wrapped__(text) for text, low in self.lowered)

    @cached_property
    def lowered(self) -> list[tuple[str, str]]:
        """Every server's text, as it is and in lower case."""
        texts = self.data.server_texts(DESCRIPTIVE)
        return [(text, unicodedata.normalize("NFKC", text).lower()) for text in texts]

    def compare(self, specification: Specification, ids: list[int]) -> tuple[dict[int, Evidence], list[Claim]]:
        """Evidence of the given servers, and when to prefer which. StudyError: fewer than two or too many servers, a
        repeated or an unknown one."""
        if not 2 <= len(ids) <= MOST_COMPARED or len(set(ids)) != len(ids):
            raise StudyError(f"a comparison needs 2 to {MOST_COMPARED} different servers", column="server_ids")
        context = self.context(specification, ids, *self.rank(specification))
        return dict(context.evidence), compare(context)

    def explain(self, specification: Specification, server: int) -> tuple[Evidence, dict[str, list[Claim]]]:
        """Evidence of one server, and why, trade-offs and adoption. StudyError: an unknown server."""
        context = self.context(specification, [server], *self.rank(specification))
        return context.evidence[server], sections(context, server)

    def options(self, specification: Specification, kind: str) -> list[str]:
        """The values of a constraint that are most frequent among the best-ranked servers, most frequent first."""
        ranked, _ = self.rank(specification)
        values = self.attributes.values[kind]  # noqa: PD011 - no table
        known = self.vocabulary.names[kind]
        counts = Counter(value for row in ranked[: self.settings.pool] for value in values[row] if value in known)
        best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: self.settings.options]
        return [known[name] for name, _ in best]

    def describe(self) -> dict[str, Any]:
        """Counts of the catalogue and the values that constraints may take."""
        return {
            "dataset": self.data.name,
            "servers": self.data.n_servers,
            "system": self.retriever.name,
            "with_licence": int((~self.attributes.empty["licence"]).sum()),
            "with_platform": int((~self.attributes.empty["platform"]).sum()),
            "official": int(self.attributes.official.sum()),
            "median_stars": self.median_stars,
            **{f"{kind}s": self.vocabulary.options(kind) for kind in LISTED},
            # Of servers; the themes of tasks are known, too.
            "domains": sorted({*self.data.servers["category_clean"]} - {""}),
        }


def noted(*readings: Extraction) -> Checks:
    """What an answer says of the readings of the messages that led to it."""
    problems = dict.fromkeys(reading.problem for reading in readings if reading.problem)
    return Checks(reading="; ".join(problems), dropped=sum(reading.dropped for reading in readings))


def model_of(settings: Settings) -> Model | None:
    """The language model that the settings name; None where its mode is ``off``."""
    # Only where a model is used: the client of the endpoint takes a second to load.
    from study.advisor.llm import client as llm

    chosen = settings.llm
    modes: dict[str, llm.Mode] = {"replay": "replay", "record": "record", "live": "off"}
    if chosen["mode"] == "off":
        return None
    file = paths.conf() / "agent" / "agent.yaml"
    require_one_of(chosen["mode"], "mode", ("off", *modes), file=file, column="llm.mode")
    client = llm.Client(
        chosen["base_url"],
        modes[chosen["mode"]],
        recorded(paths.root() / chosen["cassette"]),
        keep_requests=False,  # they quote the catalogue, whose texts may not be passed on
        timeout=chosen["timeout"],
        retries=chosen["retries"],
    )
    return Model(client, chosen)
