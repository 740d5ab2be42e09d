"""Every setting is checked where it is made, and the error names the key and what to give instead."""

from dataclasses import asdict

import pytest

from study.base.errors import StudyError
from study.config.compose import build_system, load
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec

NAN = float("nan")
WRONG = {
    Lexical: [("kind", "word2vec"), ("max_features", 0), ("ngrams", [2, 1]), ("ngrams", [1]), ("ngrams", [1, True])],
    Towers: [("enabled", "yes"), ("hidden", 0), ("output", 2.0), ("layers", 1), ("dropout", 1)],
    # The last decay, times the learning rate, would turn the weights round.
    Training: [("loss", "triplet"), ("hard_negatives", -1), ("hard_pool", 0), ("temperature", 0), ("temperature", NAN)],
    Scoring: [("languages", "mine"), ("semantic_weight", 1.01), ("category", -0.1), ("expansion", 0), ("anchors", -1)],
}
WRONG[Training] += [("learning_rate", float("inf")), ("epochs", 2.5), ("epochs", True), ("weight_decay", 1000.0)]
EACH = [(group, *wrong) for group, each in WRONG.items() for wrong in each]
ENDS = [(Lexical, {"max_features": None, "ngrams": [1, 1], "kind": "minilm"}), (Towers, {"layers": 2, "dropout": 0})]
ENDS += [(Training, {"temperature": 1e-4, "learning_rate": 1, "weight_decay": 0, "batch_size": 1, "epochs": 1})]
ENDS += [(Scoring, {"semantic_weight": 0}), (Scoring, {"semantic_weight": 1, "anchors": 20, "pool": 20})]
# What every ablation changes, and nothing else.
CHANGES = {"t2mrec": {}, "t2mrec_wo_cl": {"training.loss": "bce"}, "t2mrec_wo_lexical": {"lexical.kind": "minilm"}}
CHANGES |= {"t2mrec_wo_cl_program": {"training.loss": "program_bce", "training.temperature": 1.0, "training.epochs": 1}}
CHANGES |= {"t2mrec_program_languages": {"scoring.languages": "program"}}
CHANGES |= {"t2mrec_wo_two_tower": {"towers.enabled": False}, "t2mrec_wo_structure": {"scoring.semantic_weight": 1.0}}
CHANGES |= {"t2mrec_wo_expansion": {"scoring.expansion": False}, "t2mrec_one_direction": {"training.symmetric": False}}
CHANGES |= {"t2mrec_in_batch_set": {"training.in_batch": "set"}}
CHANGES |= {"t2mrec_hard_negatives": {"training.hard_negatives": 2}, "t2mrec_shared_tower": {"towers.shared": True}}


@pytest.mark.parametrize(("group", "key", "value"), EACH, ids=str)
def test_a_wrong_value_is_refused_by_its_key(group, key, value):
    with pytest.raises(StudyError) as caught:
        group(**{key: value})
    assert caught.value.column == f"system.model.{group.__name__.lower()}.{key}"
    assert repr(value) in caught.value.reason


def test_settings_that_do_not_fit_one_another_are_refused():
    with pytest.raises(StudyError, match="hard_pool"):
        Training(hard_negatives=3, hard_pool=2)
    assert Training(hard_negatives=3, hard_pool=3).hard_pool == 3
    with pytest.raises(StudyError, match=r"sum to 0\.9"):
        Scoring(category=0.3, language=0.3, theme=0.3)
    assert Scoring(category=0.0, language=1.0, theme=0.0).structure_weights == (0, 1, 0)
    assert Scoring(category=0.333333, language=0.333333, theme=0.333334).structure_weights[2] == 0.333334
    with pytest.raises(StudyError, match=r"at least the 5 of scoring\.anchors"):
        Scoring(pool=4)
    assert Scoring(anchors=0, pool=1).anchors == 0


@pytest.mark.parametrize(("group", "values"), ENDS)
def test_the_ends_of_every_range_are_accepted(group, values):
    assert asdict(group(**values)) == asdict(group()) | values


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
