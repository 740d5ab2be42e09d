"""A small cross-encoder that orders servers as a language model's grades do (knowledge distillation).

Hinton et al. 2015; the loss over the lists of a task is ListNet's (Cao et al. 2007) with the teacher's grades as its
truth. It reads request and server together, as the teacher does, in some thousandths of the teacher's time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from study import paths
from study.data.dataset import FloatArray
from study.encoders.sentence import PACKAGES
from study.errors import StudyError
from study.files import replacing, write_json

WEIGHTS, FACTS = "student.safetensors", "student.json"
GRADE = 2.0  # the highest grade
WARM_UP = 50  # steps


@dataclass(frozen=True)
class Learning:
    """How a student learns; every key is explained in ``conf/usefulness/distilled.yaml``."""

    epochs: int
    lists: int
    learning_rate: float
    temperature: float
    tokens: int
    longest: int
    seed: int


@dataclass(frozen=True)
class Graded:
    """A request with servers and the teacher's grades of them, shape (n,), from 0 to 2."""

    task: str
    servers: tuple[str, ...]
    grades: FloatArray


def folder_of(dataset: str) -> Path:
    """Where the student of a data set's tasks lives."""
    return paths.models(dataset) / "distilled"


class Student(nn.Module):
    """MiniLM with one output.

    `tokens`: of a request with a server; what is longer is cut. `longest`: characters of a server's description.
    """

    def __init__(self, tokens: int, longest: int) -> None:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        super().__init__()
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        folder = str(package_files(PACKAGES["minilm"]) / "model")
        self.tokens, self.longest = tokens, longest
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.network: Any = AutoModel.from_pretrained(folder, add_pooling_layer=False)
        self.head = nn.Linear(self.network.config.hidden_size, 1)

    def forward(self, tasks: Sequence[str], servers: Sequence[str]) -> Tensor:
        """Scores of pairs, shape (n,): the mean of the last layer's tokens, through the head."""
        options = {"padding": True, "truncation": True, "max_length": self.tokens, "return_tensors": "pt"}
        read = self.tokenizer(list(tasks), list(servers), **options)
        mask = read["attention_mask"].unsqueeze(-1)
        vectors = (self.network(**read).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)
        scores: Tensor = self.head(vectors).squeeze(-1)
        return scores

    def text(self, name: str, description: str) -> str:
        """What it reads of a server."""
        return f"{name}. {description[: self.longest]}"

    @torch.inference_mode()
    def scores(self, task: str, servers: Sequence[str]) -> FloatArray:
        """How well each server suits the request, shape (n,); comparable within one request."""
        self.eval()
        found: FloatArray = self([task] * len(servers), servers).numpy()
        return found

    def save(self, folder: Path, **facts: Any) -> None:
        """Write the weights and what is to be known of them, whole or not at all."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / WEIGHTS) as path:
            save_file({name: value.contiguous() for name, value in self.state_dict().items()}, path)
        write_json(folder / FACTS, facts | {"tokens": self.tokens, "longest": self.longest})

    @classmethod
    def load(cls, folder: Path) -> Student:
        """Raises StudyError: there is none, or it is not whole."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        command = "study usefulness run --part distilled"
        if not (folder / FACTS).is_file():
            raise StudyError("no distilled model", file=folder, fix=f"train it: {command} (an hour of one core)")
        try:
            facts = json.loads((folder / FACTS).read_text())
            student = cls(facts["tokens"], facts["longest"])
            student.load_state_dict(load_file(folder / WEIGHTS))
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, RuntimeError) as error:
            raise StudyError("not a distilled model", file=folder, fix=f"delete it, then {command}") from error
        return student


def loss(scores: Tensor, grades: Tensor, temperature: float) -> Tensor:
    """Kullback-Leibler divergence of the lists' softmax from that of the grades, and the cross-entropy of each pair.

    `scores`, `grades`: shape (lists, servers). `temperature`: of the grades' softmax.
    """
    truth = functional.softmax(grades / temperature, dim=-1)
    lists = functional.kl_div(functional.log_softmax(scores, dim=-1), truth, reduction="batchmean")
    return lists + functional.binary_cross_entropy_with_logits(scores, grades / GRADE)


def train(
    found: Sequence[Graded], how: Learning, checkpoint: Path, progress: Callable[[int, int, float], None]
) -> Student:
    """A student of lists of equal length.

    AdamW; the rate rises over `WARM_UP` steps and falls linearly to 0.

    `checkpoint`: kept after each epoch, so that the same call goes on from there; deleted in the end.
    `progress`: called after each step with its number, their number, and the loss.
    """
    torch.manual_seed(how.seed)
    student, per_epoch = Student(how.tokens, how.longest), len(found) // how.lists
    optimizer = torch.optim.AdamW(student.parameters(), lr=how.learning_rate, weight_decay=0.01)
    steps = how.epochs * per_epoch
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP) * (1 - step / max(steps, 1))
    )
    parts: dict[str, Any] = {"student": student, "optimizer": optimizer, "rate": rate}
    done = 0
    if checkpoint.is_file():
        kept = torch.load(checkpoint, weights_only=True)
        done = kept["epochs"]
        for name, part in parts.items():
            part.load_state_dict(kept[name])
    for epoch in range(done, how.epochs):
        # Each epoch has random numbers of its own, so that a stopped training ends as an uninterrupted one.
        torch.manual_seed(how.seed + epoch)
        order = np.random.default_rng([how.seed, epoch]).permutation(len(found))
        student.train()
        for place in range(per_epoch):
            batch = [found[row] for row in order[place * how.lists : (place + 1) * how.lists]]
            tasks = [one.task for one in batch for _ in one.servers]
            scores = student(tasks, [server for one in batch for server in one.servers]).view(len(batch), -1)
            grades = torch.tensor(np.stack([one.grades for one in batch]), dtype=scores.dtype)
            value = loss(scores, grades, how.temperature)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate.step()
            progress(epoch * per_epoch + place + 1, steps, float(value.detach()))
        with replacing(checkpoint) as path:
            torch.save({"epochs": epoch + 1} | {name: part.state_dict() for name, part in parts.items()}, path)
    checkpoint.unlink(missing_ok=True)
    return student
