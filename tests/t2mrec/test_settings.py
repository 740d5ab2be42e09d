"""Every setting is checked where it is made, and the error names the key and what to give instead."""

import pytest

from study.base.errors import StudyError
from study.t2mrec.settings import Lexical, Scoring, Towers, Training

WRONG = [(Lexical, "ngrams", [2, 1]), (Lexical, "ngrams", [1, True]), (Towers, "layers", 1)]
WRONG += [(Training, "loss", "triplet"), (Training, "temperature", float("nan"))]
WRONG += [(Scoring, "semantic_weight", 1.01), (Scoring, "expansion", 0)]
WRONG += [(Training, "weight_decay", 1000.0)]  # times the learning rate, it would turn the weights round


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
