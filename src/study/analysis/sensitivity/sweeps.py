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

from study import paths
from study.analysis.report.plots import (
    BLUE,
    GREY,
    ORANGE,
    RED,
    canvas,
    logarithmic,
    metric_name,
    named_rows,
    one_panel,
    styled,
)
from study.analysis.report.runs import COMPARED, FAILS, HOLDS, SIDES, measured, read_statistics
from study.analysis.report.tables import cell
from study.config.registry import choices
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.records import read_record
from study.evaluation.statistics import compare, compare_all, holm
from study.files import read_csv
from study.runner.row_store import read_per_task
from study.search import sweep as search
from study.search.sweep import Sweep, folder_of, load_sweep
from study.search.trials import distributions, read_value

# Another value is chosen, and the test does not show it to be better: no evidence against the paper, and none for it.
OPEN = "not contradicted"
TESTS = ("wilcoxon_p", "randomisation_p")
DIFFERENCE = ("diff", "diff_ci_low", "diff_ci_high", "rank_biserial")
PARTS = {"valid": ("validation tasks", BLUE, "o"), "test": ("test tasks", ORANGE, "s")}
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
    found = {name: made for name in (*PAPER, *names) if (made := sweep_of(dataset, name)) is not None}
    single = {name: made for name, made in found.items() if len(made.space) == 1 and made.kind != "search"}
    tables = {name: trials(dataset, name) for name in single}
    return {name: (single[name], table) for name, table in tables.items() if table is not None}


def sweep_of(dataset: str, name: str) -> Sweep | None:
    """The settings that a sweep ran with: those of its record, or of ``conf/sweep``; None for a tuning, or where the
    yaml is gone."""
    path = folder_of(dataset, name) / "record.json"
    if not path.exists():
        return load_sweep(name) if name in choices("sweep") else None
    made = read_record(path)
    if "sweep" not in made:
        return None
    if "settings" in made:
        return Sweep(**made["settings"])
    if made["sweep"] not in choices("sweep"):
        LOG.warning("%s is left of a sweep without a file in conf/sweep; remove it", path.parent)
        return None
    return load_sweep(made["sweep"])


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
    """The value that validation chooses, and how it does beside the paper's; no test (see `against_paper`).

    flat: the values whose mean on validation lies within one standard deviation over seeds of the best. gain_valid and
    gain_test: mean over seeds of best minus paper, the same seed on both sides, with the smallest (_low) and the
    largest (_high); no interval.
    """
    name, objective = parameter(sweep), f"valid/{sweep.objective}"
    grouped = table.groupby(name)[objective]
    means, deviations = grouped.mean(), grouped.std().fillna(0.0)
    best = search.best_point(sweep, table)[name]
    margin = float(means[best] - deviations[best])
    flat = means.index[means.to_numpy() >= margin].tolist()
    found: dict[str, Any] = {"best": best, "paper": sweep.paper_best, "flat": flat}
    if sweep.paper_best in means.index:
        ours, theirs = (table[table[name] == value].set_index("seed") for value in (best, sweep.paper_best))
        for part in sweep.parts:
            gains = ours[f"{part}/{sweep.objective}"] - theirs[f"{part}/{sweep.objective}"]
            found |= {f"gain_{part}": float(gains.mean()), f"gain_{part}_low": float(gains.min())}
            found[f"gain_{part}_high"] = float(gains.max())
    return found


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
    for test in TESTS:
        table[f"{test}_holm"] = holm(table[test].to_numpy())
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


def scoring_time(dataset: str, sweep: Sweep) -> pd.DataFrame:
    """How long a sweep over scores took per trained model, trainings left out; empty where no record says so."""
    path = folder_of(dataset, sweep.name) / "record.json"
    made = read_record(path) if path.exists() else {}
    columns = ["values", "tasks", "seconds", "processor_seconds"]
    if "processor_seconds" not in made:
        return pd.DataFrame(columns=columns)
    values = len(next(iter(sweep.space.values()))["choices"])
    seconds = (made[name] / len(sweep.seeds) for name in columns[2:])
    return pd.DataFrame([(values, made["tasks"], *seconds)], columns=columns)


