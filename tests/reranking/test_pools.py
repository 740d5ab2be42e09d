"""Kept pools: they are re-ranked in place of a training's, if the training was the same, and nothing else is."""

import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from study.base.errors import StudyError
from study.reranking import pools
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec

PARTS = (Lexical(), Towers(hidden=8, output=8), Training(epochs=1), Scoring())


@pytest.fixture
def keep(new_root, toy, toy_split):
    """Write random pools of the test tasks, as made by a training with given settings; returns them as server rows."""

    def write(*parts, protocol="cold", seed=1):
        rng, tasks = np.random.default_rng(4), toy_split.tasks("test")
        rows = np.stack([rng.permutation(toy.n_servers)[:20] for _ in tasks])
        table = pd.DataFrame(
            {
                "protocol": protocol,
                "seed": seed,
                "task_id": np.repeat(toy.tasks["id"].to_numpy()[tasks], 20),
                "rank": np.tile(np.arange(1, 21), len(tasks)),
                "server_id": toy.servers["id"].to_numpy()[rows].ravel(),
            }
        )
        file = pools.file_of("toy")
        file.parent.mkdir(parents=True)
        table.sample(frac=1, random_state=0).to_parquet(file)
        training = dict(zip(("lexical", "towers", "training", "scoring"), map(asdict, parts), strict=True))
        record = {"training": training, "git": {}, "versions": {}, "hardware": {}}
        file.with_suffix(".json").write_text(json.dumps(record))
        return rows

    return write


def ranked(system, toy, split, workdir, k=20):
    system.fit(toy, split, seed=1, workdir=workdir)
    return system.rank(split.tasks("test"), k, split.known("test"))


def test_kept_pools_take_the_place_of_a_training(keep, toy, toy_split, tmp_path, monkeypatch):
    stored = keep(*PARTS)
    monkeypatch.setattr(T2MRec, "fit", None)  # nothing is trained
    system = pools.PooledT2MRec(*PARTS)
    rows, scores = ranked(system, toy, toy_split, tmp_path)
    np.testing.assert_array_equal(rows, stored)
    assert (np.diff(scores, axis=1) < 0).all()
    few, _ = system.rank(toy_split.tasks("test")[[3, 1]], 5, toy_split.known("test"))
    np.testing.assert_array_equal(few, stored[[3, 1], :5])
    train = toy_split.tasks("train")[:1]
    with pytest.raises(StudyError, match="no pool was kept") as caught:
        system.rank(train, 5, toy_split.known("test"))
    assert (caught.value.file, caught.value.row) == (pools.file_of("toy"), toy.tasks["id"].iloc[train[0]])


@pytest.mark.parametrize("other", ["training", "protocol", "seed", "file"])
def test_pools_of_another_training_are_not_taken(keep, toy, toy_split, tmp_path, other):
    if other == "training":
        keep(PARTS[0], Towers(hidden=9, output=8), *PARTS[2:])
    elif other != "file":
        keep(*PARTS, **{other: {"protocol": "warm", "seed": 2}[other]})
    answers = ranked(pools.PooledT2MRec(*PARTS), toy, toy_split, tmp_path)
    for answer, trained in zip(answers, ranked(T2MRec(*PARTS), toy, toy_split, tmp_path), strict=True):
        np.testing.assert_array_equal(answer, trained)


def test_a_server_that_is_gone_is_named(keep, toy, toy_split, tmp_path):
    keep(*PARTS)
    file = pools.file_of("toy")
    table = pd.read_parquet(file)
    table.loc[0, "server_id"] = 99_999
    table.to_parquet(file)
    with pytest.raises(StudyError, match="lacks") as caught:
        ranked(pools.PooledT2MRec(*PARTS), toy, toy_split, tmp_path)
    assert caught.value.file == file
