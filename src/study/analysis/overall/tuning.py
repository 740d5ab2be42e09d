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
from omegaconf import DictConfig, ListConfig, OmegaConf

from study import paths
from study.analysis.report.plots import canvas, dumbbells, metric_name, styled
from study.analysis.report.results import TUNED_SUFFIX, Results
from study.analysis.report.tables import NOT_RUN, RISING, duration
from study.config.compose import plain, sound_systems
from study.config.reader import parsed
from study.errors import StudyError
from study.evaluation.records import read_record
from study.evaluation.statistics import bootstrap_interval
from study.files import read_csv
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
    "settings": "distinct settings",
    "epochs": "epochs per trial",
    "seconds": "seconds",
    "per_trial": "median seconds of a trial",
    "best": "best NDCG@10",
    "untuned": "untuned NDCG@10",
    "chosen": "chosen",
}
COLUMNS = ["kind", "sweep", "system", *TITLES]


def tuned(dataset: str) -> pd.DataFrame:
    """Every search of a data set, `study tune` and `study sweep` alike, and the tuned systems without one.

    Returns: one row per folder of ``results/<dataset>/{sweeps,tuned}`` and one per configured system that has a search
    space and no run, in the order of `KINDS` and then of titles: kind, sweep (folder), system, title, protocol (whose
    validation part was measured), space (as text), trials, settings (different ones among the trials: a search may
    repeat a choice, a sweep tries each with several seeds), epochs (of a run's that a trial trained, as text, with the
    trials of every rung where there are several; empty for a system without epochs), seconds (all trials), per_trial
    (the median of their seconds, which one slow trial does not move; NaN where trials have no seconds of their own),
    best (NDCG@10 on validation, the mean over seeds if there are several), untuned (the same of the last rung's trials
    with the system's own settings, NaN where none has them), chosen (as text). A folder that is no whole search raises
    `StudyError`.
    """
    parents = (paths.results(dataset) / name for name in ("sweeps", "tuned"))
    folders = sorted(
        (path for parent in parents for path in parent.glob("*") if path.is_dir()), key=lambda path: path.name
    )
    known = sound_systems()
    rows = [_ran(folder, known) for folder in folders]
    seen = {folder.name for folder in folders}
    searches = {system: load_sweep(name) for name, system in TUNED.items()}
    for name, system in known.items():
        if system.tuned is None or name in seen:
            continue
        space = plain(system.search) or (searches[name].space if name in searches else {})
        if space:
            kind = SWEEP if name in searches else TUNING
            row = {"kind": kind, "sweep": name, "system": name, "title": system.title, "protocol": system.tuned}
            rows.append(row | {"space": described(space), "trials": 0, "settings": 0})
    rows.sort(key=lambda row: (KINDS.index(row["kind"]), row["title"].casefold()))
    return pd.DataFrame(rows, columns=COLUMNS)


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """The table of `tuned` as text, by the names of `TITLES`; "not run" stands in place of the trials."""
    digits = "{:.4f}".format
    shown: dict[str, Callable[[Any], str]] = {"settings": str, "chosen": str, "epochs": str}
    shown |= {"seconds": duration, "per_trial": duration, "best": digits, "untuned": digits}
    missing = {"epochs": "no epochs", "per_trial": "not timed", "untuned": "not measured"}
    ran = table["trials"] > 0
    text = {"trials": table["trials"].astype(str).where(ran, NOT_RUN)}
    for name, form in shown.items():
        column = table[name].map(form, na_action="ignore").astype(object)
        text[name] = column.where(column.notna(), missing.get(name, "")).where(ran, "")
    return table.assign(**text)[list(TITLES)].rename(columns=TITLES)


