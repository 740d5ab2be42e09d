"""Topics and pool: which tasks are judged, and which servers for each.

Topics are drawn by seed from the parts of the split, evenly over the subcategories. The pool of a topic is the union
of the systems' best servers and a random control, in an order that hides both.

``pool.csv.xz`` is all that judging reads; ``provenance.csv.xz`` says which system named a server, and what is control.
Pairs that were judged before stay as they are; what is new forms the next round.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd

from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_csv, write_json
from study.config.changes import with_tuned_values
from study.config.compose import build_system, choices, load
from study.data.dataset import Dataset, IntArray
from study.data.splits import PARTS, Split
from study.evaluation.records import record
from study.evaluation.runs import rank_tasks, run_table
from study.judging import store
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads

LOG = logging.getLogger(__name__)


def allocate(available: dict[str, int], total: int, rng: np.random.Generator) -> dict[str, int]:
    """How many topics each stratum gives: as equal as supply allows, the remainder to random strata. `available`: tasks
    per stratum; StudyError where they are fewer than topics."""
    if sum(available.values()) < total:
        problem = f"{total} topics asked for, the part has {sum(available.values())} tasks"
        raise StudyError(problem, file=paths.conf() / "judging" / "topics.yaml", fix="ask for fewer topics")
    given = dict.fromkeys(sorted(available), 0)
    while (left := total - sum(given.values())) > 0:
        open_strata = [name for name, count in given.items() if count < available[name]]
        fewest = min(given[name] for name in open_strata)
        lowest = [name for name in open_strata if given[name] == fewest]
        for number in rng.permutation(len(lowest))[:left]:
            given[lowest[number]] += 1
    return given


def sample_topics(data: Dataset, split: Split, chosen: store.TopicSettings) -> pd.DataFrame:
    """Draw topics for each part, stratified by subcategory; each part has a random stream of its own.

    Parts with tasks of another part are drawn last, and no task twice. Returns: columns task_id, part, subcategory,
    ordered by part and task_id.
    """
    rows: list[tuple[int, str, str]] = []
    for part, total in sorted(chosen.parts.items(), key=lambda item: item[0] in chosen.sources):
        source = chosen.source(part)
        rng = np.random.default_rng([chosen.seed, PARTS[source], *([1] if part != source else [])])
        tasks = data.tasks.iloc[split.tasks(source)]
        tasks = tasks[~tasks["id"].isin([row[0] for row in rows])]
        strata = {str(name): group["id"].to_numpy() for name, group in tasks.groupby("subcategory_clean")}
        for name, count in allocate({name: len(ids) for name, ids in strata.items()}, total, rng).items():
            rows += [(int(task), part, name) for task in rng.choice(strata[name], count, replace=False)]
    table = pd.DataFrame(rows, columns=store.COLUMNS["topics"])
    return table.sort_values(["part", "task_id"], ascending=[False, True], ignore_index=True)


def load_split(dataset: str) -> tuple[Dataset, Split]:
    """The prepared data set and the split that the topics come from."""
    return load_inputs(dataset, store.topic_settings().protocol)


def draw_topics(dataset: str) -> Path:
    """Draw the topics and write ``topics.csv``; StudyError where pairs were judged for other topics."""
    chosen = store.topic_settings()
    table = sample_topics(*load_split(dataset), chosen)
    judged = set(store.read_table_if_there(dataset, "judgements")["task_id"])
    if judged - set(table["task_id"]):
        fix = "undo the change of conf/judging/topics.yaml"
        raise StudyError("pairs of topics outside this draw were judged", file=store.file(dataset, "topics"), fix=fix)
    write_csv(store.file(dataset, "topics"), table)
    return store.file(dataset, "topics")


def released(dataset: str, topics: pd.DataFrame, depth: int) -> pd.DataFrame:
    """The released lists as a run: the listed position is the rank (so a removed entry leaves a gap), seed 0."""
    labels = pd.read_parquet(paths.prepared(dataset) / "labels.parquet")
    labelled = labels[labels["task_id"].isin(topics["task_id"]) & (labels["position"] <= depth)]
    run = labelled.rename(columns={"position": "rank"}).assign(seed=0)[store.RUN]
    return run.sort_values(["task_id", "rank"], ignore_index=True)


def run_system(
    name: str, topics: pd.DataFrame, data: Dataset, split: Split, chosen: store.PoolSettings
) -> pd.DataFrame:
    """Fit a system once, with its first seed, and rank the catalogue for the given topics.

    A fit that was stopped goes on from its checkpoint. ``pools.json`` beside the pooled runs gets the run's record.

    Returns: columns task_id, seed, rank, server_id.
    """
    settings = {"dataset": data.name, "system": name, "protocol": split.protocol, "profile": chosen.profile}
    config = with_tuned_values(load([f"{key}={value}" for key, value in settings.items()]))
    limit_threads(config.profile.threads)
    seed = int(config.system.seeds[0])
    workdir = paths.cache() / "judging" / data.name / "fits" / name
    workdir.mkdir(parents=True, exist_ok=True)
    system = build_system(config.system)
    system.fit(data, split, seed=seed, workdir=workdir)
    row_of, frames = pd.Series(np.arange(data.n_tasks), index=data.tasks["id"]), []
    for part, ids in topics.groupby("part", sort=False)["task_id"]:
        tasks: IntArray = row_of.loc[ids].to_numpy()
        source = store.topic_settings().source(str(part))
        rows, scores = rank_tasks(system, split, tasks, part=source, k=chosen.kept, seed=seed)
        frames.append(run_table(data, ids.to_numpy(), rows, scores, seed))
    path, parts = store.folder(data.name) / "pools.json", [str(part) for part in topics["part"].unique()]
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    # The records of earlier runs for these parts are of answers that are gone.
    gone = [key for key in stored if key.startswith(f"{name}: ") and {*key[len(name) + 2 :].split(" and ")} <= {*parts}]
    facts = {"profile": chosen.profile, "seed": seed, "depth": chosen.kept, "topics": len(topics)}
    new = {f"{name}: {' and '.join(parts)}": record(dataset=data.name, system=name, **facts)}
    write_json(path, dict(sorted(({key: stored[key] for key in stored if key not in gone} | new).items())))
    return pd.concat(frames, ignore_index=True)[store.RUN].sort_values(["task_id", "rank"], ignore_index=True)


def missing(name: str, dataset: str) -> str | None:
    """Why a system cannot be pooled yet; None where it can."""
    if name == store.LABELS:
        return None
    if name not in choices("system"):
        return f"there is no system {name}"
    tuned = load([f"system={name}"]).system.tuned is not None
    best = paths.tuned(dataset, name) / "best.yaml"
    return f"it waits for its tuned values ({best})" if tuned and not best.exists() else None


def union(
    topics: pd.DataFrame, runs: dict[str, pd.DataFrame], server_ids: IntArray, chosen: store.PoolSettings
) -> pd.DataFrame:
    """Every pair to be judged, with where it comes from: the first `depth` of each system, more of a candidate.
    Returns: columns task_id, server_id, control (0 or 1), sources (names joined by ";", empty for a pure control)."""
    part_of = topics.set_index("task_id")["part"]
    named = []
    for name, run in sorted(runs.items()):
        parts = run["task_id"].map(part_of)
        depth = parts.map(chosen.depths).fillna(chosen.depth)
        deep = (parts == chosen.candidates_part) & (name in chosen.candidates)
        pooled = run["rank"] <= np.where(deep, chosen.candidates_depth, depth)
        named.append(run[pooled][store.PAIR].assign(source=name))
    controls = []
    for task, part in part_of.items():  # from the whole catalogue, and so the same whatever the systems answer
        rng = np.random.default_rng([chosen.seed, 1, int(str(task))])
        servers = rng.choice(server_ids, chosen.controls.get(str(part), chosen.control), replace=False)
        controls.append(pd.DataFrame({"task_id": task, "server_id": servers}))
    pairs = pd.concat([*named, pd.concat(controls).assign(source="")], ignore_index=True).drop_duplicates()
    pairs["control"] = (pairs["source"] == "").astype(int)
    grouped = pairs.groupby(store.PAIR, sort=True)
    table = grouped.agg(control=("control", "max"), sources=("source", lambda names: ";".join(filter(None, names))))
    return table.reset_index()


def arrange(pairs: pd.DataFrame, judged: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The pool: pairs judged before keep their round, the others form the next one, in random order per topic.

    `pairs`: columns task_id, server_id.
    `judged`: columns task_id, server_id, round; pairs of it that no system names any more stay in the pool.
    Returns: columns task_id, server_id, order (from 1 within topic and round), round.
    """
    everything = pairs[store.PAIR].merge(judged[[*store.PAIR, "round"]], on=store.PAIR, how="outer")
    following = int(judged["round"].max()) + 1 if len(judged) else 1
    everything["round"] = everything["round"].fillna(following).astype(int)
    everything = everything.sort_values(store.PAIR, ignore_index=True)
    shuffled = np.empty(len(everything), dtype=np.int64)
    for _, rows in everything.groupby(["task_id", "round"]):
        number, task = (int(rows[name].iloc[0]) for name in ("round", "task_id"))
        shuffled[rows.index] = np.random.default_rng([seed, 2, number, task]).permutation(len(rows)) + 1
    table = everything.assign(order=shuffled)[store.COLUMNS["pool"]]
    return table.sort_values(["task_id", "round", "order"], ignore_index=True)


