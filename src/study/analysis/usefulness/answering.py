"""What `study recommend` answers to the requests of ``conf/recommend/requests.yaml``: telling what does not fit, what
its prior costs, and how its first servers differ from those of the ranking alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from study.advisor.engine.answer import Options, ask, fitting_alone, read_request, same_keys
from study.advisor.engine.catalogue import Catalogue
from study.advisor.engine.facts import Facts, Shelf, prior
from study.advisor.saved import open_catalogue as catalogue
from study.advisor.saved import saved
from study.advisor.saved.contract import SavedModel
from study.advisor.saved.settings import Answering
from study.analysis.framework import Context, Tables, analysis
from study.analysis.usefulness.choosing import first_ten, judged_rows, topic_scores, variants
from study.base import paths
from study.base.files import read_csv
from study.base.settings import read_settings
from study.data.dataset import Dataset, FloatArray
from study.evaluation.ranking import tie_order, top_k
from study.evaluation.separation import separation
from study.judging import store
from study.judging.collection import DEPTH, Collection
from study.judging.pools import load_split

# The judged collection of the open catalogue, and how many servers an answer names.
OPEN, FIRST = "open", 5
# The servers of a ranking over the open catalogue that are told apart.
JUDGED_DEPTH = 100
# Weights of the prior that are compared on the validation topics.
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
# The kinds of requests, keys of the file.
KINDS = ("served", "unserved")


@dataclass(frozen=True)
class Requests:
    """``conf/recommend/requests.yaml``: requests that servers serve, and others."""

    served: list[str]
    unserved: list[str]

    @classmethod
    def read(cls) -> Requests:
        """The file, checked."""
        return read_settings(cls, paths.conf() / "recommend" / "requests.yaml")


def fit_rows(
    name: str, model: SavedModel, requests: Requests, settings: Answering, *, known: Sequence[str] = ()
) -> Iterator[dict[str, object]]:
    """How far requests that a server serves stand apart from others: by half of the requests, of which the first was
    used to choose the threshold. A request without any known word has closeness 0.

    `known`: requests that were written for one server of the catalogue each.
    """
    asked = [*requests.served, *known, *requests.unserved]
    _, closeness, fitting = zip(*(read_request(model, request, settings) for request in asked), strict=True)
    near, fits = np.array([found or 0.0 for found in closeness]), np.array(fitting)
    place = np.arange(len(asked))
    served, written = place < len(asked) - len(requests.unserved), place >= len(requests.served)
    for half, part in enumerate(("choice", "test")):
        mine = place % 2 == half
        # Nearer means a smaller distance.
        apart = separation(1 - near[mine][None], served[mine][None], depth=DEPTH)
        yield {
            "catalogue": name,
            "part": part,
            "n_served": int((mine & served).sum()),
            "n_known": int((mine & served & written).sum()),
            "n_unserved": int((mine & ~served).sum()),
            "auc": float(apart["auc"].iloc[0]),
            "served_answered": float(fits[mine & served].mean()),
            "known_answered": float(fits[mine & served & written].mean()) if known else None,
            "unserved_refused": float(1 - fits[mine & ~served].mean()),
        }


def filtered_rows(
    model: SavedModel, judged: pd.DataFrame, requests: Requests, settings: Answering
) -> Iterator[dict[str, object]]:
    """How far `fitting_alone` tells useful servers of a ranking from others, by half of the requests. Its settings were
    chosen on the first.

    `judged`: columns task_id (place of the request among the served ones, from 1), server_id (the model's), final.
    """
    frames = []
    for task, request in enumerate(requests.served, start=1):
        read, _, fits = read_request(model, request, settings)
        if fits:
            ranked = model.recommend(read.text, k=min(JUDGED_DEPTH, len(model.servers)))
            described = (f"{item.name}\n{item.description}" for item in ranked)
            alone = fitting_alone(read.text, [item.score for item in ranked], described, settings.filtered)
            rows = {"server_id": [item.server_id for item in ranked], "fits": alone, "task_id": task}
            frames.append(pd.DataFrame(rows))
    found = pd.concat(frames).merge(judged, on=["task_id", "server_id"])
    for half, part in enumerate(("choice", "test")):
        mine = found[(found["task_id"] - 1) % 2 == half]
        useful, useless = mine[mine["final"] > 0]["fits"], mine[mine["final"] == 0]["fits"]
        counts = {"n_useful": len(useful), "n_useless": len(useless)}
        yield {"part": part, **counts, "useful_kept": useful.mean(), "useless_left_out": 1 - useless.mean()}


def prior_of(data: Dataset, settings: Answering) -> FloatArray:
    """The prior of every server at weight 1, shape (n_servers,)."""
    unit, columns = replace(settings.prior, weight=1.0), ["name", "description", "stars_count", "is_official"]
    values = []
    for name, text, stars, official in data.servers[columns].itertuples(index=False):
        facts = Facts("", "", "", int(stars), official=bool(official), marks=settings.marks_of(name, text))
        values.append(sum(prior(facts, unit).values()))
    return np.array(values, dtype=np.float32)


def prior_table(dataset: str, settings: Answering, *, seed: int = 0) -> pd.DataFrame:
    """`field_dense` with the prior on the judged topics: every weight on the validation topics, and the one in force on
    the test topics. Returns: part, weight, and those of `judged_rows`, differences from weight 0."""
    data, split = load_split(dataset)
    system, unit, rows = variants({"field_dense": {}})["field_dense"], prior_of(data, settings), []
    for part, weights in (("valid", WEIGHTS), ("test", (0.0, settings.prior.weight))):
        collection = Collection.load(dataset).part(part)
        scores = topic_scores(system, data, split.known(part), collection.topics)
        pool, _ = top_k(scores, settings.pool, tie_order(data.n_servers, seed))
        near = np.full_like(scores, -np.inf)
        np.put_along_axis(near, pool, np.take_along_axis(scores, pool, 1), 1)
        runs: dict[Hashable, pd.DataFrame] = {
            weight: first_ten(near + np.float32(weight) * unit, data, collection.topics, seed) for weight in weights
        }
        found = judged_rows(collection, runs, seed=seed)
        rows += [{"part": part, "weight": weight, **row} for weight, row in zip(weights, found, strict=True)]
    return pd.DataFrame(rows)


def judged_servers(servers: pd.DataFrame) -> pd.DataFrame:
    """Judged pairs of the open catalogue whose server has the judged texts today: task_id, server_id (row of
    `servers`), final."""
    keys = ["id", "sha256_description", "sha256_tools"]
    here = servers[keys].rename_axis("row").reset_index()
    named = read_csv(store.folder(OPEN) / "servers.csv").merge(here, on=keys).set_index("server_id")["row"]
    judged = store.final(OPEN)
    judged = judged.assign(server_id=judged["server_id"].map(named)).dropna(subset="server_id")
    return judged[["task_id", "server_id", "final"]].astype(int)


def answered(
    catalogue: Catalogue,
    requests: Requests,
    settings: Answering,
    grades: Mapping[tuple[int, int], int],
) -> Iterator[dict[str, object]]:
    """The first five servers of both answers to each request, the ranking's alone and that of `study recommend`: kind,
    request (from 1), answer, rank, row (the server's id in the model), repeated (whether the answer names the same
    server before), grade (None: not judged).

    `grades`: of (served request, server).
    """
    options = Options(FIRST, settings=settings)
    for kind in KINDS:
        for place, request in enumerate(getattr(requests, kind), start=1):
            read = [item.server for item in ask(catalogue, request, options).items]
            for name, found in (("ranking", catalogue.model.recommend(request, k=FIRST)), ("recommend", read)):
                seen = set[str]()
                for item in found:
                    keys = set(same_keys(catalogue.facts(item).address, item.description))
                    row = {"kind": kind, "request": place, "answer": name, "rank": item.rank, "row": item.server_id}
                    grade = grades.get((place, item.server_id)) if kind == KINDS[0] else None
                    yield row | {"repeated": bool(keys & seen), "grade": grade}
                    seen |= keys


def summary(found: pd.DataFrame, counts: Mapping[str, int]) -> pd.DataFrame:
    """One row per catalogue, system and answer of `answered`: served_answered and unserved_refused (shares of the
    requests), same_first (of served requests that both answer), repeats (places of served requests that repeat a
    server), useful_first and useful (shares of judged places), unjudged (share of places; 1 where nothing is judged).

    `counts`: requests of each kind.
    """
    rows, keys = [], ["catalogue", "system", "answer"]
    first = found[(found["rank"] == 1) & (found["kind"] == KINDS[0])]
    for names, own in found.groupby(keys, sort=False):
        served, asked = own[own["kind"] == KINDS[0]], own.groupby("kind")["request"].nunique()
        pair = first[(first["catalogue"] == names[0]) & (first["system"] == names[1])]
        both = pair.pivot_table(index="request", columns="answer", values="server", aggfunc="first").dropna()
        judged = served.dropna(subset="grade")
        row: dict[str, object] = dict(zip(keys, names, strict=True))
        row["served_answered"] = asked.get(KINDS[0], 0) / counts[KINDS[0]]
        row["unserved_refused"] = 1 - asked.get(KINDS[1], 0) / counts[KINDS[1]]
        row["same_first"] = (both["ranking"] == both["recommend"]).mean()
        row["repeats"] = served["repeated"].mean()
        row["useful_first"] = (judged[judged["rank"] == 1]["grade"] > 0).mean() if len(judged) else None
        row["useful"] = (judged["grade"] > 0).mean() if len(judged) else None
        rows.append(row | {"unjudged": served["grade"].isna().mean()})
    return pd.DataFrame(rows)


@analysis("usefulness", slow=True)
def answering(study: Context) -> Tables:
    """Does `study recommend` tell requests and servers that do not fit, and what do its reading and prior cost?

    Needs the open catalogue, and the systems of `saved.USEFUL` as `study export` saves them.
    """
    settings, requests, dataset = Answering.read(), Requests.read(), study.dataset
    ranking, servers = catalogue.load()
    models = {name: saved.load_saved_model(dataset, name) for name in saved.USEFUL}
    written = read_csv(paths.conf() / "usefulness" / "known_items.csv")["request"].tolist()
    fit = [
        *fit_rows(dataset, models[catalogue.SYSTEM], requests, settings, known=written),
        *fit_rows(OPEN, ranking, requests, settings),
    ]
    judged, listed, shelf = judged_servers(servers), Shelf.here(None), Shelf.here(servers)
    grades = {(task, row): grade for task, row, grade in judged.itertuples(index=False)}

    frames = [
        pd.DataFrame(answered(Catalogue.of_dataset(dataset, name, model, listed), requests, settings, {})).assign(
            catalogue=dataset, system=name
        )
        for name, model in models.items()
    ]
    rows = answered(Catalogue.of_table(OPEN, catalogue.SYSTEM, ranking, servers, shelf), requests, settings, grades)
    frames.append(pd.DataFrame(rows).assign(catalogue=OPEN, system=catalogue.SYSTEM))
    frames[-1]["row"] = frames[-1]["row"].map(servers["id"])
    found = (
        pd.concat(frames, ignore_index=True).astype({"row": str, "grade": "Int64"}).rename(columns={"row": "server"})
    )
    counts = {kind: len(getattr(requests, kind)) for kind in KINDS}
    study.facts.update({"threshold": dict(settings.fit), "weight": settings.prior.weight, **counts})
    study.facts["filtered"] = asdict(settings.filtered)
    found = found.rename(columns={"row": "server"})
    shown = ["catalogue", "system", "kind", "request", "answer", "rank", "server", "repeated", "grade"]
    return {
        "fit": pd.DataFrame(fit),
        "prior": prior_table(dataset, settings),
        "filtered": pd.DataFrame(filtered_rows(ranking, judged, requests, settings)),
        "first_answers": found[shown],
        "answers": summary(found, counts),
    }
