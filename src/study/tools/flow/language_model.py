"""MCP-Flow with a small language model: calls with and without retrieved exemplars (section 4.3), and instructions that
it writes and judges (sections 3.2 and 3.3). What is kept is numbers (`study.tools.language_model.Kept`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd

from study.advisor.encoders import choose as embedding
from study.advisor.llm.reply import json_object
from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.route import Chat, escaped
from study.base import paths
from study.evaluation import per_task
from study.tools import results
from study.tools.flow import bench as benches
from study.tools.flow import samples, synthesis
from study.tools.flow.bench import Bench
from study.tools.flow.samples import Call, Sample, as_queries, measures, tool_key
from study.tools.flow.settings import Flow
from study.tools.flow.synthesis import DATA, messages_of
from study.tools.flow.tables import COLLECTION, MEASURES
from study.tools.language_model import Groups, Kept, facts, json_form
from study.tools.results import Run, Table

SPLIT, POOL = "seen", "labelled10"
PROTOCOL = f"model_{SPLIT}_{POOL}"
BESIDE = ("flow_random", "flow_dense", "flow_exemplars_copied", "flow_trained")  # on the same instructions
EXAMPLES = 3  # public instructions that the writer is shown
OTHERS = 9  # tools beside the right one, when the model judges whether an instruction asks for it
JUDGE = f"""Judge a user's instruction that was written for a tool. Give 0 to 10 points: is it clear, does it state
concrete values, does it need this tool, and does it hold all that the tool requires? {DATA}
Answer with one JSON object: {{"points": number}}"""
POINTS_ONLY = json_form("points", "points", {"type": "integer", "minimum": 0, "maximum": 10})
COUNTS = ("first", "filled", "evolved", "not filled", "not evolved")
JSON_ONLY = {"type": "json_object"}


CALL = f"""Choose the one tool that fulfils the user's instruction and write its call. {DATA}
Answer with one JSON object: {{"tool": <number of the tool>, "arguments": {{...}}}}"""


def ask_for_call(
    chat: Chat,
    catalog: ToolCatalog,
    text: str,
    tools: Sequence[int],
    exemplars: Sequence[Sample] = (),
    longest: int | None = None,
) -> Call | None:
    """The model's call, None where its reply is no call of a given tool. `tools`: rows of the candidates, in the order
    in which they are shown. `exemplars`: retrieved samples, shown as examples (retrieval-augmented function call).
    `longest`: of a description in short definitions; None shows the whole definitions."""
    own = [catalog.tools[tool] for tool in tools]
    definitions = [tool.definition() if longest is None else tool.short_definition(longest) for tool in own]
    shown = [{"number": number, **definition} for number, definition in enumerate(definitions)]
    told = [
        {"instruction": one.text, "tool": catalog.tools[one.tool].name, "arguments": dict(one.arguments)}
        for one in exemplars
    ]
    parts = f"<tools>{escaped(shown)}</tools>" + (f"\n<examples>{escaped(told)}</examples>" if told else "")
    reply = json_object(chat(messages_of(CALL, parts, text)))
    number, arguments = reply.get("tool"), reply.get("arguments", {})
    if type(number) is not int or not 0 <= number < len(tools) or not isinstance(arguments, dict):
        return None
    known = {parameter.name for parameter in catalog.tools[tools[number]].parameters}
    return Call(tools[number], arguments) if set(arguments) <= known else None


def stratified(found: Sequence[Sample], number: int, seed: int) -> list[int]:
    """Rows of samples: drawn without repeats, server by server in turn, until there are `number` or none is left."""
    rng = np.random.default_rng(seed)
    owners = np.array([sample.server for sample in found])
    rows = pd.Series(rng.permutation(len(found)))
    turn = rows.groupby(owners[rows]).cumcount()
    return sorted(rows[turn.argsort(kind="stable")][:number].tolist())


def call_runs(bench: Bench, flow: Flow, kept: Kept) -> Iterator[Run]:
    """Protocol `PROTOCOL`: systems ``flow_llm`` and ``flow_llm_exemplars`` on a stratified part of the instructions,
    and some others on the same ones, whose kept calls are read."""
    seed, vectors = flow.seeds[0], bench.known.vectors
    rows = stratified(bench.samples, kept.settings.instructions, seed)
    asked, shown = [bench.samples[row] for row in rows], benches.candidates(bench, flow.pools[POOL], seed)
    near, size = dict[int, list[Sample]](), {"candidates": flow.pools[POOL].size}
    for fold in samples.folds(bench.samples, SPLIT, flow.splits, seed):
        for row in set(rows) & set(fold.test.tolist()):
            best = np.argsort(-(vectors[fold.train] @ vectors[row]), kind="stable")[: flow.exemplars]
            near[row] = [bench.samples[other] for other in fold.train[best]]
    chat = partial(kept.chat, response_format=JSON_ONLY)
    for name, with_exemplars in {"flow_llm": False, "flow_llm_exemplars": True}.items():

        def call(place: int, with_exemplars: bool = with_exemplars) -> Groups:
            row, one = rows[place], asked[place]
            told = near[row] if with_exemplars else ()
            made = ask_for_call(chat, bench.catalog, one.text, shown[row].tolist(), told, kept.settings.description)
            right = measures(made, one.tool, one.arguments)
            return (() if made is None else (made.tool,), tuple(int(right[measure]) for measure in MEASURES))

        found = kept.choices(name, [one.id for one in asked], call)
        if found is not None:
            values = [groups[1] for groups in found["tools"]]
            unanswered = sum(not groups[0] for groups in found["tools"])
            yield _run(bench, name, asked, values, seed, facts(found) | size | {"unanswered": unanswered})
    runs = paths.results(COLLECTION) / results.FILES["calls"]
    if kept.path.exists() and runs.exists():
        others = results.collect_runs(COLLECTION, "calls").get(f"{SPLIT}_{POOL}", {})
        for name in [name for name in BESIDE if name in others]:
            own = others[name][others[name]["seed"] == seed].set_index("task_id").loc[[one.id for one in asked]]
            values = own[list(MEASURES)].to_numpy(int).tolist()
            yield _run(bench, name, asked, values, seed, size | {"part_of": f"{SPLIT}_{POOL}"})


def _run(
    bench: Bench,
    name: str,
    asked: Sequence[Sample],
    values: Sequence[Sequence[int]],
    seed: int,
    told: dict[str, object],
) -> Run:
    keys = {"task_id": [one.id for one in asked], "seed": seed}
    calls = pd.DataFrame(keys | dict(zip(MEASURES, zip(*values, strict=True), strict=True))).astype(
        dict.fromkeys(MEASURES, float)
    )
    calls.insert(2, "unit", [tool_key(bench.catalog, one.tool) for one in asked])
    calls.insert(3, "server", [bench.catalog.servers[one.server].id for one in asked])
    table = per_task.check(pd.DataFrame(keys | {"hit_rate@1": calls["tool"]}))
    whole = {"instructions": len(asked)} | told
    return Run(PROTOCOL, name, table, (bench.catalog, as_queries(asked)), whole, calls)


def synthesis_tables(bench: Bench, drawn: Sequence[int], flow: Flow, kept: Kept) -> Iterator[Table]:
    """flow_model_synthesis.csv and flow_model_filtration.csv: what the model writes for tools without public
    instructions, and what its own judgements leave of it; the template writer passes the same judges beside it.

    `drawn`: tools (rows), of which the first ones are taken.
    """
    tools, seed = list(drawn)[: kept.settings.written_tools], flow.seeds[0]
    steps, rules = [], []
    # A small model writes one line however many are asked for, so each instruction is asked for alone.
    for name, number in {"model": flow.synthesis.per_tool, "templates": 1}.items():
        asked = [tool for tool in tools for _ in range(number)]

        def write(place: int, name: str = name, asked: Sequence[int] = asked) -> Groups:
            tool, rng = asked[place], np.random.default_rng([seed, place])
            shown = [bench.samples[row].text for row in rng.choice(len(bench.samples), EXAMPLES, replace=False)]
            model = synthesis.ModelWriter(kept.chat, shown)
            writer = model if name == "model" else synthesis.Templates(flow.synthesis, seed + place)
            made, counts = synthesis.synthesise(bench.catalog, [tool], writer, number=1, depth=1)
            last = list({sample.group: sample for sample in made}.values())
            return (tuple(counts[key] for key in COUNTS), *(_judged(bench, sample, kept, rng) for sample in last))

        ids = [f"{tool_key(bench.catalog, tool)}:{place % number}" for place, tool in enumerate(asked)]
        found = kept.choices(f"written_{name}", ids, write)
        if found is None:
            continue
        judged = np.array([own for groups in found["tools"] for own in groups[1:]]).reshape(-1, 3)
        totals = np.sum([groups[0] for groups in found["tools"]], axis=0)
        bounds = flow.filtration
        passed = np.stack([judged[:, 0] <= 1000 * bounds.similarity, judged[:, 1] >= bounds.quality, judged[:, 2] == 1])
        counts = dict(zip(COUNTS, totals.tolist(), strict=True))
        counts |= {"judged": len(judged), "kept": int(passed.all(axis=0).sum())}
        steps += [{"writer": name, "step": step, "instructions": count} for step, count in counts.items()]
        named = zip(("similarity", "quality", "invocation"), synthesis.removals(passed), judged.T, strict=True)
        for rule, removed, points in named:
            mean = points.mean() / (1000 if rule == "similarity" else 1)
            rules.append({"writer": name, "rule": rule} | removed | {"mean": mean})
    if steps:
        yield Table("flow_model_synthesis", pd.DataFrame(steps))
        yield Table("flow_model_filtration", pd.DataFrame(rules))


def _judged(bench: Bench, sample: Sample, kept: Kept, rng: np.random.Generator) -> tuple[int, int, int]:
    """Cosine with the tool's document in thousandths, the model's points, and whether it finds the tool among ten."""
    vector = embedding.configured_embedder().encode([sample.text], store=False)[0]
    similarity = round(1000 * float(vector @ bench.tools[sample.tool]))
    others = rng.choice(np.delete(np.arange(len(bench.catalog.tools)), sample.tool), OTHERS, replace=False)
    chosen = kept.choose(bench.catalog, rng.permutation([sample.tool, *others]).tolist(), sample.text, "first")
    return similarity, points(bench.catalog, sample, kept), int(chosen == ((sample.tool,),))


def points(catalog: ToolCatalog, sample: Sample, kept: Kept) -> int:
    """The model's points for an instruction, 0 to 10; 0 where its reply holds none."""
    shown = catalog.tools[sample.tool].short_definition(kept.settings.description)
    user = f"<tool>{escaped(shown)}</tool>\n{escaped({'instruction': sample.text})}"
    try:
        found = json.loads(kept.chat(messages_of(JUDGE, user), response_format=POINTS_ONLY))["points"]
    except (ValueError, KeyError, TypeError):
        return 0
    return found if type(found) is int and 0 <= found <= 10 else 0