def described(space: Mapping[str, Mapping[str, Any]]) -> str:
    """A search space in words: ``k 5, 10, null; alpha 0 to 2; learning_rate 0.0005 to 0.02 (log)``."""
    parts = []
    for name, domain in space.items():
        if "choices" in domain:
            values = ", ".join(_shown(value) for value in domain["choices"])
        else:
            scale = " (log)" if domain.get("log") else ""
            values = f"{_shown(domain['low'])} to {_shown(domain['high'])}{scale}"
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
        trials = read_csv(folder / "trials.csv")
        config = record["config"]
        sweep = load_sweep(best["sweep"]) if "sweep" in best else None
        space = config["system"]["search"] if sweep is None else sweep.space
        title = known[best["system"]].title if best["system"] in known else best["system"]
        model = config["system"]["model"]
        trained = _states(model, "epochs")
        # A search from before there were rungs names its one share, and every trial of a sweep trains whole runs.
        rungs = config["system"].get("rungs", [config["tuning"].get("scale", 1.0)]) if sweep is None else [1.0]
        last = trials[trials["share"] == rungs[-1]] if "share" in trials else trials
        epochs = f"{rungs[0]:.0%}"
        if len(rungs) > 1:
            epochs = "; ".join(f"{(trials['share'] == share).sum()} x {share:.0%}" for share in rungs)
        simplex, chosen = [] if sweep is None else sweep.simplex, [name for name in space if name in best["values"]]
        return {
            "kind": TUNING if sweep is None else SWEEP,
            "sweep": folder.name,
            "system": best["system"],
            "title": f"{title}: {sweep.title}" if sweep else title,
            "protocol": best["protocol"],
            "space": described(space),
            "trials": best["trials"],
            "settings": len(settled(trials, list(space), simplex).drop_duplicates()),
            "epochs": epochs if trained else math.nan,
            "seconds": best["seconds"],
            "per_trial": trials["seconds"].median() if "seconds" in trials else math.nan,
            "best": best["value"],
            "untuned": untuned(last, model, list(space), simplex, best["objective"]),
            "chosen": "; ".join(f"{name.removeprefix('settings.')} {_shown(best['values'][name])}" for name in chosen),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise StudyError(f"not a whole search: {type(error).__name__}: {error}", file=folder, fix=fix) from error


def untuned(
    trials: pd.DataFrame, model: Mapping[str, Any], names: list[str], simplex: list[str], objective: str
) -> float:
    """The mean `objective` (a column) of the trials that have the system's own settings; NaN where there is none.

    `model` has these settings, nested; `names` are the searched ones, dotted; those of `simplex` count by their shares
    of their sum.
    """
    settings = OmegaConf.create(dict(model))
    own = {name: OmegaConf.select(settings, name) for name in names}
    # A size by profile is a call that holds the value of each profile and names one.
    own = {name: value[value.profile] if isinstance(value, DictConfig) else value for name, value in own.items()}
    own = {name: list(value) if isinstance(value, ListConfig) else value for name, value in own.items()}
    if simplex:
        total = sum(own[name] for name in simplex)
        own |= {name: own[name] / total for name in simplex}
    rows = settled(trials, names, simplex).to_dict("records")
    same = [all(_same(own[name], row[name]) for name in names) for row in rows]
    return float(trials.loc[same, objective].mean()) if any(same) else math.nan


def settled(trials: pd.DataFrame, names: list[str], simplex: list[str]) -> pd.DataFrame:
    """The settings that each trial stood for: its searched values, those of the simplex divided by their sum."""
    table = trials[names].astype(object)
    if simplex:
        table[simplex] = trials[simplex].div(trials[simplex].sum(axis=1), axis=0)
    return table


def _same(value: Any, written: Any) -> bool:
    """Whether a cell of trials.csv, which keeps six digits, holds a value."""
    if value is None or pd.isna(written):
        return value is None and bool(pd.isna(written))
    if isinstance(value, list):
        return bool(json.dumps(value) == written)
    if isinstance(value, bool | str):
        return str(value) == str(written)
    return not isinstance(written, str) and math.isclose(value, float(written), rel_tol=1e-5)


def effects(results: Results, *, seed: int = 1) -> pd.DataFrame:
    """Every tuned system beside itself at its own settings, under every protocol where both have runs.

    Returns: protocol, system (without the suffix), title, own and tuned (`METRIC`, means over seeds and tasks),
    diff (tuned minus own), diff_ci_low and diff_ci_high (95 %, bootstrap over tasks), rising (either run, see
    `Results.rising`); the largest diff of a protocol first.
    """
    rows: list[tuple[Any, ...]] = []
    rising = results.rising()
    for protocol in results.protocols:
        ran = results.systems(protocol)
        for name in ran:
            base = name.removesuffix(TUNED_SUFFIX)
            if base == name or base not in ran:
                continue
            own, tuned = (results.per_task(protocol, system)[METRIC] for system in (base, name))
            change = (tuned - own).dropna().to_numpy(np.float64)
            values = own.mean(), tuned.mean(), change.mean(), *bootstrap_interval(change, seed=seed)
            rows.append(
                (
                    protocol,
                    base,
                    results.titles[base],
                    *values,
                    not rising.isdisjoint({(protocol, base), (protocol, name)}),
                )
            )
    rows.sort(key=lambda row: (results.protocols.index(row[0]), -row[EFFECTS.index("diff")]))
    return pd.DataFrame(rows, columns=EFFECTS)


@styled
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
    figure, axes = canvas(height, rows=len(sizes), caption=caption, title=title, **panels)
    for panel, (protocol, rows) in zip(axes[:, 0], table.groupby("protocol", sort=False), strict=True):
        names = rows["title"] + np.where(rows["rising"], " †", "")
        dumbbells(panel, rows, names, "own", "tuned", "diff_ci_low", "diff_ci_high")
        panel.set(title=protocol)
    axes[-1, 0].set_xlabel(f"{metric_name(METRIC)} (0 to 1)")
    return figure
