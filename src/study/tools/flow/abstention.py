"""When the slot filler leaves a parameter empty: below a least probability, which is chosen on servers held out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from tqdm import tqdm

from study.data.dataset import FloatArray
from study.tools.collections.published import same_value
from study.tools.flow.bench import Bench
from study.tools.flow.samples import Sample, folds, server_groups
from study.tools.flow.settings import Flow
from study.tools.flow.slot_filler import SlotFiller

GRID = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # least probabilities among which is chosen; 0 never abstains
GROUPS = 4  # of servers, held out one after the other for the choice
COLUMNS = ["probability", "filled", "given", "right"]


def decisions(slot_filler: SlotFiller, samples: Iterable[Sample]) -> pd.DataFrame:
    """One row per parameter that is filled or that the right call sets, the tool being given.

    Columns: probability (of the value, 0 where there is none), filled (whether there is a value), given (whether the
    right call sets the parameter), right (whether it sets this value).
    """
    rows = []
    for sample in samples:
        chosen = slot_filler.choose(sample.text, sample.tool)
        for one in chosen:
            given, filled = one.parameter.name in sample.arguments, one.place is not None
            right = given and filled and same_value(one.option.value, sample.arguments[one.parameter.name])
            rows.append((one.probability, filled, given, right))
        named = {one.parameter.name for one in chosen}
        rows += [(0.0, False, True, False) for name in sample.arguments if name not in named]
    return pd.DataFrame(rows, columns=COLUMNS)


def least_probability(slot_filler: SlotFiller, samples: Sequence[Sample], more: Sequence[Sample] = ()) -> float:
    """The least probability with the most right values less wrong ones on servers that the filler has not seen.

    `samples`: their servers are held out in groups. `more`: calls that always teach values, see `SlotFiller.fit`.
    `slot_filler`: is fitted on the way. Of equal probabilities the lowest counts.
    """
    group = server_groups([sample.server for sample in samples], GROUPS)
    parts = []
    for held_out in sorted(set(group.values())):
        known = [sample for sample in samples if group[sample.server] != held_out]
        slot_filler.fit(known, more)
        parts.append(decisions(slot_filler, (sample for sample in samples if group[sample.server] == held_out)))
    return best_of(pd.concat(parts))


def best_of(found: pd.DataFrame) -> float:
    """The entry of `GRID` with the most right values less wrong ones; `found`: from `decisions`."""
    gains: FloatArray = np.where(found["right"], 1, -1).astype(np.float32) * found["filled"].to_numpy()
    kept = [gains[found["probability"].to_numpy() >= least].sum() for least in GRID]
    return GRID[int(np.argmax(kept))]


def abstention_table(bench: Bench, more: Sequence[Sample], flow: Flow) -> pd.DataFrame:
    """flow_abstention.csv: every server unseen once, with and without abstaining.

    Columns: arguments (always or abstaining), calls, parameters (of the right calls), filled_right, filled_wrong,
    left_empty (of these), invented (values for parameters that the right call does not set), least_low, least_high
    (range of the chosen probabilities).
    """
    slot_filler, parts, chosen = SlotFiller(bench.catalog, flow.copying), [], []
    turns = list(folds(bench.samples, "unseen_server", flow.splits, flow.seeds[0]))
    for fold in tqdm(turns, desc="abstention", delay=3):
        train, test = ([bench.samples[row] for row in rows] for rows in fold)
        chosen.append(least_probability(slot_filler, train, more))
        slot_filler.fit(train, more)
        parts.append(decisions(slot_filler, test).assign(least=chosen[-1]))
    found, lines = pd.concat(parts), []
    for name, least in (("always", 0.0), ("abstaining", found["least"])):
        filled = found["filled"] & (found["probability"] >= least)
        line = {"arguments": name, "calls": len(bench.samples), "parameters": int(found["given"].sum())}
        line["filled_right"] = int((filled & found["right"]).sum())
        line["filled_wrong"] = int((filled & found["given"] & ~found["right"]).sum())
        line["left_empty"] = int((~filled & found["given"]).sum())
        line["invented"] = int((filled & ~found["given"]).sum())
        bounds = {"least_low": min(chosen), "least_high": max(chosen)}
        lines.append(line | (bounds if name == "abstaining" else dict.fromkeys(bounds, 0.0)))
    return pd.DataFrame(lines)
