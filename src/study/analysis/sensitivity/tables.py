"""RQ3: sweeps over settings as the notebooks show them (paper, Figures 7 to 9), and the joint search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from study import paths
from study.analysis.report.runs import ALPHA, COMPARED, FAILS, HOLDS, measured
from study.analysis.report.tables import cell, read
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.records import read_record
from study.evaluation.significance import compare, compare_all, holm
from study.search import rows as search_rows
from study.search.settings import Sweep, load
from study.search.sweep import folder_of

# Another value is chosen, and the tests do not show it to be better: no evidence against the paper, and none for it.
OPEN = "not contradicted"
# p-value -> whose sign says which side its test finds better.
TESTS = {"wilcoxon_p": "rank_biserial", "randomisation_p": "difference"}
DIFFERENCE = ("difference", "ci_low", "ci_high", "rank_biserial")


def trials(dataset: str, name: str) -> pd.DataFrame | None:
    """The trials of a sweep, or None where it has not run."""
    path = folder_of(dataset, name) / "trials.csv"
    return read(path) if path.exists() else None


def parameter(sweep: Sweep) -> str:
    """The one parameter of a grid."""
    if len(sweep.space) != 1:
        problem = f"{sweep.name} varies {len(sweep.space)} parameters, not one"
        raise StudyError(problem, file=Sweep.file(sweep.name), column="space", fix="show it as a search")
    return next(iter(sweep.space))


def curve(sweep: Sweep, table: pd.DataFrame) -> pd.DataFrame:
    """Mean and spread over seeds for every value of a grid.

    Args:
        table: trials.csv.

    Returns: columns part, metric, value (of the parameter), mean, sd (ddof 1, NaN for one seed), seeds; values
        ascending.
    """
    name = parameter(sweep)
    rows = []
    for part in sweep.parts:
        for metric in PAPER_METRICS:
            grouped = table.groupby(name)[f"{part}/{metric}"].agg(["mean", "std", "size"])
            rows += [
                (part, metric, value, row["mean"], row["std"], int(row["size"])) for value, row in grouped.iterrows()
            ]
    return pd.DataFrame(rows, columns=["part", "metric", "value", "mean", "sd", "seeds"])


def optimum(sweep: Sweep, table: pd.DataFrame) -> dict[str, Any]:
    """The value that validation chooses, and how it does beside the paper's, seed by seed; no test (see
    `against_paper`).

    Returns: best (by the mean of the objective on validation), paper (the paper's value), gain_valid and gain_test
        (mean over seeds of best minus paper, the same seed on both sides) with their smallest and largest values over
        seeds (``_low``, ``_high``; no interval), and flat: the values whose mean on validation lies within one standard
        deviation over seeds of the best.
    """
    name, objective = parameter(sweep), f"valid/{sweep.objective}"
    grouped = table.groupby(name)[objective]
    means, deviations = grouped.mean(), grouped.std().fillna(0.0)
    best = float(search_rows.chosen(sweep, table)["values"][name])
    margin = float(means[best] - deviations[best])
    flat = [float(value) for value in means.index.to_numpy()[means.to_numpy() >= margin]]
    found: dict[str, Any] = {"best": best, "paper": sweep.paper_best, "flat": flat}
    if sweep.paper_best in means.index:
        ours, theirs = (table[table[name] == value].set_index("seed") for value in (best, sweep.paper_best))
        for part in sweep.parts:
            gains = ours[f"{part}/{sweep.objective}"] - theirs[f"{part}/{sweep.objective}"]
            found |= {
                f"gain_{part}": float(gains.mean()),
                f"gain_{part}_low": float(gains.min()),
                f"gain_{part}_high": float(gains.max()),
            }
    return found


def paper_trial(sweep: Sweep, table: pd.DataFrame) -> pd.Series | None:
    """The trial of a search that has the paper's settings, the first of `enqueue`; None where there is none.

    It need not have the first number: a trial whose worker died is begun anew under another one.
    """
    if not sweep.enqueue:
        return None
    wanted = sweep.enqueue[0]
    same = np.all([np.isclose(table[name], wanted[name], rtol=1e-5, atol=0) for name in sweep.space], axis=0)
    return table[same].iloc[0] if same.any() else None


def shown_pairs(shares: pd.DataFrame) -> list[tuple[str, str]]:
    """The pairs of settings that are drawn: the two most important ones, then temperature and learning rate.

    Where those are the same, the most important setting with the third.

    Args:
        shares: from `importance`.
    """
    first, second, third = shares["parameter"][:3]
    other = ("training.temperature", "training.learning_rate")
    return [(first, second), (first, third) if {first, second} == set(other) else other]


def distribution(domain: dict[str, Any]) -> BaseDistribution:
    """Optuna's distribution of a search space's entry."""
    if "choices" in domain:
        return CategoricalDistribution(list(domain["choices"]))
    kind = IntDistribution if domain.get("type") == "int" else FloatDistribution
    return kind(domain["low"], domain["high"], log=domain.get("log", False))


def rebuilt(sweep: Sweep, table: pd.DataFrame) -> optuna.Study:
    """The search as an Optuna study in memory, from trials.csv alone."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    space = {name: distribution(domain) for name, domain in sweep.space.items()}
    for row in table.to_dict("records"):
        values = {str(name): _as(space[name], row[name]) for name in space}
        study.add_trial(
            optuna.trial.create_trial(params=values, distributions=space, value=row[f"valid/{sweep.objective}"])
        )
    return study


def _as(domain: BaseDistribution, value: float) -> Any:
    """A number of a CSV file as the type that its distribution holds; six digits may lie beyond an end."""
    if isinstance(domain, CategoricalDistribution):
        return min(domain.choices, key=lambda choice: abs(float(choice) - value))  # type: ignore[arg-type]
    assert isinstance(domain, IntDistribution | FloatDistribution)
    inside = min(max(value, domain.low), domain.high)
    return int(inside) if isinstance(domain, IntDistribution) else float(inside)


def importance(sweep: Sweep, table: pd.DataFrame, *, repeats: int = 10) -> pd.DataFrame:
    """How much of the objective's variance each parameter explains (fANOVA, Hutter et al. 2014).

    A forest of random trees fitted to a few dozen trials: the spread over `repeats` forests says how little that is.

    Returns: columns parameter, mean, low, high (smallest and largest of the repeats), most important first.
    """
    study = rebuilt(sweep, table)
    forests = [optuna.importance.FanovaImportanceEvaluator(seed=number) for number in range(repeats)]
    runs = [optuna.importance.get_param_importances(study, evaluator=forest) for forest in forests]
    shares = pd.DataFrame(runs).T
    found = pd.DataFrame({"mean": shares.mean(axis=1), "low": shares.min(axis=1), "high": shares.max(axis=1)})
    return found.sort_values("mean", ascending=False).rename_axis("parameter").reset_index()


def sweeps(dataset: str) -> dict[str, tuple[Sweep, pd.DataFrame]]:
    """The sweeps over one parameter that have run on a data set, in the paper's order."""
    found = {}
    for name in ("fusion_weight", "temperature", "learning_rate"):
        table = trials(dataset, name)
        if table is not None:
            found[name] = (load(name), table)
    return found


def by_value(dataset: str, sweep: Sweep) -> dict[float, pd.DataFrame]:
    """Value of the setting -> per-task table of the test tasks; empty where the sweep kept none."""
    path = folder_of(dataset, sweep.name) / "per_task.csv.xz"
    if not path.exists():
        return {}
    name, rows = parameter(sweep), pd.read_csv(path)
    if name not in rows:
        fix = f"run: study sweep {sweep.name} dataset={dataset}"
        raise StudyError("the per-task table lacks the setting", file=path, column=name, fix=fix)
    parts = {float(value): rows[rows[name] == value] for value in rows[name].unique()}
    return {
        value: per_task.check(part.drop(columns=name).reset_index(drop=True), file=path)
        for value, part in parts.items()
    }


def against_paper(tables: Mapping[str, tuple[Sweep, float, dict[float, pd.DataFrame]]]) -> pd.DataFrame:
    """The value that validation chose against the paper's value on the test tasks: one family, one row per sweep.

    Both values are averaged over seeds task by task. Where validation chooses the paper's value, both sides are the
    same; the row stays in the family with p = 1.

    Args:
        tables: sweep's name -> sweep, chosen value, per-task tables by value; sweeps without the tables of both values
            are left out.

    Returns: columns sweep, setting, paper, chosen, seeds, the entries of `study.evaluation.significance.compare`
        (difference = chosen - paper), family, wilcoxon_p_holm, randomisation_p_holm, verdict. Empty where no
        sweep has tables.
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
    """Whether the paper's optimum holds: validation chooses it, or both tests find it better than the chosen value.

    Args:
        row: chosen, paper, difference, rank_biserial and the Holm-corrected p-values of both tests. The randomisation
            test finds the side of the mean difference better, Wilcoxon's the side of the ranks.
    """
    if row["chosen"] == row["paper"]:
        return HOLDS
    found = [np.sign(row[side]) for test, side in TESTS.items() if row[f"{test}_holm"] < ALPHA]
    return {len(TESTS): FAILS, -len(TESTS): HOLDS}.get(int(sum(found)), OPEN)


def scoring_time(dataset: str, sweep: Sweep) -> pd.DataFrame:
    """How long a sweep over scores took per trained model, from its record; empty where none says so.

    Returns: one row: values (tried), tasks, seconds and processor_seconds (of scoring and ranking, without trainings).
    """
    path = folder_of(dataset, sweep.name) / "record.json"
    made = read_record(path) if path.exists() else {}
    values, seeds = len(next(iter(sweep.space.values()))["choices"]), len(sweep.seeds)
    columns = ["values", "tasks", "seconds", "processor_seconds"]
    if "processor_seconds" not in made:
        return pd.DataFrame(columns=columns)
    return pd.DataFrame([(values, made["tasks"], *(made[name] / seeds for name in columns[2:]))], columns=columns)


def tuned_table(dataset: str, tuned: str, reference: str) -> pd.DataFrame:
    """The tuned system beside the untuned one on the test tasks of the cold split; empty where either has not run.

    Returns: one row per measure of the paper: metric, n (tasks), tuned and untuned (mean ± sd over seeds; F1 is that of
        the mean precision and recall), their numbers of seeds, then of the comparison over tasks, seeds averaged, wins,
        ties, losses, difference, ci_low, ci_high, rank_biserial; for `COMPARED`, the declared family, both tests with
        Holm's correction.
    """
    base = paths.results(dataset) / "per_task" / "cold"
    files = {name: base / f"{name}.csv.xz" for name in (tuned, reference)}
    if not all(path.exists() for path in files.values()):
        return pd.DataFrame()
    frames = {name: per_task.read(path) for name, path in files.items()}
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
