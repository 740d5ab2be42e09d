"""Codebooks and prompt templates: what their tables count, by hand and on a stand-in for a trained model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from baselines.generative import quantisation
from baselines.generative.quantisation import Quantiser, fit_codes, standardised
from baselines.training import Optimisation
from study import paths
from study.analysis.audit import generative
from study.analysis.audit.settings import Codebooks, PromptTemplates, read
from study.config.compose import load
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation import per_task
from study.files import write_csv
from study.runner.outputs import Outputs


def test_use_of_a_level_by_hand():
    found = generative.use(np.array([0, 0, 0, 0, 1, 1, 2, 2]), 4)
    assert found["usage"] == 0.75
    assert found["entropy"] == pytest.approx(1.5 / 2)  # 1/2 x 1 bit + 2 x 1/4 x 2 bits, of log2(4)
    assert found["uneven"] == pytest.approx((2 + 0 + 0 + 2) / 4 / 2)
    assert generative.use(np.arange(8) % 4, 4) == {"usage": 1.0, "entropy": pytest.approx(1.0), "uneven": 0.0}
    assert generative.use(np.zeros(5, dtype=np.int64), 2) == {"usage": 0.5, "entropy": 0.0, "uneven": 1.0}


def test_items_with_the_codes_of_another():
    assert generative.shared(np.array([[1, 2], [1, 2], [1, 2], [3, 4]])) == 0.5
    assert generative.shared(np.arange(8).reshape(4, 2)) == 0.0


class _Kept:
    """A system that has what the part reads of one: its quantiser."""

    quantiser = Quantiser(levels=2, codes=4, hidden=[8], width=4, training=Optimisation(epochs=2, batch_size=16))


def test_the_table_describes_the_codes_that_the_search_writes(monkeypatch, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32)
    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    monkeypatch.setattr(generative.datasets, "load", lambda name: _Texts(name))
    monkeypatch.setattr(generative, "encode", lambda texts: vectors)
    monkeypatch.setattr(generative, "build_system", lambda config: _Kept())
    config = load(["dataset=synthetic", "profile=smoke", "system=tiger"])
    table = generative.codebook_table(config, Codebooks(["tiger"]))
    seeds = list(config.system.seeds)
    assert table[["system", "seed", "level"]].to_numpy().tolist() == [
        ["tiger", seed, level] for seed in seeds for level in (1, 2)
    ]
    model, _ = fit_codes(standardised(vectors), _Kept.quantiser, seed=seeds[0])
    spread = quantisation.spread_last(model, standardised(vectors))[0]
    assert table["usage"].iloc[0] == len(set(spread[:, 0])) / 4
    assert (table["shared_after"] <= table["shared"]).all()
    nearest = model.codes(torch.from_numpy(standardised(vectors))).numpy()
    few = len(set(nearest[:, 0])) / 4 < quantisation.LEAST_USAGE
    assert table["collapsed"].iloc[0] == (few or generative.shared(nearest) > quantisation.MOST_COLLISIONS)


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
        generative, "load_inputs", lambda *_: (data, Split("cold", nothing, nothing, answers, cold=True))
    )
    monkeypatch.setattr(generative, "build_system", lambda config: system)
    monkeypatch.setattr(generative, "fingerprint", lambda config: "0")
    return system, load(["dataset=synthetic", "profile=smoke", "system=lc_rec", "protocol=cold"])


SETTINGS = PromptTemplates("lc_rec", 3, ["ndcg@10", "recall@5"], {"cold": [1]})


def test_one_training_is_asked_in_every_template(stand_in):
    system, config = stand_in
    table = generative.in_all_templates(config, SETTINGS, 1)
    assert system.fits == 1
    assert table["template"].tolist() == [0, 1, 2]
    assert table["ndcg@10"].tolist() == pytest.approx([1.0, 1 / np.log2(3), 1 / np.log2(4)])
    assert table["recall@5"].tolist() == [1.0, 1.0, 1.0]
    assert table["as_run"].tolist() == [None] * 3


@pytest.mark.parametrize(("shift", "same"), [(0.0, True), (0.25, False)])
def test_the_first_template_is_held_against_the_run_in_the_tables(stand_in, shift, same):
    _, config = stand_in
    path = Outputs.of("synthetic", "cold", "lc_rec").per_task
    write_csv(path, pd.DataFrame({"task_id": [9, 7], "seed": 1, "ndcg@10": [1.0, 1.0 - shift]}))
    assert generative.in_all_templates(config, SETTINGS, 1)["as_run"].tolist() == [same, None, None]
    assert per_task.read(path)["task_id"].tolist() == [9, 7]


def test_the_configured_parts_are_read():
    assert read(Codebooks).systems
    assert read(PromptTemplates).templates == 5
    with pytest.raises(StudyError, match="unknown system 'tigre'"):
        Codebooks(["tigre"])
    with pytest.raises(StudyError, match="unknown protocol"):
        PromptTemplates("lc_rec", 5, [], {"hot": [1]})
