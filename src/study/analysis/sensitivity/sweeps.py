"""RQ3: sweeps over one setting (paper, Figures 7 to 9) and the joint search, as the notebook shows them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import optuna
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from study.analysis.report import paper, plots
from study.analysis.report.runs import COMPARED, FAILS, HOLDS, SIDES, overall_means, read_statistics
from study.analysis.report.tables import cell
from study.base import paths
from study.base.errors import StudyError
from study.base.files import read_csv
from study.base.registry import choices
from study.evaluation import per_task
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.records import read_record
from study.evaluation.statistics import compare, compare_all, holm
from study.runner.row_store import read_per_task
from study.search import sweep as search
from study.search.sweep import Sweep, folder_of, load_sweep
from study.search.trials import distributions, read_value

# Another value is chosen, and the test does not show it to be better: no evidence against the paper, and none for it.
OPEN = "not contradicted"
TESTS = ("wilcoxon_p", "randomisation_p")
DIFFERENCE = ("diff", "diff_ci_low", "diff_ci_high", "rank_biserial")
PARTS = {"valid": plots.Look("validation tasks", plots.BLUE, "o"), "test": plots.Look("test tasks", plots.ORANGE, "s")}
PAPER = ("fusion_weight", "temperature", "learning_rate")  # Figures 7 to 9
LOG = logging.getLogger(__name__)
MOST_CHOICES = 5  # values that an axis can name one by one


def trials(dataset: str, name: str) -> pd.DataFrame | None:
    """The trials of a sweep, or None where it has not run."""
    path = folder_of(dataset, name) / "trials.csv"
    return read_csv(path, fix=f"run: study sweep {name} dataset={dataset}") if path.exists() else None


def sweeps(dataset: str) -> dict[str, tuple[Sweep, pd.DataFrame]]:
    """The sweeps over one parameter that have run on a data set: the paper's in its order, then one's own by name."""
    names = [path.parent.name for path in sorted((paths.results(dataset) / "sweeps").glob("*/record.json"))]
    found: dict[str, tuple[Sweep, pd.DataFrame]] = {}
    for name in dict.fromkeys((*PAPER, *names)):
        made, table = sweep_of(dataset, name), trials(dataset, name)
        if made is not None and table is not None and len(made.space) == 1 and made.kind != "search":
            found[name] = made, table
    return found


def sweep_of(dataset: str, name: str) -> Sweep | None:
    """The settings that a sweep ran with: those of its record, or of ``conf/sweep``; None for a tuning, or where the
    yaml is gone."""
    path = folder_of(dataset, name) / "record.json"
    made: dict[str, Any] = read_record(path) if path.exists() else {"sweep": name}
    if "settings" in made:
        return Sweep(**made["settings"])
    if made.get("sweep") in choices("sweep"):
        return load_sweep(made["sweep"])
    if "sweep" in made and path.exists():
        LOG.warning("%s is left of a sweep without a file in conf/sweep; remove it", path.parent)
    return None


def parameter(sweep: Sweep) -> str:
    """The one parameter of a grid."""
    if len(sweep.space) != 1:
        problem = f"{sweep.name} varies {len(sweep.space)} parameters, not one"
        raise StudyError(problem, file=Sweep.file(sweep.name), column="space", fix="show it as a search")
    return next(iter(sweep.space))


def curve(sweep: Sweep, table: pd.DataFrame) -> pd.DataFrame:
    """Per part, metric and value of a grid the mean, sd (ddof 1, NaN for one seed) and seeds; values ascending."""
    name, rows = parameter(sweep), []
    for part in sweep.parts:
        for metric in PAPER_METRICS:
            grouped = table.groupby(name, sort=is_numeric(table[name]))[f"{part}/{metric}"].agg(["mean", "std", "size"])
            rows += [(part, metric, value, mean, sd, int(size)) for value, mean, sd, size in grouped.itertuples()]
    return pd.DataFrame(rows, columns=["part", "metric", "value", "mean", "sd", "seeds"])


def optimum(sweep: Sweep, table: pd.DataFrame) -> dict[str, Any]:
    """The value that validation chooses (best), the paper's (paper), and the values whose mean on validation lies
    within one standard deviation over seeds of the best (flat)."""
    name, best = parameter(sweep), search.best_point(sweep, table)[parameter(sweep)]
    means = table.groupby(name)[f"valid/{sweep.objective}"].agg(["mean", "std"]).fillna(0.0)
    flat = means.index[means["mean"] >= means.loc[best, "mean"] - means.loc[best, "std"]].tolist()
    return {"best": best, "paper": sweep.paper_best, "flat": flat}


def by_value(dataset: str, sweep: Sweep) -> dict[Any, pd.DataFrame]:
    """Value of the setting -> per-task table of the test tasks; empty where the sweep kept none."""
    path = folder_of(dataset, sweep.name) / "per_task.csv.xz"
    if not path.exists():
        return {}
    name, rows = parameter(sweep), read_csv(path)
    if name not in rows:
        fix = f"run: study sweep {sweep.name} dataset={dataset}"
        raise StudyError("the per-task table lacks the setting", file=path, column=name, fix=fix)
    values = rows[name].unique().tolist()
    parts = {value: rows[rows[name] == value].drop(columns=name) for value in values}
    return {value: per_task.check(part.reset_index(drop=True), file=path) for value, part in parts.items()}


def against_paper(tables: Mapping[str, tuple[Sweep, Any, dict[Any, pd.DataFrame]]]) -> pd.DataFrame:
    """The value that validation chose against the paper's value on the test tasks: one family, one row per sweep.

    `tables` holds sweep, chosen value and per-task tables by value; sweeps without those of both values are left out.
    Seeds are averaged task by task. Where validation chooses the paper's value, both sides are the same; the row stays
    in the family with p = 1. diff = chosen - paper; p-values with _holm.
    """
    rows: list[dict[str, Any]] = []
    for name, (sweep, chosen, frames) in tables.items():
        paper = sweep.paper_best
        if paper is None or not {paper, chosen} <= frames.keys():
            continue
        seeds = frames[chosen]["seed"].nunique()
        row = {"sweep": name, "setting": sweep.title, "paper": paper, "chosen": chosen, "seeds": seeds}
        rows.append(row | compare(frames[chosen], frames[paper], sweep.objective, seed=0))
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows).assign(family=len(rows))
    table = table.assign(**{f"{test}_holm": holm(table[test].to_numpy()) for test in TESTS})
    return table.assign(verdict=[verdict(row) for row in table.to_dict("records")])


def verdict(row: Mapping[Any, Any]) -> str:
    """Whether the paper's optimum holds: validation chooses it, or the declared test finds it better than the chosen.

    ``conf/statistics.yaml`` declares the test.
    """
    settings = read_statistics()
    if row["chosen"] == row["paper"]:
        return HOLDS
    if row[f"{settings.test}_p_holm"] >= settings.alpha:
        return OPEN
    return FAILS if row[SIDES[settings.test]] > 0 else HOLDS


def tuned_table(dataset: str, tuned: str, reference: str) -> pd.DataFrame:
    """The tuned system beside the untuned one on the test tasks of the cold split; empty where either has not run.

    One row per measure of the paper: mean ± sd over seeds of both (F1 of the mean precision and recall), the comparison
    over tasks, and for `COMPARED`, the declared family, both tests with Holm's correction.
    """
    frames = read_per_task(dataset, "cold", (tuned, reference))
    if len(frames) < 2:
        return pd.DataFrame()
    every, family = (
        compare_all(frames, reference, metrics, seed=0, per_comparison=1000) for metrics in (PAPER_METRICS, COMPARED)
    )
    table = every[["metric", "n"]].copy()
    means = overall_means(frames)
    for column, seeds, system in (("tuned", "seeds", tuned), ("untuned", "untuned_seeds", reference)):
        own = means.loc[[(system, measure) for measure in paper.COMPARED]]
        table[column] = [cell(mean, sd) for mean, sd in zip(own["mean"], own["sd"], strict=True)]
        table[seeds] = own["n_seeds"].to_numpy()
    table[["wins", "ties", "losses", *DIFFERENCE]] = every[["wins", "ties", "losses", *DIFFERENCE]]
    return table.merge(family[["metric", *(f"{test}_holm" for test in TESTS)]], how="left", on="metric")


def paper_trial(sweep: Sweep, table: pd.DataFrame) -> pd.Series | None:
    """The trial of a search that has the paper's settings, the first of `enqueue`; a restart changes its number."""
    if not sweep.enqueue:
        return None
    wanted = sweep.enqueue[0]
    same = np.all([np.isclose(table[name], wanted[name], rtol=1e-5, atol=0) for name in sweep.space], axis=0)
    return table[same].iloc[0] if same.any() else None


