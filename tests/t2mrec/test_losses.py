"""Objectives on batches worked out by hand (paper, eq. 9-10)."""

import math

import pytest
import torch

from study.t2mrec.towers import info_nce, pointwise_bce


def softplus(z):
    return math.log(1 + math.exp(z))


def test_info_nce_by_hand():
    tasks, servers = torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    # Cosines: [[1, .6], [0, .8]]. Rows: -log e^1/(e^1+e^.6), -log e^.8/(e^0+e^.8). Columns: over (1, 0) and (.6, .8).
    rows = (softplus(-0.4) + softplus(-0.8)) / 2
    columns = (softplus(-1.0) + softplus(-0.2)) / 2
    assert info_nce(tasks, servers, temperature=1.0, symmetric=False).item() == pytest.approx(rows, abs=1e-6)
    assert info_nce(tasks, servers, temperature=1.0).item() == pytest.approx((rows + columns) / 2, abs=1e-6)
    assert info_nce(tasks, tasks, temperature=0.1).item() == pytest.approx(softplus(-10), abs=1e-7)
    same = torch.ones(7, 3) / math.sqrt(3)
    assert info_nce(same, same, temperature=0.07).item() == pytest.approx(math.log(7), abs=1e-5)


def test_extra_negatives_count_in_the_task_direction_alone():
    tasks, servers = torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    # Cosines: [[1, 0, .6], [0, 1, .8]]. The third server has no task, so columns are over the first two alone.
    rows = sum(math.log(1 + math.exp(-1.0) + math.exp(near - 1)) for near in (0.6, 0.8)) / 2
    columns = softplus(-1.0)
    assert info_nce(tasks, servers, temperature=1.0, symmetric=False).item() == pytest.approx(rows, abs=1e-6)
    assert info_nce(tasks, servers, temperature=1.0).item() == pytest.approx((rows + columns) / 2, abs=1e-6)


@pytest.mark.parametrize(
    ("tasks", "servers", "expected"),
    [
        ([1] * 5, [1] * 5, (softplus(-1) + softplus(1)) / 2),
        ([1], [1], softplus(-1) / 2),
        # Two positives of cosine 1; negatives: two of cosine 1, four of cosine -1.
        ([1] * 2, [1, 1, -1, -1], (softplus(-1) + (2 * softplus(1) + 4 * softplus(-1)) / 6) / 2),
    ],
    ids=["both kinds weigh the same", "a single pair has no negatives", "extra negatives are negatives"],
)
def test_bce_by_hand(tasks, servers, expected):
    tasks, servers = (torch.tensor(values, dtype=torch.float32)[:, None] for values in (tasks, servers))
    assert pointwise_bce(tasks, servers, temperature=1.0).item() == pytest.approx(expected, abs=1e-6)
