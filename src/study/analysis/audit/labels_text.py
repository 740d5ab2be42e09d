"""Sentences about the labels, the twins and the tasks, every number of them computed from the audit's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd
from scipy import stats

from study.analysis.audit.detectors import ORDER_RULES
from study.analysis.audit.provenance import RELEASED
from study.analysis.audit.verdicts_text import listed
from study.errors import StudyError

Tables = Mapping[str, pd.DataFrame]
STATED = "as stated"
# A mixture whose statistics, taken as independent, lie outside its simulations with a smaller probability is rejected.
REJECTED = 0.01


def one(table: pd.DataFrame, **wanted: str) -> pd.Series:
    """The first row with these values."""
    found: pd.Series = table[(table[list(wanted)] == pd.Series(wanted)).all(axis=1)].iloc[0]
    return found


def percent(row: pd.Series) -> str:
    """ "27.3 % [25.4, 29.1]", from the row's share and its interval."""
    return f"{100 * row['share']:.1f} % [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"


def interval(row: pd.Series, name: str, prefix: str) -> str:
    """ "0.107 [0.078, 0.138]", from the columns `name`, `prefix`low and `prefix`high."""
    return f"{row[name]:.3f} [{row[f'{prefix}low']:.3f}, {row[f'{prefix}high']:.3f}]"


def about_signs(tables: Tables) -> str:
    """Which labels bear a sign that relevance does not explain, and how that depends on chance and on the order."""
    orders, detectors = tables["class_orders"], tables["detectors"]
    stated = {
        name: one(orders, order=STATED, **{"class": name})
        for name in ("any rule of order", "any sign of content", "long_run", "none")
    }
    walks = 100 * orders.loc[orders["class"] == "any rule of order", "share"]
    ordered, every, long_run = (
        one(detectors, detector=name) for name in ("any rule of order", "any detector", "long_run")
    )
    alone = []
    for name in ORDER_RULES:
        row = one(detectors, detector=name)
        low, high = sorted(100 * row[kind] for kind in ("kept", "even"))
        alone.append(f"{name.replace('_', ' ')} {100 * row['share']:.1f} % ({low:.1f} to {high:.1f} %)")
    return (
        f"Of {int(ordered['n']):,} labels {percent(stated['any rule of order'])} have a class that is a walk (through "
        f"a language, the alphabet, or equally used servers); {percent(stated['any sign of content'])} have one that "
        "honest labels would show as well (a word of the theme or the text, a pool of the theme, the language); "
        f"{percent(stated['long_run'])} lie in another long ascending run; for {percent(stated['none'])} no detector "
        "fires. A label with several signs has the class of the first detector: by other orders of the detectors walks "
        f"have {walks.min():.1f} to {walks.max():.1f} %. Whatever else fires, a walk fires for {percent(ordered)}, and "
        f"for at most {100 * max(ordered['kept_high'], ordered['even_high']):.1f} % where other servers stand in the "
        f"same order, as many of them in the task's language. Each walk, with that chance: {listed(alone)}. A long run "
        f"fires for {100 * long_run['share']:.1f} % and, in the same order, for {100 * long_run['kept']:.1f} % "
        "whatever the servers are: it says how lists are written down, not which servers are on them. Some detector "
        f"fires for {percent(every)}, by chance for {100 * every['chance']:.1f} %."
    )


def about_retrieved(tables: Tables) -> str:
    """How often systems that read texts alone find servers that walk, put in the order of the lists."""
    rows = tables["retrieved_walks"]
    rows = rows[rows["detector"] == "any rule of order"]
    own = rows["lists"] == RELEASED
    labels, found = rows[own].iloc[0], rows[~own]
    said = [f"{row['lists']} {percent(row)}" for _, row in found.iterrows()]
    told = "Similarity of text, which is not the same as relevance, does not explain the difference."
    return (
        "Would lists of servers that suit a task show walks too? The first servers that systems find by text alone, as "
        f"many as each of the {int(rows['tasks'].iloc[0])} test tasks lists and in the up and down of the task's list, "
        f"walk in {listed(said)}; the labels of the same tasks in {percent(labels)}. "
        + told
        * bool(labels["low"] > found["high"].max())
    )


def about_rules(tables: Tables) -> str:
    """What the rule baseline's score rests on, and what the walks alone give."""
    rows = tables["rules"]
    rows = rows[rows["metric"] == rows["metric"].iloc[0]]
    parts = []
    for part, group in rows.groupby("part", sort=False):
        said = [f"{row['variant']} {interval(row, 'mean', '')}" for _, row in group.iterrows()]
        parts.append(f"on the {int(group['n'].iloc[0])} {part} tasks {', '.join(said)}")
    return (
        "The rule baseline is mostly counts of training labels by attribute, with word matches; a count follows "
        "whatever made the labels, so its score is no measure of rules; label_walks follows the walks alone. "
        f"{rows['metric'].iloc[0]} {'; '.join(parts)}. Nothing is chosen by these."
    )