def comparisons(dataset: str, sweep: Sweep) -> pd.DataFrame:
    """Every value of a sweep against the best on validation (`study.search.sweep.against_best`); empty where the run
    did not keep single tasks."""
    path = folder_of(dataset, sweep.name) / "comparisons.csv"
    return read_csv(path) if path.exists() else pd.DataFrame()


def rebuilt(sweep: Sweep, table: pd.DataFrame) -> optuna.Study:
    """The search as an Optuna study in memory, from trials.csv alone."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    space = distributions(sweep.space)
    for row in table.to_dict("records"):
        values = {name: read_value(domain, row[name]) for name, domain in space.items()}
        value = row[f"valid/{sweep.objective}"]
        study.add_trial(optuna.trial.create_trial(params=values, distributions=space, value=value))
    return study


def importance(sweep: Sweep, table: pd.DataFrame, *, repeats: int = 10) -> pd.DataFrame:
    """How much of the objective's variance each parameter explains (fANOVA, Hutter et al. 2014), over some forests."""
    study = rebuilt(sweep, table)
    forests = [optuna.importance.FanovaImportanceEvaluator(seed=number) for number in range(repeats)]
    runs = [optuna.importance.get_param_importances(study, evaluator=forest) for forest in forests]
    shares = pd.DataFrame(runs).T
    found = pd.DataFrame({"mean": shares.mean(axis=1), "low": shares.min(axis=1), "high": shares.max(axis=1)})
    return found.sort_values("mean", ascending=False).rename_axis("parameter").reset_index()


