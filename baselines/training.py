"""Training with checkpoints, where validation chooses the weights; for all baselines that are trained here."""

import hashlib
import math
import pickle
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from tqdm import tqdm

from baselines.collaborative import Representations, unranked_without_history
from study.base.errors import require_one_of
from study.base.files import replacing
from study.data.dataset import FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.metrics import ndcg
from study.evaluation.ranking import chunks, mask_known, tie_order, top_k
from study.t2mrec.device import choose_device

SELECTED_AT = 10  # every choice of the study is made by NDCG@10 on validation


@dataclass(frozen=True)
class Schedule:
    """How long a network is trained, and when validation evaluates it.

    Either it is evaluated every few epochs and stops by `patience`; or `evaluations` are spread over all epochs, which
    then all run, since the rate falls to 0 at their end. The last six settings are those of AdamW with warm-up and
    decay (Loshchilov & Hutter 2019), where a system has no optimiser of its own.
    """

    epochs: int = 40  # at most
    evaluate_every: int = 5  # epochs between two evaluations on validation
    patience: int | None = 5  # evaluations without a better NDCG@10 before it stops; None keeps the last weights
    evaluations: int | None = None  # a number of them up to the last epoch instead; 0 keeps the last weights
    validation_tasks: int = 1000  # tasks per evaluation, drawn by the seed
    checkpoint_seconds: float = 20.0  # least time between two checkpoints
    batch_size: int = 256
    learning_rate: float = 1e-3  # the highest, reached after the warm-up
    weight_decay: float = 0.01  # of matrices; vectors (biases, norms) are not decayed
    warm_up: float = 0.0  # share of the training over which the rate grows from 0
    decay: str | None = None  # `cosine` or `linear`, down to 0 at the end; None keeps the rate
    clip: float | None = None  # longest gradient

    @property
    def selects(self) -> bool:
        """Whether validation labels choose the weights."""
        return self.patience is not None if self.evaluations is None else self.evaluations > 0

    def evaluates_after(self, epoch: int) -> bool:
        """Whether there is an evaluation after this epoch, counted from 1."""
        if self.evaluations is None:
            return epoch == self.epochs or epoch % self.evaluate_every == 0
        return epoch in {math.ceil(self.epochs * n / self.evaluations) for n in range(1, self.evaluations + 1)}

    def ends(self, epoch: int, stale: int) -> bool:
        """Whether the training is over, after so many epochs and evaluations without a better one."""
        stops = self.evaluations is None and self.patience is not None and stale >= self.patience
        return stops or epoch >= self.epochs

    def rate(self, epochs: float) -> float:
        """The learning rate after so many epochs, over the highest one."""
        done = epochs / self.epochs
        if done < self.warm_up:
            return done / self.warm_up
        if self.decay is None:
            return 1.0
        left = (1 - done) / max(1e-12, 1 - self.warm_up)
        return left if self.decay == "linear" else 0.5 * (1 - math.cos(math.pi * left))

    def optimiser(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW with the weight decay on matrices alone."""
        decayed = {"params": [p for p in parameters if p.ndim > 1], "weight_decay": self.weight_decay}
        others = {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}
        return torch.optim.AdamW([decayed, others], lr=self.learning_rate)


@dataclass(frozen=True)
class Job:
    """What tells one training from another; its checkpoint ``<workdir>/<name>.pt`` is kept at the end."""

    seed: int  # all that is random depends on (seed, epoch), so that a resumed training equals an undisturbed one
    workdir: Path
    name: str
    identity: str  # from `fingerprint`; a checkpoint with another one is never resumed
    stream: int | None = None  # tells the batches from those of another training with the same seed


class Stage(NamedTuple):
    """A network, the batches of an epoch, by a generator that depends on seed and epoch alone and by the epoch's
    number, the loss of a batch, and how long all this goes on."""

    network: nn.Module
    batches: Callable[[np.random.Generator, int], Iterable[Any]]
    loss: Callable[[Any], Tensor]
    schedule: Schedule


@dataclass
class Progress:
    """State of a training: epochs, the best evaluation, its epoch, evaluations since then, seconds."""

    epoch: int = 0
    best: float = -1.0
    best_epoch: int = 0
    stale: int = 0
    seconds: float = 0.0

    def report(self, **before: "Progress") -> dict[str, Any]:
        """The facts for a run's record, with the seconds of all stages; no best epoch without selection."""
        selected = {"best_epoch": self.best_epoch, "validation_ndcg": round(self.best, 6)} if self.best_epoch else {}
        seconds = self.seconds + sum(stage.seconds for stage in before.values())
        facts = {"epochs": self.epoch, **selected, "seconds_trained": round(seconds, 3)}
        return facts | {name: stage.report() for name, stage in before.items()}


def fingerprint(*parts: object) -> str:
    """A hash of all that decides a training."""
    digest = hashlib.sha256()
    for part in parts:
        arrays = [part.indptr, part.indices, part.data] if isinstance(part, sp.csr_matrix) else [part]
        for each in arrays:
            digest.update(each.tobytes() if isinstance(each, np.ndarray) else repr(each).encode())
    return digest.hexdigest()


def train(
    stage: Stage,
    job: Job,
    *,
    quality: Callable[[], float] | None = None,
    optimiser: torch.optim.Optimizer | None = None,
    rate: Callable[[float], float] | None = None,
) -> Progress:
    """Minimise the loss over the trainable parameters; ends in evaluation mode with the chosen weights.

    `quality`: on validation, measured in evaluation mode; None where nothing is to be chosen. `optimiser`, `rate`: by
    default those of the schedule. Returns: how the training went, epochs and seconds before a stop included.
    """
    model, batches, loss, schedule = stage
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser, rate = optimiser or schedule.optimiser(parameters), rate or schedule.rate
    highest = [group["lr"] for group in optimiser.param_groups]
    path, saved = job.workdir / f"{job.name}.pt", time.monotonic()
    stored = load_checkpoint(path, job.identity)
    progress, best = Progress(**stored.get("progress", {})), stored.get("best")
    if stored:
        model.load_state_dict(stored["model"])
        optimiser.load_state_dict(stored["optimiser"])
    quiet = not sys.stderr.isatty()
    bar = tqdm(total=schedule.epochs, initial=progress.epoch, desc=job.name, unit="epoch", leave=False, disable=quiet)
    while not schedule.ends(progress.epoch, progress.stale):
        started = time.monotonic()
        torch.manual_seed(int(np.random.SeedSequence([job.seed, progress.epoch]).generate_state(1)[0]))
        numbers = [job.seed, progress.epoch] + ([] if job.stream is None else [job.stream])
        steps = list(batches(np.random.default_rng(numbers), progress.epoch))
        model.train()
        for number, batch in enumerate(steps):
            # Half a step ahead, so that neither the first nor the last step of a short training is lost.
            factor = rate(progress.epoch + (number + 0.5) / len(steps))
            for group, base in zip(optimiser.param_groups, highest, strict=True):
                group["lr"] = base * factor
            optimiser.zero_grad()
            loss(batch).backward()  # type: ignore[no-untyped-call]
            if schedule.clip is not None:
                nn.utils.clip_grad_norm_(parameters, schedule.clip)
            optimiser.step()
        progress.epoch += 1
        bar.update()
        if quality is not None and schedule.evaluates_after(progress.epoch):
            model.eval()
            with torch.no_grad():
                value = quality()
            progress.stale += 1
            if value > progress.best:
                progress.best, progress.best_epoch, progress.stale = value, progress.epoch, 0
                best = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        progress.seconds += time.monotonic() - started
        if schedule.ends(progress.epoch, progress.stale) or time.monotonic() - saved > schedule.checkpoint_seconds:
            state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "best": best}
            with replacing(path) as temporary:
                torch.save(state | {"identity": job.identity, "progress": asdict(progress)}, temporary)
            saved = time.monotonic()
    bar.close()
    if best:
        model.load_state_dict(best, strict=False)  # of tied tensors it has one
    model.eval()
    return progress


