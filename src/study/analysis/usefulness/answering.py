"""What stands around the ranking: how well `study recommend` tells requests and servers that do not fit
(``conf/recommend/requests.yaml``), what its prior costs, and how sure it is of its first answer."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from study.advisor.encoders.sentence import encode
from study.advisor.engine.answer import fitting_alone, read_request
from study.advisor.engine.facts import Facts, prior
from study.advisor.retrieval.fields import FIELDS, VIEWS, texts
from study.advisor.saved import open_catalogue as catalogue
from study.advisor.saved import saved
from study.advisor.saved.contract import SavedModel
from study.advisor.saved.settings import Answering
from study.analysis.framework import Context, Tables, analysis
from study.analysis.usefulness.choosing import first_ten, judged_rows, topic_scores, variants
from study.base import paths
from study.base.errors import StudyError
from study.base.files import read_csv
from study.base.settings import read_settings
from study.data.dataset import Dataset, FloatArray
from study.evaluation.ranking import tie_order, top_k
from study.evaluation.statistics import auc
from study.judging import store
from study.judging.collection import DEPTH, Collection
from study.judging.store import load_split

OPEN = "open"  # the judged collection of the open catalogue
JUDGED_DEPTH = 100  # servers of a ranking over the open catalogue that are told apart
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # of the prior, compared on the validation topics


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
    name: str, model: SavedModel, requests: Requests, settings: Answering, written: Sequence[str] = ()
) -> Iterator[dict[str, object]]:
    """How far requests that a server serves stand apart from others: by half of the requests, of which the first was
    used to choose the threshold. A request without any known word has closeness 0.

    `written`: requests that were written for one server of the catalogue each.
    """
    every = [*requests.served, *written, *requests.unserved]
    _, closeness, fitting = zip(*(read_request(model, request, settings) for request in every), strict=True)
    near, fits = np.array([value or 0.0 for value in closeness]), np.array(fitting)
    number = np.arange(len(every))
    served, known = number < len(every) - len(requests.unserved), number >= len(requests.served)
    for half, part in enumerate(("choice", "test")):
        mine = number % 2 == half
        yield {
            "catalogue": name,
            "part": part,
            "n_served": int((mine & served).sum()),
            "n_known": int((mine & served & known).sum()),
            "n_unserved": int((mine & ~served).sum()),
            "auc": auc(near[mine & served], near[mine & ~served]),
            "served_answered": float(fits[mine & served].mean()),
            "known_answered": float(fits[mine & served & known].mean()) if written else None,
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
    pairs = pd.concat(frames).merge(judged, on=["task_id", "server_id"])
    for half, part in enumerate(("choice", "test")):
        mine = pairs[(pairs["task_id"] - 1) % 2 == half]
        useful, useless = mine[mine["final"] > 0]["fits"], mine[mine["final"] == 0]["fits"]
        counts = {"n_useful": len(useful), "n_useless": len(useless)}
        yield {"part": part, **counts, "useful_kept": useful.mean(), "useless_left_out": 1 - useless.mean()}


def prior_of(data: Dataset, settings: Answering) -> FloatArray:
    """The prior of every server at weight 1, shape (n_servers,)."""
    unit, columns = replace(settings.prior, weight=1.0), ["name", "description", "stars_count", "is_official"]
    facts = (
        Facts("", "", "", int(stars), official=bool(official), marks=settings.marks_of(name, text))
        for name, text, stars, official in data.servers[columns].itertuples(index=False)
    )
    return np.array([sum(prior(own, unit).values()) for own in facts], dtype=np.float32)


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
        scored = judged_rows(collection, runs, seed=seed)
        rows += [{"part": part, "weight": weight, **row} for weight, row in zip(weights, scored, strict=True)]
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


@analysis("usefulness", slow=True)
def answering(study: Context) -> Tables:
    """Does `study recommend` tell requests and servers that do not fit, and what does its prior cost?

    Needs the open catalogue, and the system of `catalogue.SYSTEM` as `study export` saves it.
    """
    settings, requests, dataset = Answering.read(), Requests.read(), study.dataset
    ranking, servers = catalogue.load()
    written = read_csv(paths.conf() / "usefulness" / "known_items.csv")["request"].tolist()
    own = saved.load_saved_model(dataset, catalogue.SYSTEM)
    fit = [
        *fit_rows(dataset, own, requests, settings, written),
        *fit_rows(OPEN, ranking, requests, settings),
    ]
    study.facts.update({"threshold": dict(settings.fit), "weight": settings.prior.weight})
    study.facts.update({"served": len(requests.served), "unserved": len(requests.unserved)})
    study.facts["filtered"] = asdict(settings.filtered)
    return {
        "fit": pd.DataFrame(fit),
        "prior": prior_table(dataset, settings),
        "filtered": pd.DataFrame(filtered_rows(ranking, judged_servers(servers), requests, settings)),
    }


@analysis("usefulness", slow=True)  # margins of field_dense differ by processor in the sixth digit
def calibration(study: Context) -> Tables:
    """What do the scores of the first answer to a topic look like, and is it useful?"""
    return {"confidence": confidence(study.dataset)}


def confidence(dataset: str, *, seed: int = 0) -> pd.DataFrame:
    """The first answer of `field_dense`, which has to be judged, to every validation and test topic.

    Returns: columns task_id, server_id, part, grade, score (standard deviations above the mean of the catalogue),
        margin (first score minus second), lead (first minus tenth), cosine (of the request with the first server).
    """
    data, split = load_split(dataset)
    system, collection, frames = variants({"field_dense": {}})["field_dense"], Collection.load(dataset), []
    servers = encode(texts(data.servers, FIELDS, "description"))
    for part in ("valid", "test"):
        judged = collection.part(part)
        scores = topic_scores(system, data, split.known(part), judged.topics)
        ranked, best = top_k(scores, DEPTH, tie_order(data.n_servers, seed))
        answers = judged.topics[["task_id"]].assign(server_id=data.servers["id"].array[ranked[:, 0]], part=part)
        grades = answers.merge(judged.judgements, on=store.PAIR, how="left")["final"]
        if grades.isna().any():
            problem, fix = f"the first answer to a {part} topic is not judged", "study judge pool, then batches"
            raise StudyError(problem, row=int(grades.isna().argmax()), fix=fix)
        requests = encode(texts(data.tasks.set_index("id").loc[answers["task_id"]], VIEWS, "description"))
        first, second, *_, last = best.T.astype(np.float64)
        answers = answers.assign(grade=grades.astype(int), score=first, margin=first - second, lead=first - last)
        frames.append(answers.assign(cosine=(requests * servers[ranked[:, 0]]).sum(axis=1).astype(np.float64)))
    return pd.concat(frames, ignore_index=True)
