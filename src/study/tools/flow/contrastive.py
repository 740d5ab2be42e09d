"""A contrastive fine-tune of the sentence encoder on MCP-Flow's public instructions, for a processor.

The upper layers of all-MiniLM-L6-v2 learn to bring an instruction near the document of its tool: softmax over the tools
of the batch and drawn distractors (InfoNCE, van den Oord et al. 2018). The lower layers stay, so that their output is
computed once per text. The tuned weights can be mixed with those before (Wortsman et al. 2022), which keeps more of
what the encoder knew of other texts. Nothing is chosen by a result: ``conf/tools/flow.yaml`` has the settings, and each
share of the mix is a row.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy, normalize
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from study import paths
from study.data.dataset import FloatArray, IntArray
from study.encoders import sentence
from study.files import replacing
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.flow.samples import Sample, server_groups
from study.tools.flow.settings import Contrastive

BATCH = 64  # texts that are embedded at a time
State = dict[str, torch.Tensor]


class Lower:
    """The frozen layers of MiniLM; their output is kept in memory."""

    def __init__(self, upper: int) -> None:
        """`upper`: layers that are not frozen."""
        self.model = copy.deepcopy(sentence._load("minilm", "cpu")).eval()
        layers = self.model[0].auto_model.encoder.layer
        self.upper: torch.nn.ModuleList = layers[-upper:]
        self.model[0].auto_model.encoder.layer = layers[:-upper]
        self._known: dict[str, torch.Tensor] = {}

    def read(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """Token vectors of each text, shape (tokens, 384)."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            found = self.model.encode(
                new, batch_size=BATCH, output_value="token_embeddings", show_progress_bar=False, convert_to_numpy=False
            )
            self._known |= {text: own.detach().clone() for text, own in zip(new, found, strict=True)}
        return [self._known[text] for text in texts]


def pooled(upper: torch.nn.ModuleList, tokens: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sentence vectors of length 1, shape (n, 384), from what `Lower.read` gave: the upper layers, then the mean."""
    hidden = pad_sequence(list(tokens), batch_first=True)
    lengths = torch.tensor([len(own) for own in tokens])
    there = torch.arange(hidden.shape[1])[None] < lengths[:, None]
    for layer in upper:
        hidden = layer(hidden, attention_mask=there[:, None, None])
    summed = (hidden * there[:, :, None]).sum(dim=1)
    return normalize(summed / lengths[:, None], dim=1)


@dataclass(frozen=True)
class Tuned:
    """MiniLM with other upper layers: an `Embedder` that keeps nothing on disk."""

    lower: Lower
    upper: torch.nn.ModuleList

    def encode(self, texts: Sequence[str], *, store: bool = True) -> FloatArray:
        """Shape (len(texts), 384)."""
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        found = np.zeros((len(texts), sentence.DIMENSION), dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                rows = order[start : start + BATCH]
                found[rows] = pooled(self.upper, self.lower.read([texts[row] for row in rows])).numpy()
        return found


class Tuning:
    """All trainings on some samples: one per group of servers that is held out, kept on disk when it is through."""

    def __init__(
        self, catalog: ToolCatalog, samples: Sequence[Sample], documents: Sequence[str], how: Contrastive, seed: int
    ) -> None:
        """`documents`: of the tools, shape (n_tools,)."""
        self.catalog, self.samples, self.documents, self.how, self.seed = catalog, samples, documents, how, seed
        self.lower = Lower(how.layers)
        self.groups = server_groups([sample.server for sample in samples], how.groups)
        self.group_of = np.array([self.groups[sample.server] for sample in samples])
        drawn = np.random.default_rng(seed).permutation(sorted(set(documents)))[: how.drawn].tolist()
        self.pool = sorted({*drawn, *(documents[sample.tool] for sample in samples)})

    def encoder(self, held_out: int | None, share: float) -> Tuned:
        """The encoder that was trained without a group (None: with all); `share`: of the tuned weights in the mix."""
        upper, tuned = copy.deepcopy(self.lower.upper).eval(), self.trained(held_out)
        upper.load_state_dict({name: torch.lerp(own, tuned[name], share) for name, own in upper.state_dict().items()})
        return Tuned(self.lower, upper)

    def trained(self, held_out: int | None) -> State:
        """The upper layers' weights; trained where they are not kept."""
        path = self.path(held_out)
        try:
            return load_file(path)
        except (OSError, SafetensorError):
            found = self.train(held_out)
        with replacing(path) as temporary:
            save_file(found, temporary)
        return found

    def path(self, held_out: int | None) -> Path:
        """Where a training is kept: named by everything that it depends on."""
        read = [[sample.text, self.documents[sample.tool], sample.server, sample.group] for sample in self.samples]
        whole = [read, self.pool, asdict(self.how), self.seed, held_out, sentence.model_version("minilm")]
        key = hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:32]
        return paths.cache() / "contrastive" / f"{key}.safetensors"

    def train(self, held_out: int | None) -> State:
        """Train without the instructions and the tools of a group."""
        rng, how = np.random.default_rng([self.seed, self.how.groups if held_out is None else held_out]), self.how
        torch.manual_seed(self.seed)
        upper = copy.deepcopy(self.lower.upper).train()
        optimiser = torch.optim.AdamW(upper.parameters(), lr=how.rate)
        calls: dict[str, list[int]] = {}
        for row in np.flatnonzero(self.group_of != held_out).tolist():
            calls.setdefault(self.samples[row].group, []).append(row)
        steps, others = -(-len(calls) // how.batch), self.distractors(held_out)
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps * how.epochs)
        for _ in tqdm(range(how.epochs), desc=f"without group {held_out}", delay=3):
            # Siblings, made from one call, say nearly the same: an epoch reads one of them.
            rows = rng.permutation([int(rng.choice(own)) for own in calls.values()])
            for part in np.array_split(rows, steps):
                loss = self.loss(upper, part, rng.permutation(others)[: how.distractors].tolist())
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
        return {name: own.detach().clone() for name, own in upper.state_dict().items()}

    def distractors(self, held_out: int | None) -> list[str]:
        """Documents that may be drawn: none of a server that is held out, whichever server lists it too."""
        tools = zip(self.catalog.tools, self.documents, strict=True)
        hidden = {text for tool, text in tools if held_out is not None and self.groups.get(tool.server) == held_out}
        return [text for text in self.pool if text not in hidden]

    def loss(self, upper: torch.nn.ModuleList, rows: IntArray, distractors: Sequence[str]) -> torch.Tensor:
        """Mean cross-entropy of the right document among those of the batch and the distractors."""
        right = [self.documents[self.samples[row].tool] for row in rows]
        listed = list(dict.fromkeys([*right, *distractors]))
        asked = pooled(upper, self.lower.read([self.samples[row].text for row in rows]))
        scores = self.how.scale * asked @ pooled(upper, self.lower.read(listed)).T
        return cross_entropy(scores, torch.tensor([listed.index(own) for own in right]))
