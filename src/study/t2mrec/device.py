"""The two towers trained on one device, as a whole: the data set lies there, the first layer is an embedding bag, and
one fused AdamW moves it all.

`study.t2mrec.row_adamw` moves only the rows that a batch uses, which is what a processor is good at. An accelerator
rewrites all 51 million weights in less time than a batch takes to reach it. Both start from the same weights, see the
same batches and, on a processor, the same dropout; a test holds them together.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch program uses
from pytorch_lightning.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from study.base.errors import StudyError, require_one_of
from study.t2mrec.module import Ragged, TwoTowers
from study.t2mrec.settings import Towers, Training

DEVICES = ("auto", "cpu", "gpu")


def chosen(device: str, key: str = "device") -> torch.device:
    """The device of a name of `DEVICES`; auto takes an accelerator where torch sees one. `key`: of the setting. Raises
    StudyError: there is none, or no such name."""
    require_one_of(device, key, DEVICES)
    there = torch.cuda.is_available()
    if device == "gpu" and not there:
        raise StudyError("torch sees no GPU here", column=key, fix=f"{key}=cpu, or {key}=auto")
    return torch.device("cuda" if there and device != "cpu" else "cpu")


class DeviceTowers(TwoTowers):
    """The two towers on a device.

    Args:
        place: where weights, moments and batches are.
        bf16: the hidden layers in mixed precision (bfloat16); the first layer, the loss and AdamW stay in float32.
    """

    def __init__(
        self, n_terms: int, towers: Towers, training: Training, *, seed: int, place: torch.device, bf16: bool = False
    ) -> None:
        super().__init__(n_terms, towers, training, seed=seed)
        self.place, self.bf16 = place, bf16
        self.wide = nn.ParameterDict(
            {side: nn.Parameter(torch.from_numpy(tower.wide)) for side, tower in self.sides.items()}
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One AdamW for everything. The trainer, which knows processors alone, asks for it once the module is where it
        put it; from here on the module is on its own device."""
        self.to(self.place)
        return super().configure_optimizers()

    def on_train_start(self) -> None:
        """Bring the moments of a resumed training to the device: the trainer, which knows processors alone, left them
        where it is."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        inner = optimizer.optimizer
        inner.load_state_dict(inner.state_dict())  # puts each part of the state beside its weights

    def projected(self, side: str, vectors: Ragged) -> Tensor:
        """See `TwoTowers`."""
        starts, terms, values = vectors
        return F.embedding_bag(
            terms, self.wide[side], starts, mode="sum", per_sample_weights=values, include_last_offset=True
        )

    def update(self, side: str, projected: Tensor) -> None:
        """Nothing: the first layer is a parameter like the others."""

    def forward(self, projected: dict[str, Tensor]) -> list[Tensor]:
        """Unit embeddings of each side."""
        with torch.autocast(self.place.type, dtype=torch.bfloat16, enabled=self.bf16):
            return [part.float() for part in super().forward(projected)]

    def on_train_end(self) -> None:
        """Bring the weights back to where answers are computed."""
        self.cpu()
        for side, tower in self.sides.items():
            tower.wide = self.wide[side].detach().numpy()
