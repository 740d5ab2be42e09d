"""Keyword stuffing: the rank that a server gains by copying a task's words into its description.

Every attacked server is paired with a task of its own and drawn at random from the servers that are not listed for it.
A system is fitted on the clean and on the attacked catalogue with the same labels, since an attacker changes a
catalogue and not what others judged. All attacks of a strength stand in one catalogue, so a system is fitted once for
them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from tqdm import tqdm

from study import paths
from study.agent.settings import Stuffing
from study.analysis.plots import BLUE, ORANGE, STYLE, canvas
from study.config import build_system, load
from study.data.dataset import Dataset, IntArray
from study.data.splits import Split
from study.evaluation.records import record
from study.evaluation.runs import rank_tasks
from study.files import write_csv, write_json
from study.pipeline.run import load_inputs
from study.system import System

COLUMNS = ["system", "repeats", "task_id", "server_id", "before", "after"]


def draw(data: Dataset, split: Split, settings: Stuffing) -> tuple[IntArray, IntArray]:
    """Tasks of the part, and for each a server of its own that is not listed for it.

    Returns: task rows and server rows, both of shape (n,), n at most `settings.targets`.
    """
    rng = np.random.default_rng([settings.seed, 0x57F])
    tasks = rng.permutation(split.tasks(settings.part))[: min(settings.targets, data.n_servers)]
    servers = rng.permutation(data.n_servers)
    chosen: list[int] = []
    taken: set[int] = set()
    for task in tasks:
        listed = set(data.relevance[task].indices)
        server = next(int(row) for row in servers if row not in taken and row not in listed)
        taken.add(server)
        chosen.append(server)
    return tasks, np.array(chosen, dtype=np.int64)


def attacked(data: Dataset, tasks: IntArray, servers: IntArray, repeats: int) -> Dataset:
    """The catalogue after each server's description got the words of its task, `repeats` times."""
    table = data.servers.copy()
    words = (data.tasks["name"] + " " + data.tasks["description"]).to_numpy()
    column = table["description"].to_numpy(dtype=object, copy=True)
    for task, server in zip(tasks, servers, strict=True):
        column[server] = " ".join([column[server], *[words[task]] * repeats])
    table["description"] = column
    return replace(data, servers=table)


def ranks(
    system: System, data: Dataset, split: Split, tasks: IntArray, servers: IntArray, settings: Stuffing
) -> IntArray:
    """Place of each server for its task, from 1; a server that is not ranked stands last. Shape (n,)."""
    with tempfile.TemporaryDirectory() as folder:
        system.fit(data, split, seed=settings.seed, workdir=Path(folder))
    found, _ = rank_tasks(system, split, tasks, part=settings.part, k=data.n_servers, seed=settings.seed,
                          n_servers=data.n_servers)  # fmt: skip
    places = np.full(len(tasks), data.n_servers, dtype=np.int64)
    rows, columns = np.nonzero(found == servers[:, None])
    places[rows] = columns + 1
    return places


def measure(dataset: str, settings: Stuffing, overrides: Sequence[str] = ()) -> Path:
    """Attack every system; a system that was measured with the same settings is not measured again.

    Returns: the table ``agent_stuffing.csv``: one row per system, strength and attacked server.
    """
    target = paths.tables(dataset) / "agent_stuffing.csv"
    about = paths.results(dataset) / "records" / "agent_stuffing.json"
    done = _earlier(target, about, settings, overrides)
    for name in tqdm([name for name in settings.systems if name not in set(done["system"])], unit="system"):
        config = load([f"dataset={dataset}", "protocol=cold", f"system={name}", *overrides])
        data, split = load_inputs(config)
        tasks, servers = draw(data, split, settings)
        clean = ranks(build_system(config.system), data, split, tasks, servers, settings)
        for repeats in settings.repeats:
            other = attacked(data, tasks, servers, repeats)
            after = ranks(build_system(config.system), other, split, tasks, servers, settings)
            ids = (data.tasks["id"].to_numpy()[tasks], data.servers["id"].to_numpy()[servers])
            rows = pd.DataFrame({"system": name, "repeats": repeats, "task_id": ids[0], "server_id": ids[1],
                                 "before": clean, "after": after})  # fmt: skip
            done = pd.concat([done, rows], ignore_index=True) if len(done) else rows
        write_json(about, record(settings=asdict(settings), overrides=list(overrides)))
        write_csv(target, done[COLUMNS])
    return target


