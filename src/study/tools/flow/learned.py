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
from study.advisor.encoders.choose import Embedder
from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.texts import documents
from study.base import paths
from study.base.files import replacing, sha256
from study.data.dataset import FloatArray, IntArray
from study.tools.flow import bench as benches
from study.tools.flow import experiments, selector
from study.tools.flow.abstention import least_probability
from study.tools.flow.bench import Bench
from study.tools.flow.samples import Call, Sample
from study.tools.flow.selector import Exemplars
from study.tools.flow.settings import Flow, flow_settings
from study.tools.flow.slot_filler import Linear, SlotFiller

# Whose content decides what is learned.
SETTINGS = ("tools/flow.yaml", "dataset/mcpflow.yaml", "dataset/mcpflow.sha256")
NOTICE = "learning from MCP-Flow, once: its texts are embedded (minutes, kept in .cache) and a selector is trained"


@dataclass(frozen=True)
class Learned:
    """Everything that a call needs, without the instructions that it was learned from."""

    vectors: FloatArray  # of the exemplars, shape (n, d)
    tool_of: IntArray  # for each exemplar its row in `tools`, shape (n,)
    parameters: tuple[tuple[str, ...], ...]  # the names that each exemplar's call sets
    tools: tuple[tuple[str, str], ...]  # name and description of the tools that have exemplars
    weights: Mapping[bool, FloatArray]  # of the selector, by whether it sees exemplars
    value: Linear  # value, setting: the slot filler's regressions
    setting: Linear
    least: float  # a value with a lower probability is not filled in

    def exemplars(self, candidates: ToolCatalog, top: int) -> Exemplars:
        """Those exemplars whose tools are among the candidates, by name and description, as exemplars of these. `top`:
        exemplars that are retrieved for one instruction."""
        place = {(tool.name, tool.description): row for row, tool in reversed(list(enumerate(candidates.tools)))}
        kept, samples = [], []
        for number, (tool, names) in enumerate(zip(self.tool_of, self.parameters, strict=True)):
            if (row := place.get(self.tools[tool])) is not None:
                kept.append(number)
                server = candidates.tools[row].server
                samples.append(Sample(str(number), "", row, server, dict.fromkeys(names), str(number)))
        return Exemplars(self.vectors[kept], samples, top)


def learn(bench: Bench, flow: Flow, more: Sequence[Sample] = ()) -> Learned:
    """Learn from all samples of a bench; `more` teaches the slot filler alone which piece of a text is whose."""
    every, slot_filler = np.arange(len(bench.samples)), SlotFiller(bench.catalog, flow.copying)
    trained = benches.train(bench, every, flow, flow.seeds[0], slot_filler)
    least = least_probability(slot_filler, bench.samples, more)
    slot_filler.fit(bench.samples, more)
    used = sorted({sample.tool for sample in bench.samples})
    tool_of = np.array([used.index(sample.tool) for sample in bench.samples], dtype=np.int64)
    parameters = tuple(tuple(sample.arguments) for sample in bench.samples)
    texts = tuple((bench.catalog.tools[tool].name, bench.catalog.tools[tool].description) for tool in used)
    taught = trained.exemplars.vectors, tool_of, parameters, texts, trained.weights
    return Learned(*taught, slot_filler.value, slot_filler.setting, least)


def configured(flow: Flow, embedder: Embedder, say: Callable[[str], None] = lambda _: None) -> Learned:
    """What MCP-Flow's public files and the configured synthesis teach; read where it was learned before. `say`: told
    once before work that takes minutes."""
    path = paths.cache() / "flow" / f"{learned_key()}.safetensors"
    if (kept := read_learned(path)) is not None:
        return kept
    say(NOTICE)
    bench = benches.prepare(flow, embedder)
    made, _ = experiments.synthetic(bench, flow)
    whole = benches.assemble(bench.catalog, made, flow, embedder, tools=bench.tools)
    found = learn(bench, flow, experiments.filtrate(whole, flow)[0])
    write_learned(path, found)
    return found


