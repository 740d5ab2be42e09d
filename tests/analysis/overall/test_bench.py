"""Speed: the counts by hand, the table on a tiny study, and what cannot be benched."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from study.analysis.overall import bench
from study.analysis.overall.compute_cost import Limits, Work, encoding_work, narrow_weights, ranking_work, training_work
from study.base import paths
from study.base.errors import StudyError
from study.config.compose import load
from study.t2mrec.settings import Towers
from tests.analysis.toys import change
from tests.tiny_study import TINY

TOWERS = Towers(hidden=3, output=2, layers=2)
NARROW = 3 * 2 + 2 + 3  # one matrix with its bias, and the bias of the first layer


def test_counts_by_hand():
    assert narrow_weights(TOWERS) == NARROW
    # Two texts of five terms in all: 5 rows of 3 weights, then a 3 x 2 matrix and its bias for each text.
    assert encoding_work(5, 2, TOWERS) == Work(2 * (5 * 3 + 2 * (3 * 2 + 2)), 4 * (5 * 3 + NARROW))
    # Four tasks, six servers: two products of width 2 and eight operations per pair; six matrices written and read.
    assert ranking_work(4, 6, 2) == Work(2 * 2 * 24 * 2 + 8 * 24, 4 * (2 * 6 * 2 + 2 * 4 * 2 + 12 * 24))


def test_training_counts_by_hand():
    # One batch: a task with the terms 0 and 1, a server with the term 1.
    tasks, servers = (sp.csr_matrix(np.array([row], dtype=np.float32)) for row in ([1, 1, 0], [0, 1, 0]))
    batch = (tasks, servers)
    flops = [6 * (used * 3 + 8) + 12 * (used * 3 + NARROW) for used in (2, 1)]
    moved = [24 * (2 * used * 3 + NARROW) for used in (2, 1)]
    assert training_work([batch], TOWERS) == Work(sum(flops) + 6 * 2, sum(moved))
    assert training_work([batch] * 3, TOWERS) == training_work([batch], TOWERS) * 3
    # The slower of arithmetic and memory decides.
    assert Work(100, 10).seconds_at(Limits(50, 50)) == 2
    assert Work(100, 10).seconds_at(Limits(1000, 1)) == 10


@pytest.fixture
def small(root):
    """Settings that keep the measurement to a moment."""
    change("overall/bench.yaml", requests=12, warm_up=2, repeats=2, matrix_side=64, copied_mebibytes=1)


def test_every_part_has_its_time_work_limit_and_share_and_another_system_a_table_of_its_own(small):
    shown = bench.bench(load([*TINY, "system=t2mrec_one_direction"]))
    assert not (paths.tables("synthetic") / "efficiency.csv").exists()
    table = pd.read_csv(paths.tables("synthetic") / "efficiency_t2mrec_one_direction.csv")
    assert not table.duplicated(["part", "measure"]).any()
    value = table.set_index(["part", "measure"])["value"]
    assert (value > 0).all()
    for part, measured in (("training", "seconds"), ("evaluation", "seconds"), ("recommendation", "milliseconds_p50")):
        seconds = value[part, measured] / (1000 if measured.startswith("milli") else 1)
        moving = value[part, "gigabytes_moved"] / value["machine", "gigabytes_per_second"]
        least = max(value[part, "gflop"] / value["machine", "gflops"], moving)
        assert math.isclose(value[part, "seconds_at_limit"], least, rel_tol=1e-4)
        assert math.isclose(value[part, "share_of_limit"], least / seconds, rel_tol=1e-4)
    step = value["step"]
    layers = {f"{part}, forward" for part in ("input layer", "hidden layers", "loss")}
    layers |= {"input layer, backward and AdamW", "hidden layers, AdamW", "loss and hidden layers, backward"}
    assert {*step.index} == layers | {"batches", "catching rows up", "the rest", "all"}
    limits = table.set_index(["part", "measure"])["at_most"].dropna()
    assert limits["training"].to_dict() == {"seconds": 90, "busy_over_quiet": 1.5}
    assert limits["recommendation"].to_dict() == {"milliseconds_p50": 5, "milliseconds_p99": 15}
    assert set(table["threads"]) == {1}
    assert "nan" not in shown
    assert (paths.results("synthetic") / "records" / "efficiency_t2mrec_one_direction.json").exists()
    assert not list((paths.cache() / "bench").rglob("*.ckpt"))


def test_what_cannot_be_benched_is_refused(root):
    for name in ("tfidf", "t2mrec_wo_two_tower", "t2mrec_hard_negatives"):
        with pytest.raises(StudyError, match=f"{name} cannot be benched"):
            bench.bench(load([*TINY, f"system={name}"]))
    # Changed settings do not replace the reported speed.
    with pytest.raises(StudyError, match=r"system\.model\.training\.epochs"):
        bench.bench(load([*TINY, "system=t2mrec", "system.model.training.epochs=3"]))