def about_twins(tables: Tables, systems: tuple[str, ...] = ("t2mrec", "task_knn", "linear_xmc")) -> str:
    """How scores differ on tasks with a twin, beside a system that cannot copy."""
    table, shares = tables["copying"], tables["leakage"]
    reference = next(str(name) for name in table if str(name).startswith("excess_")).removeprefix("excess_")
    table = table[(table["metric"] == "ndcg@10") & (table["kind"] == "any_twin")]
    texts = [
        f"{row['protocol']}: {percent(row)} of {int(row['n'])} test tasks have a twin in training"
        for _, row in shares[shares["kind"] == "any_twin"].iterrows()
    ]
    said = [
        f"{row['system']} {interval(row, f'excess_{reference}', f'excess_{reference}_')} ({row['protocol']})"
        for _, row in table[table["system"].isin(systems)].iterrows()
    ]
    own = [
        f"{row['mean_twin']:.3f} with and {row['mean_other']:.3f} without a twin ({row['protocol']})"
        for _, row in table[table["system"] == reference].iterrows()
    ]
    return (
        f"{'; '.join(texts)}. Twins are found by the labels, and tasks that have one are easier for all: {reference}, "
        f"which reads no label and cannot copy, has NDCG@10 {listed(own)}. What may be copying is rather the excess of "
        f"a system's difference over that of {reference}: {listed(said)}."
    )


def about_mixture(tables: Tables) -> str:
    """Whether the annotation mixture describes the lists."""
    fit, values = tables["mixture_fit"], tables["mixture"].set_index("parameter")["value"]
    outside, draws = int((~fit["inside"].astype(bool)).sum()), int(fit["simulations"].iloc[0])
    # One more draw of the same kind is the smallest or the largest of all in two of draws + 1 cases.
    chance = min(1.0, 2 / (draws + 1))
    p = float(stats.binom.sf(outside - 1, len(fit), chance))
    verdict = "is rejected by its own goodness of fit" if p < REJECTED else "is not rejected by its goodness of fit"
    held, same = "held out: log-likelihood per label (nats)", "held out: the same for servers drawn"
    return (
        f"The annotation mixture {verdict}: {outside} of {len(fit)} statistics lie outside the range of "
        f"{draws} data sets drawn from it, by chance {len(fit) * chance:.1f} would. "
        "Its shares describe the model, not how the labels "
        f"were made. On {int(values['held out: labels']):,} held-out labels it has a log-likelihood per label of "
        f"{values[held]:.2f} nats; servers drawn by their popularity have {values[f'{same} by their popularity']:.2f}, "
        f"evenly {values[f'{same} evenly']:.2f}."
    )


def about_quality(tables: Tables) -> str:
    """What the quality of the tasks means for any recommender."""
    table = tables["task_quality"]
    pairs = (("name", "description", "within subcategory"), ("description", "theme", "all tasks"))
    said = []
    for block in dict.fromkeys(table["block"]):
        found = []
        for left, right, how in pairs:
            row = one(table, block=block, left=left, right=right, shuffled_in=how)
            found.append(f"{left} and {right} {interval(row, 'auc', 'auc_')}")
        said.append(f"{block}: {', '.join(found)}")
    text = (
        "How often a task's own pair is more alike than a shuffled one (AUC; 0.5 is chance; names are shuffled within "
        f"the subcategory): {'; '.join(said)}. Where a name is no nearer to its own description than to another one's, "
        "it says nothing of the need beyond the subcategory: a recommender that weighs it is led to another need, and "
        "where both state a need no ranking serves both. There a score says which part of a task the labels follow, "
        "and no system can show on it that it understood the need."
    )
    reading = tables.get("task_quality_reading")
    if reading is not None:
        row = one(reading, block="all", code="contradictory")
        text += (
            f" Of {int(row['n'])} tasks that a language model read once, {int(row['tasks'])} have a name and a "
            f"description that contradict each other ({percent(row)}, Wilson); there is no second reading."
        )
    return text


Part = Callable[[Tables], str]
PARTS: tuple[Part, ...] = (
    about_signs,
    about_retrieved,
    about_rules,
    about_twins,
    about_mixture,
    about_quality,
)


def sentences(tables: Tables, parts: Sequence[Part] = PARTS) -> Iterator[str]:
    """Every text of `parts`, or why its table is missing."""
    for part in parts:
        try:
            yield part(tables)
        except StudyError as problem:
            yield f"{part.__name__.removeprefix('about_')}: {problem.reason} ({problem.fix})"