def label(sweep: Sweep, name: str) -> str:
    """A setting as figures print it, ``training.learning_rate`` as learning rate; a weight that is divided by a sum
    before use is called raw."""
    return name.rpartition(".")[2].replace("_", " ") + " (raw weight)" * (name in sweep.simplex)


def is_numeric(values: pd.Series) -> bool:
    """Whether the values of a setting are numbers, with an order and distances."""
    return bool(pd.api.types.is_numeric_dtype(values)) and not pd.api.types.is_bool_dtype(values)


def scale(axis: Any, domain: dict[str, Any]) -> None:
    """Give an axis of a narrow panel that already holds its data the scale and few ticks of a setting."""
    choices = domain.get("choices", [])
    low, high = (min(choices), max(choices)) if choices else (domain["low"], domain["high"])
    if domain.get("log", False) or high > 30 * low > 0:
        plots.logarithmic(axis)
        axis.set_major_locator(LogLocator(subs=(1.0,) if high > 200 * low else (1.0, 3.0), numticks=6))
    elif 1 < len(choices) <= MOST_CHOICES:
        if all(right >= 2 * left > 0 for left, right in pairwise(choices)):
            axis.axes.set(**{f"{axis.axis_name}scale": "log"})
            axis.set_minor_locator(NullLocator())
        axis.set_ticks(choices, [f"{value:g}" for value in choices])
    else:
        axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=domain.get("type") == "int"))


