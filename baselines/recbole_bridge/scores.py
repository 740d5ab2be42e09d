"""Scores from what a RecBole model learned; needs torch alone, so the runner and the bridge both compute them."""

from __future__ import annotations

import torch
from torch import Tensor

# Tasks per block of NeuMF: 4 x 5,642 pairs x 128 hidden units in float32 are 12 MB; blocks of 32 take twice as long.
BLOCK = 4


def score(learned: dict[str, Tensor], rows: Tensor) -> Tensor:
    """Scores of every server for tasks that are known by `rows`.

    Args:
        learned: ``servers`` (n_servers, d) for models whose score is a product, or NeuMF's tensors (`neumf`).
        rows: task representations, shape (b, d).

    Returns: shape (b, n_servers).
    """
    if "servers" in learned:
        return rows @ learned["servers"].T
    blocks = [neumf(learned, block) for block in torch.split(rows, BLOCK)]
    return torch.cat(blocks) if blocks else rows.new_zeros(0, len(learned["gmf_servers"]))


def neumf(learned: dict[str, Tensor], rows: Tensor) -> Tensor:
    """NeuMF's logits (He et al. 2017, eq. 12) of every server; their order is that of the probabilities.

    The first layer is applied to tasks and servers apart, W [p; q] = W_p p + W_q q, instead of to every pair.

    Args:
        learned: ``gmf_servers`` (M, g), ``mlp_servers`` (M, h), layers ``mlp.<i>.weight`` and ``.bias``,
            ``output.weight`` (1, g + last width), ``output.bias`` (1,).
        rows: vectors of the tasks, those of the product branch before those of the layers, shape (b, g + h).

    Returns: shape (b, M).
    """
    width = learned["gmf_servers"].shape[1]
    product, layered = rows[:, :width], rows[:, width:]
    first = learned["mlp.0.weight"]
    split = layered.shape[1]
    by_task = layered @ first[:, :split].T + learned["mlp.0.bias"]  # (b, d1)
    by_server = learned["mlp_servers"] @ first[:, split:].T  # (M, d1)
    hidden = (by_task[:, None, :] + by_server).relu_().flatten(0, 1)  # (b * M, d1); time goes into passes over memory
    layer = 1
    while f"mlp.{layer}.weight" in learned:
        hidden = torch.addmm(learned[f"mlp.{layer}.bias"], hidden, learned[f"mlp.{layer}.weight"].T).relu_()
        layer += 1
    output = learned["output.weight"][0]
    pairs = (product * output[:width]) @ learned["gmf_servers"].T
    return pairs + (hidden @ output[width:]).view(len(rows), -1) + learned["output.bias"]