def learned_key() -> str:
    """A hash of data, settings, embedder and code: another one of these teaches something else."""
    files = [paths.conf() / name for name in SETTINGS]
    files += sorted(Path(__file__).parent.glob("*.py"))
    content = [sha256(path) for path in files] + [json.dumps(embedding.embedder_settings().identity(), sort_keys=True)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]


def write_learned(path: Path, found: Learned) -> None:
    """Keep it as one safetensors file, the names in its head."""
    tensors: dict[str, Any] = {"vectors": found.vectors, "tool_of": found.tool_of, "least": np.array([found.least])}
    tensors |= {"with_exemplars": found.weights[True], "without_exemplars": found.weights[False]}
    for name, (weights, intercept) in {"value": found.value, "setting": found.setting}.items():
        tensors |= {name: weights, f"{name}_intercept": np.array([intercept])}
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary, {name: json.dumps(getattr(found, name)) for name in ("tools", "parameters")})


def read_learned(path: Path) -> Learned | None:
    """What `write_learned` kept; None where there is nothing, or something damaged, which is then learned again."""
    try:
        with safe_open(path, "numpy") as kept:
            tensors = {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118 - it is no mapping
            parameters, tools = (json.loads(kept.metadata()[name]) for name in ("parameters", "tools"))
        value, setting = ((tensors[name], float(tensors[f"{name}_intercept"][0])) for name in ("value", "setting"))
        named = (tuple(map(tuple, parameters)), tuple(map(tuple, tools)))
        weights = {True: tensors["with_exemplars"], False: tensors["without_exemplars"]}
        least = float(tensors["least"][0])
        return Learned(tensors["vectors"], tensors["tool_of"], *named, weights, value, setting, least)
    except (OSError, SafetensorError, ValueError, KeyError):
        return None


def call_tool(
    catalog: ToolCatalog,
    instruction: str,
    candidates: IntArray,
    *,
    learned_from: Bench | None = None,
    embedder: Embedder | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Call:
    """The best of the candidates with its arguments.

    None is the value of a required one for which nothing was found, or nothing that is probable enough.
    `candidates`: tool rows. `learned_from`: default MCP-Flow, once. `say`: told before work that takes minutes.
    """
    flow, embedder = flow_settings(), embedder or embedding.configured_embedder()
    known = learn(learned_from, flow) if learned_from else configured(flow, embedder, say)
    small = ToolCatalog(catalog.name, catalog.servers, tuple(catalog.tools[row] for row in candidates))
    written = documents(small, flow.document, flow.limit)
    vectors = embedder.encode([instruction], store=False)
    evidence = selector.evidence([instruction], small, written, embedder.encode(written, store=False), vectors)
    exemplars = known.exemplars(small, flow.exemplars)
    similarity = exemplars.similarity(vectors)
    every = np.arange(len(candidates))[None]
    rows = selector.features(evidence, np.array([0]), every, exemplars, similarity)
    # Without an exemplar of any candidate, the weights that were learned without exemplars decide.
    seen = bool(len(exemplars.samples))
    weights = known.weights[seen]
    place = int((rows[0, :, : len(weights)] @ weights).argmax())
    near = exemplars.nearest_of(similarity[0], place) if seen else None
    chosen = int(candidates[place])
    needed = catalog.tools[chosen].required
    parameters = None if near is None else list(dict.fromkeys([*near.arguments, *needed]))
    slot_filler = SlotFiller(catalog, flow.copying, known.value, known.setting)
    given = slot_filler.fill(instruction, chosen, parameters, absent=None, least=known.least)
    # An optional parameter without a value is left to the tool; a required one shows that something is missing.
    return Call(chosen, {name: value for name, value in given.items() if value is not None or name in needed})


def missing(catalog: ToolCatalog, made: Call) -> list[str]:
    """Required parameters for which no value was found."""
    return [name for name in catalog.tools[made.tool].required if made.arguments.get(name) is None]
