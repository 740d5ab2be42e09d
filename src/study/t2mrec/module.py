"""Training of the two towers: batches as tensors, one step of all optimisers, and the loop, which resumes."""

from __future__ import annotations

import logging
import signal
import sys
import warnings
from collections import UserList
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import scipy.sparse as sp
import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch program uses
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor, nn

from study.base.files import replacing
from study.data.dataset import IntArray
from study.t2mrec.pairs import Sampler
from study.t2mrec.row_adamw import RowAdamW
from study.t2mrec.settings import TRAINER, Towers, Training
from study.t2mrec.towers import LOSSES, Tower

LOG = logging.getLogger(__name__)
CPU = torch.device("cpu")
CHUNK = 64  # batches that are prepared in one pass, at most


class Ragged(NamedTuple):
    """A sparse matrix by rows, as tensors on one device: row i holds `values[starts[i]:starts[i + 1]]` at the terms of
    the same places."""

    starts: Tensor  # (n + 1,), int32
    terms: Tensor  # int32
    values: Tensor  # float32

    @classmethod
    def of(cls, matrix: sp.csr_matrix, device: torch.device) -> Ragged:
        """A matrix of scipy, on a device."""
        arrays = matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), matrix.data
        return cls(*(torch.from_numpy(array).to(device) for array in arrays))

    def take(self, rows: Tensor, entries: int) -> Ragged:
        """Rows by number, which hold so many entries in all: a number that no device need be asked for then."""
        first = self.starts[rows]
        lengths = self.starts[rows + 1] - first
        starts = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        shift = torch.repeat_interleave(first - starts[:-1], lengths, output_size=entries)
        places = torch.arange(entries, device=rows.device) + shift
        return Ragged(starts, self.terms[places], self.values[places])

    def part(self, first: tuple[int, int], last: tuple[int, int]) -> Ragged:
        """The rows from a place to before another one; a place is the number of a row, and of its first entry."""
        entries = slice(first[1], last[1])
        return Ragged(self.starts[first[0] : last[0] + 1] - first[1], self.terms[entries], self.values[entries])


class Batch(NamedTuple):
    """Vectors of the tasks of a batch, of its servers, and of tasks and then servers. `targets`: which server belongs
    to each task, shape (b,); None for the first b in their order."""

    tasks: Ragged
    servers: Ragged
    both: Ragged
    targets: Tensor | None


Drawn = tuple[IntArray, IntArray, IntArray | None]  # a batch as `study.t2mrec.pairs.Pairs.batches` gives it


