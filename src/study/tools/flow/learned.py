"""What `study tools flow call` has learned from MCP-Flow: kept on disk, so that it is learned once.

The selector and its exemplars come from the public instructions, the copier from these and from the study's own (`both`
in ``conf/tools/flow.yaml``): of the measured variants the one that writes arguments of unseen servers best.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from study import paths
from study.data.dataset import FloatArray, IntArray
from study.encoders import endpoint as embedding
from study.encoders.endpoint import Embedder
from study.files import replacing, sha256, write_json
from study.tools.catalogues.catalog import Tool, ToolCatalog
from study.tools.flow import bench as benches
from study.tools.flow import experiments
from study.tools.flow.bench import Bench
from study.tools.flow.samples import Sample
from study.tools.flow.selector import Exemplars
from study.tools.flow.settings import Copying, Flow
from study.tools.flow.slot_filler import Copier, Linear

# Whose content decides what is learned.
SETTINGS = ("tools/flow.yaml", "dataset/mcpflow.yaml", "dataset/mcpflow.sha256")
NOTICE = "learning from MCP-Flow, once: its texts are embedded (minutes, kept in .cache) and a selector is trained"


@dataclass(frozen=True)
class Learned:
    """Everything that a call needs, without the instructions that it was learned from.

    Attributes:
        vectors: of the exemplars, shape (n, d).
        tool_of: for each exemplar its row in `tools`, shape (n,).
        parameters: the names that each exemplar's call sets.
        tools: name and description of the tools that have exemplars.
        weights: of the selector, by whether it sees exemplars.
        value, setting: the copier's regressions.
    """

    vectors: FloatArray
    tool_of: IntArray
    parameters: tuple[tuple[str, ...], ...]
    tools: tuple[tuple[str, str], ...]
    weights: Mapping[bool, FloatArray]
    value: Linear
    setting: Linear

    def exemplars(self, candidates: ToolCatalog, top: int) -> Exemplars:
        """Those exemplars whose tools are among the candidates, by name and description, as exemplars of these.

        Args:
            top: exemplars that are retrieved for one instruction.
        """
        place = {(tool.name, tool.description): row for row, tool in reversed(list(enumerate(candidates.tools)))}
        rows = [place.get(self.tools[tool], -1) for tool in self.tool_of]
        kept = [number for number, row in enumerate(rows) if row >= 0]
        samples = [
            Sample(
                str(number),
                "",
                rows[number],
                candidates.tools[rows[number]].server,
                dict.fromkeys(self.parameters[number]),
                str(number),
            )
            for number in kept
        ]
        return Exemplars(self.vectors[kept], samples, top)

    def copier(self, catalog: ToolCatalog, reading: Copying) -> Copier:
        """The trained copier for the tools of a catalogue."""
        return Copier.with_regressions(catalog, reading, self.value, self.setting)


def learn(bench: Bench, flow: Flow, more: Sequence[Sample] = ()) -> Learned:
    """Learn from all samples of a bench.

    Args:
        more: samples that teach the copier alone which piece of a text is whose.
    """
    trained = benches.train(
        bench, np.arange(len(bench.samples)), flow, flow.seeds[0], Copier(bench.catalog, flow.copying)
    )
    copier = Copier(bench.catalog, flow.copying).fit(bench.samples, more) if more else trained.copier
    used = sorted({sample.tool for sample in bench.samples})
    place = {tool: number for number, tool in enumerate(used)}
    own: list[Tool] = [bench.catalog.tools[tool] for tool in used]
    return Learned(
        trained.exemplars.vectors,
        np.array([place[sample.tool] for sample in bench.samples], dtype=np.int64),
        tuple(tuple(sample.arguments) for sample in bench.samples),
        tuple((tool.name, tool.description) for tool in own),
        trained.weights,
        *copier.regressions,
    )


def configured(flow: Flow, embedder: Embedder, say: Callable[[str], None] = lambda _: None) -> Learned:
    """What MCP-Flow's public files and the configured synthesis teach; read where it was learned before.

    Args:
        say: told once before work that takes minutes.
    """
    stem = paths.cache() / "flow" / key()
    if (kept := read(stem)) is not None:
        return kept
    say(NOTICE)
    bench = benches.prepare(flow, embedder)
    made, _ = experiments.synthetic(bench, flow)
    found = learn(bench, flow, experiments.sift(bench, made, flow, embedder).kept)
    write(stem, found)
    return found


def key() -> str:
    """A hash of data, settings, embedder and code: another one of these teaches something else."""
    files = [paths.conf() / name for name in SETTINGS]
    files += sorted(Path(__file__).parent.glob("*.py"))
    content = [sha256(path) for path in files] + [json.dumps(embedding.settings_of().identity(), sort_keys=True)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]


def write(stem: Path, found: Learned) -> None:
    """Keep it as ``<stem>.json`` and ``<stem>.safetensors``; the latter comes last and says that both are there."""
    write_json(stem.with_suffix(".json"), {"tools": found.tools, "parameters": found.parameters})
    regressions = {"value": found.value, "setting": found.setting}
    tensors = {
        "vectors": found.vectors,
        "tool_of": found.tool_of,
        "with_exemplars": found.weights[True],
        "without_exemplars": found.weights[False],
        **{name: weights for name, (weights, _) in regressions.items()},
        **{f"{name}_intercept": np.array([intercept]) for name, (_, intercept) in regressions.items()},
    }
    with replacing(stem.with_suffix(".safetensors")) as temporary:
        save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, temporary)


def read(stem: Path) -> Learned | None:
    """What `write` kept; None where there is nothing, or something damaged, which is then learned again."""
    try:
        tensors = load_file(stem.with_suffix(".safetensors"))
        names = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
        regressions = [(tensors[name], float(tensors[f"{name}_intercept"][0])) for name in ("value", "setting")]
        return Learned(
            tensors["vectors"],
            tensors["tool_of"],
            tuple(tuple(own) for own in names["parameters"]),
            tuple((name, text) for name, text in names["tools"]),
            {True: tensors["with_exemplars"], False: tensors["without_exemplars"]},
            *regressions,
        )
    except (OSError, SafetensorError, ValueError, KeyError):
        return None
