"""What the paper says under RQ3, and what tests on the test tasks say about it: verdicts computed, never typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from study import paths
from study.analysis.ablation.claims import ALPHA, FAILS, HOLDS
from study.analysis.ablation.tables import measured
from study.analysis.report.runs import COMPARED
from study.analysis.report.tables import cell
from study.analysis.sensitivity.tables import parameter
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.multiplicity import holm
from study.evaluation.records import read_record
from study.evaluation.significance import compare, compare_all
from study.search.settings import Sweep
from study.search.sweep import folder_of

# Another value is chosen, and the tests do not show it to be better: no evidence against the paper, and none for it.
OPEN = "not contradicted"
# p-value -> name of its test, and whose sign says which side the test finds better.
TESTS = {
    "wilcoxon_p": ("Wilcoxon's test", "rank_biserial"),
    "randomisation_p": ("the randomisation test", "difference"),
}


def by_value(dataset: str, sweep: Sweep) -> dict[float, pd.DataFrame]:
    """Value of the setting -> per-task table of the test tasks; empty where the sweep kept none."""
    path = folder_of(dataset, sweep.name) / "per_task.csv.xz"
    if not path.exists():
        return {}
    name, rows = parameter(sweep), pd.read_csv(path)
    if name not in rows:
        raise StudyError(
            "the per-task table lacks the setting",
            file=path,
            column=name,
            fix=f"run: study sweep {sweep.name} dataset={dataset}",
        )
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
        (difference = chosen - paper), family, wilcoxon_p_holm, randomisation_p_holm, verdict, reason. Empty where no
        sweep has tables.
    """
    rows: list[dict[str, Any]] = []
    for name, (sweep, chosen, frames) in tables.items():
        paper = sweep.paper_best
        if paper is None or not {paper, chosen} <= frames.keys():
            continue
        rows.append(
            {
                "sweep": name,
                "setting": sweep.title,
                "paper": paper,
                "chosen": chosen,
                "seeds": frames[chosen]["seed"].nunique(),
            }
            | compare(frames[chosen], frames[paper], sweep.objective, seed=0)
        )
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows).assign(family=len(rows))
    for test in TESTS:
        table[f"{test}_holm"] = holm(table[test].to_numpy())
    said = [verdict(row) for row in table.to_dict("records")]
    return table.assign(verdict=[word for word, _ in said], reason=[reason for _, reason in said])


def verdict(row: Mapping[Any, Any]) -> tuple[str, str]:
    """Whether the paper's optimum holds, and why.

    Args:
        row: chosen, paper, difference, rank_biserial and the Holm-corrected p-values of both tests. The randomisation
            test finds the side of the mean difference better, Wilcoxon's the side of the ranks.
    """
    if row["chosen"] == row["paper"]:
        return HOLDS, "validation chooses it among the values tried"
    found: dict[str, list[str]] = {"chosen": [], "paper's": []}
    for test, (name, side) in TESTS.items():
        if row[f"{test}_holm"] < ALPHA:
            found["chosen" if row[side] > 0 else "paper's"].append(name)
    said = [
        f"{' and '.join(names)} find{'s' * (len(names) == 1)} the {value} value better on the test tasks"
        for value, names in found.items()
        if names
    ]
    if len(said) == 1 and sum(map(len, found.values())) < len(TESTS):
        said.append("the other test does not tell them apart")
    said = said or ["neither test tells the two values apart on the test tasks"]
    word = FAILS if len(found["chosen"]) == len(TESTS) else HOLDS if len(found["paper's"]) == len(TESTS) else OPEN
    return word, "; ".join([f"validation chooses {row['chosen']:g}", *said])


def scoring_statement(dataset: str, sweep: Sweep) -> str:
    """How long the sweep over the fusion weight took, in one sentence from its record; empty without one that says."""
    path = folder_of(dataset, sweep.name) / "record.json"
    made = read_record(path) if path.exists() else {}
    if "processor_seconds" not in made:
        return ""
    values, seeds = len(next(iter(sweep.space.values()))["choices"]), len(sweep.seeds)
    clock, processor = (made[name] / seeds for name in ("seconds", "processor_seconds"))
    return (
        f"Scores are computed once and fused {values} times: scoring and ranking the {made['tasks']:,} tasks of "
        f"{' and '.join(sweep.parts)} with all {values} weights took {clock:.1f} s by the clock, {processor:.1f} s of "
        f"processor time, per trained model (mean of {seeds}); the trainings are not counted."
    )


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
        row: dict[str, Any] = {
            "metric": metric,
            "n": found["n"],
            "tuned": cell(own["ours"], own["sd"]),
            "seeds": own["seeds"],
            "untuned": cell(other["ours"], other["sd"]),
            "untuned_seeds": other["seeds"],
        }
        row |= {key: found[key] for key in ("wins", "ties", "losses", "difference", "ci_low", "ci_high")}
        row["rank_biserial"] = found["rank_biserial"]
        row |= {
            f"{test}_holm": tests.loc[metric, f"{test}_holm"] if metric in tests.index else float("nan")
            for test in TESTS
        }
        rows.append(row)
    return pd.DataFrame(rows)
