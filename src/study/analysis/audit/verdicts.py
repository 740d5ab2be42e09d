"""Every cell of the paper beside this study's value under each protocol, with a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from study.analysis.framework import Context, Tables, analysis, load_settings
from study.analysis.report import paper
from study.analysis.report.runs import resample_means, with_f1_of_means
from study.analysis.report.tables import markdown
from study.base import paths
from study.base.errors import StudyError
from study.base.files import read_csv
from study.config.compose import sound_systems
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.per_task import KEYS
from study.evaluation.statistics import percentile_limits
from study.runner.row_store import read_per_task

REPRODUCED, NOT = "reproduced", "not reproduced"
# The system needs a task's history and the protocol asks new tasks; this study has not run what would give the value.
CANNOT, NOT_RUN = "cannot be computed", "not run here"
ORDER = "same order only"
SWEEPS = ("fusion_weight", "temperature", "learning_rate")
VERDICTS = (REPRODUCED, ORDER, NOT, NOT_RUN, CANNOT)
COLUMNS = ["table", "place", "row", "metric", "k", "paper", "protocol", "system", "counterpart", "ours"]
COLUMNS += ["ci_low", "ci_high", "definition", "diff", "relative_diff", "tasks", "seeds", "seeds_within"]
COLUMNS += ["within_relative", "pairs", "pairs_in_order", "trivial", "verdict", "reason"]
# A difference of 0.01 is within 0.01 although its digits may say 0.010000000000000009.
BORDER = 1e-9
# F1 as the paper defines it, and as some of its rows are computed.
F1_DEFINITIONS = {"f1": "mean over tasks", "f1_of_means": "of the means"}


@dataclass(frozen=True)
class Verdicts:
    """The printed cells beside this study's."""

    tolerance: float
    relative_tolerance: float
    stated_protocol: str


class Run(NamedTuple):
    """One system under one protocol, its cells metric@k with f1 and f1_of_means."""

    cells: pd.DataFrame  # index metric@k, columns ours, ci_low, ci_high
    by_seed: pd.DataFrame  # means over tasks of each seed
    resampled: pd.DataFrame  # bootstrap means over tasks; runs over the same tasks have the same resamples
    tasks: tuple[int, ...]  # ids, in the order of the resamples


def measure_cells(frames: Mapping[Any, pd.DataFrame]) -> dict[Any, Run]:
    """The cells of per-task files with their 95 % intervals over tasks, values averaged over seeds first."""
    keys, runs = [*KEYS, *PAPER_METRICS], dict[Any, Run]()
    for key, (table, resampled) in resample_means({key: frame[keys] for key, frame in frames.items()}).items():
        means = with_f1_of_means(table.mean().to_frame().T).iloc[0]
        limits = {name: percentile_limits(resampled[name]) for name in resampled}
        by_seed = frames[key][frames[key]["task_id"].isin(table.index)].groupby("seed")[list(PAPER_METRICS)].mean()
        cells = pd.concat([means.rename("ours"), pd.DataFrame(limits, index=["ci_low", "ci_high"]).T], axis=1)
        runs[key] = Run(cells, with_f1_of_means(by_seed), resampled, tuple(table.index))
    return runs


