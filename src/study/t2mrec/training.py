"""Running the training loop: progress, checkpoints written whole or not at all, resuming."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO
from tqdm import tqdm

from study.files import replacing
from study.t2mrec.module import PairData, TwoTowerModule

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
        self.bar.set_postfix(loss=f"{pl_module.last_loss:.4f}")

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
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
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
    trainer.fit(module, datamodule=pairs, ckpt_path=resume, weights_only=True)
    checkpoint.unlink(missing_ok=True)


def quiet_lightning() -> None:
    """Drop Lightning's advice about loaders, devices and logging, none of which applies here."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"pytorch_lightning|lightning_fabric|lightning_utilities")
