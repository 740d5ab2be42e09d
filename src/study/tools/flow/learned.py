"""What `study tools call` has learned from MCP-Flow, once, kept on disk.

The selector learns from the public instructions, the slot filler from the study's own too (`both` in
``conf/tools/flow.yaml``): of the measured variants the one that writes arguments of unseen servers best.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from study.advisor.encoders import choose as embedding
from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.texts import documents
from study.base import paths
from study.base.files import replacing, sha256
from study.data.dataset import FloatArray, IntArray
from study.tools.flow import bench as benches
from study.tools.flow import experiments
from study.tools.flow.bench import Bench, Exemplars
from study.tools.flow.experiments import least_probability
from study.tools.flow.samples import Call, Sample
from study.tools.flow.settings import Flow, flow_settings
from study.tools.flow.slot_filler import Linear, SlotFiller

# Whose content decides what is learned.
SETTINGS = ("tools/flow.yaml", "dataset/mcpflow.yaml", "dataset/mcpflow.sha256")
NOTICE = "learning from MCP-Flow, once: its texts are embedded (minutes, kept in .cache) and a selector is trained"


@dataclass(frozen=True)
class Learned:
    """Everything that a call needs, without the instructions that it was learned from."""

    vectors: FloatArray  # of the exemplars, shape (n, d)
    calls: tuple[tuple[str, str, tuple[str, ...]], ...]  # of each: name and description of its tool, parameters it sets
    weights: Mapping[bool, FloatArray]  # of the selector, by whether it sees exemplars
    value: Linear  # value, setting: the slot filler's regressions
    setting: Linear
    least: float  # a value with a lower probability is not filled in

    def exemplars(self, candidates: ToolCatalog, top: int) -> Exemplars:
        """Those exemplars whose tools are among the candidates, by name and description, as exemplars of these. `top`:
        exemplars that are retrieved for one instruction."""
        row_of = {(tool.name, tool.description): row for row, tool in reversed(list(enumerate(candidates.tools)))}
        numbers = [number for number, (*tool, _) in enumerate(self.calls) if tuple(tool) in row_of]
        named = ((str(number), row_of[self.calls[number][:2]], self.calls[number][2]) for number in numbers)
        samples = [
            Sample(name, "", row, candidates.tools[row].server, dict.fromkeys(keys), name) for name, row, keys in named
        ]
        return Exemplars(self.vectors[numbers], samples, top)


def learn(bench: Bench, flow: Flow, more: Sequence[Sample] = ()) -> Learned:
    """Learn from all samples of a bench; `more` teaches the slot filler alone which piece of a text is whose."""
    every, slot_filler = np.arange(len(bench.samples)), SlotFiller(bench.catalog, flow.copying)
    trained = benches.train(bench, every, flow, flow.seeds[0], slot_filler)
    least = least_probability(slot_filler, bench.samples, more)
    slot_filler.fit(bench.samples, more)
    named = ((bench.catalog.tools[sample.tool], sample) for sample in bench.samples)
    calls = tuple((tool.name, tool.description, tuple(sample.arguments)) for tool, sample in named)
    return Learned(trained.exemplars.vectors, calls, trained.weights, slot_filler.value, slot_filler.setting, least)


def configured(flow: Flow, say: Callable[[str], None]) -> Learned:
    """What MCP-Flow's public files and the configured synthesis teach; read where it was learned before. `say`: told
    before work that takes minutes."""
    path = paths.cache() / "flow" / f"{learned_key()}.safetensors"
    if (stored := read_learned(path)) is not None:
        return stored
    say(NOTICE)
    bench = benches.prepare(flow)
    instructions, _ = experiments.synthetic(bench, flow)
    whole = benches.assemble(bench.catalog, instructions, flow, tools=bench.tools)
    learned = learn(bench, flow, experiments.filtrate(whole, flow)[0])
    write_learned(path, learned)
    return learned


def learned_key() -> str:
    """A hash of data, settings, embedder and code: another one of these teaches something else."""
    files = [paths.conf() / name for name in SETTINGS]
    files += sorted(Path(__file__).parent.glob("*.py"))
    content = [sha256(path) for path in files] + [json.dumps(embedding.embedder_settings().identity(), sort_keys=True)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]


def write_learned(path: Path, learned: Learned) -> None:
    """Keep it as one safetensors file, the names in its head."""
    tensors: dict[str, Any] = {"vectors": learned.vectors, "least": np.array(learned.least)}
    tensors |= {f"weights_{seen:d}": vector for seen, vector in learned.weights.items()}
    for name, (weights, intercept) in {"value": learned.value, "setting": learned.setting}.items():
        tensors |= {name: weights, f"{name}_intercept": np.array(intercept)}
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary, {"calls": json.dumps(learned.calls)})


def read_learned(path: Path) -> Learned | None:
    """What `write_learned` kept; None where there is nothing, or something damaged, which is then learned again."""
    try:
        with safe_open(path, "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            calls = tuple((name, text, tuple(keys)) for name, text, keys in json.loads(file.metadata()["calls"]))
        value, setting = ((tensors[name], tensors[f"{name}_intercept"].item()) for name in ("value", "setting"))
        weights = {seen: tensors[f"weights_{seen:d}"] for seen in (True, False)}
        return Learned(tensors["vectors"], calls, weights, value, setting, tensors["least"].item())
    except (OSError, SafetensorError, ValueError, KeyError):
        return None


def call_tool(
    catalog: ToolCatalog, instruction: str, candidates: IntArray, say: Callable[[str], None] = lambda _: None
) -> Call:
    """The best of the candidates (tool rows) with its arguments; None is the value of a required one for which nothing
    was found, or nothing that is probable enough. `say`: told before work that takes minutes."""
    flow, embedder = flow_settings(), embedding.configured_embedder()
    learned = configured(flow, say)
    small = ToolCatalog(catalog.name, catalog.servers, tuple(catalog.tools[row] for row in candidates))
    written = documents(small, flow.document, flow.limit)
    vectors = embedder.encode([instruction], store=False)
    evidence = benches.evidence([instruction], small, written, embedder.encode(written, store=False), vectors)
    exemplars = learned.exemplars(small, flow.exemplars)
    similarity = exemplars.similarity(vectors)
    rows = benches.features(evidence, np.array([0]), np.arange(len(candidates))[None], exemplars, similarity)
    # Without an exemplar of any candidate, the weights that were learned without exemplars decide.
    weights = learned.weights[bool(exemplars.samples)]
    best = int((rows[0, :, : len(weights)] @ weights).argmax())
    near = exemplars.nearest_of(similarity[0], best)
    chosen = int(candidates[best])
    needed = catalog.tools[chosen].required
    parameters = None if near is None else list(dict.fromkeys([*near.arguments, *needed]))
    slot_filler = SlotFiller(catalog, flow.copying, learned.value, learned.setting)
    given = slot_filler.fill(instruction, chosen, parameters, absent=None, least=learned.least)
    # An optional parameter without a value is left to the tool; a required one shows that something is missing.
    return Call(chosen, {name: value for name, value in given.items() if value is not None or name in needed})


def missing(catalog: ToolCatalog, call: Call) -> list[str]:
    """Required parameters for which no value was found."""
    return [name for name in catalog.tools[call.tool].required if call.arguments.get(name) is None]
