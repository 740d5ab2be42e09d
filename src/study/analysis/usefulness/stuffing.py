"""A hostile catalogue: how far does a server climb in each system by stuffing its description with keywords of training
tasks (``broad``: of all of them; ``aimed``: of one group)? Systems are fitted anew on the changed catalogue;
``control`` servers, which change nothing, show what moves anyway."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from study.analysis.framework import Context, Tables, analysis, kept_fits
from study.config.compose import build_system, load, plain
from study.data.dataset import Dataset, IntArray
from study.data.splits import WORD, Split
from study.evaluation.runs import KEPT, rank_tasks
from study.evaluation.statistics import mean_interval
from study.runner.identity import row_key
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads

FORMS = ("broad", "aimed", "control")


@dataclass(frozen=True)
class Stuffing:
    """Who attacks, and which systems are attacked."""

    systems: list[str]
    protocol: str
    part: str
    per_group: int
    group: str
    attackers: int
    controls: int
    words: list[int]
    seed: int


def plan(data: Dataset, split: Split, settings: Stuffing) -> tuple[IntArray, pd.DataFrame]:
    """The sampled tasks and the watched servers.

    Returns: rows of the tasks, ascending; and of each watched server its row (server), what it does (form, one of
        `FORMS`) and the group of tasks that it aims at, empty for others (group).
    """
    rng = np.random.default_rng(settings.seed)
    groups, rows = data.tasks[settings.group].to_numpy(dtype=str), split.tasks(settings.part)
    members = [rows[groups[rows] == group] for group in sorted(set(groups[rows]))]
    tasks = np.sort(np.concatenate([rng.permutation(group_rows)[: settings.per_group] for group_rows in members]))
    broad = settings.attackers // 2
    forms = np.repeat(FORMS, (broad, settings.attackers - broad, settings.controls))
    watched = pd.DataFrame({"server": rng.permutation(data.n_servers)[: len(forms)], "form": forms, "group": ""})
    aims = watched["form"] == "aimed"
    watched.loc[aims, "group"] = list(islice(cycle(sorted(set(groups[tasks]))), int(aims.sum())))
    return tasks, watched


def keywords(texts: Iterable[str], most: int) -> list[str]:
    """The words that occur in most of the texts, stop words and single letters left out, most frequent first."""
    counts = Counter(word for text in texts for word in set(re.findall(WORD, text.lower())))
    chosen = [(-count, word) for word, count in counts.items() if len(word) > 1 and word not in ENGLISH_STOP_WORDS]
    return [word for _, word in sorted(chosen)[:most]]


def stuff_descriptions(data: Dataset, split: Split, watched: pd.DataFrame, group: str, words: int) -> Dataset:
    """`data` with `words` keywords added to the description of every attacker; `group`: task column to aim at."""
    train = split.tasks("train")
    texts = np.array(data.task_texts(("name", "description")), dtype=object)[train]
    groups = data.tasks[group].to_numpy(dtype=str)[train]
    added = {name: keywords(texts[groups == name] if name else texts, words) for name in set(watched["group"])}
    descriptions = data.servers["description"].to_numpy(dtype=object).copy()
    for server, aim in watched.loc[watched["form"] != "control", ["server", "group"]].itertuples(index=False):
        descriptions[server] = " ".join([descriptions[server], *added[aim]])
    return replace(data, servers=data.servers.assign(description=descriptions))


def ranks_of(
    config: DictConfig, data: Dataset, split: Split, tasks: IntArray, servers: IntArray, part: str
) -> IntArray:
    """Fit the configured system and look up the ranks (from 1) of the servers for the tasks of a part.
    Returns: shape (tasks, servers); a server that the system does not rank is last."""
    seed, system = int(config.system.seeds[0]), build_system(config.system)
    with tempfile.TemporaryDirectory() as folder:
        system.fit(data, split, seed=seed, workdir=Path(folder))
        ranked, _ = rank_tasks(system, split, tasks, part=part, k=data.n_servers, seed=seed)
    ranks = np.full((len(tasks), data.n_servers), data.n_servers, dtype=np.int64)
    task, column = np.nonzero(ranked >= 0)
    ranks[task, ranked[task, column]] = column + 1
    return ranks[:, servers]


def gains(
    data: Dataset, tasks: IntArray, watched: pd.DataFrame, group: str, before: IntArray, after: IntArray
) -> pd.DataFrame:
    """Per watched server, its mean rank before and after, and how often it is among the best ten.

    An aimed attacker is measured on the tasks of its group, any other server on all asked tasks; tasks that the server
    is listed for are left out, since there it has a right to its place. `before` and `after` are `ranks_of`.

    Returns: columns form, before, after, gain (places climbed), top_before, top_after (shares of the tasks).
    """
    groups, rows = data.tasks[group].to_numpy(dtype=str)[tasks], []
    listed = data.relevance[tasks][:, watched["server"].to_numpy()].toarray() > 0
    for column, (form, name) in enumerate(zip(watched["form"], watched["group"], strict=True)):
        chosen = ~listed[:, column] & ((groups == name) | (name == ""))
        if chosen.any():
            old, new = before[chosen, column], after[chosen, column]
            row = {"form": form, "before": old.mean(), "after": new.mean(), "gain": (old - new).mean()}
            rows.append(row | {"top_before": (old <= KEPT).mean(), "top_after": (new <= KEPT).mean()})
    return pd.DataFrame(rows)


def summary(climbs: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """Means over servers, with a 95 % bootstrap interval of the gain; `climbs`: rows of `gains` by system and words."""
    rows = []
    for (system, words, form), part in climbs.groupby(["system", "words", "form"], sort=False):
        row = {"system": system, "words": words, "form": form, "servers": len(part)}
        means = part[["before", "after", "gain", "top_before", "top_after"]].mean().to_dict()
        rows.append(row | means | mean_interval(part["gain"], seed=seed, name="gain", prefix="gain_"))
    return pd.DataFrame(rows)


@analysis("usefulness", name="stuffing", slow=True)
def keyword_stuffing(study: Context) -> Tables:
    """How far does a server climb in each system by stuffing its description with keywords?"""
    settings = study.settings(Stuffing)
    shared = [f"dataset={study.dataset}", f"protocol={settings.protocol}", f"profile={study.config.profile.name}"]
    configs = {name: load([*shared, f"system={name}"]) for name in settings.systems}
    limit_threads(study.config.profile.threads)
    data, split = load_inputs(study.dataset, settings.protocol)
    tasks, watched = plan(data, split, settings)
    servers, group = watched["server"].to_numpy(np.int64), settings.group

    def rank_watched(key: tuple[Any, ...]) -> pd.DataFrame:
        def ranks(catalogue: Dataset) -> IntArray:
            return ranks_of(configs[key[0]], catalogue, split, tasks, servers, settings.part)

        before, climbed = ranks(data), {}
        for words in settings.words:
            after = ranks(stuff_descriptions(data, split, watched, group, words))
            climbed[words] = gains(data, tasks, watched, group, before, after)
        return pd.concat(climbed, names=["words"]).reset_index("words")

    attack = json.dumps({**asdict(settings), "systems": None}, sort_keys=True)
    fits = kept_fits(study.dataset, "usefulness", "stuffing_fits", ("system", "fingerprint", "attack"))
    climbs = fits.complete([(name, row_key(config), attack) for name, config in configs.items()], rank_watched)
    study.facts.update({"profile": study.config.profile.name, "tasks": len(tasks), "catalogue": data.n_servers})
    study.facts["systems"] = {name: plain(config.system) for name, config in configs.items()}
    return {"stuffing": summary(climbs, seed=settings.seed)}
