"""Every setting is checked where it is made, and the error names the key and what to give instead."""

from dataclasses import asdict

import pytest

from study.base.errors import StudyError
from study.config.compose import build_system, load
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec

WRONG = [(Lexical, "ngrams", [2, 1]), (Lexical, "ngrams", [1, True]), (Towers, "layers", 1)]
WRONG += [(Training, "loss", "triplet"), (Training, "temperature", float("nan"))]
WRONG += [(Scoring, "semantic_weight", 1.01), (Scoring, "expansion", 0)]
WRONG += [(Training, "weight_decay", 1000.0)]  # times the learning rate, it would turn the weights round
# What every ablation changes, and nothing else.
CHANGES = {"t2mrec": {}, "t2mrec_wo_cl": {"training.loss": "bce"}, "t2mrec_wo_lexical": {"lexical.kind": "minilm"}}
CHANGES |= {"t2mrec_wo_cl_program": {"training.loss": "program_bce", "training.temperature": 1.0, "training.epochs": 1}}
CHANGES |= {"t2mrec_program_languages": {"scoring.languages": "program"}}
CHANGES |= {"t2mrec_wo_two_tower": {"towers.enabled": False}, "t2mrec_wo_structure": {"scoring.semantic_weight": 1.0}}
CHANGES |= {"t2mrec_wo_expansion": {"scoring.expansion": False}, "t2mrec_one_direction": {"training.symmetric": False}}
CHANGES |= {"t2mrec_in_batch_set": {"training.in_batch": "set"}}
CHANGES |= {"t2mrec_hard_negatives": {"training.hard_negatives": 2}, "t2mrec_shared_tower": {"towers.shared": True}}


@pytest.mark.parametrize(("group", "key", "value"), WRONG, ids=str)
def test_a_wrong_value_is_refused_by_its_key(group, key, value):
    with pytest.raises(StudyError) as caught:
        group(**{key: value})
    assert caught.value.column == f"system.model.{group.__name__.lower()}.{key}"
    assert repr(value) in caught.value.reason


def test_settings_that_do_not_fit_one_another_are_refused():
    with pytest.raises(StudyError, match="hard_pool"):
        Training(hard_negatives=3, hard_pool=2)
    with pytest.raises(StudyError, match=r"sum to 0\.9"):
        Scoring(category=0.3, language=0.3, theme=0.3)
    assert Scoring(category=0.333333, language=0.333333, theme=0.333334).structure_weights[2] == 0.333334
    with pytest.raises(StudyError, match=r"at least the 5 of scoring\.anchors"):
        Scoring(pool=4)


def flat(system):
    groups = ("lexical", "towers", "training", "scoring")
    return {f"{name}.{key}": value for name in groups for key, value in asdict(getattr(system, name)).items()}


@pytest.mark.parametrize("name", CHANGES)
def test_an_ablation_changes_what_it_names_and_nothing_else(name):
    full = flat(build_system(load(["system=t2mrec"]).system))
    config = load([f"system={name}"]).system
    assert config.name == name
    found = flat(build_system(config))
    assert {key: value for key, value in found.items() if value != full[key]} == CHANGES[name]


def test_the_configuration_equals_the_defaults_of_the_code():
    found = flat(build_system(load(["system=t2mrec", "dataset=task2mcp"]).system))
    assert found == flat(T2MRec(Lexical(), Towers(), Training(), Scoring())) | {"lexical.ngrams": [1, 2]}
