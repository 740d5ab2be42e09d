"""Settings of RecBole models: what RecBole would take in silence is refused."""

import pytest

from baselines.recbole_settings import known
from study.config.compose import build_system, load
from study.errors import StudyError


@pytest.mark.parametrize(
    ("system", "setting", "nearest"),
    [
        ("bpr", "learning_rat: 0.5", "learning_rate"),
        ("neumf", "mlp_hidden_sizes: [8]", "mlp_hidden_size"),
        ("bpr", "n_layers: 3", "one of"),  # a setting of another model
        ("simplex", "train_neg_sample_args: {sample_nums: 50}", "sample_num"),
        ("ngcf_transfer", "learning_rat: 0.5", "learning_rate"),  # a model within another system
    ],
)
def test_a_key_that_recbole_does_not_know_is_named_with_the_nearest(system, setting, nearest):
    config = load([f"system={system}"])
    place = config.system.model.base if system.endswith("_transfer") else config.system.model
    key, _, value = setting.partition(": ")
    place.settings = dict(place.settings) | {key: {"sample_nums": 50} if "{" in value else value}
    with pytest.raises(StudyError, match="RecBole's") as caught:
        build_system(config.system)
    assert caught.value.column.split(".settings.")[1].startswith(key)
    assert caught.value.column.startswith("model.base" if system.endswith("_transfer") else "model.settings")
    assert nearest in caught.value.fix


def test_known_settings_are_those_of_training_and_of_the_model_alone():
    assert {"learning_rate", "train_neg_sample_args", "hidden_size_list", "node_dropout"} <= set(known("NGCF"))
    assert "mlp_hidden_size" not in known("NGCF")
