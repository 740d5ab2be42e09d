"""What stands around the ranking of `study recommend`: telling what does not fit, and what the prior costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace

import numpy as np
import pandas as pd

from study import paths
from study.analysis.usefulness.choosing import variants
from study.analysis.usefulness.first_answers import KINDS, Requests, first_answers, judged_servers, summary
from study.data.dataset import Dataset, FloatArray
from study.errors import StudyError
from study.evaluation.ranking import mask_known, tie_order, top_k
from study.evaluation.records import record
from study.evaluation.separation import separation
from study.evaluation.statistics import mean_interval
from study.files import read_csv, write_csv, write_json
from study.judging.collection import DEPTH, Collection
from study.judging.evaluate import per_task
from study.judging.pools import load_split
from study.recommend import catalogue, saved
from study.recommend.answering import fitting_alone, read_request
from study.recommend.contract import SavedModel
from study.recommend.facts import Facts, prior
from study.recommend.settings import Answering

DATASET = "task2mcp"
# The servers of a ranking over the open catalogue that are told apart.
JUDGED_DEPTH = 100
# Weights of the prior that are compared on the validation topics.
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


def fit_rows(
    name: str, model: SavedModel, requests: Requests, settings: Answering, *, known: Sequence[str] = ()
) -> Iterator[dict[str, object]]:
    """How far requests that a server serves stand apart from others: by half of the requests, of which the first was
    used to choose the threshold. A request without any known word has closeness 0.

    `known`: requests that were written for one server of the catalogue each.
    """
    asked = [*requests.served, *known, *requests.unserved]
    read = [read_request(model, request, settings) for request in asked]
    near = np.array([0.0 if found is None else found for _, found, _ in read])
    fits, place = np.array([fit for _, _, fit in read]), np.arange(len(asked))
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


def fit_table(settings: Answering) -> pd.DataFrame:
    """`fit_rows` over the saved `field_dense` of Task2MCP and the open catalogue, as far as they are here."""
    requests = Requests.read()
    rows: list[dict[str, object]] = []
    if saved.exists(DATASET, catalogue.SYSTEM):
        known = read_csv(paths.conf() / "usefulness" / "known_items.csv")["request"].tolist()
        model = saved.load_saved_model(DATASET, catalogue.SYSTEM)
        rows += fit_rows(DATASET, model, requests, settings, known=known)
    if catalogue.synced():
        rows += fit_rows("open", catalogue.load()[0], requests, settings)
    if not rows:
        fix = f"run: {saved.how_to_save(DATASET, catalogue.SYSTEM)}"
        raise StudyError("no catalogue can answer", file=saved.folder_of(DATASET, catalogue.SYSTEM), fix=fix)
    return pd.DataFrame(rows)


def filtered_rows(
    model: SavedModel, judged: pd.DataFrame, requests: Requests, settings: Answering
) -> Iterator[dict[str, object]]:
    """How far `fitting_alone` tells useful servers of a ranking from others, by half of the requests. Its settings were
    chosen on the first.

    `judged`: columns task_id (place of the request among the served ones, from 1), server_id (the model's), useful.
    """
    frames = []
    for task, request in enumerate(requests.served, start=1):
        read, _, fits = read_request(model, request, settings)
        if fits:
            ranked = model.recommend(read.text, k=min(JUDGED_DEPTH, len(model.servers)))
            described = (f"{item.name}\n{item.description}" for item in ranked)
            alone = fitting_alone(read.text, [item.score for item in ranked], described, settings.filtered)
            frames.append(
                pd.DataFrame({"server_id": [item.server_id for item in ranked], "fits": alone, "task_id": task})
            )
    found = pd.concat(frames).merge(judged, on=["task_id", "server_id"])
    for half, part in enumerate(("choice", "test")):
        mine = found[(found["task_id"] - 1) % 2 == half]
        useful, useless = mine[mine["useful"]]["fits"], mine[~mine["useful"]]["fits"]
        counts = {"n_useful": len(useful), "n_useless": len(useless)}
        yield {"part": part, **counts, "useful_kept": useful.mean(), "useless_left_out": 1 - useless.mean()}


def filtered_table(settings: Answering) -> pd.DataFrame:
    """`filtered_rows` over the servers of the open catalogue whose texts are those that were judged."""
    model, servers = catalogue.load()
    judged = judged_servers(servers)
    judged["useful"] = judged["final"] > 0
    return pd.DataFrame(filtered_rows(model, judged[["task_id", "server_id", "useful"]], Requests.read(), settings))


def prior_of(data: Dataset, settings: Answering) -> FloatArray:
    """The prior of every server at weight 1, shape (n_servers,)."""
    unit, columns = replace(settings.prior, weight=1.0), ["name", "description", "stars_count", "is_official"]
    values = []
    for name, text, stars, official in data.servers[columns].itertuples(index=False):
        facts = Facts("", "", "", int(stars), official=bool(official), marks=settings.marks_of(name, text))
        values.append(sum(prior(facts, unit).values()))
    return np.array(values, dtype=np.float32)


def prior_table(settings: Answering, *, seed: int = 0) -> pd.DataFrame:
    """NDCG@10 of `field_dense` with the prior on the judged topics: every weight on the validation topics, and the one
    in force on the test topics. Returns: part, weight, n, ndcg@10, ci_low, ci_high, diff (from weight 0),
    diff_ci_low, diff_ci_high, unjudged@10."""
    data, split = load_split(DATASET)
    system, unit = variants({"field_dense": {}})["field_dense"], prior_of(data, settings)
    system.index(data.servers)
    order, rows = tie_order(data.n_servers, seed), []
    for part, weights in (("valid", WEIGHTS), ("test", (0.0, settings.prior.weight))):
        collection = Collection.load(DATASET).part(part)
        topics = collection.topics["task_id"]
        asked = pd.Series(np.arange(data.n_tasks), index=data.tasks["id"]).loc[topics].to_numpy()
        scores = mask_known(system.score_requests(data.tasks.iloc[asked]), asked, split.known(part))
        pool, _ = top_k(scores, settings.pool, order)
        near = np.full_like(scores, -np.inf)
        np.put_along_axis(near, pool, np.take_along_axis(scores, pool, 1), 1)
        reference: pd.Series | None = None
        for weight in weights:
            ranked, _ = top_k(near + np.float32(weight) * unit, DEPTH, order)
            run = pd.DataFrame({"task_id": np.repeat(topics.to_numpy(), DEPTH), "seed": seed})
            run["rank"] = np.tile(np.arange(1, DEPTH + 1), len(topics))
            run["server_id"] = data.servers["id"].to_numpy()[ranked.ravel()]
            found = per_task(collection, run).set_index("task_id")
            values = found["ndcg@10"].dropna()
            reference = values if reference is None else reference
            row = {"part": part, "weight": weight, "n": len(values), **mean_interval(values, seed=seed, name="ndcg@10")}
            row |= mean_interval(values - reference, seed=seed, name="diff", prefix="diff_")
            rows.append(row | {"unjudged@10": found["unjudged@10"].mean()})
    return pd.DataFrame(rows)


def measure() -> Iterator[pd.DataFrame]:
    """Write the tables to ``results/task2mcp/answering``; yields each once it is written."""
    settings = Answering.read()
    tables: dict[str, tuple[Callable[[Answering], pd.DataFrame], dict[str, object]]] = {
        "fit": (fit_table, {"threshold": dict(settings.fit)}),
        "prior": (prior_table, {"weight": settings.prior.weight}),
        **({"filtered": (filtered_table, {"filtered": asdict(settings.filtered)})} if catalogue.synced() else {}),
    }
    folder, asked = paths.results(DATASET) / "answering", Requests.read()
    counts: dict[str, int] = {kind: len(getattr(asked, kind)) for kind in KINDS}
    tables |= {
        "first_answers": (first_answers, {**counts}),
        "answers": (lambda _: summary(read_csv(folder / "first_answers.csv"), counts), {**counts}),
    }
    for name, (make, facts) in tables.items():
        place = folder / f"{name}.csv"
        table = make(settings)
        write_csv(place, table)
        write_json(place.with_suffix(".json"), record(dataset=DATASET, result=name, **facts))
        yield table
