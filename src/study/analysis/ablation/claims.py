"""What the paper says under RQ2, and what the runs say about it: verdicts computed from tables, never typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from study import paths
from study.analysis.ablation.tables import RERANKED
from study.analysis.report.runs import COMPARED

ALPHA = 0.05
STRICT = 0.001  # the paper's bound for Figure 6
HOLDS, FAILS, DISAGREE, OPEN = "holds", "does not hold", "tests disagree", "OPEN"
SMALLEST = 1e-300  # p-values below it are rounded to 0 by the normal approximation in double precision


@dataclass(frozen=True)
class Statement:
    """What removing, adding or changing a part is said to do to both primary metrics.

    Attributes:
        sign: of the difference variant minus T2MRec that the statement expects; 0 where either would do.
        in_paper: whether Table 4 has the row.
    """

    system: str
    part: str
    claim: str
    sign: int
    in_paper: bool

    def expects(self, difference: float) -> bool:
        """Whether a difference has the stated direction."""
        return difference != 0 if self.sign == 0 else difference * self.sign > 0


def _removed(system: str, part: str, *, in_paper: bool) -> Statement:
    return Statement(system, part, f"removing {part} lowers quality", -1, in_paper)


def _changed(system: str, part: str) -> Statement:
    return Statement(system, part, f"{part} changes quality", 0, in_paper=False)


STATEMENTS = (
    _removed("t2mrec_wo_cl", "contrastive learning", in_paper=True),
    _removed("t2mrec_wo_two_tower", "the two towers", in_paper=True),
    _removed("t2mrec_wo_lexical", "the lexical representation", in_paper=True),
    Statement(RERANKED, "LLM re-ranking", "LLM re-ranking raises quality", 1, in_paper=True),
    _removed("t2mrec_wo_structure", "the structural score", in_paper=False),
    _removed("t2mrec_wo_expansion", "the expansion", in_paper=False),
    _changed("t2mrec_one_direction", "a one-directional loss"),
    _changed("t2mrec_hard_negatives", "training with hard negatives"),
    _changed("t2mrec_shared_tower", "one tower for tasks and servers"),
    _changed("t2mrec_listwise", "listwise re-ranking without an LLM"),
)


def tables(dataset: str, folder: str) -> dict[str, pd.DataFrame]:
    """The CSV files of ``results/<dataset>/<folder>`` by name; empty where the stage has not run."""
    base: Path = paths.results(dataset) / folder
    return {path.name.split(".")[0]: pd.read_csv(path) for path in sorted(base.glob("*.csv*"))}


def p_text(p: float) -> str:
    """A p-value as a table prints it; one that underflows is not zero."""
    return "<1e-300" if p < SMALLEST else f"{p:.2g}"


def _p(p: float) -> str:
    """``p = 0.03`` or ``p < 1e-300``."""
    text = p_text(p)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"


def verdict(by_wilcoxon: bool, by_randomisation: bool) -> str:
    """What two tests of one statement say together.

    Wilcoxon's test rejects too often where differences are not symmetric (`study.evaluation.significance`), so it does
    not decide alone.
    """
    if by_wilcoxon != by_randomisation:
        return DISAGREE
    return HOLDS if by_wilcoxon else FAILS


def _claim(claim: str, place: str, verdict: str, evidence: str) -> dict[str, str]:
    return {"claim": claim, "paper": place, "verdict": verdict, "evidence": evidence}


def part_claims(table: pd.DataFrame, protocol: str) -> list[dict[str, str]]:
    """What every `Statement` of a protocol comes to; and whether the losses rank as in the paper.

    A statement holds if both differences have its direction and both tests reject equality on both metrics. Where one
    test alone does, the tests disagree. The order of the losses is that of the means, without a test.

    Args:
        table: table4.csv.
    """
    own: Any = table[table["protocol"] == protocol].set_index(["system", "metric"])
    found, losses = [], {}
    for statement in STATEMENTS:
        system, place = statement.system, "section 5.5.2" if statement.in_paper else "not tested"
        if (system, COMPARED[0]) not in own.index:  # not meant to run under this protocol
            continue
        rows = [own.loc[(system, metric)] for metric in COMPARED]
        theirs = rows[-1]["paper_effect"]
        if rows[0]["seeds"] == 0:
            said = "" if pd.isna(theirs) else f"; the paper: {COMPARED[-1]} {theirs:+.4f}"
            found.append(_claim(statement.claim, place, OPEN, f"no run of {system} under {protocol}{said}"))
            continue
        decided = verdict(
            *(
                all(statement.expects(row["difference"]) and row[test] < ALPHA for row in rows)
                for test in ("wilcoxon_p_holm", "randomisation_p_holm")
            )
        )
        evidence = "; ".join(
            f"{metric} {row['difference']:+.4f} [{row['ci_low']:+.4f}, {row['ci_high']:+.4f}], "
            f"Wilcoxon {_p(row['wilcoxon_p_holm'])}, randomisation {_p(row['randomisation_p_holm'])} (Holm)"
            for metric, row in zip(COMPARED, rows, strict=True)
        )
        found.append(_claim(statement.claim, place, decided, evidence))
        if statement.sign < 0 and not pd.isna(theirs):
            losses[statement.part] = (rows[-1]["difference"], theirs)
    if len(losses) > 1:
        ours, printed = (sorted(losses, key=lambda name: losses[name][side]) for side in (0, 1))
        order = ", ".join(f"{name} {losses[name][0]:+.4f} (paper {losses[name][1]:+.4f})" for name in ours)
        found.append(
            _claim(
                "the parts rank in importance as in Table 4",
                "Table 4",
                HOLDS if ours == printed else FAILS,
                f"{COMPARED[-1]}: {order}",
            )
        )
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
        for prefix, claim in (
            ("", "distances of matched pairs fall in every category (p < .001)"),
            ("beyond_", "they fall more than those of mismatched pairs (p < .001)"),
        ):
            largest = [rows[f"{prefix}{test}_holm"].max() for test in ("p", "randomisation_p")]
            nearer = "nearer" if whole["reduction_other"] > 0 else "farther"
            evidence = (
                f"{label}, n = {whole['n']}: mean {whole['input']:.3f} before, {whole['embedded']:.3f} after, "
                f"mismatched pairs {nearer} by {abs(whole['reduction_other']):.3f}; "
                f"over {len(rows)} categories largest Wilcoxon {_p(largest[0])}, randomisation {_p(largest[1])} (Holm)"
            )
            decided = verdict(*(bool(p < STRICT) for p in largest))
            found.append(_claim(f"{claim}: {label}", "Figure 6", decided, evidence))
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
    for measure, name in (
        ("ratio", "median distance of listed over other servers"),
        ("recall", "share of the listed servers among the nearest ten"),
    ):
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


def difference_statement(table: pd.DataFrame) -> str:
    """How much further the authors' points separate listed servers than our model does, task by task.

    Args:
        table: difference.csv; empty where the authors' points are missing.
    """
    names = {"recall": "recall of the nearest ten", "auc": "P(listed server nearer than another)"}
    texts = []
    for row in table.to_dict("records"):
        ours = "our plane" if row["plane"] else "all dimensions of our embedding space"
        texts.append(
            f"- {names[row['measure']]}, against {ours}: {row['difference']:+.3f} [{row['ci_low']:+.3f}, "
            f"{row['ci_high']:+.3f}]; higher for {row['higher']:.1%} of {row['n']:,} tasks, equal for "
            f"{row['equal']:.1%}, lower for {row['lower']:.1%}; Wilcoxon {_p(row['wilcoxon_p_holm'])}, randomisation "
            f"{_p(row['randomisation_p_holm'])} (one-sided, Holm over {len(table)})"
        )
    return "\n".join(["The authors' points minus ours, the same test task on both sides:\n", *texts]) if texts else ""


def fits(sweeps: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The different trained models of the sweeps: columns sweep, seed, auc, recall, best recall first.

    One model stands in several rows where a swept setting needs no retraining, or where two sweeps share a value.

    Args:
        sweeps: name of the sweep -> its separation.csv.
    """
    columns = ["sweep", "seed", "auc", "recall"]
    kept = [table[table["part"] == "test"].assign(sweep=name)[columns] for name, table in sweeps.items()]
    if not kept:
        return pd.DataFrame(columns=columns)
    different = pd.concat(kept).drop_duplicates(["seed", "auc", "recall"])
    return different.sort_values("recall", ascending=False, kind="stable").reset_index(drop=True)


def fits_statement(models: pd.DataFrame, separation: pd.DataFrame) -> str:
    """Whether any trained model separates listed servers of test tasks as the authors' points do; empty without both.

    Args:
        models: from `fits`, in all dimensions.
        separation: separation.csv.
    """
    after = (separation["space"] == "embedded") & (separation["part"] == "test")
    theirs = separation[after & (separation["source"] == "authors")]
    if models.empty or theirs.empty:
        return ""
    texts = []
    for measure, name in (("recall", "recall of the nearest ten"), ("auc", "P(listed server nearer than another)")):
        value = theirs[measure].iloc[0]
        reach = int((models[measure] >= value).sum())
        texts.append(
            f"{name} {models[measure].min():.3f} to {models[measure].max():.3f}, the authors' points {value:.3f} "
            f"({reach} of {len(models)} models reach it)"
        )
    sources = ", ".join(sorted(set(models["sweep"])))
    return (
        f"{len(models)} models trained on the training split alone (sweeps: {sources}), means over the test tasks: "
        f"{'; '.join(texts)}."
    )