def make_pool(dataset: str, *, again: tuple[str, ...] = ()) -> Path:
    """Run the systems of ``pool.yaml`` for the topics and write pool.csv.xz, provenance.csv.xz and the pooled runs.

    A system is run for the topics for which there is no pooled run of it, or for all where `again` names it. Systems
    that do not exist yet are left for a later round. A candidate is asked for the topics of its part and for no other;
    once it is listed as a system too, for all.
    """
    chosen, topics = store.pool_settings(), store.read_table(dataset, "topics")
    of_part, file = topics[topics["part"] == chosen.candidates_part], paths.conf() / "judging" / "pool.yaml"
    if not len(of_part):
        fix = f"one of: {', '.join(topics['part'].unique())}"
        raise StudyError(f"no topics in {chosen.candidates_part!r}", column="candidates_part", file=file, fix=fix)
    if unknown := set(again) - {*chosen.candidates, *chosen.systems}:
        problem = f"no system of the pool: {', '.join(sorted(unknown))}"
        raise StudyError(problem, column="--again", fix=f"systems of {file}")
    topics_of = dict.fromkeys(chosen.candidates, of_part) | dict.fromkeys(chosen.systems, topics)
    data, split = load_split(dataset)
    there = store.read_runs(dataset) if store.runs_file(dataset).exists() else {}
    runs: dict[str, pd.DataFrame] = {}
    for name, of_system in topics_of.items():
        before = [] if name in again or name not in there else [there[name]]
        new = of_system[~of_system["task_id"].isin(before[0]["task_id"])] if before else of_system
        if len(new):
            if reason := missing(name, dataset):
                LOG.info("%s is left out: %s", name, reason)
                continue
            if name == store.LABELS:
                answers = released(dataset, new, chosen.kept)
            else:
                answers = run_system(name, new, data, split, chosen)
            there[name] = pd.concat([*before, answers], ignore_index=True)
            store.write_runs(dataset, there)
            LOG.info("%s: %d answers for %d topics", name, len(answers), answers["task_id"].nunique())
        runs[name] = there[name]
    pairs = union(topics, runs, data.servers["id"].to_numpy(), chosen)
    pool = arrange(pairs, store.read_table_if_there(dataset, "judgements"), chosen.seed)
    write_csv(store.file(dataset, "pool"), pool)
    write_csv(store.file(dataset, "provenance"), pairs)
    lengths = data.servers.assign(server_id=data.servers["id"], characters=data.servers["description"].str.len())
    write_csv(store.file(dataset, "lengths"), lengths[store.COLUMNS["lengths"]].sort_values("server_id"))
    return store.file(dataset, "pool")