def tuned_table(dataset: str, tuned: str, reference: str) -> pd.DataFrame:
    """The tuned system beside the untuned one on the test tasks of the cold split; empty where either has not run.

    One row per measure of the paper: mean ± sd over seeds of both (F1 of the mean precision and recall), the comparison
    over tasks, and for `COMPARED`, the declared family, both tests with Holm's correction.
    """
    frames = read_per_task(dataset, "cold", (tuned, reference))
    if len(frames) < 2:
        return pd.DataFrame()
    tests: Any = compare_all(frames, reference, COMPARED, seed=0, per_comparison=1000).set_index("metric")
    rows = []
    for metric in PAPER_METRICS:
        own, other = (measured(frames[name], metric) for name in (tuned, reference))
        found = compare(frames[tuned], frames[reference], metric, seed=0)
        row: dict[str, Any] = {"metric": metric, "n": found["n"]}
        row |= {"tuned": cell(own["ours"], own["sd"]), "seeds": own["seeds"]}
        row |= {"untuned": cell(other["ours"], other["sd"]), "untuned_seeds": other["seeds"]}
        row |= {key: found[key] for key in ("wins", "ties", "losses", *DIFFERENCE)}
        rows.append(row | {f"{test}_holm": tests[f"{test}_holm"].get(metric, float("nan")) for test in TESTS})
    return pd.DataFrame(rows)


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


def shown_pairs(shares: pd.DataFrame) -> list[tuple[str, str]]:
    """The pairs of settings that are drawn: the two most important ones, then temperature and learning rate.

    Where those are the same, the most important setting with the third.
    """
    first, second, third = shares["parameter"][:3]
    other = ("training.temperature", "training.learning_rate")
    return [(first, second), (first, third) if {first, second} == set(other) else other]


def short(name: str) -> str:
    """``training.learning_rate`` as figures print it: learning rate."""
    return name.rpartition(".")[2].replace("_", " ")


def label(sweep: Sweep, name: str) -> str:
    """A setting as figures of a search print it; a weight that is divided by a sum before use is called raw."""
    return f"{short(name)} (raw weight)" if name in sweep.simplex else short(name)


def is_numeric(values: pd.Series) -> bool:
    """Whether the values of a setting are numbers, with an order and distances."""
    return bool(pd.api.types.is_numeric_dtype(values)) and not pd.api.types.is_bool_dtype(values)


def is_logarithmic(domain: dict[str, Any]) -> bool:
    """Whether an entry of a search space is logarithmic: it says so, or its values grow by factors."""
    values = np.array(domain.get("choices", [1.0]), dtype=float)
    return bool(domain.get("log", False)) or bool(values.min() > 0 and values.max() > 30 * values.min())


def scale(axis: Any, domain: dict[str, Any], *, wide: bool = False) -> None:
    """Give an axis of a narrow panel that already holds its data the scale and few ticks of a setting.

    `wide`: there is room for numbers at 1 and 3 of every power of ten over two of those, not over one and a half.
    """
    choices = domain.get("choices", [])
    if 1 < len(choices) <= MOST_CHOICES:
        if all(left > 0 and right >= 2 * left for left, right in pairwise(choices)):
            axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_ticks(choices, [f"{value:g}" for value in choices])
        axis.set_minor_locator(NullLocator())
    elif is_logarithmic(domain):
        logarithmic(axis)
        low, high = axis.get_view_interval()
        most = 300 if wide else 60
        axis.set_major_locator(LogLocator(subs=(1.0,) if high > most * low else (1.0, 3.0), numticks=6))
    else:
        axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=domain.get("type") == "int"))


@styled
def sweep_curves(sweep: Sweep, table: pd.DataFrame, caption: str) -> Figure:
    """All eight measures over the values of one setting, means over seeds with a band of one standard deviation."""
    points = curve(sweep, table)
    values, best = points["value"].unique().tolist(), search.best_point(sweep, table)[parameter(sweep)]
    numeric = is_numeric(points["value"])
    caption += f" Line: mean over {points['seeds'].max()} seeds. Band: ± one standard deviation over seeds."
    caption += f" Ring: the value that validation chooses ({best})."
    caption += "" if sweep.paper_best is None else f" Dashed: the paper's value ({sweep.paper_best:g})."
    figure, axes = canvas(4.6, 4, rows=2, caption=caption, title=f"{sweep.title} ({sweep.place})", sharex=True)
    for panel, metric in zip(axes.T.flat, PAPER_METRICS, strict=True):
        for part in sweep.parts:
            name, ink, marker = PARTS[part]
            own = points[(points["part"] == part) & (points["metric"] == metric)]
            mean, sd = (own[column].to_numpy(float) for column in ("mean", "sd"))
            x = own["value"].to_numpy(float) if numeric else np.arange(len(own))
            low, high = mean - np.nan_to_num(sd), mean + np.nan_to_num(sd)
            panel.fill_between(x, low, high, color=ink, alpha=0.25, linewidth=0)
            panel.plot(x, mean, color=ink, marker=marker, markersize=3, linewidth=1.2, label=name)
            place = values.index(best)
            panel.plot(x[place], mean[place], "o", markersize=8, markerfacecolor="none", color=ink)
        if sweep.paper_best is not None:
            panel.axvline(sweep.paper_best, color=GREY, linestyle="--", linewidth=0.8)
        panel.set_title(metric_name(metric).replace(" (mean over tasks)", ""), fontsize=9)
        panel.set_ylim(0, None)
        if numeric:
            scale(panel.xaxis, sweep.space[parameter(sweep)], wide=True)
        else:
            panel.set_xticks(range(len(values)), [str(value) for value in values])
        panel.tick_params(labelsize=7)
        panel.grid(True)
    for panel in axes[1]:
        panel.set_xlabel(short(parameter(sweep)), fontsize=8)
    axes[0, 0].legend(fontsize=7)
    return figure


