"""Tuning: what was searched for every tuned system, how long, and what it brought."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure
from omegaconf import DictConfig

from study.analysis.report import plots
from study.analysis.report.results import TUNED_SUFFIX, Results
from study.analysis.report.tables import NOT_RUN, RISING, duration
from study.base import paths
from study.base.errors import StudyError
from study.base.files import read_csv
from study.base.settings import parsed
from study.config.compose import plain, sound_systems
from study.evaluation.records import read_record
from study.evaluation.statistics import bootstrap_interval
from study.search.sweep import TUNED, load_sweep

# What a search is for: `study tune` draws 12 settings for every system, `study sweep` varies the settings of T2MRec
# with as many trials as its question needs. In the order of the table.
TUNING, SWEEP = KINDS = ("tuning", "sweep")
METRIC = "ndcg@10"
EFFECTS = ["protocol", "system", "title", "own", "tuned", "diff", "diff_ci_low", "diff_ci_high", "rising"]
# Columns of `tuned` -> as printed.
TITLES = {
    "title": "system",
    "protocol": "protocol",
    "space": "search space",
    "trials": "trials",
    "epochs": "epochs per trial",
    "seconds": "seconds",
    "per_trial": "median seconds of a trial",
    "best": "best NDCG@10",
    "chosen": "chosen",
}
COLUMNS = ["kind", "sweep", "system", *TITLES]


def tuned(dataset: str) -> pd.DataFrame:
    """Every search of a data set, `study tune` and `study sweep` alike, and the tuned systems without one.

    Returns: one row per folder of ``results/<dataset>/{sweeps,tuned}`` and one per configured system that has a search
    space and no run, in the order of `KINDS` and then of titles: kind, sweep (folder), system, title, protocol (whose
    validation part was measured), space (as text), trials, epochs (of a run's that a trial trained, as text, with the
    trials of every rung where there are several; empty for a system without epochs), seconds (all trials), per_trial
    (the median of their seconds, which one slow trial does not move; NaN where trials have no seconds of their own),
    best (NDCG@10 on validation, the mean over seeds if there are several), chosen (as text). A folder that is no whole
    search raises `StudyError`.
    """
    parents = [paths.results(dataset) / name for name in ("sweeps", "tuned")]
    folders = {path.name: path for parent in parents for path in parent.glob("*") if path.is_dir()}
    known, searches = sound_systems(), {system: load_sweep(name) for name, system in TUNED.items()}
    rows = [_ran(folders[name], known) for name in sorted(folders)]
    for name, system in known.items():
        space = plain(system.search) or (searches[name].space if name in searches else {})
        if system.tuned is not None and name not in folders and space:
            row = {"kind": SWEEP if name in searches else TUNING, "sweep": name, "system": name, "title": system.title}
            rows.append(row | {"protocol": system.tuned, "space": described(space), "trials": 0})
    rows.sort(key=lambda row: (KINDS.index(row["kind"]), row["title"].casefold()))
    return pd.DataFrame(rows, columns=COLUMNS)


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """The table of `tuned` as text, by the names of `TITLES`; "not run" stands in place of the trials."""
    forms: dict[str, Callable[[Any], str]] = {"seconds": duration, "per_trial": duration, "best": "{:.4f}".format}
    text = table.assign(**{name: table[name].map(form, na_action="ignore") for name, form in forms.items()})
    text["trials"] = text["trials"].replace(0, NOT_RUN)
    return text[list(TITLES)].astype(object).fillna("").astype(str).rename(columns=TITLES)


def described(space: Mapping[str, Mapping[str, Any]]) -> str:
    """A search space in words: ``k 5, 10, null; alpha 0 to 2; learning_rate 0.0005 to 0.02 (log)``."""
    parts = []
    for name, domain in space.items():
        if "choices" in domain:
            values = ", ".join(_shown(value) for value in domain["choices"])
        else:
            values = f"{_shown(domain['low'])} to {_shown(domain['high'])}{' (log)' * bool(domain.get('log'))}"
        parts.append(f"{name.removeprefix('settings.')} {values}")
    return "; ".join(parts)


def _states(tree: Any, key: str) -> bool:
    """Whether a tree of settings has a key at any depth."""
    return isinstance(tree, Mapping) and (key in tree or any(_states(value, key) for value in tree.values()))


def _shown(value: Any) -> str:
    """A value as yaml has it, numbers with four digits."""
    if isinstance(value, bool | list) or value is None:
        return json.dumps(value)
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _ran(folder: Path, known: Mapping[str, DictConfig]) -> dict[str, Any]:
    """The row of a search that has results. `known`: the settings of every system."""
    fix = "run the search again, or take the folder from git"
    record = read_record(folder / "record.json")
    try:
        best = parsed((folder / "best.yaml").read_text(encoding="utf-8"))
        trials, config = read_csv(folder / "trials.csv"), record["config"]
        model, sweep = config["system"]["model"], load_sweep(best["sweep"]) if "sweep" in best else None
        space = config["system"]["search"] if sweep is None else sweep.space
        title = known[best["system"]].title if best["system"] in known else best["system"]
        # A search from before there were rungs names its one share, and every trial of a sweep trains whole runs.
        rungs = config["system"].get("rungs", [config["tuning"].get("scale", 1.0)]) if sweep is None else [1.0]
        epochs = f"{rungs[0]:.0%}"
        if len(rungs) > 1:
            epochs = "; ".join(f"{(trials['share'] == share).sum()} x {share:.0%}" for share in rungs)
        chosen = {name.removeprefix("settings."): best["values"][name] for name in space if name in best["values"]}
        return {
            "kind": TUNING if sweep is None else SWEEP,
            "sweep": folder.name,
            "system": best["system"],
            "title": f"{title}: {sweep.title}" if sweep else title,
            "protocol": best["protocol"],
            "space": described(space),
            "trials": best["trials"],
            "epochs": epochs if _states(model, "epochs") else math.nan,
            "seconds": best["seconds"],
            "per_trial": trials["seconds"].median() if "seconds" in trials else math.nan,
            "best": best["value"],
            "chosen": "; ".join(f"{name} {_shown(value)}" for name, value in chosen.items()),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise StudyError(f"not a whole search: {type(error).__name__}: {error}", file=folder, fix=fix) from error


def effects(results: Results, *, seed: int = 1) -> pd.DataFrame:
    """Every tuned system beside itself at its own settings, under every protocol where both have runs.

    Returns: protocol, system (without the suffix), title, own and tuned (`METRIC`, means over seeds and tasks),
    diff (tuned minus own), diff_ci_low and diff_ci_high (95 %, bootstrap over tasks), rising (either run, see
    `Results.rising`); the largest diff of a protocol first.
    """
    rows, rising = list[tuple[Any, ...]](), results.rising()
    for protocol in results.protocols:
        ran, own_rows = results.systems(protocol), list[tuple[Any, ...]]()
        for name in (name for name in ran if name.endswith(TUNED_SUFFIX)):
            if (base := name.removesuffix(TUNED_SUFFIX)) in ran:
                own, tuned = (results.per_task(protocol, system)[METRIC] for system in (base, name))
                change = (tuned - own).dropna().to_numpy(np.float64)
                values = own.mean(), tuned.mean(), change.mean(), *bootstrap_interval(change, seed=seed)
                late = not rising.isdisjoint({(protocol, base), (protocol, name)})
                own_rows.append((protocol, base, results.titles[base], *values, late))
        rows += sorted(own_rows, key=lambda row: -row[EFFECTS.index("diff")])
    return pd.DataFrame(rows, columns=EFFECTS)


@plots.styled
def effects_figure(table: pd.DataFrame, caption: str) -> Figure:
    """One line per system and protocol, from its own settings (open) to the tuned ones (filled)."""
    caption += (
        " Open: the system at its own settings. Filled: tuned; it hides an open marker of the same value. "
        "Green: better after tuning, red: worse, where the 95 % bootstrap interval of the difference over tasks leaves "
        "out 0 (not corrected for the number of systems); grey: where it does not. One "
        "panel per protocol, the largest gain first."
    ) + RISING * bool(table["rising"].any())
    sizes = table.groupby("protocol", sort=False).size()
    height, title = 1.1 + 0.24 * (len(table) + 2 * len(sizes)), "What tuning brought on the test tasks"
    panels: dict[str, Any] = {"gridspec_kw": {"height_ratios": (sizes + 1.5).tolist()}, "sharex": True}
    figure, axes = plots.canvas(height, rows=len(sizes), caption=caption, title=title, **panels)
    for panel, (protocol, rows) in zip(axes[:, 0], table.groupby("protocol", sort=False), strict=True):
        names = rows["title"] + np.where(rows["rising"], " †", "")
        plots.dumbbells(panel, rows, names, "own", "tuned", "diff_ci_low", "diff_ci_high")
        panel.set(title=protocol)
    axes[-1, 0].set_xlabel(f"{plots.metric_name(METRIC)} (0 to 1)")
    return figure