class PairData(pl.LightningDataModule):
    """Serves the pairs of an epoch as chunks of batches. Everything random depends on (seed, epoch) alone, so that an
    epoch can be repeated after a stop.

    Args:
        tasks, servers: lexical vectors, shapes (n_tasks, d) and (n_servers, d).
        sampler: one of `study.t2mrec.pairs`.
        device: where the vectors lie.
    """

    def __init__(
        self,
        tasks: sp.csr_matrix,
        servers: sp.csr_matrix,
        sampler: Sampler,
        training: Training,
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__()
        vectors = sp.vstack([tasks, servers], format="csr")
        self.vectors, self.lengths, self.n_tasks = Ragged.of(vectors, device), np.diff(vectors.indptr), tasks.shape[0]
        self.sampler, self.training, self.seed = sampler, training, seed

    def train_dataloader(self) -> UserList[list[Drawn]]:
        """Chunks of the trainer's present epoch. A plain list would be several loaders to Lightning."""
        pairs = self.sampler(np.random.default_rng([self.seed, self.trainer.current_epoch if self.trainer else 0]))
        as_set = self.training.in_batch == "set" and self.training.loss != "program_bce"
        batches = list(pairs.batches(self.training.batch_size, as_set=as_set))
        return UserList(batches[start : start + CHUNK] for start in range(0, len(batches), CHUNK))

    def transfer_batch_to_device(self, batch: list[Drawn], device: torch.device, dataloader_idx: int) -> list[Batch]:
        """The batches of a chunk, whose vectors are gathered in one pass on the device where they lie."""
        device = self.vectors.starts.device
        parts = [rows for tasks, servers, _ in batch for rows in (tasks, self.n_tasks + servers)]
        rows = np.concatenate(parts)
        ends = np.cumsum([0, *map(len, parts)])
        places = np.stack([ends, np.concatenate([[0], self.lengths[rows].cumsum()])[ends]], axis=1).tolist()
        vectors, batches = self.vectors.take(torch.from_numpy(rows).to(device), places[-1][1]), []
        for number, (_, _, positions) in enumerate(batch):
            first, middle, last = places[2 * number : 2 * number + 3]
            target = None if positions is None else torch.from_numpy(positions).to(device)
            tasks, servers, both = vectors.part(first, middle), vectors.part(middle, last), vectors.part(first, last)
            batches.append(Batch(tasks, servers, both, target))
        return batches


class TwoTowers(pl.LightningModule):
    """Trains the two towers.

    Row-wise, a first layer is an array whose own optimiser moves only the rows that a batch uses, which is what a
    processor is good at (`study.t2mrec.row_adamw`). Otherwise it is an embedding bag that the AdamW of all other
    weights moves, too: an accelerator rewrites all 51 million weights in less time than a batch takes to reach it. Both
    start from the same weights, see the same batches and, on a processor, the same dropout.

    Args:
        n_terms: size of the vocabulary.
        seed: fixes initial weights and dropout.
        device: where weights, moments and batches are.
        bf16: the hidden layers in mixed precision (bfloat16); the first layer, the loss and AdamW stay in float32.
    """

    last_loss: Tensor

    def __init__(
        self,
        n_terms: int,
        towers: Towers,
        training: Training,
        *,
        seed: int,
        device: torch.device = CPU,
        bf16: bool = False,
        row_wise: bool = True,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.training_settings, self.seed, self.place, self.bf16 = training, seed, device, bf16
        torch.manual_seed(seed)
        shape: dict[str, Any] = {name: getattr(towers, name) for name in ("hidden", "output", "layers", "dropout")}
        self.task_tower = Tower(n_terms, **shape)
        self.server_tower = self.task_tower if towers.shared else Tower(n_terms, **shape)
        self.sides = {"task": self.task_tower} | ({} if towers.shared else {"server": self.server_tower})
        self.rates: dict[str, Any] = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
        self.rows: dict[str, RowAdamW] = {}
        self.wide = nn.ParameterDict()
        for side, tower in self.sides.items():
            if row_wise:
                self.rows[side] = RowAdamW(tower.wide, **self.rates)
            else:
                self.wide[side] = nn.Parameter(torch.from_numpy(tower.wide))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW for all parameters of the module. The trainer, which knows processors alone, asks for it once the
        module is where it put it; from here on the module is on its own device."""
        self.to(self.place)
        return torch.optim.AdamW(self.parameters(), **self.rates, fused=True)

    def on_train_start(self) -> None:
        """Bring the moments of a resumed training to the device: the trainer left them where it is."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        inner = optimizer.optimizer
        inner.load_state_dict(inner.state_dict())  # puts each part of the state beside its weights

    def on_train_epoch_start(self) -> None:
        """Dropout depends on (seed, epoch) alone, so that a resumed training equals an undisturbed one."""
        torch.manual_seed(int(np.random.SeedSequence([self.seed, self.current_epoch]).generate_state(1)[0]))

    def training_step(self, batch: list[Batch], batch_idx: int) -> None:
        """One step of all optimisers on each batch of a chunk."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        for tasks, servers, both, targets in batch:
            shared = len(self.sides) == 1
            vectors = {"task": both} if shared else {"task": tasks, "server": servers}
            projected = {side: self.project(side, part) for side, part in vectors.items()}
            embedded = self(projected)
            z_tasks, z_servers = embedded[0].tensor_split([len(tasks.starts) - 1]) if shared else embedded
            loss = self.loss(z_tasks, z_servers, targets)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            for side, rows in self.rows.items():
                gradient = projected[side].grad
                assert gradient is not None
                rows.step(gradient.numpy())
        self.last_loss = loss.detach()

    def on_train_epoch_end(self) -> None:
        """Tell logger and progress bar the last loss, with the epoch as its step."""
        self.log("loss", self.last_loss, prog_bar=True)
        self.log("step", float(self.current_epoch))

    def on_train_end(self) -> None:
        """Bring the first layers to the last step, and all weights back to where answers are computed."""
        for rows in self.rows.values():
            rows.catch_up_all()
        self.cpu()
        for side, weight in self.wide.items():
            self.sides[side].wide = weight.detach().numpy()

    def project(self, side: str, vectors: Ragged) -> Tensor:
        """v W_1 of a tower, shape (b, hidden)."""
        starts, terms, values = vectors
        if self.rows:
            product = self.rows[side].project((starts.numpy(), terms.numpy(), values.numpy()))
            return torch.from_numpy(product).requires_grad_()
        return F.embedding_bag(
            terms, self.wide[side], starts, mode="sum", per_sample_weights=values, include_last_offset=True
        )

    def forward(self, projected: dict[str, Tensor]) -> list[Tensor]:
        """Unit embeddings of each side."""
        with torch.autocast(self.place.type, dtype=torch.bfloat16, enabled=self.bf16):
            return [tower(projected[side]).float() for side, tower in self.sides.items()]

    def loss(self, tasks: Tensor, servers: Tensor, targets: Tensor | None) -> Tensor:
        """The configured objective on unit embeddings, shapes (b, d') and (m, d'), and each task's own server."""
        training = self.training_settings
        options: dict[str, Any] = {"symmetric": training.symmetric} if training.loss == "info_nce" else {}
        return LOSSES[training.loss](tasks, servers, targets, temperature=training.temperature, **options)

    def n_weights(self) -> int:
        """Trained weights, the first layers included."""
        rest = sum(part.numel() for tower in self.sides.values() for part in tower.parameters())
        return rest + sum(tower.wide.size for tower in self.sides.values())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the row-wise first layers and their optimisers."""
        checkpoint["wide"] = {
            side: {name: torch.from_numpy(value) for name, value in rows.state().items()}
            for side, rows in self.rows.items()
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the row-wise first layers and their optimisers."""
        for side, rows in self.rows.items():
            rows.load({name: value.numpy() for name, value in checkpoint["wide"][side].items()})


class WholeFileCheckpoint(TorchCheckpointIO):
    """Writes a checkpoint beside its place and renames it, so that a kill cannot leave half a file."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Save `checkpoint` at `path`."""
        with replacing(Path(path)) as temporary:
            torch.save(checkpoint, temporary)


def train(module: TwoTowers, pairs: PairData, *, workdir: Path, label: str) -> None:
    """Train `module` for its epochs, resuming from ``workdir/last.ckpt`` if it is there.

    The checkpoint is removed at the end: it serves a stopped training, not later use.
    """
    # Lightning's advice about loaders, devices and logging: none of it applies here.
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"pytorch_lightning|lightning_fabric|lightning_utilities")
    checkpoint = workdir / "last.ckpt"
    keep = ModelCheckpoint(
        dirpath=workdir,
        filename="last",
        every_n_epochs=module.training_settings.checkpoint_every,
        save_top_k=1,
        enable_version_counter=False,
        save_on_train_epoch_end=True,
    )
    make = TRAINER.get() or partial(pl.Trainer, accelerator="cpu", devices=1, logger=False)
    trainer = make(
        max_epochs=module.training_settings.epochs,
        callbacks=[keep],
        plugins=[WholeFileCheckpoint()],
        enable_progress_bar=sys.stderr.isatty(),
        enable_model_summary=False,
        reload_dataloaders_every_n_epochs=1,
        default_root_dir=workdir,
    )
    resume = str(checkpoint) if checkpoint.exists() else None
    if resume:
        LOG.info("%s: resuming from %s", label, checkpoint)
    try:
        trainer.fit(module, datamodule=pairs, ckpt_path=resume, weights_only=True)
    except SystemExit as end:  # Lightning's answer to Ctrl-C, after which it ignores the next one
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise KeyboardInterrupt from end
    checkpoint.unlink(missing_ok=True)