def _earlier(target: Path, about: Path, settings: Stuffing, overrides: Sequence[str]) -> pd.DataFrame:
    import json

    empty = pd.DataFrame(columns=COLUMNS)
    if not target.exists() or not about.exists():
        return empty
    was = json.loads(about.read_text(encoding="utf-8"))
    same = {key: value for key, value in was["settings"].items() if key != "systems"} == {
        key: value for key, value in asdict(settings).items() if key != "systems"
    }
    if not same or was["overrides"] != list(overrides):
        return empty
    done = pd.read_csv(target)
    return done[done["system"].isin(settings.systems)]


def summary(table: pd.DataFrame, *, top: int, resamples: int = 2_000, seed: int = 0) -> pd.DataFrame:
    """Per system and strength: mean rank gained, its 95 % bootstrap interval over servers, and how many reach the top.

    Returns: columns system, repeats, n, before, gained, low, high, top_before, top_after.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for (system, repeats), group in table.groupby(["system", "repeats"], sort=False):
        gained = (group["before"] - group["after"]).to_numpy(dtype=float)
        means = rng.choice(gained, (resamples, len(gained))).mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        rows.append({
            "system": system, "repeats": repeats, "n": len(group), "before": group["before"].mean(),
            "gained": gained.mean(), "low": low, "high": high,
            "top_before": (group["before"] <= top).mean(), "top_after": (group["after"] <= top).mean(),
        })  # fmt: skip
    return pd.DataFrame(rows)


@mpl.rc_context(STYLE)
def figure(found: pd.DataFrame, *, top: int, n_servers: int, caption: str = "") -> Figure:
    """Mean rank gained (left) and share of attacked servers in an answer (right), per system.

    Args:
        found: rows of `summary`.
    """
    strengths = sorted(found["repeats"].unique())
    systems = list(found.groupby("system")["gained"].max().sort_values().index)
    caption += (
        f" {int(found['n'].iloc[0])} servers of {n_servers:,}, each with the words of one task copied into its "
        "description. Left: mean places gained, bars: 95 % bootstrap interval over servers. Right: share within the "
        f"best {top}."
    )
    drawn, axes = canvas(0.42 * len(systems) + 1.6, 2, share_y=True, caption=caption.strip(),
                         title="Keyword stuffing: how far an attacker climbs")  # fmt: skip
    for number, (repeats, ink) in enumerate(zip(strengths, (BLUE, ORANGE), strict=False)):
        part = found[found["repeats"] == repeats].set_index("system").loc[systems]
        y = np.arange(len(systems)) + 0.36 * (number - (len(strengths) - 1) / 2)
        errors = np.abs(part[["low", "high"]].to_numpy().T - part["gained"].to_numpy())
        label = f"copied {repeats} time{'' if repeats == 1 else 's'}"
        axes[0, 0].barh(y, part["gained"], 0.34, xerr=errors, color=ink, label=label, error_kw={"linewidth": 0.8})
        axes[0, 1].barh(y, part["top_after"], 0.34, color=ink)
    axes[0, 0].set_yticks(np.arange(len(systems)), systems)
    axes[0, 0].set_xlabel("mean places gained")
    axes[0, 0].legend(frameon=False, loc="lower right")
    axes[0, 1].set_xlabel(f"share of attacked servers in the best {top}")
    axes[0, 1].set_xlim(0, 1)
    return drawn
