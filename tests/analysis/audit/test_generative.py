"""Codebooks and wordings: what their tables count, by hand and on a stand-in for a trained model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from baselines.generative.quantisation import Quantiser, fit_codes, standardised
from baselines.training import Optimisation
from study import paths
from study.analysis.audit import codebooks
from study.analysis.audit import prompt_templates as wordings
from study.analysis.audit.generative_text import about_codebooks, about_wordings
from study.config.compose import load
from study.config.reader import read_settings
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation import per_task
from study.files import write_csv
from study.runner.rows import Outputs


def test_use_of_a_level_by_hand():
    found = codebooks.use(np.array([0, 0, 0, 0, 1, 1, 2, 2]), 4)
    assert found["usage"] == 0.75
    assert found["entropy"] == pytest.approx(1.5 / 2)  # 1/2 x 1 bit + 2 x 1/4 x 2 bits, of log2(4)
    assert found["uneven"] == pytest.approx((2 + 0 + 0 + 2) / 4 / 2)
    assert codebooks.use(np.arange(8) % 4, 4) == {"usage": 1.0, "entropy": pytest.approx(1.0), "uneven": 0.0}
    assert codebooks.use(np.zeros(5, dtype=np.int64), 2) == {"usage": 0.5, "entropy": 0.0, "uneven": 1.0}


def test_items_with_the_codes_of_another():
    assert codebooks.shared(np.array([[1, 2], [1, 2], [1, 2], [3, 4]])) == 0.5
    assert codebooks.shared(np.arange(8).reshape(4, 2)) == 0.0


def test_collapse_is_counted_over_seeds():
    rows = pd.DataFrame(
        [
            ("a", 1, 1, 0.9, 0.95, 0.02, 0.0, False),
            ("a", 1, 2, 0.6, 0.80, 0.02, 0.0, False),
            ("b", 1, 1, 0.3, 0.40, 0.02, 0.0, True),
            ("b", 2, 1, 0.9, 0.90, 0.20, 0.1, True),
            ("b", 3, 1, 0.9, 0.90, 0.01, 0.0, False),
        ],
        columns=["system", "seed", "level", "usage", "entropy", "shared", "shared_after", "collapsed"],
    )
    one, two = about_codebooks(rows, {"a": "A", "b": "B"})
    assert one.startswith("A: codebooks collapsed in 0 of 1 seeds")
    assert "Least use of a level 60%" in one
    assert two.startswith("B: codebooks collapsed in 2 of 3 seeds")
    assert "1.0% to 20.0%" in two


class _Kept:
    """A system that has what the part reads of one: its quantiser."""

    quantiser = Quantiser(levels=2, codes=4, hidden=[8], width=4, training=Optimisation(epochs=2, batch_size=16))


def test_the_table_describes_the_codes_that_the_search_writes(monkeypatch, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32)
    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    monkeypatch.setattr(codebooks.datasets, "load", lambda name: _Texts(name))
    monkeypatch.setattr(codebooks, "encode", lambda texts: vectors)
    monkeypatch.setattr(codebooks, "build_system", lambda config: _Kept())
    config = load(["dataset=synthetic", "profile=smoke", "system=tiger"])
    table = codebooks.codebooks(config, codebooks.Codebooks(["tiger"]))
    seeds = list(config.system.seeds)
    assert table[["system", "seed", "level"]].to_numpy().tolist() == [
        ["tiger", seed, level] for seed in seeds for level in (1, 2)
    ]
    model, _ = fit_codes(standardised(vectors), _Kept.quantiser, seed=seeds[0])
    spread = codebooks.spread_last(model, standardised(vectors))[0]
    assert table["usage"].iloc[0] == len(set(spread[:, 0])) / 4
    assert (table["shared_after"] <= table["shared"]).all()
    nearest = model.codes(torch.from_numpy(standardised(vectors))).numpy()
    few = len(set(nearest[:, 0])) / 4 < codebooks.LEAST_USAGE
    assert table["collapsed"].iloc[0] == (few or codebooks.shared(nearest) > codebooks.MOST_COLLISIONS)


class _Texts:
    def __init__(self, name: str) -> None:
        self.name = name

    def server_texts(self) -> list[str]:
        return []


class _Words:
    """Its first wording finds the one relevant server first, every other one puts it at its own place."""

    def __init__(self) -> None:
        self.wording, self.fits = 0, 0

    def fit(self, data, split, *, seed, workdir):
        self.fits += 1

    def score(self, tasks):
        scores = -np.tile(np.arange(12, dtype=np.float32), (len(tasks), 1))
        scores[:, 11] = 0.5 - self.wording
        return scores


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    answers = sp.csr_matrix(([1.0, 1.0], ([0, 1], [11, 11])), shape=(2, 12), dtype=np.float32)
    nothing = sp.csr_matrix((2, 12), dtype=np.float32)
    data = _Texts("synthetic")
    data.n_servers, data.tasks = 12, pd.DataFrame({"id": [7, 9]})
    system = _Words()
    monkeypatch.setattr(paths, "cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(paths, "results", lambda dataset: tmp_path / "results")
    monkeypatch.setattr(
        wordings, "load_inputs", lambda config: (data, Split("cold", nothing, nothing, answers, cold=True))
    )
    monkeypatch.setattr(wordings, "build_system", lambda config: system)
    monkeypatch.setattr(wordings, "fingerprint", lambda config: "0")
    return system, load(["dataset=synthetic", "profile=smoke", "system=lc_rec", "protocol=cold"])


SETTINGS = wordings.Wordings("lc_rec", 3, ["ndcg@10", "recall@5"], {"cold": [1]})


def test_one_training_is_asked_in_every_wording(stand_in):
    system, config = stand_in
    table = wordings.asked(config, SETTINGS, 1)
    assert system.fits == 1
    assert table["wording"].tolist() == [0, 1, 2]
    assert table["ndcg@10"].tolist() == pytest.approx([1.0, 1 / np.log2(3), 1 / np.log2(4)])
    assert table["recall@5"].tolist() == [1.0, 1.0, 1.0]
    assert table["as_run"].tolist() == [None] * 3


@pytest.mark.parametrize(("shift", "same"), [(0.0, True), (0.25, False)])
def test_the_first_wording_is_held_against_the_run_in_the_tables(stand_in, shift, same):
    _, config = stand_in
    path = Outputs.of("synthetic", "cold", "lc_rec").per_task
    write_csv(path, pd.DataFrame({"task_id": [9, 7], "seed": 1, "ndcg@10": [1.0, 1.0 - shift]}))
    assert wordings.asked(config, SETTINGS, 1)["as_run"].tolist() == [same, None, None]
    assert per_task.read(path)["task_id"].tolist() == [9, 7]


def test_the_spread_of_wordings_stands_beside_that_of_trainings():
    rows = pd.DataFrame(
        [
            ("cold", 1, 0, 0.10),
            ("cold", 1, 1, 0.12),
            ("cold", 2, 0, 0.30),
            ("cold", 2, 1, 0.29),
            ("warm", 1, 0, 0.2),
            ("warm", 1, 1, 0.2),
        ],
        columns=["protocol", "seed", "wording", "ndcg@10"],
    )
    cold, warm = about_wordings(rows, "ndcg@10")
    assert cold == (
        "cold: ndcg@10 of the first wording 0.200, mean over 2 wordings 0.203; within one training the wordings differ "
        "by 0.020 at most, while the trainings differ by 0.200 in the same wording."
    )
    assert warm.endswith("differ by 0.000 at most.")


@pytest.mark.parametrize(("kind", "name"), [(codebooks.Codebooks, "codebooks"), (wordings.Wordings, "wordings")])
def test_the_configured_parts_are_read(kind, name):
    settings = read_settings(kind, paths.conf() / "audit" / f"{name}.yaml")
    assert settings
    with pytest.raises(StudyError, match="unknown system 'tigre'"):
        codebooks.Codebooks(["tigre"])
    with pytest.raises(StudyError, match="unknown protocol"):
        wordings.Wordings("lc_rec", 5, [], {"hot": [1]})