@plots.styled
def sweep_curves(sweep: Sweep, table: pd.DataFrame, caption: str) -> Figure:
    """All eight measures over the values of one setting, means over seeds with a band of one standard deviation."""
    name, points = parameter(sweep), curve(sweep, table)
    values, best = points["value"].unique().tolist(), search.best_point(sweep, table)[name]
    sd = points["sd"].fillna(0)
    numeric = is_numeric(points["value"])
    x = points["value"].astype(float) if numeric else points["value"].map(values.index)
    points = points.assign(x=x, low=points["mean"] - sd, high=points["mean"] + sd)
    caption += f" Line: mean over {points['seeds'].max()} seeds. Band: ± one standard deviation over seeds."
    caption += f" Ring: the value that validation chooses ({best})."
    caption += "" if sweep.paper_best is None else f" Dashed: the paper's value ({sweep.paper_best:g})."
    title = f"{sweep.title} ({sweep.place})"
    figure, axes = plots.canvas(4.6, 4, rows=2, caption=caption, title=title, sharex=True)
    for panel, metric in zip(axes.T.flat, PAPER_METRICS, strict=True):
        own = points[points["metric"] == metric]
        plots.lines(panel, own, "x", interval=("low", "high"), hue="part", looks=PARTS, size=3.0, ylim=(0, None))
        for part, look in PARTS.items():
            chosen = own[(own["part"] == part) & (own["value"] == best)]
            panel.plot(chosen["x"], chosen["mean"], "o", markersize=8, markerfacecolor="none", color=look.ink)
        if sweep.paper_best is not None:
            panel.axvline(sweep.paper_best, color=plots.GREY, linestyle="--", linewidth=0.8)
        panel.set_title(plots.metric_name(metric).replace(" (mean over tasks)", ""), fontsize=9)
        if numeric:
            scale(panel.xaxis, sweep.space[name])
        else:
            panel.set_xticks(range(len(values)), [str(value) for value in values])
        panel.tick_params(labelsize=7)
    for panel in axes[1]:
        panel.set_xlabel(label(sweep, name), fontsize=8)
    axes[0, 0].legend(fontsize=7)
    return figure


@plots.styled
def history(sweep: Sweep, table: pd.DataFrame, caption: str) -> Figure:
    """Every trial of a search by its number, and the best so far; a star where the settings are the paper's."""
    objective, same = f"valid/{sweep.objective}", paper_trial(sweep, table)
    caption += " Star: the paper's settings." if same is not None else ""
    rows = table.sort_values("trial")
    figure, panel = plots.one_panel(3.0, caption=caption, title="Trials of the joint search")
    panel.plot(rows["trial"], rows[objective], "o", color=plots.BLUE, markersize=4, label="trial")
    panel.step(rows["trial"], rows[objective].cummax(), color=plots.ORANGE, where="post", label="best so far")
    if same is not None:
        panel.plot(same["trial"], same[objective], "*", color=plots.RED, markersize=11)
    panel.set(xlabel="trial", ylabel=f"{plots.metric_name(sweep.objective)}, validation", ylim=(0, None))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.legend(loc="lower right")
    panel.grid(True)
    return figure


@plots.styled
def importances(sweep: Sweep, shares: pd.DataFrame, caption: str) -> Figure:
    """Share of the variance that each parameter explains, from `importance`."""
    title = "Importance of the settings (fANOVA)"
    figure, panel = plots.one_panel(1.4 + 0.26 * len(shares), caption=caption, title=title)
    names = {name: label(sweep, name) for name in shares["parameter"]}
    xlabel = "share of the variance of validation quality; line: range over forests"
    plots.forest(panel, shares, interval=("low", "high"), row="parameter", names=names, xlabel=xlabel, xlim=(0, None))
    return figure


@plots.styled
def slices(sweep: Sweep, table: pd.DataFrame, caption: str) -> Figure:
    """Validation quality of every trial against each setting, later trials darker, the paper's values marked."""
    names, columns = list(sweep.space), 4
    rows = -(-len(names) // columns)
    caption += " Later trials are darker." + (" Dashed: the paper's values." if sweep.enqueue else "")
    height, title = 1.0 + 1.7 * rows, "Trials by each setting"
    figure, axes = plots.canvas(height, columns, rows=rows, caption=caption, share_y=True, title=title)
    shape: Any = {"cmap": "Blues", "vmin": -len(table) / 2, "s": 14, "edgecolors": "black", "linewidths": 0.3}
    for panel in axes.flat[len(names) :]:
        panel.set_axis_off()
    for panel, name in zip(axes.flat, names, strict=False):
        panel.scatter(table[name], table[f"valid/{sweep.objective}"], c=np.arange(len(table)), zorder=3, **shape)
        for point in sweep.enqueue[:1]:
            panel.axvline(point[name], color=plots.GREY, linestyle="--", linewidth=0.8)
        scale(panel.xaxis, sweep.space[name])
        panel.set_xlabel(label(sweep, name), fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(True)
    for panel in axes[:, 0]:
        panel.set_ylabel(plots.metric_name(sweep.objective), fontsize=8)
    return figure
