"""What a ranking alone answers to the requests of ``conf/recommend/requests.yaml``, and what `study recommend` answers.

The ranking alone is what `study recommend` answered before it read requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pandas as pd

from study import paths
from study.config.reader import read_settings
from study.files import read_csv
from study.judging import store
from study.recommend import catalogue, saved
from study.recommend.answering import answer, same_keys
from study.recommend.contract import Recommendation, SavedModel
from study.recommend.facts import Facts, Shelf
from study.recommend.settings import Answering

# The judged collection of the open catalogue, and how many servers an answer names.
OPEN, FIRST = "open", 5
# The kinds of requests, keys of the file.
KINDS = ("served", "unserved")


@dataclass(frozen=True)
class Requests:
    """``conf/recommend/requests.yaml``."""

    served: list[str]
    unserved: list[str]

    @classmethod
    def read(cls) -> Requests:
        """The file, checked."""
        return read_settings(cls, paths.conf() / "recommend" / "requests.yaml")


def answered(
    model: SavedModel,
    requests: Requests,
    facts_of: Callable[[Recommendation], Facts],
    settings: Answering,
    grades: Mapping[tuple[int, int], int],
) -> Iterator[dict[str, object]]:
    """The first five servers of both answers to each request: kind, request (from 1), answer, rank, row (the server's
    id in the model), repeated (whether the answer names the same server before), grade (None: not judged).

    `grades`: of (served request, server).
    """
    for kind in KINDS:
        for place, request in enumerate(getattr(requests, kind), start=1):
            read = [one.item for one in answer(model, request, facts_of, settings, k=FIRST).found]
            for name, found in (("ranking", model.recommend(request, k=FIRST)), ("recommend", read)):
                seen = set[str]()
                for item in found:
                    keys = set(same_keys(facts_of(item).address, item.description))
                    yield {
                        "kind": kind,
                        "request": place,
                        "answer": name,
                        "rank": item.rank,
                        "row": item.server_id,
                        "repeated": bool(keys & seen),
                        "grade": grades.get((place, item.server_id)) if kind == KINDS[0] else None,
                    }
                    seen |= keys


def first_answers(settings: Answering) -> pd.DataFrame:
    """`answered` by the saved systems over Task2MCP and by `field_dense` over the open catalogue, as far as they are
    here; columns catalogue, system, server (its id there) and those of `answered` but `row`."""
    requests, frames = Requests.read(), []
    for system in filter(lambda name: saved.exists(saved.DATASET, name), saved.USEFUL):
        shelf, model = Shelf.here(None), saved.load_saved_model(saved.DATASET, system)
        rows = answered(model, requests, partial(_listed, shelf), settings, {})
        frames.append(pd.DataFrame(rows).assign(catalogue=saved.DATASET, system=system))
        frames[-1]["server"] = frames[-1]["row"].astype(str)
    if catalogue.synced():
        ranking, servers = catalogue.load()
        shelf = Shelf.here(servers)
        rows = answered(
            ranking, requests, lambda item: shelf.of_catalogue(item.server_id), settings, judged_grades(servers)
        )
        frames.append(pd.DataFrame(rows).assign(catalogue=OPEN, system=catalogue.SYSTEM))
        frames[-1]["server"] = frames[-1]["row"].map(servers["id"])
    found = pd.concat(frames, ignore_index=True).astype({"grade": "Int64"})
    return found[["catalogue", "system", "kind", "request", "answer", "rank", "server", "repeated", "grade"]]


def _listed(shelf: Shelf, item: Recommendation) -> Facts:
    return shelf.of_task2mcp(item.server_id, item.name, item.description)


def judged_servers(servers: pd.DataFrame) -> pd.DataFrame:
    """Judged pairs of the open catalogue whose server has the judged texts today: task_id, server_id (row of
    `servers`), final."""
    keys = ["id", "sha256_description", "sha256_tools"]
    here = servers[keys].rename_axis("row").reset_index()
    named = read_csv(store.folder(OPEN) / "servers.csv").merge(here, on=keys).set_index("server_id")["row"]
    judged = store.final(OPEN)
    judged = judged.assign(server_id=judged["server_id"].map(named)).dropna(subset="server_id")
    return judged[["task_id", "server_id", "final"]].astype(int)


def judged_grades(servers: pd.DataFrame) -> dict[tuple[int, int], int]:
    """(Request, row) -> grade."""
    return {(task, row): grade for task, row, grade in judged_servers(servers).itertuples(index=False)}


def summary(found: pd.DataFrame, counts: Mapping[str, int]) -> pd.DataFrame:
    """One row per catalogue, system and answer of `first_answers`: served_answered and unserved_refused (shares of the
    requests), same_first (of served requests that both answer), repeats (places of served requests that repeat a
    server), useful_first and useful (shares of judged places), unjudged (share of places; 1 where nothing is judged).

    `counts`: requests of each kind.
    """
    rows = []
    first = found[(found["rank"] == 1) & (found["kind"] == KINDS[0])]
    for keys, own in found.groupby(["catalogue", "system", "answer"], sort=False):
        named = dict(zip(("catalogue", "system", "answer"), keys, strict=True))
        served = own[own["kind"] == KINDS[0]]
        pair = first[(first["catalogue"] == keys[0]) & (first["system"] == keys[1])]
        both = pair.pivot_table(index="request", columns="answer", values="server", aggfunc="first").dropna()
        judged = served.dropna(subset="grade")
        asked = own.groupby("kind")["request"].nunique()
        rows.append(
            named
            | {
                "served_answered": asked.get(KINDS[0], 0) / counts[KINDS[0]],
                "unserved_refused": 1 - asked.get(KINDS[1], 0) / counts[KINDS[1]],
                "same_first": (both["ranking"] == both["recommend"]).mean(),
                "repeats": served["repeated"].mean(),
                "useful_first": (judged[judged["rank"] == 1]["grade"] > 0).mean() if len(judged) else None,
                "useful": (judged["grade"] > 0).mean() if len(judged) else None,
                "unjudged": served["grade"].isna().mean(),
            }
        )
    return pd.DataFrame(rows)
