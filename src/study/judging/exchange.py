"""The collection in the forms of other programs: TREC run files in both directions, and a data set of `ir_datasets`."""

from __future__ import annotations

import json
import math
from collections.abc import Collection as Ids
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.base.errors import StudyError
from study.base.files import read_text, write_text
from study.data import dataset as datasets
from study.evaluation import metrics
from study.judging import collection as measures
from study.judging import store
from study.judging.collection import DEPTH, UNJUDGED, Collection
from study.judging.evaluate import all_runs, mean_interval
from study.runner.exchange import trec_run

BEST = 2  # the best grade
CHECKED = 0.05  # of all judged pairs
TASK_CARD = ("name", "description", "language", "category", "subcategory", "theme")
SERVER_CARD = ("name", "description", "language", "category", "subcategory", "tools")
LONGEST = 1500  # characters of one value on a card; the rest of a longer one is cut off, and the cut is shown


def qrels(collection: Collection) -> dict[str, str]:
    """The final grades as TREC qrels (``task_id 0 server_id grade``), one file for each part and one for all."""
    rows = collection.judgements.merge(collection.topics, on="task_id").sort_values(store.PAIR).assign(run=0)
    parts = {"all": rows} | {str(part): own for part, own in rows.groupby("part")}
    form: dict[str, Any] = {"sep": " ", "header": False, "index": False, "lineterminator": "\n"}
    columns = ["task_id", "run", "server_id", "final"]
    return {f"qrels/{part}.txt": own[columns].to_csv(**form) for part, own in parts.items()}


