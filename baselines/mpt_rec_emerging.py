"""MPT-Rec with one category new at a time: its experts never saw the category that their prompts are tuned for."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn

from baselines.choices import require_choice
from baselines.generative.training import fingerprint, quality_of, train
from baselines.mpt_networks import Prompt
from baselines.mpt_rec import MPTRec
from baselines.pair_features import UNKNOWN, codes
from baselines.published.sampling import Pairs
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.normalise import spelling_key
from study.data.splits import Split
from study.errors import StudyError


@dataclass
class MPTRecEmerging(MPTRec):
    """MPT-Rec (Bai et al., TOIS 2025) as its article tells of it: a task that emerges after the experts were trained.

    For every category k a model of its own: stage 1 learns from the training tasks of the other categories alone, each
    of them a scenario, and stage 2 tunes the prompts of k's subcategories on the training tasks of k, with all that
    stage 1 learned frozen. score(t, m) is that of the model whose new category is t's, so nothing that scores t but
    its prompt has seen a label of its category. Looks of a stage are taken at validation tasks of what it trains on.

    Args: those of `MPTRec`, with ``head: prompt``.
    """

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train both stages once for each category; goes on from the checkpoints in `workdir`.

        Raises:
            StudyError: the training tasks have one category alone.
        """
        require_choice("head", self.head, ("prompt",))
        known = split.tasks("train")
        self.category = codes(data.tasks["category"], spelling_key, known)
        numbers = [int(number) for number in np.unique(self.category[known]) if number != UNKNOWN]
        if len(numbers) < 2:
            raise StudyError(
                "the training tasks have one category, and another one is needed to learn from", fix="system=mpt_rec"
            )
        settings = {setting.name: getattr(self, setting.name) for setting in fields(MPTRec)}
        self.models: dict[int, MPTRec] = {}
        for number in numbers:
            model, folder, new = MPTRec(**settings), workdir / f"new_{number}", self.category == number
            model.head = "scenario"
            model.fit(data, only(split, ~new), seed=seed, workdir=folder)
            _tune(model, data, only(split, new), seed=seed, workdir=folder)
            self.models[number] = model

    def score(self, tasks: IntArray) -> FloatArray:
        """Logits, shape (len(tasks), n_servers); tasks of an unknown category are scored by the first model."""
        first = min(self.models)
        which = np.array([number if number in self.models else first for number in self.category[tasks]])
        scores = np.empty((len(tasks), self.models[first].n_servers), dtype=np.float32)
        for number in np.unique(which):
            places = np.flatnonzero(which == number)
            scores[places] = self.models[int(number)].score(tasks[places])
        return scores

    def report(self) -> dict[str, Any]:
        """How the prompts of each new category were trained, and the experts before them."""
        return {f"new_{number}": model.trained for number, model in self.models.items()}

    def parameters(self) -> int:
        """Weights of all models."""
        return sum(model.parameters() for model in self.models.values())


def only(split: Split, tasks: np.ndarray) -> Split:
    """The split without the training and validation interactions of other tasks.

    Args:
        tasks: bool, shape (n_tasks,).
    """
    keep = sp.diags_array(tasks.astype(np.float32))
    kept = {name: sp.csr_matrix(keep @ split.part(name)) for name in ("train", "valid")}
    for part in kept.values():
        part.eliminate_zeros()
    return replace(split, **kept)


def _tune(model: MPTRec, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
    """Stage 2 on the frozen experts of `model`: a prompt for every subcategory of the tasks that `split` trains."""
    model.head, model.listed = "prompt", Pairs(split.train)
    model.prompt = codes(data.tasks["subcategory"], spelling_key, split.tasks("train")) - 1
    reader, experts = model.stage1.reader, model.stage1.experts
    torch.manual_seed(seed)
    model.prompts = nn.ModuleList(
        Prompt(experts, sum(reader.widths), attention=model.attention, towers=model.towers, dropout=model.dropout)
        for _ in range(int(model.prompt.max()) + 1)
    )
    prompted = train(
        model.prompts,
        lambda epoch: model.batches(epoch, seed, 2),
        model.loss2,
        model.second,
        seed=seed,
        workdir=workdir,
        name="mpt_rec_prompts",
        identity=fingerprint(model, seed, split.train, split.valid),
        quality=quality_of(model.score, split, model.second, seed=seed, ranks_new=True),
    )
    model.trained = prompted.report() | {"experts": model.trained}
