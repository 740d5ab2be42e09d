"""Training of the two towers: batches, one optimisation step, and the loop, which resumes from checkpoints."""

from __future__ import annotations

import logging
import signal
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import scipy.sparse as sp
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor
from tqdm import tqdm

from study.data.dataset import IntArray
from study.errors import StudyError
from study.evaluation.ranking import chunks, mask_known, top_k
from study.files import replacing
from study.t2mrec.row_adamw import RowAdamW
from study.t2mrec.settings import TRAINER, Towers, Training
from study.t2mrec.towers import LOSSES, Tower, used_terms


class Batch(NamedTuple):
    """Matched pairs: row i of `tasks` and row i of `servers` belong together. CSR, shapes (b, d) and (b + n, d): the
    last n rows of `servers` are hard negatives."""

    tasks: sp.csr_matrix
    servers: sp.csr_matrix


class PairEpoch:
    """One epoch of matched pairs: every training task once, with one of its servers drawn uniformly.

    Everything random depends on (seed, epoch) alone, so that an epoch can be repeated after a stop.

    Args:
        hard: from which each task's hard negatives are drawn, `n_hard` for every task, see `nearest_negatives`.
    """

    def __init__(
        self,
        tasks: sp.csr_matrix,
        servers: sp.csr_matrix,
        positives: sp.csr_matrix,
        rows: IntArray,
        *,
        batch_size: int,
        seed: int,
        epoch: int,
        hard: IntArray | None = None,
        n_hard: int = 0,
    ) -> None:
        rng = np.random.default_rng([seed, epoch])
        self.rows = rng.permutation(rows)
        count = np.diff(positives.indptr)[self.rows]
        pick = positives.indptr[self.rows] + np.floor(rng.random(len(rows)) * count).astype(np.int64)
        self.servers = positives.indices[pick]
        self.negatives: IntArray | None = None
        if hard is not None and n_hard:
            drawn = rng.random((len(rows), hard.shape[1])).argsort(axis=1)[:, :n_hard]
            self.negatives = np.take_along_axis(hard[self.rows], drawn, axis=1)
        self.task_vectors, self.server_vectors, self.batch_size = tasks, servers, batch_size

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.rows), self.batch_size):
            part = slice(start, start + self.batch_size)
            servers = self.servers[part]
            if self.negatives is not None:
                servers = np.concatenate([servers, self.negatives[part].ravel()])
            yield Batch(self.task_vectors[self.rows[part]], self.server_vectors[servers])


def nearest_negatives(
    tasks: sp.csr_matrix, servers: sp.csr_matrix, positives: sp.csr_matrix, *, pool: int, order: IntArray
) -> IntArray:
    """The servers nearest to each task in the input space that are none of its training positives.

    Args:
        tasks, servers: lexical vectors with unit rows, shapes (n_tasks, d) and (n_servers, d).
        positives: training interactions, shape (n_tasks, n_servers); tasks without any are left at zero.
        order: of equally near servers, from `study.evaluation.ranking.tie_order`.

    Returns: server rows, shape (n_tasks, pool).

    Raises:
        StudyError: a task has fewer than `pool` servers that are not its own.
    """
    counts = np.diff(positives.indptr)
    if pool > servers.shape[0] - counts.max(initial=0):
        raise StudyError(
            f"a pool of {pool} hard negatives is more than {servers.shape[0]} servers can give",
            column="system.model.training.hard_pool",
            fix="lower it",
        )
    rows = np.flatnonzero(counts)
    nearest = np.zeros((tasks.shape[0], pool), dtype=np.int64)
    for piece in chunks(rows):
        asked = rows[piece]
        similarity = np.asarray((tasks[asked] @ servers.T).toarray(), dtype=np.float32)
        nearest[asked], _ = top_k(mask_known(similarity, asked, positives), pool, order)
    return nearest