def load_checkpoint(path: Path, identity: str) -> dict[str, Any]:
    """The state of a training at its last checkpoint; empty where it is missing, damaged or of another training."""
    try:  # tensors and plain values alone, so that nothing in the file is executed
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
        return {}
    return state if isinstance(state, dict) and state.get("identity") == identity else {}


def n_weights(*models: nn.Module | None) -> int:
    """Entries of all trained tensors."""
    return sum(weight.numel() for model in models if model for weight in model.parameters())


def array(tensor: Tensor) -> FloatArray:
    """The values of a tensor, from whatever device."""
    return np.asarray(tensor.detach().cpu().numpy())


@dataclass(kw_only=True)
class Trained(ABC):
    """A system with a network that is trained here, on `device`: cpu, gpu, or auto, a GPU where torch sees one; its
    file in `conf/system` explains its settings."""

    device: str = "cpu"
    ranks_new = True  # whether tasks without training interactions are ranked
    network: Any = field(init=False, repr=False)
    progress: Progress = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a setting whose type is a `Literal` that it is none of."""
        for name, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal:
                require_one_of(getattr(self, name), name, get_args(kind), column=f"system.model.{name}")

    @cached_property
    def place(self) -> torch.device:
        """Where tensors are. Raises StudyError: torch sees no GPU."""
        return choose_device(self.device)

    def tensor(self, values: np.ndarray) -> Tensor:
        """An array on the device."""
        return torch.from_numpy(values).to(self.place)

    @property
    def uses_validation(self) -> bool:
        """Whether validation labels choose the weights."""
        return any(setting.selects for setting in vars(self).values() if isinstance(setting, Schedule))

    @abstractmethod
    def score(self, tasks: IntArray) -> FloatArray:
        """As `study.evaluation.system.System.score`."""

    def finish(self) -> None:  # noqa: B027 - it may ask the network itself
        """Take over from the network what `score` needs."""

    def quality(self, tasks: IntArray, split: Split, order: IntArray) -> float:
        """Mean NDCG@10 of validation tasks by the network as it is now."""
        self.finish()
        values = []
        for part in chunks(tasks):
            scores = mask_known(self.score(tasks[part]), tasks[part], split.train)
            values.append(ndcg(top_k(scores, SELECTED_AT, order)[0], split.valid[tasks[part]], SELECTED_AT))
        return float(np.mean(np.concatenate(values)))

    def train(self, stage: Stage, split: Split, job: Job, **options: Any) -> Progress:
        """Train a network until its schedule ends, and finish. `options`: optimiser and rate, as for `train`.

        Validation asks for tasks that are ranked. Unless new ones are, the cold protocols have none: all epochs run.
        """
        tasks, order = split.tasks("valid"), tie_order(split.train.shape[1], job.seed)
        if not self.ranks_new:
            tasks = np.intersect1d(tasks, split.tasks("train"))
        if len(tasks) > (most := stage.schedule.validation_tasks):
            tasks = np.sort(np.random.default_rng(job.seed).choice(tasks, most, replace=False))
        quality = partial(self.quality, tasks, split, order) if stage.schedule.selects and len(tasks) else None
        progress = train(stage, job, quality=quality, **options)
        self.finish()
        return progress

    def report(self) -> dict[str, Any]:
        """Epochs, the best of them on validation, and seconds of training."""
        return self.progress.report()

    def parameters(self) -> int:
        """Entries of all trained tensors."""
        return n_weights(self.network)


@dataclass(kw_only=True)
class VectorModel(Trained):
    """score(t, m) = e_t . e_m + b_m; unless `ranks_new`, a task without training interactions is not ranked."""

    ranks_new = False
    schedule: Schedule = field(default_factory=Schedule)
    histories: sp.csr_matrix = field(init=False, repr=False)  # training interactions, shape (n_tasks, n_servers)

    def keep(self, tasks: Tensor, servers: Tensor, bias: Tensor | None = None) -> None:
        """Take over vectors from the network, shapes (n_tasks, d) and (n_servers, d)."""
        self.representations, self.servers = array(tasks), array(servers)
        self.bias = np.zeros(len(servers), np.float32) if bias is None else array(bias)

    def score(self, tasks: IntArray) -> FloatArray:
        """Scores, shape (len(tasks), n_servers)."""
        scores = self.score_representations(self.representations[tasks])
        return scores if self.ranks_new else unranked_without_history(scores, self.histories[tasks])

    def score_representations(self, rows: Representations) -> FloatArray:
        """Scores of the task vectors `rows`, shape (b, n_servers)."""
        return np.asarray(np.asarray(rows, dtype=np.float32) @ self.servers.T + self.bias, dtype=np.float32)
