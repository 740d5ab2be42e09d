"""The collection in the forms of other programs: TREC run files in both directions, and a data set of `ir_datasets`."""

from __future__ import annotations

import math
from collections.abc import Collection as Ids
from collections.abc import Mapping
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
from study.judging.evaluate import mean_interval
from study.runner.exchange import trec_run

BEST = 2  # the best grade


def qrels(collection: Collection) -> dict[str, str]:
    """The final grades as TREC qrels (``task_id 0 server_id grade``), one file for each part and one for all."""
    rows = collection.judgements.merge(collection.topics, on="task_id").sort_values(store.PAIR).assign(run=0)
    parts = {"all": rows} | {str(part): of_part for part, of_part in rows.groupby("part")}
    form: dict[str, Any] = {"sep": " ", "header": False, "index": False, "lineterminator": "\n"}
    columns = ["task_id", "run", "server_id", "final"]
    return {f"qrels/{part}.txt": of_part[columns].to_csv(**form) for part, of_part in parts.items()}


def read_trec(path: Path, topics: pd.DataFrame, servers: Ids[int]) -> tuple[pd.DataFrame, str]:
    """A TREC run file (``task_id Q0 server_id rank score tag``) as a run, and its tag.

    As in trec_eval the score orders a topic's servers, whatever the ranks say; equal scores keep the file's order.

    `servers`: the ids that there are.

    Returns: columns `store.RUN`, seed 0.
    Raises StudyError: no file, not UTF-8, a line of another form, two tags, an unknown server, a server twice for a
        topic, or no topic of the collection at all. The file and the line are named.
    """
    rows, tags = [], {}
    for number, line in enumerate(read_text(path, fix="name a run file in TREC's form").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        row = f"line {number}"
        try:
            task, _, server, _, score, tag = line.split()
            entry = (int(task), int(server), float(score))
        except ValueError as error:
            fix = "write: task_id Q0 server_id rank score tag"
            raise StudyError(f"not a line of a run: {error}", file=path, row=row, fix=fix) from error
        if entry[1] not in servers:
            raise StudyError(f"there is no server {server}", file=path, row=row, fix="name servers by their ids")
        if not math.isfinite(entry[2]):
            raise StudyError("the score is not a finite number", file=path, row=row, fix="score every server")
        rows.append(entry)
        tags[tag] = number
    if len(tags) > 1:
        reason = f"holds two runs: {', '.join(sorted(tags))}"
        raise StudyError(reason, file=path, row=f"line {max(tags.values())}", fix="keep one run in a file")
    run = pd.DataFrame(rows, columns=["task_id", "server_id", "score"])
    if (twice := run.duplicated(store.PAIR).to_numpy()).any():
        task, server = run.loc[twice, store.PAIR].iloc[0]
        raise StudyError(f"server {server} stands twice for task {task}", file=path, fix="keep its best place")
    if not run["task_id"].isin(topics["task_id"]).any():
        raise StudyError("the run answers none of the topics", file=path, fix="answer the tasks of topics.csv")
    run = run.sort_values(["task_id", "score"], ascending=[True, False], kind="stable")
    return run.assign(rank=run.groupby("task_id").cumcount() + 1, seed=0)[store.RUN], next(iter(tags))


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
        of_part = collection.part(str(part))
        topic, ranked, grades = of_part.look_up(run)
        answers = np.full((len(of_part.topics), DEPTH), -1)
        answers[topic] = ranked
        hopeful = of_part.gains.tolil()
        for row, column in zip(*np.nonzero(grades == UNJUDGED), strict=True):
            hopeful[topic[row], ranked[row, column]] = BEST
        low, high = (metrics.ndcg(answers, gains.tocsr(), DEPTH, graded=True) for gains in (of_part.gains, hopeful))
        defined = ~np.isnan(low)
        facts = {"tag": tag, "collection": collection.version, "part": part, "n": int(defined.sum())}
        facts |= {"answered": len(topic), **mean_interval(low[defined], name="ndcg@10")}
        facts["holes"] = float(measures.unjudged(grades, DEPTH).mean()) if len(topic) else math.nan
        rows.append(facts | {"low": float(low[defined].mean()), "high": float(high[defined].mean())})
    return pd.DataFrame(rows)


def leaderboard_line(row: Mapping[Any, Any]) -> str:
    """One row of `submitted` as a line of a Markdown table. The tag is a stranger's: it keeps plain letters alone."""
    tag = "".join(letter for letter in str(row["tag"]) if letter.isalnum() or letter in "-_.")
    score = f"{row['ndcg@10']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
    bounds = f"{row['low']:.3f} to {row['high']:.3f}"
    holes = "no answer" if math.isnan(row["holes"]) else f"{row['holes']:.1%}"
    return f"| {tag} | {row['collection']} | {row['part']} | {row['n']} | {score} | {holes} | {bounds} |"


def export(collection: Collection, folder: Path) -> list[Path]:
    """Write the collection for other programs: ``runs/<system>.trec`` of every pooled system to the depth that is kept,
    ``qrels/<part>.txt``, and, with the data set's text, ``queries.tsv`` and ``docs.tsv``, which `register` reads.

    The text belongs to the data set, which states no licence: keep these two files to yourself. Returns: the files.
    """
    data, files = datasets.load(collection.dataset), qrels(collection)
    for name, run in collection.runs.items():
        head = f"# run: {name}\n# collection: Task2MCP-Judged {collection.version}\n# score: minus the rank\n"
        files[f"runs/{name}.trec"] = head + trec_run(run, name)
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

    names = []
    for path in sorted((folder / "qrels").glob("*.txt")):
        texts = {"docs_tsv": str(folder / "docs.tsv"), "queries_tsv": str(folder / "queries.tsv")}
        ir_datasets.registry.register(f"{name}/{path.stem}", ir_datasets.create_dataset(**texts, qrels_trec=str(path)))
        names.append(f"{name}/{path.stem}")
    return names
