"""The contract for every configured system, also for those added later; what learns from the labels."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from baselines.training import Trained
from study.base.errors import StudyError
from study.base.registry import system_file
from study.config.compose import checked_system, choices
from study.config.groups import ORACLE
from study.data.dataset import relevance_from_lists
from study.data.splits import make
from study.judging import store
from study.runner.contract import SystemContract
from study.runner.toy_fits import Case, cases, stand_ins
from tests.baselines.toys import N_SERVERS, ask, block_dataset, build, fit, with_other_answers

# Their search may leave the catalogue, and after two epochs it mostly does.
MAY_RANK_NOTHING = ("tiger_unconstrained", "lc_rec_level")
# What leaves validation alone, for each way in which the published methods choose their weights on it.
WITHOUT_EVALUATIONS = {"schedule.patience": "null", "training.evaluations": 0}
WITHOUT_EVALUATIONS |= {"first.evaluations": 0, "second.evaluations": 0}
UNKNOWN = [("item_knn", "similarity", "euclid"), ("gdsrec", "rating", "stars"), ("openp5", "asks", "rating")]
SYSTEMS = {name: checked_system(name) for name in choices("system")}
# Oracles read the answers on purpose; what starts a process for each fit or asks a language model has tests of its own.
TESTED = {name for name, own in SYSTEMS.items() if own.family != ORACLE and "endpoint" not in own.model}
CASES = cases([name for name in SYSTEMS if name in TESTED and not SYSTEMS[name].subprocess])
FIRST = {case.system: case for case in reversed(CASES)}  # under its first protocol
ROOTS = [name for name in FIRST if system_file(name).stem == name]
# Systems that find the blocks on toys of the smallest size, and whose rankings another order of the servers leaves.
FIND_BLOCKS = ["tfidf", "bm25", "minilm", "task_knn", "field_dense", "field_dense_mpnet", "intent", "linear_xmc", "rrf"]
FIND_BLOCKS += ["item_knn", "user_knn", "ease", "slim", "p3alpha", "rp3beta", "ials", "item_knn_transfer"]
FIND_BLOCKS += ["ease_transfer", "ials_transfer", "attribute_counts", "popularity_theme", "popularity_subcategory"]
FIND_BLOCKS += ["cvh_rec"]  # new tasks, through its encoder


@pytest.fixture(scope="module", autouse=True)
def encoders_without_weights(tmp_path_factory):
    with stand_ins(tmp_path_factory.mktemp("cache")):
        yield


def marked(case: Case) -> object:
    """Slow under all protocols but the first."""
    slow = FIRST[case.system] != case
    return pytest.param(case, id="-".join(case), marks=pytest.mark.slow if slow else [])


@pytest.fixture(scope="class", params=map(marked, CASES))
def case(request) -> Case:
    cls, case = request.cls, request.param
    cls.system, cls.protocols = case.system, (case.protocol,)
    found = case.system in FIND_BLOCKS and FIRST[case.system] == case
    cls.least_own, cls.least_stay = (0.95, 0.9) if found else (0.0, 0.0)
    cls.notes.clear()
    cls._fits.clear()
    return case


@pytest.mark.usefixtures("case")
class TestEverySystem(SystemContract):
    def test_every_score_is_a_number(self) -> None:
        super().test_every_score_is_a_number()
        assert any("no server" in line for line in self.notes) <= self.system.startswith(MAY_RANK_NOTHING)


def toy(protocol: str):
    data = block_dataset()
    return data, make(data, protocol, negatives=N_SERVERS // 2)


def without_evaluations(system: str) -> dict[str, object]:
    """The values that make a published method run all epochs and keep its last weights; empty where none chooses."""
    model = SYSTEMS[system].model
    return {key: value for key, value in WITHOUT_EVALUATIONS.items() if OmegaConf.select(model, key) is not None}


@pytest.mark.parametrize("system", [name for name in ROOTS if without_evaluations(name)])
def test_a_system_that_looks_at_validation_reads_its_labels_for_that_alone(system, tmp_path):
    """With the last weights, no held-out label changes a score."""
    data, split = toy(FIRST[system].protocol)
    said = []
    for each in ((data, split), with_other_answers(data, split, ("valid", "test"))):
        fresh = build(system, **without_evaluations(system))
        assert not fresh.uses_validation
        said.append(ask(fit(fresh, *each, tmp_path / str(len(said))), split, "test"))
    np.testing.assert_array_equal(*said)


LABEL_USE = vars(store.pool_settings().label_use)
KINDS = [(name, kind) for kind in ("with_labels", "without_labels", "fused") for name in LABEL_USE[kind]]


@pytest.mark.parametrize(("system", "kind"), KINDS)
def test_a_system_learns_from_the_labels_where_the_judged_collection_says_so(system, kind, tmp_path):
    """Other labels in every part change the scores of those systems alone."""
    data, split = toy("cold")
    said = []
    for each in ((data, split), with_other_answers(data, split, ("train", "valid", "test"))):
        said.append(ask(fit(system, *each, tmp_path / str(len(said))), split, "test"))
    assert np.array_equal(*said) == (kind == "without_labels")
    assert {*LABEL_USE["tuned"]} < {*LABEL_USE["without_labels"]}


@pytest.mark.parametrize("protocol", ["cold", "warm"])
def test_other_answers_differ_and_keep_what_a_system_may_see(protocol):
    """The leak test catches systems whose scores come from one place that they must not look at."""
    data, split = toy(protocol)
    other_data, other = with_other_answers(data, split, ("valid", "test"))
    assert (other_data.relevance != data.relevance).nnz > 0
    lists = [relevance_from_lists(each.lists, each.n_servers) for each in (data, other_data)]
    assert (lists[0] != lists[1]).nnz > 0
    assert (other.train != split.train).nnz == 0
    for part in ("valid", "test"):
        assert (other.part(part) != split.part(part)).nnz > 0
        assert other.part(part).multiply(split.part(part)).nnz == 0
        np.testing.assert_array_equal(np.diff(other.part(part).indptr), np.diff(split.part(part).indptr))
    assert ((other.train + other.valid + other.test) != other_data.relevance).nnz == 0


@pytest.mark.parametrize(("name", "key", "value"), UNKNOWN)
def test_unknown_choices_are_refused(name, key, value, tmp_path):
    with pytest.raises(StudyError, match=f"unknown .*{value}"):
        fit(name, *toy("warm"), tmp_path, **{key: value})


def test_a_published_model_that_is_not_here_says_what_to_do(tmp_path):
    with pytest.raises(StudyError, match=r"(?s)system\.model\.size.*hf download no/such-model"):
        fit("lc_rec", *toy("warm"), tmp_path, **{"size.smoke.pretrained": "no/such-model"})


# transformers looks at values, so the generative ones are asked on a GPU alone.
ON_DEVICE = ["msbpr", "gdsrec", "cvh_rec", "recafr_profile", "recafr_views", "mpt_rec", "mf_softmax", "xsimgcl_softmax"]


@pytest.mark.parametrize("name", [*ON_DEVICE, "lightgcn_sampled_softmax"])
def test_no_operation_mixes_the_device_and_the_processor(name, blocks, tmp_path, monkeypatch):
    """On torch's device without memory, whose tensors take part in no operation with others."""
    copied = torch.Tensor.cpu

    def cpu(tensor):
        return torch.zeros_like(tensor, device="cpu") if tensor.is_meta else copied(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    monkeypatch.setattr(Trained, "place", torch.device("meta"))
    data, split = blocks[0], make(blocks[0], "cold" if name == "cvh_rec" else "warm")
    system = fit(name, data, split, tmp_path)
    assert {weight.device.type for weight in system.network.parameters()} == {"meta"}
    assert system.score(split.tasks("test")).shape == (len(split.tasks("test")), data.n_servers)