@styled
def history(sweep: Sweep, table: pd.DataFrame, caption: str) -> Figure:
    """Every trial of a search by its number, and the best so far; a star where the settings are the paper's."""
    objective, paper = f"valid/{sweep.objective}", paper_trial(sweep, table)
    caption += " Star: the paper's settings." if paper is not None else ""
    rows = table.sort_values("trial")
    figure, panel = one_panel(3.0, caption=caption, title="Trials of the joint search")
    panel.plot(rows["trial"], rows[objective], "o", color=BLUE, markersize=4, label="trial")
    panel.plot(rows["trial"], rows[objective].cummax(), color=ORANGE, drawstyle="steps-post", label="best so far")
    if paper is not None:
        panel.plot(paper["trial"], paper[objective], "*", color=RED, markersize=11)
    panel.set(xlabel="trial", ylabel=f"{metric_name(sweep.objective)}, validation", ylim=(0, None))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.legend(loc="lower right")
    panel.grid(True)
    return figure


@styled
def importances(sweep: Sweep, shares: pd.DataFrame, caption: str) -> Figure:
    """Share of the variance that each parameter explains, from `importance`."""
    figure, panel = one_panel(1.4 + 0.26 * len(shares), caption=caption, title="Importance of the settings (fANOVA)")
    place = np.arange(len(shares))[::-1]
    panel.barh(place, shares["mean"], color=BLUE, alpha=0.6)
    panel.hlines(place, shares["low"], shares["high"], color="black", linewidth=1.2)
    names = [label(sweep, name) for name in shares["parameter"]]
    xlabel = "share of the variance of validation quality; line: range over forests"
    named_rows(panel, place, names, xlabel, xlim=(0, None))
    return figure


@styled
def slices(sweep: Sweep, table: pd.DataFrame, caption: str) -> Figure:
    """Validation quality of every trial against each setting, later trials darker, the paper's values marked."""
    names, columns = list(sweep.space), 4
    rows = -(-len(names) // columns)
    caption += " Later trials are darker." + (" Dashed: the paper's values." if sweep.enqueue else "")
    height, title = 1.0 + 1.7 * rows, "Trials by each setting"
    figure, axes = canvas(height, columns, rows=rows, caption=caption, share_y=True, title=title)
    quality, order = table[f"valid/{sweep.objective}"], np.arange(len(table))
    shape: Any = {"cmap": "Blues", "vmin": -len(table) / 2, "s": 14, "edgecolors": "black", "linewidths": 0.3}
    for panel in axes.flat[len(names) :]:
        panel.set_axis_off()
    for panel, name in zip(axes.flat, names, strict=False):
        panel.scatter(table[name], quality, c=order, zorder=3, **shape)
        for point in sweep.enqueue[:1]:
            panel.axvline(point[name], color=GREY, linestyle="--", linewidth=0.8)
        scale(panel.xaxis, sweep.space[name])
        panel.set_xlabel(label(sweep, name), fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(True)
    for panel in axes[:, 0]:
        panel.set_ylabel(metric_name(sweep.objective), fontsize=8)
    return figure


@styled
def contour(sweep: Sweep, table: pd.DataFrame, pairs: list[tuple[str, str]], caption: str) -> Figure:
    """Validation quality of every trial over pairs of settings, one panel per pair."""
    figure, axes = canvas(3.2, len(pairs), caption=caption + " Dots: trials.", title="Quality over two settings")
    for panel, (left, right) in zip(axes[0], pairs, strict=True):
        quality: Any = table[f"valid/{sweep.objective}"]
        shown = panel.scatter(
            table[left], table[right], c=quality, cmap="Blues", s=26, edgecolors="black", linewidths=0.5
        )
        figure.colorbar(shown, ax=panel, label=metric_name(sweep.objective))
        for axis, name in ((panel.xaxis, left), (panel.yaxis, right)):
            scale(axis, sweep.space[name], wide=True)
        panel.set(xlabel=label(sweep, left), ylabel=label(sweep, right))
    return figure
