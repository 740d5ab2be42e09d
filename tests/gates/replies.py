"""Gate "replies": every committed reply of a language model is asked for by the code as it is, and no other is.

    .venv/bin/python tests/gates/replies.py          (a minute; needs the prepared Task2MCP; `study fetch` for tools)

A cassette keeps a request's hash and the reply alone: with another pool, prompt or setting its replies are lost. The
systems rank by ``results/task2mcp/pools.parquet``; nothing is trained. Their first ten servers and measures are those
of the committed rows. Grades are kept by task and server; their pairs come from the judged collection. Replies about
tools are kept by query and by a hash of catalogue and settings, which is checked where the collections are at hand.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from study.advisor.llm import client
from study.advisor.llm.settings import endpoint_settings
from study.analysis.usefulness import contribution, grades
from study.base import paths
from study.base.settings import read_settings
from study.config.compose import build_system, load
from study.evaluation.metrics import per_task
from study.evaluation.runs import CUTOFFS, rank_tasks
from study.judging import store
from study.judging.pools import load_split
from study.reranking.listwise import candidate_pools
from study.reranking.replies import cassette
from study.runner import row_store
from study.runner.inputs import load_inputs
from study.t2mrec.system import T2MRec

DATASET = "task2mcp"
ROWS = {
    "t2mrec_llm_local": ("cold", "cold_grouped"),
    "t2mrec_llm_local_pointwise": ("cold",),
    "t2mrec_same_training": ("cold", "cold_grouped"),
}
failures: list[str] = []


def check(name: str, holds: object, told: str = "") -> None:
    print("ok  " if holds else "FAIL", name, told, flush=True)
    if not holds:
        failures.append(name)


@contextmanager
def keys_asked(asked: set[str]):
    """Note the key of every request."""
    own = client.key

    def noted(request):
        asked.add(key := own(request))
        return key

    client.key = noted
    yield
    client.key = own


def compare(name: str, asked: set[str]) -> None:
    kept = {json.loads(line)["key"] for line in cassette(DATASET, name).read_text().splitlines()}
    told = f"{len(kept)} kept, {len(kept - asked)} not asked for, {len(asked - kept)} without a reply"
    check(f"replies {name}", kept == asked, told)


def rows() -> None:
    """Rank as the rows do, and compare with what is committed."""
    asked: dict[str, set[str]] = {}
    for name, protocols in ROWS.items():
        for protocol in protocols:
            config = load([f"dataset={DATASET}", f"protocol={protocol}", f"system={name}"])
            data, split = load_inputs(DATASET, protocol)
            system, tasks = build_system(config.system), split.tasks("test")
            with keys_asked(asked.setdefault(name, set())), tempfile.TemporaryDirectory() as folder:
                system.fit(data, split, seed=1, workdir=Path(folder))
                ranked, _ = rank_tasks(system, split, tasks, part="test", k=11, seed=1)
            ids, servers = data.tasks["id"].to_numpy()[tasks], data.servers["id"].to_numpy()
            top = row_store.read_top10(DATASET, protocol, [name])[name]
            places = pd.Index(ids).get_indexer(pd.Index(top["task_id"])), top["rank"].to_numpy() - 1
            check(
                f"top ten {protocol} {name}", (servers[ranked[places]] == top["server_id"]).all(), f"{len(top)} places"
            )
            values = per_task(ranked[:, :10], split.part("test")[tasks], ks=CUTOFFS)
            before = row_store.read_per_task(DATASET, protocol, [name])[name].set_index("task_id").loc[ids]
            worst = max(np.abs(before[column].to_numpy() - values[column].to_numpy()).max() for column in values)
            check(f"measures {protocol} {name}", worst < 1e-5, f"largest difference {worst:.1e}")
    for name in ("t2mrec_llm_local", "t2mrec_llm_local_pointwise"):
        compare(name, asked[name])


def variants() -> None:
    """The orders and wordings of `study.analysis.usefulness.contribution`."""
    settings = read_settings(contribution.Contribution, paths.conf() / "usefulness" / "contribution.yaml")
    data, split = load_inputs(DATASET, settings.protocol)
    order = np.random.default_rng(settings.seed).permutation(split.tasks(settings.part))
    tasks = np.sort(order[: settings.tasks])
    few = np.flatnonzero(np.isin(tasks, order[: settings.full_cards]))
    parts = [f"dataset={DATASET}", f"protocol={settings.protocol}"]
    base = build_system(load([*parts, f"system={contribution.BASE}"]).system)
    base.fit(data, split, seed=settings.seed, workdir=Path("/nowhere"))
    system, asked = build_system(load([*parts, f"system={settings.system}"]).system), set[str]()
    kept = endpoint_settings(system.endpoint).client(cassette(DATASET, contribution.CASSETTE))
    pools = candidate_pools(base, tasks)
    with keys_asked(asked):
        answers, counts = contribution.ask_variants(kept, system.question, data, tasks, pools, settings)
        some = [pools[row] for row in few]
        cards, counted = contribution.ask_full_cards(kept, system.question, data, tasks[few], some)
    compare(contribution.CASSETTE, asked)
    before = json.loads((paths.results(DATASET) / "usefulness" / "contribution.json").read_text())["answers"]
    check("answers contribution", counts | counted == before)
    relevant = split.part(settings.part)[tasks]
    parts = (answers, pools, relevant), (cards, some, relevant[few])
    found = pd.concat([contribution.summary(*part, settings) for part in parts]).set_index("variant")
    table = pd.read_csv(paths.results(DATASET) / "usefulness" / "contribution.csv", index_col="variant")
    same = np.isclose(found, table.loc[found.index, found.columns], rtol=1e-5, atol=1e-9, equal_nan=True).all()
    check("table contribution", same, f"{len(found)} of {len(table)} variants; the other one is trained")


def graded() -> None:
    """Grades of pairs: those of the pooled run's first servers and of sampled judgements; the teacher's by task."""
    settings = read_settings(grades.Grades, paths.conf() / "usefulness" / "grades.yaml")
    topics = store.read_table(DATASET, "topics")
    run = store.read_runs(DATASET)[settings.system].merge(topics[topics["part"].isin(grades.PARTS)], on="task_id")
    run = run[run["rank"] <= settings.depth]
    wanted = store.pairs(grades.pairs_to_grade(DATASET, settings, run))
    kept = store.pairs(pd.read_csv(store.folder(DATASET) / "model_grades.csv"))
    check(
        "grades", wanted == kept, f"{len(kept)} kept, {len(kept - wanted)} not asked for, {len(wanted - kept)} missing"
    )
    teacher = read_settings(grades.Distilled, paths.conf() / "usefulness" / "distilled.yaml")
    data, split = load_split(DATASET)
    ids, known = data.tasks["id"].to_numpy(), set(topics["task_id"])
    order = np.random.default_rng(teacher.seed).permutation(split.tasks("train"))
    asked = [ids[row] for row in order if ids[row] not in known][: teacher.tasks]
    table = pd.read_csv(paths.results(DATASET) / "usefulness" / "teacher_grades.csv.xz")
    pairs = teacher.first + teacher.deeper + teacher.anywhere
    sizes = table.groupby("task_id").size()
    holds = set(sizes.index) == set(asked) and sizes.between(pairs - teacher.anywhere, pairs).all()
    check("teacher's grades", holds, f"{len(table)} of {len(sizes)} tasks")


def tools() -> None:
    """Replies about tools rest on the catalogue and the settings of the prompts."""
    from study.tools.collections import load_collection
    from study.tools.language_model import ModelChoices

    for file in sorted(paths.results("replies").glob("*.csv")):
        if not paths.raw(file.stem).exists():
            print("skip", f"replies {file.stem}: the collection is not at hand (study fetch)")
            continue
        kept = ModelChoices(file.stem, load_collection(file.stem).catalog)
        check(f"replies {file.stem}", set(pd.read_csv(file)["asked"]) == {kept.asked})


def main() -> None:
    def refuse(*_: object, **__: object) -> None:
        sys.exit("FAIL a training begins: a row does not rank by the kept pools")

    client.weights.identity = cache(client.weights.identity)  # it reads a file at every request
    T2MRec.fit = refuse  # type: ignore[method-assign,assignment]
    for part in (rows, variants, graded, tools):
        part()
    print(f"{len(failures)} failures" if failures else "every committed reply is found")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
