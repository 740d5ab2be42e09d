"""T2MRec trained as a whole on one device: the wide layer is a sparse product there, and one dense AdamW moves it all.

`study.t2mrec.row_adamw` moves only the rows that a batch uses, which is what a processor is good at. An accelerator
rewrites all 51 million weights in less time than the batch takes to reach it, so it needs no such care. Both start from
the same weights, see the same batches and, on a processor, the same dropout; a test holds them together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import scipy.sparse as sp
import torch
from pytorch_lightning.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from study.data.dataset import Dataset
from study.data.splits import Split
from study.errors import StudyError, require_one_of
from study.evaluation.ranking import tie_order
from study.t2mrec.module import Batch, PairData, TwoTowerModule, nearest_negatives, train
from study.t2mrec.settings import Towers, Training
from study.t2mrec.structure import StructuralFeatures
from study.t2mrec.system import T2MRec

DEVICES = ("auto", "cpu", "gpu")


def chosen(device: str, key: str = "device") -> torch.device:
    """The device of a name of `DEVICES`; auto takes an accelerator where torch sees one. `key`: of the setting. Raises
    StudyError: there is none, or no such name."""
    require_one_of(device, key, DEVICES)
    there = torch.cuda.is_available()
    if device == "gpu" and not there:
        raise StudyError("torch sees no GPU here", column=key, fix=f"{key}=cpu, or {key}=auto")
    return torch.device("cuda" if there and device != "cpu" else "cpu")


class DeviceBatch(NamedTuple):
    """A `Batch` as sparse tensors on the device."""

    tasks: Tensor
    servers: Tensor


def on_device(vectors: sp.csr_matrix, device: torch.device) -> Tensor:
    """A sparse matrix as a COO tensor on a device."""
    found = vectors.tocoo()
    indices = torch.stack([torch.from_numpy(found.row).long(), torch.from_numpy(found.col).long()])
    made = torch.sparse_coo_tensor(indices, torch.from_numpy(found.data), found.shape, check_invariants=False)
    return made.to(device, non_blocking=True)


class DevicePairs(PairData):
    """`PairData` whose batches go to the device."""

    def __init__(self, *vectors: sp.csr_matrix, device: torch.device, **options: Any) -> None:
        super().__init__(*vectors, **options)
        self.target = device

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Any:
        """Both sides as sparse tensors."""
        return DeviceBatch(on_device(batch.tasks, self.target), on_device(batch.servers, self.target))


class DeviceModule(TwoTowerModule):
    """Trains the two towers on a device.

    Args:
        device: where weights, moments and batches are.
        bf16: the narrow layers in mixed precision (bfloat16); the wide layer, the loss and AdamW stay in float32.
    """

    def __init__(
        self, n_terms: int, towers: Towers, training: Training, *, seed: int, device: torch.device, bf16: bool
    ) -> None:
        super().__init__(n_terms, towers, training, seed=seed)
        self.target, self.bf16 = device, bf16
        sides = {"task": self.task_tower} | ({} if towers.shared else {"server": self.server_tower})
        self.wide = nn.ParameterDict(
            {side: nn.Parameter(torch.from_numpy(tower.wide)) for side, tower in sides.items()}
        )
        self.sides, self.wide_optimizers = sides, {}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One AdamW for everything. The trainer, which knows processors alone, asks for it once the module is where it
        put it; from here on the module is on its own device."""
        self.to(self.target)
        return super().configure_optimizers()

    def on_train_start(self) -> None:
        """Bring the moments of a resumed training to the device: the trainer, which knows processors alone, left them
        where it is."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        inner = optimizer.optimizer
        inner.load_state_dict(inner.state_dict())  # puts each part of the state beside its weights

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """One step on one batch."""
        tasks, servers = (
            torch.sparse.mm(vectors, self.wide[side if side in self.sides else "task"])
            for side, vectors in zip(("task", "server"), batch, strict=True)
        )
        with torch.autocast(self.target.type, dtype=torch.bfloat16, enabled=self.bf16):
            if self.server_tower is self.task_tower:
                both = self.task_tower(torch.cat([tasks, servers]))
                embedded = both.split([len(tasks), len(servers)])
            else:
                embedded = self.task_tower(tasks), self.server_tower(servers)
        loss = self.loss(embedded[0].float(), embedded[1].float())
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.last_loss = float(loss.detach())

    def on_train_end(self) -> None:
        """Bring the weights back to where answers are computed."""
        self.cpu()
        for side, tower in self.sides.items():
            tower.wide = self.wide[side].detach().numpy()


class DeviceT2MRec(T2MRec):
    """T2MRec whose training runs on a device; everything else is T2MRec's.

    Args:
        parts: as for `T2MRec`.
        device: auto, cpu or gpu.
        bf16: mixed precision, see `DeviceModule`.
    """

    def __init__(self, *, device: str = "auto", bf16: bool = False, **parts: Any) -> None:
        super().__init__(**parts)
        self.device, self.bf16 = chosen(device), bf16

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """As `T2MRec.fit`."""
        if not self.towers.enabled:
            return super().fit(data, split, seed=seed, workdir=workdir)
        self.data, self.order = data, tie_order(data.n_servers, seed)
        self.structure = StructuralFeatures(data.servers)
        tasks, servers = self._represent(split)
        training = self.training
        options: dict[str, Any] = {"device": self.device, "seed": seed}
        self.module = DeviceModule(tasks.shape[1], self.towers, training, bf16=self.bf16, **options)
        hard = None
        if training.hard_negatives:
            hard = nearest_negatives(tasks, servers, split.train, pool=training.hard_pool, order=self.order)
        drawn: dict[str, Any] = {"n_hard": training.hard_negatives, "batch_size": training.batch_size, "hard": hard}
        pairs = DevicePairs(tasks, servers, split.train, **drawn, **options)
        label = f"T2MRec {split.protocol} seed {seed} on {self.device.type}"
        schedule = {"epochs": training.epochs, "checkpoint_every": training.checkpoint_every}
        train(self.module, pairs, workdir=workdir, label=label, **schedule)
        self.task_embeddings = self.module.task_tower.embed(tasks)
        self.server_embeddings = self.module.server_tower.embed(servers)
