"""What the paper says under RQ2, and what the runs say about it: verdicts computed from tables, never typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from study import paths
from study.pipeline.report import COMPARED

ALPHA = 0.05
HOLDS, FAILS, OPEN = "holds", "does not hold", "no runs to test it"
REMOVED = {"t2mrec_wo_cl": "contrastive learning", "t2mrec_wo_two_tower": "the two towers",
           "t2mrec_wo_lexical": "the lexical representation", "t2mrec_wo_structure": "the structural score",
           "t2mrec_wo_expansion": "the expansion"}  # fmt: skip

IN_PAPER = ("t2mrec_wo_cl", "t2mrec_wo_two_tower", "t2mrec_wo_lexical")  # parts that Table 4 removes


def tables(dataset: str, folder: str) -> dict[str, pd.DataFrame]:
    """The CSV files of ``results/<dataset>/<folder>`` by name; empty where the stage has not run."""
    base: Path = paths.results(dataset) / folder
    return {path.name.split(".")[0]: pd.read_csv(path) for path in sorted(base.glob("*.csv*"))}


def _claim(claim: str, place: str, verdict: str, evidence: str) -> dict[str, str]:
    return {"claim": claim, "paper": place, "verdict": verdict, "evidence": evidence}


def part_claims(table: pd.DataFrame, protocol: str) -> list[dict[str, str]]:
    """For every part: removing it lowers both primary metrics; and that the order of the losses is the paper's.

    Args:
        table: table4.csv.
    """
    own: Any = table[table["protocol"] == protocol].set_index(["system", "metric"])
    found, losses = [], {}
    for system, part in REMOVED.items():
        claim, place = f"removing {part} lowers quality", "section 5.5.2" if system in IN_PAPER else "not tested"
        if (system, COMPARED[0]) not in own.index:
            found.append(_claim(claim, place, OPEN, f"no run of {system} under {protocol}"))
            continue
        rows = [own.loc[(system, metric)] for metric in COMPARED]
        holds = all(row["difference"] < 0 and row["wilcoxon_p_holm"] < ALPHA for row in rows)
        evidence = "; ".join(
            f"{metric} {row['difference']:+.4f} [{row['ci_low']:+.4f}, {row['ci_high']:+.4f}], "
            f"Wilcoxon p = {row['wilcoxon_p_holm']:.2g}, randomisation p = {row['randomisation_p_holm']:.2g} (Holm)"
            for metric, row in zip(COMPARED, rows, strict=True)
        )
        found.append(_claim(claim, place, HOLDS if holds else FAILS, evidence))
        if system in IN_PAPER and not pd.isna(rows[-1]["paper_effect"]):
            losses[system] = (rows[-1]["difference"], rows[-1]["paper_effect"])
    if len(losses) > 1:
        ours, theirs = (sorted(losses, key=lambda name: losses[name][side]) for side in (0, 1))
        order = ", ".join(f"{REMOVED[name]} {losses[name][0]:+.4f} (paper {losses[name][1]:+.4f})" for name in ours)
        found.append(_claim("the parts rank in importance as in Table 4", "Table 4", HOLDS if ours == theirs else FAILS,
                            f"{COMPARED[-1]}: {order}"))  # fmt: skip
    return found


def distance_claims(groups: pd.DataFrame) -> list[dict[str, str]]:
    """Figure 6: distances fall in every category; and whether they fall more than those of mismatched pairs.

    Args:
        groups: groups.csv of the embedding stage.
    """
    found = []
    for part, label in (("test", "test tasks"), ("train", "training tasks")):
        rows = groups[(groups["part"] == part) & (groups["level"] == "category")]
        whole = groups[(groups["part"] == part) & (groups["level"] == "all")].iloc[0]
        for column, claim in (
            ("p_holm", "distances of matched pairs fall in every category (p < .001)"),
            ("beyond_p_holm", "they fall more than those of mismatched pairs (p < .001)"),
        ):
            holds = bool((rows[column] < 0.001).all())
            evidence = (
                f"{label}, n = {whole['n']}: mean {whole['input']:.3f} before, {whole['embedded']:.3f} after, "
                f"mismatched pairs nearer by {whole['reduction_other']:+.3f}; "
                f"largest p over {len(rows)} categories {rows[column].max():.2g} (Holm)"
            )
            found.append(_claim(f"{claim}: {label}", "Figure 6", HOLDS if holds else FAILS, evidence))
    return found


def structure_statements(facts: pd.DataFrame) -> list[str]:
    """What the structural score is on the data, in sentences.

    Args:
        facts: structure.csv.
    """
    value = facts.set_index("measure")["value"]
    category = (
        "is zero for every pair"
        if value["pairs_category"] == 0
        else f"differs from zero for {value['pairs_category']:,.0f} pairs"
    )
    alone = value["pairs_beyond_language"] / value["pairs"] < 1e-3
    return [
        f"The category feature {category} of a task and a server: tasks and servers share "
        f"{value['shared_category_names']:.0f} names of categories and {value['shared_subcategory_names']:.0f} of "
        "subcategories.",
        f"The theme feature differs from zero for {value['pairs_theme']:,.0f} of {value['pairs']:,.0f} pairs: "
        f"{value['servers_stating_a_system']:.0f} of {value['servers']:,.0f} servers state a system.",
        f"For {value['share_language_alone']:.4%} of the pairs the structural score is the language check alone"
        + (", so that is what the structural score is." if alone else "."),
    ]


def separation_statement(table: pd.DataFrame) -> str:
    """How close the authors' matched pairs are beside ours, in one sentence per measure; empty without their points.

    Args:
        table: separation.csv.
    """
    after: Any = table[(table["space"] == "embedded") & table["plane"]].set_index(["source", "part"])
    if ("authors", "test") not in after.index:
        return ""
    texts = []
    for measure, name in (("ratio", "median distance of listed over other servers"),
                          ("recall", "share of the listed servers among the nearest ten")):  # fmt: skip
        cells = [
            f"{label} {row[measure]:.3f} [{row[f'{measure}_low']:.3f}, {row[f'{measure}_high']:.3f}]"
            for label, row in (
                ("the authors' test tasks", after.loc[("authors", "test")]),
                ("our test tasks", after.loc[("ours", "test")]),
                ("our training tasks", after.loc[("ours", "train")]),
            )
        ]
        texts.append(f"{name}: {', '.join(cells)}")
    theirs, test, train = (
        after.loc[key, "recall"] for key in (("authors", "test"), ("ours", "test"), ("ours", "train"))
    )
    nearer = "training" if abs(theirs - train) < abs(theirs - test) else "test"
    return (
        f"In the plane, after training: {'; '.join(texts)}. By its recall the authors' panel of test tasks is like our "
        f"{nearer} tasks."
    )