class PairData(pl.LightningDataModule):
    """Serves one `PairEpoch` per epoch.

    Args:
        tasks, servers: lexical vectors, shapes (n_tasks, d) and (n_servers, d).
        positives: training interactions, shape (n_tasks, n_servers).
        options: batch_size, seed, hard and n_hard of every epoch.
    """

    def __init__(self, tasks: sp.csr_matrix, servers: sp.csr_matrix, positives: sp.csr_matrix, **options: Any) -> None:
        super().__init__()
        rows = np.flatnonzero(np.diff(positives.indptr)).astype(np.int64)
        self.epoch = partial(PairEpoch, tasks, servers, positives, rows, **options)

    def train_dataloader(self) -> PairEpoch:
        """The pairs of the trainer's present epoch."""
        return self.epoch(epoch=self.trainer.current_epoch if self.trainer else 0)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Sparse vectors stay where they are: the wide layer is computed on the processor."""
        return batch


class TwoTowerModule(pl.LightningModule):
    """Trains the two towers.

    Args:
        n_terms: size of the vocabulary.
        seed: fixes initial weights, pairs and dropout.
    """

    def __init__(self, n_terms: int, towers: Towers, training: Training, *, seed: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.training_settings, self.seed = training, seed
        torch.manual_seed(seed)
        shape: dict[str, Any] = {name: getattr(towers, name) for name in ("hidden", "output", "layers", "dropout")}
        self.task_tower = Tower(n_terms, **shape)
        self.server_tower = self.task_tower if towers.shared else Tower(n_terms, **shape)
        options: dict[str, Any] = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
        self.wide_optimizers = {"task": RowAdamW(self.task_tower.wide, **options)}
        if not towers.shared:
            self.wide_optimizers["server"] = RowAdamW(self.server_tower.wide, **options)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW for all layers but the wide ones."""
        training = self.training_settings
        return torch.optim.AdamW(
            self.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
        )

    def on_train_epoch_start(self) -> None:
        """Dropout depends on (seed, epoch) alone, so that a resumed training equals an undisturbed one."""
        torch.manual_seed(int(np.random.SeedSequence([self.seed, self.current_epoch]).generate_state(1)[0]))

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One step of both optimisers on one batch."""
        shared = self.server_tower is self.task_tower
        sides = {"task": batch.tasks, "server": batch.servers}
        if shared:
            sides = {"task": sp.vstack([batch.tasks, batch.servers], format="csr")}
        projected, used = {}, {}
        for side, vectors in sides.items():
            optimizer = self.wide_optimizers[side]
            terms, packed = used_terms(vectors)
            projected[side] = torch.from_numpy(optimizer.project(vectors, terms)).requires_grad_()
            used[side] = (terms, packed)
        embedded = self.task_tower(projected["task"])
        if shared:
            tasks, servers = embedded.split([batch.tasks.shape[0], batch.servers.shape[0]])
        else:
            tasks, servers = embedded, self.server_tower(projected["server"])
        loss = self.loss(tasks, servers)
        narrow = self.optimizers()
        assert isinstance(narrow, LightningOptimizer)
        narrow.zero_grad()
        self.manual_backward(loss)
        narrow.step()
        for side, (terms, packed) in used.items():
            gradient = projected[side].grad
            assert gradient is not None
            self.wide_optimizers[side].step(terms, packed.tocsc(), gradient.numpy())
        self.last_loss = float(loss.detach())

    def loss(self, tasks: Tensor, servers: Tensor) -> Tensor:
        """The configured objective on unit embeddings, shapes (b, d') and (b + n, d')."""
        training = self.training_settings
        options: dict[str, Any] = {"symmetric": training.symmetric} if training.loss == "info_nce" else {}
        return LOSSES[training.loss](tasks, servers, temperature=training.temperature, **options)

    def on_train_end(self) -> None:
        """Bring the wide layers to the last step."""
        for optimizer in self.wide_optimizers.values():
            optimizer.catch_up_all()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the wide layers and their optimisers."""
        checkpoint["wide"] = {
            side: {"weight": torch.from_numpy(optimizer.weight)}
            | {name: torch.from_numpy(value) for name, value in optimizer.state().items()}
            for side, optimizer in self.wide_optimizers.items()
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the wide layers and their optimisers."""
        for side, optimizer in self.wide_optimizers.items():
            state = {name: value.numpy() for name, value in checkpoint["wide"][side].items()}
            optimizer.weight[:] = state.pop("weight")
            optimizer.load(state)


LOG = logging.getLogger(__name__)


class WholeFileCheckpoint(TorchCheckpointIO):
    """Writes a checkpoint beside its place and renames it, so that a kill cannot leave half a file."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Save `checkpoint` at `path`."""
        with replacing(Path(path)) as temporary:
            torch.save(checkpoint, temporary)


class EpochBar(Callback):
    """One progress bar over the epochs; silent where there is no terminal."""

    def __init__(self, label: str) -> None:
        self.label = label

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the bar where a resumed training stands."""
        self.bar = tqdm(
            total=trainer.max_epochs,
            initial=trainer.current_epoch,
            desc=self.label,
            unit="epoch",
            disable=not sys.stderr.isatty(),
            leave=False,
        )

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """One epoch further."""
        self.bar.update()
        loss: Any = pl_module.last_loss
        self.bar.set_postfix(loss=f"{loss:.4f}")
        for logger in trainer.loggers:
            logger.log_metrics({"loss": loss}, step=trainer.current_epoch)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the bar."""
        self.bar.close()


def train(
    module: TwoTowerModule, pairs: PairData, *, epochs: int, checkpoint_every: int, workdir: Path, label: str
) -> None:
    """Train `module` for `epochs`, resuming from ``workdir/last.ckpt`` if it is there.

    The checkpoint is removed at the end: it serves a stopped training, not later use.
    """
    quiet_lightning()
    checkpoint = workdir / "last.ckpt"
    keep = ModelCheckpoint(
        dirpath=workdir,
        filename="last",
        every_n_epochs=checkpoint_every,
        save_top_k=1,
        enable_version_counter=False,
        save_on_train_epoch_end=True,
    )
    make = TRAINER.get() or partial(pl.Trainer, accelerator="cpu", devices=1, logger=False)
    trainer = make(
        max_epochs=epochs,
        callbacks=[keep, EpochBar(label)],
        plugins=[WholeFileCheckpoint()],
        enable_progress_bar=False,
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


def quiet_lightning() -> None:
    """Drop Lightning's advice about loaders, devices and logging, none of which applies here."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"pytorch_lightning|lightning_fabric|lightning_utilities")
