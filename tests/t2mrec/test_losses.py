"""Objectives on batches worked out by hand (paper, eq. 9-10)."""

import math

import pytest
import torch

from study.t2mrec.towers import info_nce, pointwise_bce


def test_info_nce_by_hand() -> None:
    tasks = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    servers = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    # Cosines: [[1, .6], [0, .8]]. Rows: -log e^1/(e^1+e^.6), -log e^.8/(e^0+e^.8). Columns: over (1, 0) and (.6, .8).
    rows = (math.log(1 + math.exp(-0.4)) + math.log(1 + math.exp(-0.8))) / 2
    columns = (math.log(1 + math.exp(-1.0)) + math.log(1 + math.exp(-0.2))) / 2
    assert info_nce(tasks, servers, temperature=1.0, symmetric=False).item() == pytest.approx(rows, abs=1e-6)
    assert info_nce(tasks, servers, temperature=1.0).item() == pytest.approx((rows + columns) / 2, abs=1e-6)


def test_temperature_divides() -> None:
    tasks, servers = torch.eye(2), torch.eye(2)
    assert info_nce(tasks, servers, temperature=0.1).item() == pytest.approx(math.log(1 + math.exp(-10)), abs=1e-7)


def test_equal_embeddings_cost_log_b() -> None:
    same = torch.ones(7, 3) / math.sqrt(3)
    assert info_nce(same, same, temperature=0.07).item() == pytest.approx(math.log(7), abs=1e-5)


def test_bce_weighs_both_kinds_equally() -> None:
    same = torch.ones(5, 1)  # every cosine is 1
    positive, negative = math.log(1 + math.exp(-1)), math.log(1 + math.exp(1))
    assert pointwise_bce(same, same, temperature=1.0).item() == pytest.approx((positive + negative) / 2, abs=1e-6)


def test_bce_of_a_single_pair_has_no_negatives() -> None:
    one = torch.ones(1, 1)
    assert pointwise_bce(one, one, temperature=1.0).item() == pytest.approx(math.log(1 + math.exp(-1)) / 2, abs=1e-6)


def test_extra_negatives_count_in_the_task_direction_alone() -> None:
    tasks = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    servers = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    # Cosines: [[1, 0, .6], [0, 1, .8]]. The third server has no task, so columns are over the first two alone.
    rows = sum(math.log(1 + math.exp(-1.0) + math.exp(near - 1)) for near in (0.6, 0.8)) / 2
    columns = math.log(1 + math.exp(-1.0))
    assert info_nce(tasks, servers, temperature=1.0, symmetric=False).item() == pytest.approx(rows, abs=1e-6)
    assert info_nce(tasks, servers, temperature=1.0).item() == pytest.approx((rows + columns) / 2, abs=1e-6)


def test_bce_counts_extra_negatives_among_the_negatives() -> None:
    tasks, servers = torch.ones(2, 1), torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    # Two positives of cosine 1; negatives: two of cosine 1, four of cosine -1.
    positive, near, far = (math.log(1 + math.exp(z)) for z in (-1, 1, -1))
    expected = (positive + (2 * near + 4 * far) / 6) / 2
    assert pointwise_bce(tasks, servers, temperature=1.0).item() == pytest.approx(expected, abs=1e-6)
