"""A hostile catalogue: how far does a server climb in each system by stuffing its description with keywords?

The attackers know published tasks, not the one that will be asked: ``broad`` ones add the words that are most frequent
in all training tasks, ``aimed`` ones those of one group of them. Every system is fitted anew on the changed catalogue,
as if it had been crawled that day; ``control`` servers, which change nothing, show what moves anyway.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import DictConfig
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from tqdm import tqdm

from study import paths
from study.config.compose import build_system, load, plain
from study.config.reader import read_settings
from study.data.dataset import Dataset, IntArray
from study.data.splits import PARTS, WORD, Split
from study.errors import StudyError
from study.evaluation.records import record
from study.evaluation.runs import KEPT, rank_tasks
from study.evaluation.statistics import mean_interval
from study.files import write_csv, write_json, write_parquet
from study.runner.identity import row_key
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads


@dataclass(frozen=True)
class Stuffing:
    """``conf/reranking/stuffing.yaml``, where every key is explained."""

    systems: list[str]
    protocol: str
    part: str
    per_group: int
    group: str
    attackers: int
    controls: int
    words: list[int]
    seed: int


@dataclass(frozen=True)
class Plan:
    """Who attacks whom: rows of the asked tasks, ascending, and of the watched servers.
    `forms` says what each server does (broad, aimed or control); `groups` at which tasks it aims, empty for others."""

    tasks: IntArray
    servers: IntArray
    forms: list[str]
    groups: list[str]


def read(path: Path | None = None) -> Stuffing:
    """Read the settings; a part that there is not raises `StudyError`."""
    path = path or paths.conf() / "reranking" / "stuffing.yaml"
    settings = read_settings(Stuffing, path)
    if settings.part not in PARTS:
        raise StudyError(f"there is no part {settings.part!r}", file=path, column="part", fix=", ".join(PARTS))
    return settings


def plan(data: Dataset, split: Split, settings: Stuffing) -> Plan:
    """Draw the asked tasks and the watched servers; a catalogue that is too small raises `StudyError`."""
    rng = np.random.default_rng(settings.seed)
    groups, rows = data.tasks[settings.group].to_numpy(dtype=str), split.tasks(settings.part)
    members = [rows[groups[rows] == group] for group in sorted(set(groups[rows]))]
    tasks = np.sort(np.concatenate([rng.permutation(own)[: settings.per_group] for own in members]))
    wanted = settings.attackers + settings.controls
    if data.n_servers < wanted:
        problem = f"the catalogue has {data.n_servers} servers, {wanted} are to be watched"
        raise StudyError(problem, file=paths.conf() / "reranking/stuffing.yaml", fix="lower attackers or controls")
    broad = settings.attackers // 2
    aimed = settings.attackers - broad
    names = sorted(set(groups[tasks]))
    return Plan(
        tasks,
        rng.permutation(data.n_servers)[:wanted].astype(np.int64),
        ["broad"] * broad + ["aimed"] * aimed + ["control"] * settings.controls,
        [""] * broad + [names[number % len(names)] for number in range(aimed)] + [""] * settings.controls,
    )


def keywords(texts: Iterable[str], most: int) -> list[str]:
    """The words that occur in most of the texts, stop words and single letters left out, most frequent first."""
    counts = Counter(word for text in texts for word in set(re.findall(WORD, text.lower())))
    chosen = [(-count, word) for word, count in counts.items() if len(word) > 1 and word not in ENGLISH_STOP_WORDS]
    return [word for _, word in sorted(chosen)[:most]]


def stuffed(data: Dataset, split: Split, attack: Plan, group: str, words: int) -> Dataset:
    """`data` with `words` keywords added to the description of every attacker; `group`: task column to aim at."""
    train = split.tasks("train")
    texts = np.array(data.task_texts(("name", "description")), dtype=object)[train]
    groups = data.tasks[group].to_numpy(dtype=str)[train]
    added = {name: keywords(texts[groups == name] if name else texts, words) for name in set(attack.groups)}
    descriptions = data.servers["description"].to_numpy(dtype=object).copy()
    for server, form, name in zip(attack.servers, attack.forms, attack.groups, strict=True):
        if form != "control":
            descriptions[server] = " ".join([descriptions[server], *added[name]])
    return replace(data, servers=data.servers.assign(description=descriptions))


def watched_ranks(config: DictConfig, data: Dataset, split: Split, attack: Plan, part: str, workdir: Path) -> IntArray:
    """Fit the configured system and look up the ranks (from 1) of the watched servers.
    Returns: shape (asked tasks, watched servers); a server that the system does not rank is last."""
    seed = int(config.system.seeds[0])
    system = build_system(config.system)
    workdir.mkdir(parents=True, exist_ok=True)
    system.fit(data, split, seed=seed, workdir=workdir)
    found, _ = rank_tasks(system, split, attack.tasks, part=part, k=data.n_servers, seed=seed)
    ranks = np.full((len(attack.tasks), data.n_servers), data.n_servers, dtype=np.int64)
    task, place = np.nonzero(found >= 0)
    ranks[task, found[task, place]] = place + 1
    return ranks[:, attack.servers]


def gains(data: Dataset, attack: Plan, group: str, before: IntArray, after: IntArray) -> pd.DataFrame:
    """Per watched server, its mean rank before and after, and how often it is among the best ten.

    An aimed attacker is measured on the tasks of its group, any other server on all asked tasks; tasks that the server
    is listed for are left out, since there it has a right to its place. `before` and `after` are `watched_ranks`.

    Returns: columns form, before, after, gain (places climbed), top_before, top_after (shares of the tasks).
    """
    groups = data.tasks[group].to_numpy(dtype=str)[attack.tasks]
    rows = []
    listed = data.relevance[attack.tasks][:, attack.servers].toarray() > 0
    for column, (form, name) in enumerate(zip(attack.forms, attack.groups, strict=True)):
        chosen = ~listed[:, column] & ((groups == name) | (name == ""))
        if not chosen.any():
            continue
        old, new = before[chosen, column], after[chosen, column]
        row = {"form": form, "before": old.mean(), "after": new.mean(), "gain": (old - new).mean()}
        rows.append(row | {"top_before": (old <= KEPT).mean(), "top_after": (new <= KEPT).mean()})
    return pd.DataFrame(rows)


def summary(found: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """Means over servers, with a 95 % bootstrap interval of the gain; `found`: rows of `gains` by system and words."""
    rows = []
    for (system, words, form), part in found.groupby(["system", "words", "form"], sort=False):
        row = {"system": system, "words": words, "form": form, "servers": len(part)}
        means = part[["before", "after", "gain", "top_before", "top_after"]].mean().to_dict()
        rows.append(row | means | mean_interval(part["gain"], seed=seed, name="gain", prefix="gain_"))
    return pd.DataFrame(rows)


def measure(dataset: str, profile: str = "laptop") -> Path:
    """Attack every system of the settings and write ``results/<dataset>/reranking/stuffing.csv`` with its record.
    Goes on after a stop: ranks of finished systems and catalogues are kept in the cache."""
    settings = read()
    configs = {
        name: load([f"dataset={dataset}", f"protocol={settings.protocol}", f"system={name}", f"profile={profile}"])
        for name in settings.systems
    }
    first = next(iter(configs.values()))
    limit_threads(first.profile.threads)
    data, split = load_inputs(first.dataset.name, first.protocol.name)
    attack = plan(data, split, settings)
    drawn = hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode()).hexdigest()[:16]
    jobs = [(name, words) for name in configs for words in (0, *settings.words)]
    ranks: dict[tuple[str, int], IntArray] = {}
    for name, words in tqdm(jobs, desc="stuffing", unit="fit", disable=not sys.stderr.isatty()):
        folder = paths.cache() / "stuffing" / dataset / f"{row_key(configs[name])}-{drawn}"
        kept = folder / f"{name}-{words}.parquet"
        if not kept.exists():
            changed = stuffed(data, split, attack, settings.group, words) if words else data
            workdir = folder / f"work-{name}-{words}"
            table = watched_ranks(configs[name], changed, split, attack, settings.part, workdir)
            write_parquet(kept, pd.DataFrame(table, columns=[str(row) for row in attack.servers]))
            shutil.rmtree(workdir)
        ranks[name, words] = pd.read_parquet(kept).to_numpy(dtype=np.int64)
    found = pd.concat(
        gains(data, attack, settings.group, ranks[name, 0], ranks[name, words]).assign(system=name, words=words)
        for name, words in jobs
        if words
    )
    place = paths.results(dataset) / "reranking" / "stuffing.csv"
    write_csv(place, summary(found, seed=settings.seed))
    facts = {"dataset": dataset, "protocol": settings.protocol, "profile": profile, "attack": asdict(settings)}
    sizes = {"tasks": len(attack.tasks), "catalogue": data.n_servers}
    systems = {name: plain(config.system) for name, config in configs.items()}
    write_json(place.with_suffix(".json"), record(**facts, **sizes, config=systems))
    return place
