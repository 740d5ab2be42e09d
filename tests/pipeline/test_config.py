"""Composing the configuration: every choice composes and instantiates; wrong overrides are named."""

from pathlib import Path

import pytest
import yaml

from study.config import GROUPS, build_system, choices, load
from study.errors import StudyError
from study.pipeline.plan import plan
from study.system import System

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("system", choices("system"))
def test_every_system_composes_and_instantiates(system: str) -> None:
    config = load([f"system={system}"])
    assert config.system.name == system
    assert (ROOT / config.system.code).exists()
    assert config.system.title
    assert set(config.system.protocols) <= set(choices("protocol"))
    built = build_system(config.system)
    assert callable(built.fit)
    assert callable(built.score)
    _: System = built


@pytest.mark.parametrize("profile", choices("profile"))
@pytest.mark.parametrize("dataset", choices("dataset"))
def test_every_profile_and_dataset_composes(profile: str, dataset: str) -> None:
    assert load([f"profile={profile}", f"dataset={dataset}"]).dataset.name == dataset


@pytest.mark.parametrize("group", GROUPS)
def test_unknown_choice_lists_the_known_ones(group: str) -> None:
    with pytest.raises(StudyError, match=f"unknown {group} 'nonsense'") as caught:
        load([f"{group}=nonsense"])
    assert choices(group)[0] in str(caught.value)


@pytest.mark.parametrize("override", ["system.model.nonsense=1", "nonsense=1", "dataset.generator.n_server=9", "a b"])
def test_unknown_or_malformed_override_is_an_error(override: str) -> None:
    with pytest.raises(StudyError, match="does not compose"):
        load([override])


def test_epochs_scale_with_the_profile() -> None:
    assert load(["profile=laptop", "dataset=task2mcp"]).system.model.training.epochs == 200
    assert load(["profile=smoke", "dataset=task2mcp"]).system.model.training.epochs == 4
    assert build_system(load(["profile=smoke", "dataset=task2mcp"]).system).training.epochs == 4
    assert load(["profile=laptop", "dataset=synthetic"]).system.model.training.epochs == 80


def test_paper_settings_are_the_defaults() -> None:
    built = build_system(load().system)
    assert (built.towers.hidden, built.towers.output, built.towers.layers, built.towers.dropout) == (512, 256, 3, 0.2)
    assert (built.training.temperature, built.training.learning_rate, built.training.batch_size) == (0.07, 1e-3, 256)
    assert (built.scoring.semantic_weight, built.scoring.anchors, built.scoring.pool) == (0.9, 5, 20)


def test_committed_plan_is_up_to_date() -> None:
    assert yaml.safe_load((ROOT / "plan.yaml").read_text()) == plan(), "run: study plan"


def test_loading_works_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load().dataset.name == "synthetic"