def read_trec(path: Path, topics: pd.DataFrame, servers: Ids[int]) -> tuple[pd.DataFrame, str]:
    """A TREC run file (``task_id Q0 server_id rank score tag``) as a run, and its tag.

    As in trec_eval the score orders a topic's servers, whatever the ranks say; equal scores keep the file's order.

    `servers`: the ids that there are.

    Returns: columns `store.RUN`, seed 0.
    Raises StudyError: no file, not UTF-8, a line of another form, two tags, an unknown server, a server twice for a
        topic, or no topic of the collection at all. The file and the line are named.
    """
    rows = []
    for number, line in enumerate(read_text(path, fix="name a run file in TREC's form").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            task, _, server, _, score, tag = line.split()
            rows.append((int(task), int(server), float(score), tag, number))
        except ValueError as error:
            fix = "write: task_id Q0 server_id rank score tag"
            raise StudyError(f"not a line of a run: {error}", file=path, row=f"line {number}", fix=fix) from error
    run = pd.DataFrame(rows, columns=[*store.PAIR, "score", "tag", "line"])
    if not run["task_id"].isin(topics["task_id"]).any():
        raise StudyError("the run answers none of the topics", file=path, fix="answer the tasks of topics.csv")
    faults = {
        "there is no server {server_id}": ~run["server_id"].isin(list(servers)),
        "the score is not a finite number": ~np.isfinite(run["score"]),
        "a second run begins: {tag}": run["tag"] != run["tag"].iloc[0],
        "server {server_id} stands twice for task {task_id}": run.duplicated(store.PAIR),
    }
    for reason, wrong in faults.items():
        if wrong.any():
            row = run[wrong].iloc[0]
            reason = reason.format(**row)
            raise StudyError(reason, file=path, row=f"line {row['line']}", fix="mend or remove the line")
    run = run.sort_values(["task_id", "score"], ascending=[True, False], kind="stable").assign(seed=0)
    return run.assign(rank=run.groupby("task_id").cumcount() + 1)[store.RUN], str(run["tag"].iloc[0])


def submitted(collection: Collection, path: Path) -> pd.DataFrame:
    """What a run of one's own is worth on the collection, by part.

    A topic that the run does not answer counts 0. `low` and `high` are what NDCG@10 would be if every unjudged server
    among the first ten were useless, or core; the first one is the score.

    Returns: columns tag, collection (`version`), part, n (topics with a useful server), answered, ndcg@10 with ci_low
        and ci_high (95 %, bootstrap over topics), holes (share of the first ten that nobody judged), low, high.
    """
    run, tag = read_trec(path, collection.topics, set(collection.table("lengths")["server_id"]))
    rows = []
    for part in collection.topics["part"].unique():
        own = collection.part(str(part))
        topic, places, grades = own.look_up(run)
        ranked = np.full((len(own.topics), DEPTH), -1)
        ranked[topic] = places
        hopeful = own.gains.tolil()
        for row, column in zip(*np.nonzero(grades == UNJUDGED), strict=True):
            hopeful[topic[row], places[row, column]] = BEST
        low, high = (metrics.ndcg(ranked, gains.tocsr(), DEPTH, graded=True) for gains in (own.gains, hopeful))
        low, high = low[~np.isnan(low)], high[~np.isnan(low)]
        facts = {"tag": tag, "collection": collection.version, "part": part, "n": len(low), "answered": len(topic)}
        facts |= mean_interval(low, name="ndcg@10")
        facts["holes"] = float(measures.unjudged(grades, DEPTH).mean()) if len(topic) else math.nan
        rows.append(facts | {"low": float(low.mean()), "high": float(high.mean())})
    return pd.DataFrame(rows)


def unjudged(collection: Collection) -> pd.DataFrame:
    """What is to be judged so that every run can be compared: servers among the first ten of a run for a topic which
    nobody judged. Returns: columns task_id, server_id."""
    runs = pd.concat(all_runs(collection.dataset).values())
    first = runs[(runs["rank"] <= DEPTH) & runs["task_id"].isin(collection.topics["task_id"])]
    pairs = first[store.PAIR].drop_duplicates()
    return pairs[~store.among(pairs, collection.judgements, store.PAIR)]


def sheet(pairs: pd.DataFrame, data: datasets.Dataset) -> str:
    """Pairs to be graded by docs/judging-guidelines.md, as CSV: task_id, server_id, an empty grade, and both cards.

    A task's servers stand in random order, and nothing says who named them or how they were graded. Every value of the
    cards is a JSON string, so that no text of a stranger looks like a row, a heading or a formula.
    """
    cards = pairs[store.PAIR].sample(frac=1, random_state=0).sort_values("task_id", kind="stable").assign(grade="")
    for side, table, fields in (("task", data.tasks, TASK_CARD), ("server", data.servers, SERVER_CARD)):
        texts = table.set_index("id")[list(fields)].map(_quoted).add_prefix(f"{side}_")
        cards = cards.join(texts, on=f"{side}_id")
    return cards.to_csv(index=False, lineterminator="\n")


def _quoted(value: str) -> str:
    """A value as one JSON string, cut at `LONGEST` characters, without control characters; nothing for an empty one."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in value).split())
    shown = plain if len(plain) <= LONGEST else plain[:LONGEST] + " [cut]"
    return json.dumps(shown, ensure_ascii=False) if plain else ""


def export(collection: Collection, folder: Path) -> list[Path]:
    """Write the collection for other programs: ``runs/<system>.trec`` of every pooled system to the depth that is kept,
    ``qrels/<part>.txt``, and, with the data set's text, ``queries.tsv`` and ``docs.tsv``, which `register` reads, and
    two sheets for judges: ``unjudged.csv``, and ``check.csv``, a person's check of some pairs that were judged.

    The text belongs to the data set, which states no licence: keep these four files to yourself. Returns: the files.
    """
    data, files = datasets.load(collection.dataset), qrels(collection)
    for name, run in collection.runs.items():
        head = f"# run: {name}\n# collection: Task2MCP-Judged {collection.version}\n# score: minus the rank\n"
        files[f"runs/{name}.trec"] = head + trec_run(run, name)
    files["unjudged.csv"] = sheet(unjudged(collection), data)
    files["check.csv"] = sheet(collection.judgements.sample(frac=CHECKED, random_state=1), data)
    files["queries.tsv"] = _table(data.tasks[data.tasks["id"].isin(collection.topics["task_id"])])
    files["docs.tsv"] = _table(data.servers)
    for name, text in files.items():
        write_text(folder / name, text)
    return [folder / name for name in files]


def _table(frame: pd.DataFrame) -> str:
    """Lines of id, tab, name and description; whitespace inside becomes one space."""
    texts = (frame["name"] + ". " + frame["description"]).str.split().str.join(" ")
    return "".join(f"{number}\t{text}\n" for number, text in zip(frame["id"], texts, strict=True))


def register(folder: Path, name: str = "task2mcp-judged") -> list[str]:
    """Register an exported folder with the package `ir_datasets`, one data set for each part, such as
    ``task2mcp-judged/fresh``. Returns: their names."""
    import ir_datasets

    texts = {"docs_tsv": str(folder / "docs.tsv"), "queries_tsv": str(folder / "queries.tsv")}
    files = {f"{name}/{path.stem}": str(path) for path in sorted((folder / "qrels").glob("*.txt"))}
    for part, path in files.items():
        ir_datasets.registry.register(part, ir_datasets.create_dataset(**texts, qrels_trec=path))
    return list(files)
