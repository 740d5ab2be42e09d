"""What must hold for every configured system under every protocol it applies to, also for those added later."""

import numpy as np
import pytest
from omegaconf import OmegaConf

from study.base.errors import StudyError
from study.data.dataset import relevance_from_lists
from study.data.splits import make
from study.judging import store
from study.runner.own_system import contract
from study.runner.toy_fits import cases, stand_ins
from tests.baselines.toys import N_SERVERS, ask, block_dataset, build, fit, ranked_systems, settings, with_other_answers

# Their search may leave the catalogue, and after two epochs it mostly does.
MAY_RANK_NOTHING = ("tiger_unconstrained", "lc_rec_level")
# What leaves validation alone, for each way in which the published methods choose their weights on it.
WITHOUT_EVALUATIONS = {"schedule.patience": "null", "training.evaluations": 0}
WITHOUT_EVALUATIONS |= {"first.evaluations": 0, "second.evaluations": 0}
# Settings that count servers or tasks and are larger than the toy data set.
TOY_SIZES = {"t2mrec_hard_negatives": {"training.hard_pool": N_SERVERS // 3}}
UNKNOWN = [("item_knn", "similarity", "euclid"), ("cvh_rec", "global_norm", "column"), ("gdsrec", "rating", "stars")]
UNKNOWN += [("lc_rec", "asks", "rating"), ("lc_rec", "constraint", "none"), ("mpt_rec", "head", "tower")]
UNKNOWN += [("msbpr", "variant", "cosine"), ("openp5", "indexing", "tree"), ("openp5", "source", "titles")]
UNKNOWN += [("openp5", "asks", "rating"), ("recafr", "cold_tasks", "guess"), ("tiger", "source", "titles")]


def toy(protocol: str):
    data = block_dataset()
    return data, make(data, protocol, negatives=N_SERVERS // 2)


def without_evaluations(system: str) -> dict[str, object]:
    """The values that make a published method run all epochs and keep its last weights; empty where none chooses."""
    model = settings(system).model
    return {key: value for key, value in WITHOUT_EVALUATIONS.items() if OmegaConf.select(model, key) is not None}


CASES = cases(ranked_systems())


@pytest.fixture(scope="module", autouse=True)
def encoders_without_weights(tmp_path_factory):
    with stand_ins(tmp_path_factory.mktemp("cache")):
        yield


def test_every_protocol_of_the_study_is_asked():
    assert {case.protocol for case in CASES} == {"cold", "cold_grouped", "warm", "loo", "loo99"}


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_system_keeps_the_rules(case):
    found = list(contract(case))
    assert any("no server" in line for line in found) <= case.system.startswith(MAY_RANK_NOTHING)


@pytest.mark.parametrize("case", [case for case in CASES if without_evaluations(case.system)], ids="-".join)
def test_a_system_that_looks_at_validation_reads_its_labels_for_that_alone(case, tmp_path):
    """With the last weights, no held-out label changes a score."""
    data, split = toy(case.protocol)
    said = []
    for each in ((data, split), with_other_answers(data, split, ("valid", "test"))):
        system = build(case.system, **without_evaluations(case.system))
        assert not system.uses_validation
        said.append(ask(fit(system, *each, tmp_path / str(len(said))), split, "test"))
    np.testing.assert_array_equal(*said)


LABEL_USE = dict(vars(store.pool_settings().label_use))
TUNED = LABEL_USE.pop("tuned")


@pytest.mark.parametrize(("system", "kind"), [(name, kind) for kind, names in LABEL_USE.items() for name in names])
def test_a_system_learns_from_the_labels_where_the_judged_collection_says_so(system, kind, tmp_path):
    """Other labels in every part change the scores of those systems alone."""
    data, split = toy("cold")
    others = with_other_answers(data, split, ("train", "valid", "test"))
    said = [
        ask(fit(build(system, **TOY_SIZES.get(system, {})), *each, tmp_path / str(number)), split, "test")
        for number, each in enumerate([(data, split), others])
    ]
    assert np.array_equal(*said) == (kind == "without_labels")


def test_systems_that_judged_topics_tuned_are_some_of_those_that_see_no_label():
    assert set(TUNED) < set(LABEL_USE["without_labels"])


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
    data, split = toy("warm")
    with pytest.raises(StudyError, match=f"unknown .*{value}"):
        fit(name, data, split, tmp_path, **{key: value})


@pytest.mark.parametrize("name", ["openp5", "lc_rec", "tiger"])
def test_a_published_model_that_is_not_here_says_what_to_do(name, tmp_path):
    data, split = toy("warm")
    with pytest.raises(StudyError, match=r"(?s)system\.model\.size.*hf download no/such-model"):
        fit(name, data, split, tmp_path, **{"size.smoke.pretrained": "no/such-model"})
