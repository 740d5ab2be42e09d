"""What must hold for every configured system under every protocol it applies to, also for those added later."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from study import paths
from study.data.dataset import Dataset, relevance_from_lists
from study.data.splits import Split, make
from study.encoders import mpnet
from study.errors import StudyError
from study.judging import store
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


@dataclass(frozen=True)
class Case:
    """A system under a protocol, with the values that were chosen for it on Task2MCP, if there are any."""

    system: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.system}-{self.protocol}{'-as_tuned' if tuned_values(self.system) else ''}"

    def build(self, **changes: object) -> object:
        return build(self.system, **tuned_values(self.system), **TOY_SIZES.get(self.system, {}), **changes)


@cache
def tuned_values(system: str) -> dict[str, object]:
    """What `study run` would put over the yaml's values: the committed choice of `study tune`."""
    best = paths.results("task2mcp") / "tuned" / system / "best.yaml"
    if settings(system).tuned is None or not best.exists():
        return {}
    values = yaml.safe_load(best.read_text())["values"]
    return {name: "null" if value is None else value for name, value in values.items()}


@cache
def toy(protocol: str) -> tuple[Dataset, Split]:
    data = block_dataset()
    return data, make(data, protocol, negatives=N_SERVERS // 2)


def without_looks(system: str) -> dict[str, object]:
    """The values that make a published method run all epochs and keep its last weights; empty where none chooses."""
    model = settings(system).model
    return {key: value for key, value in WITHOUT_EVALUATIONS.items() if OmegaConf.select(model, key) is not None}


PROTOCOLS = {name: list(settings(name).protocols) for name in ranked_systems()}
CASES = [Case(name, protocol) for name, protocols in PROTOCOLS.items() for protocol in protocols]
LOOKS = [case for case in CASES if without_looks(case.system)]


@pytest.fixture(scope="module", autouse=True)
def letters_for_the_large_encoder():
    """Counts of letters in place of vectors of all-mpnet-base-v2, whose weights are a download of their own."""

    def counts(texts, *, store=True):
        found = np.array([[1 + text.count(letter) for letter in "abcdefghij"] for text in texts], dtype=np.float32)
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mpnet, "encode", counts)
        yield


@pytest.fixture(scope="module")
def fitted(request, tmp_path_factory):
    """One toy run: its case, data, split and scores of the test tasks."""
    case = request.param
    data, split = toy(case.protocol)
    return case, data, split, ask(fit(case.build(), data, split, tmp_path_factory.mktemp(str(case))), split, "test")


def test_every_protocol_of_the_study_is_asked():
    assert {case.protocol for case in CASES} == {"cold", "cold_grouped", "warm", "loo", "loo99"}
    assert any(tuned_values(case.system) for case in CASES)


@pytest.mark.parametrize("fitted", CASES, indirect=True, ids=str)
def test_scores_cover_the_catalogue_and_are_numbers(fitted):
    case, data, split, said = fitted
    assert said.shape[0] == len(split.tasks("test"))
    assert said.shape[1] >= min(data.n_servers, 10)
    assert not np.isnan(said).any()
    assert np.isfinite(said).any(axis=1).all() or case.system in MAY_RANK_NOTHING


@pytest.mark.parametrize("fitted", CASES, indirect=True, ids=str)
def test_same_seed_gives_same_scores_whatever_is_held_out(fitted, tmp_path):
    """The leak test. A system that chooses weights on validation labels says so with ``uses_validation = True``."""
    case, data, split, said = fitted
    system = case.build()
    parts = ("test",) if getattr(system, "uses_validation", False) else ("valid", "test")
    other_data, other_split = with_other_answers(data, split, parts)
    assert (other_data.relevance != data.relevance).nnz
    # What a ranking leaves out is told by the evaluator, so the question is asked as before.
    np.testing.assert_array_equal(ask(fit(system, other_data, other_split, tmp_path), split, "test"), said)


@pytest.mark.parametrize("case", LOOKS, ids=str)
def test_a_system_that_looks_at_validation_reads_its_labels_for_that_alone(case, tmp_path):
    """With the last weights, no held-out label changes a score."""
    data, split = toy(case.protocol)
    said = []
    for each in ((data, split), with_other_answers(data, split, ("valid", "test"))):
        system = case.build(**without_looks(case.system))
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
        ask(fit(Case(system, "cold").build(), *each, tmp_path / str(number)), split, "test")
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