def why_not(system: str, protocol: str, protocols_of: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """The verdict on a cell without a value, and why there is none; `protocols_of`: those that a system is made for.

    Only a system that needs a task's history cannot be computed, and only where a protocol asks new tasks. One that is
    not configured for a protocol was not run here: the list says what is run, not what could be.
    """
    if system not in protocols_of:
        return NOT_RUN, f"no system {system} in this study" if system else "no such system in this study"
    if asks_new_tasks(protocol) and not any(map(asks_new_tasks, protocols_of[system])):
        return CANNOT, f"{system} needs a task's history, and {protocol} asks new tasks"
    return NOT_RUN, f"{system} has not run under {protocol}"


def asks_new_tasks(protocol: str) -> bool:
    """Whether the test tasks of a protocol have no training interaction (`study.data.splits.Split.cold`)."""
    return protocol.startswith("cold")


def cell_lines(cells: pd.DataFrame, runs: Mapping[Any, Run], protocols: list[str], chosen: Verdicts) -> pd.DataFrame:
    """One line per cell and protocol, without the verdict on its order.

    For F1 the nearer of both definitions is taken, which favours the paper. A cell is reproduced where the mean over
    seeds and most seeds are within the tolerance: seeds on both sides of the printed value do not do it by their mean.
    `within_relative` asks the same of the relative tolerance and decides no verdict.
    """
    lines, protocols_of = [], {name: about.protocols for name, about in sound_systems().items()}
    for row, protocol in product(cells.to_dict("records"), protocols):
        system, printed = row["own"], row["value"]
        line = {"table": row["table"], "place": row["place"], "row": row["printed"], "metric": row["metric"]}
        line |= {"k": row["k"], "paper": printed, "trivial": printed <= chosen.tolerance, "system": system}
        line |= {"counterpart": "same" if row["system"] else "stand-in" if system else "none", "protocol": protocol}
        if run := runs.get((protocol, system)):
            names = list(F1_DEFINITIONS) if row["metric"] == "f1" else [row["metric"]]
            name = min(names, key=lambda part: abs(run.cells.loc[f"{part}@{row['k']}", "ours"] - printed))
            ours, low, high = run.cells.loc[f"{name}@{row['k']}"]
            gap, gaps = ours - printed, run.by_seed[f"{name}@{row['k']}"] - printed
            near = within(gaps, chosen.tolerance)
            line |= {"ours": ours, "ci_low": low, "ci_high": high, "definition": F1_DEFINITIONS.get(name, "")}
            line |= {"diff": gap, "relative_diff": gap / printed if printed else np.nan}
            line |= {"within_relative": agree(gap, gaps, chosen.relative_tolerance * printed)}
            line |= {"tasks": len(run.tasks), "seeds": len(near), "seeds_within": int(near.sum())}
            line["reason"] = row["differs"] if not row["system"] else ""
            line["verdict"] = REPRODUCED if agree(gap, gaps, chosen.tolerance) else NOT
        else:
            line["verdict"], line["reason"] = why_not(system, protocol, protocols_of)
        lines.append(line)
    return pd.DataFrame(lines).reindex(columns=COLUMNS)


def within(difference: Any, tolerance: Any) -> Any:
    """Whether a difference, or each of several, is within the tolerance, or each within its own."""
    return np.abs(difference) <= tolerance + BORDER


def agree(gap: float, gaps: pd.Series, tolerance: float) -> bool:
    """Whether the difference of the mean over seeds and those of most seeds are within the tolerance."""
    near = within(gaps, tolerance)
    return bool(within(gap, tolerance) and 2 * near.sum() > len(near))


def with_order(lines: pd.DataFrame, runs: Mapping[Any, Run]) -> pd.DataFrame:
    """Set "same order only" where a cell is off, but every comparison with another row comes out as in the paper.

    A cell is compared with the other systems of its table, column and protocol, rows of equal printed value left out.
    A comparison is in order if its paired interval over tasks has the printed direction and excludes 0. A system that
    stands in several printed rows is one pair, in order if it is for all of them. Without a pair there is no order.
    """
    ordered = lines.assign(pairs=0, pairs_in_order=0)
    for _, part in lines[lines["ours"].notna()].groupby(["table", "metric", "k", "protocol"]):
        rows = list(part.to_dict("records"))
        for at, row in zip(part.index, rows, strict=True):
            in_order: dict[str, bool] = {}
            for other in rows:
                if other["system"] != row["system"] and other["paper"] != row["paper"]:
                    agrees = direction(row, other, runs) == np.sign(row["paper"] - other["paper"])
                    in_order[other["system"]] = in_order.get(other["system"], True) and bool(agrees)
            ordered.loc[at, ["pairs", "pairs_in_order"]] = len(in_order), sum(in_order.values())
    only = (ordered["verdict"] == NOT) & (ordered["pairs"] > 0) & (ordered["pairs"] == ordered["pairs_in_order"])
    ordered.loc[only, "verdict"] = ORDER
    return ordered


def direction(a: Mapping[Any, Any], b: Mapping[Any, Any], runs: Mapping[Any, Run]) -> int:
    """1 if line `a` of `cell_lines` is above line `b`, -1 if below. 0 if the paired interval over tasks holds 0, or the
    runs are over different tasks."""
    first, second = (runs[line["protocol"], line["system"]] for line in (a, b))
    if first.tasks != second.tasks:
        return 0
    key_of = {title: key for key, title in F1_DEFINITIONS.items()}
    names = (f"{key_of.get(line['definition'], line['metric'])}@{line['k']}" for line in (a, b))
    ours, theirs = (run.resampled[name].to_numpy(float) for run, name in zip((first, second), names, strict=True))
    low, high = percentile_limits(ours - theirs)
    return int(low > 0) - int(high < 0)


def line_of(table: str, passage: str, row: str, metric: str, value: float) -> dict[str, Any]:
    """The columns of verdicts.csv that the paper gives for a count or a statement."""
    line = {"table": table, "place": passage, "row": row, "metric": metric, "paper": value}
    return line | {"counterpart": "same", "trivial": False}


def count_lines(dataset: str) -> list[dict[str, Any]]:
    """The counts of Table 2: reproduced where one of the ways of counting gives the printed number."""
    counted, lines = read_csv(paths.tables(dataset) / "table2.csv").set_index(["set", "attribute"]), []
    for row in paper.table2().to_dict("records"):
        line = line_of(row["table"], row["place"], f"{row['set']}: {row['attribute']}", "count", row["value"])
        ways = counted.loc[(row["set"], row["attribute"]), ["released", "case_folded", "normalised"]].astype(float)
        gaps = ways - row["value"]
        way = gaps.abs().idxmin()
        line |= {"ours": ways[way], "definition": way, "diff": gaps[way]}
        lines.append(line | {"verdict": REPRODUCED if gaps[way] == 0 else NOT})
    return lines


def distance_line(dataset: str, row: Mapping[Any, Any]) -> dict[str, Any]:
    """The p-values of Figure 6: reproduced where the largest one over the categories of the test tasks is as small."""
    line = line_of(row["figure"], row["place"], row["statement"], "largest p-value", row["below"])
    path = paths.results(dataset) / "embedding" / "groups.csv"
    if not path.exists():
        return line | {"verdict": NOT_RUN, "reason": "the embeddings have not been examined"}
    tested = read_csv(path).query("level == 'category' and part == 'test'")
    largest = float(tested["p"].max())
    line |= {"ours": largest, "diff": largest - row["below"], "definition": "not corrected"}
    line |= {"tasks": tested["n"].sum(), "verdict": REPRODUCED if largest < row["below"] else NOT}
    return line | {"reason": f"{len(tested)} categories of test tasks"}


def optimum_line(dataset: str, row: Mapping[Any, Any]) -> dict[str, Any]:
    """An optimum of Figures 7 to 9: reproduced where validation chooses it."""
    # The package of the sweeps takes a second to load, and warns in notebooks.
    from study.search.sweep import choose_settings, folder_of, load_sweep

    line = line_of(row["figure"], row["place"], row["statement"], "optimum", row["optimum"])
    sweep = next(one for one in map(load_sweep, SWEEPS) if one.place == row["place"])
    path = folder_of(dataset, sweep.name) / "trials.csv"
    if not path.exists():
        return line | {"verdict": NOT_RUN, "reason": "its sweep has not run"}
    trials, parameter = read_csv(path), next(iter(sweep.space))
    best = float(choose_settings(sweep, trials)["values"][parameter])
    by_value = trials.groupby(parameter)[f"valid/{sweep.objective}"]
    means, least = by_value.mean(), by_value.mean()[best] - by_value.std().fillna(0.0)[best]
    near = row["optimum"] in means.index[means >= least]
    reason = "; the printed value is within one standard deviation over seeds of it" * near
    line |= {"ours": best, "diff": best - row["optimum"], "definition": "best on validation"}
    line |= {"seeds": trials["seed"].nunique(), "verdict": REPRODUCED if best == row["optimum"] else NOT}
    return line | {"reason": f"{sweep.objective} of {len(trials)} trials{reason}"}


def figure_lines(dataset: str) -> list[dict[str, Any]]:
    """The statements on Figures 6 to 9."""
    stated = paper.optima()
    lines = [distance_line(dataset, row) for row in stated.dropna(subset=["below"]).to_dict("records")]
    return lines + [optimum_line(dataset, row) for row in stated.dropna(subset=["optimum"]).to_dict("records")]


def compute_table(dataset: str, protocols: list[str]) -> pd.DataFrame:
    """verdicts.csv: every cell of Tables 3 and 4 under every protocol, Table 2, and the statements on Figures 6 to 9.

    Raises `StudyError` where the paper does not describe this data set.
    """
    if not paper.describes(dataset):
        fix = f"use dataset={paper.load().attrs['dataset']}"
        raise StudyError(f"the paper reports no number for {dataset}", fix=fix)
    chosen, cells = load_settings(Verdicts), paper.load()
    runs = measure_cells(
        {
            (protocol, system): frame
            for protocol in protocols
            for system, frame in read_per_task(dataset, protocol, sorted(set(cells["own"]) - {""})).items()
        }
    )
    judged = with_order(cell_lines(cells, runs, protocols, chosen), runs)
    # By records: concatenating columns without any value would guess at their types.
    lines = [*judged.to_dict("records"), *count_lines(dataset), *figure_lines(dataset)]
    return pd.DataFrame(lines).reindex(columns=COLUMNS)


def verify_paper(config: DictConfig) -> str:
    """Every cell beside ours under each protocol that has a value, the verdict under the stated one, and counts. Writes
    nothing; `verdicts` does."""
    table = compute_table(config.dataset.name, list(config.dataset.protocols))
    stated, keys = load_settings(Verdicts).stated_protocol, ["place", "row", "metric", "k", "paper"]
    cells, others = table[table["protocol"].notna()], table[table["protocol"].isna()]
    ours = cells.pivot_table(index=keys, columns="protocol", values="ours", sort=False).round(4)
    home = cells[cells["protocol"] == stated].set_index(keys)
    comparison = ours.reindex(home.index).join(home[["pairs_in_order", "pairs", "verdict", "reason"]]).reset_index()
    rest = others[["place", "row", "metric", "paper", "ours", "definition", "verdict", "reason"]]
    texts = [markdown(part.astype(object).where(part.notna(), "")) for part in (comparison.astype({"k": int}), rest)]
    counts = ", ".join(f"{(home['verdict'] == name).sum()} {name}" for name in VERDICTS)
    return "\n".join([*texts, f"Tables 3 and 4 under {stated}, {len(home)} cells: {counts}\n"])


@analysis("audit")
def verdicts(study: Context) -> Tables:
    """Does each printed cell hold? The paper's numbers beside this study's; none for data that it does not describe."""
    if not paper.describes(study.dataset):
        return {}
    study.settings(Verdicts)
    return {"verdicts": compute_table(study.dataset, list(study.config.dataset.protocols))}
