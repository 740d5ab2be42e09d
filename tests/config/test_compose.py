"""Composing the configuration: every choice composes and instantiates; wrong overrides are named."""

import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf.errors import ReadonlyConfigError

from study.analysis.report.plots import FAMILIES
from study.base.errors import StudyError
from study.base.registry import FEW, folder_of, parents, system_file
from study.config import compose
from study.config.changes import change_settings, value_of, with_values
from study.config.compose import GROUPS, build_system, choices, load, sound_systems
from study.config.groups import FAMILIES as KINDS_OF_SYSTEMS
from study.search.all_rows import rows
from tests.tiny_study import keep_systems

# An override -> what its refusal says.
REFUSED = {
    "system.model.towers.hiden=1": "did you mean system.model.towers.hidden",
    "++epoch=3": "did you mean system.model.training.epochs",
    "+key=1": "one of: dataset, logger, profile, protocol, run_depth, ",
    "nonsense=1": "one of: dataset, logger, profile, protocol, run_depth, ",
    "dataset.generator.n_server=9": "did you mean dataset.generator.n_servers",
    "system.model.scoring.nonsense=1": "system.model.scoring.anchors, system.model.scoring.category",
    "system.protocols=[colt]": "did you mean cold",
    "system.title=中文": "quote",
}
REFUSED |= dict.fromkeys(["+system@other=tfidf", "~tuning", "tuning=3", "~profile.workers"], "")
OUT_OF_RANGE = [
    *("run_depth=9", "run_depth=10.5", "run_depth=true", "run_depth=many", "tuning.trials=many", "tuning.trials=0"),
    *("profile.workers=0", "profile.threads=-1", "profile.scale=0", "profile.seeds=[]", "dataset.scale=0"),
    *("system.rungs=[0.3,0]", "system.rungs=[]", "system.rungs=[1,0.3]", "system.rungs=[0.3,0.3]"),
    *("system.seeds=[]", "system.seeds=3", "system.seeds=threads", "system.seeds=[1,2,1]", "system.seeds=[1,x]"),
    *("system.seeds=[40000]", "system.name=../../etc", "system.name=''"),
]
REFUSED |= {override: override.partition("=")[0] for override in OUT_OF_RANGE}
TYPED = [("system/simple/tfidf", "sedes: [1]", "seeds"), ("dataset/synthetic", "label: x.csv", "labels")]
TYPED += [("protocol/cold", "sed: 3", "seed"), ("profile/laptop", "worker: 3", "workers")]
TYPED += [("config", "run_dept: 3", "run_depth")]
NEAREST = [("tfidf", "max_features", "max_feature"), ("t2mrec", "dropout", "model.towers.drop_out")]


@pytest.mark.parametrize("system", choices("system"))
def test_every_system_composes_and_instantiates(system: str) -> None:
    built = build_system(load([f"system={system}"]).system)
    # What {model_of: NAME} names is made, too.
    assert not [name for name, value in vars(built).items() if isinstance(value, dict) and "_target_" in value]


def test_every_profile_and_dataset_composes() -> None:
    for dataset, profile in [(d, "laptop") for d in choices("dataset")] + [("task2mcp", p) for p in choices("profile")]:
        assert load([f"profile={profile}", f"dataset={dataset}"]).dataset.name == dataset


@pytest.mark.parametrize("group", GROUPS)
def test_unknown_choice_names_the_nearest_and_lists_the_known_ones(group: str) -> None:
    name = choices(group)[0]
    with pytest.raises(StudyError, match=f"unknown {group} '{name}x'.*\n.*did you mean {name}") as caught:
        load([f"{group}={name}x"])
    listed = f"one of: {', '.join(choices(group))}" in str(caught.value)
    assert listed == (len(choices(group)) <= FEW)
    assert listed or f"{group}=? lists all {len(choices(group))}" in str(caught.value)


@pytest.mark.parametrize("override", REFUSED)
def test_a_wrong_override_is_refused_with_what_was_meant(override: str) -> None:
    with pytest.raises(StudyError) as caught:
        load([override])
    assert REFUSED[override] in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize(("name", "line", "meant"), TYPED)
def test_unknown_key_in_a_file_is_named_with_the_file(conf_root: Path, name: str, line: str, meant: str) -> None:
    file = f"{name}.yaml"
    path = conf_root / "conf" / file
    path.write_text(path.read_text() + f"\n{line}\n")
    with pytest.raises(StudyError, match="unknown key") as caught:
        load(["system=tfidf"])
    assert re.search(rf"did you mean (\w+\.)?{meant}\b", str(caught.value))
    assert file in str(caught.value)
    path.write_text("a: 1\na: 2")  # Hydra's own reader would take the last
    with pytest.raises(StudyError, match="written twice") as caught:
        load(["system=tfidf"])
    assert file in str(caught.value)


# A system's yaml with one line more -> what is said of it.
CLASS = "model: {_target_: baselines.cosine.Tfidf}"
BRIDGE = "_target_: baselines.recbole_bridge.RecBole"
BROKEN = {
    "model: null": "model",
    "model: {a: 1}": "names no class",
    "model: text": "model",
    "name: other\nmodel: {}": "the name is that of the file",
    "model: {_target_: pathlib.Path}": "has no fit",
    "model: {_target_: baselines.cosin.Tfidf}": "there is no class 'baselines.cosin.Tfidf'",
    "model: " + "[" * 3000 + "]" * 3000: "recursion",
    "model: {model_of: none}": "none",
    f"model: {{{BRIDGE}, model: LightGNC}}": r"model\.model\): .*'LightGNC'\n.*LightGCN",
    f"model: {{_target_: baselines.knn_transfer.KnnTransfer, base: {{{BRIDGE}, model: bpr}}}}": r"base\.model\): ",
    f"{CLASS}\nfamily: graphs": "'graphs'.*did you mean graph",
    f"{CLASS}\nfamily: [graph]": "family",
    f"{CLASS}\nprotocol: [cold]": "unknown key.*\n.*did you mean system.protocols",
    f"{CLASS}\ntrains: perhaps": "trains.*'perhaps'",
    f"{CLASS}\nsearch: [1]": "search",
    f"{CLASS}\nof: tfidff": "builds on 'tfidff'.*\n.*did you mean tfidf",
    f"{CLASS}\nof: mine": "builds on itself",
    f"{CLASS}\nvariants: [a]": "variants",
}
HEADS = {"protocols: [cold]": "title: a key is missing", "title: Mine": "protocols: a key is missing"}
HEADS |= {"title: [Mine]\nprotocols: [cold]": "title", "title: Mine\nprotocols: cold": "protocols"}
HEADS |= {"title: Mine\nprotocols: [colt]": "'colt'.*did you mean cold"}
YAMLS = {f"title: Mine\nprotocols: [cold]\n{line}\n": said for line, said in BROKEN.items()}
YAMLS |= {f"{head}\n{CLASS}\n": said.replace(": a key", r"\): .*a key") for head, said in HEADS.items()}


@pytest.fixture
def few(conf_root: Path) -> Path:
    """The file of a system of one's own, in a study of two others."""
    keep_systems(conf_root, "tfidf", "t2mrec")
    compose._sound_systems.cache_clear()
    return conf_root / "conf" / "system" / "own" / "mine.yaml"


@pytest.mark.parametrize("text", YAMLS)
def test_one_broken_system_is_named_and_stops_no_other(few: Path, text: str, caplog) -> None:
    few.write_text(text)
    with pytest.raises(StudyError, match=YAMLS[text]) as caught:
        build_system(load(["system=mine"]).system)
    assert "mine.yaml" in str(caught.value)
    assert caught.value.fix
    assert load(["system=tfidf"]).system.name == "tfidf"
    assert {"tfidf", "t2mrec"} == {*sound_systems()} - {"mine"}
    assert ("mine is left out" in caplog.text) == ("mine" not in sound_systems())


@pytest.mark.parametrize("name", ["tfidf", "tfidf_long"])
def test_a_file_of_ones_own_whose_name_is_taken_is_refused_and_stops_no_other(few: Path, name: str) -> None:
    """A new yaml called as a system of the study, or as a variant of one, must not stand aside in silence."""
    with system_file("tfidf").open("a") as file:
        file.write("variants:\n  long: {title: Long}\n")
    mine = few.with_name(f"{name}.yaml")
    mine.write_text(f"title: Mine\nprotocols: [cold]\n{CLASS}\n")
    with pytest.raises(StudyError, match=f"the name {name} is taken") as caught:
        load([f"system={name}"])
    assert str(mine) in str(caught.value)
    assert folder_of(name) != "own"
    assert name not in sound_systems()
    assert load(["system=t2mrec"]).system.name == "t2mrec"


def test_all_rows_go_on_without_a_broken_system(few: Path) -> None:
    few.write_text("model: [")
    broken: list[str] = []
    assert {row.system.name for row in rows(["dataset=synthetic"], broken)} == {"tfidf", "t2mrec"}
    assert [text.partition(" (")[0] for text in broken] == ["mine: cannot be read"]
    with pytest.raises(StudyError, match=r"mine\.yaml"):
        list(rows(["dataset=synthetic"]))


def test_a_root_that_holds_no_settings_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for root in (loop, tmp_path / "nowhere"):
        monkeypatch.setenv("T2M_ROOT", str(root))
        with pytest.raises(StudyError) as caught:
            load(["dataset=synthetic"])
        assert Path(str(caught.value.file)).is_relative_to(root / "conf")
        assert caught.value.fix


def test_every_kind_of_system_is_drawn() -> None:
    assert {*FAMILIES, "baseline"} == {*KINDS_OF_SYSTEMS}


@pytest.mark.parametrize(("system", "right", "place"), NEAREST)
def test_unknown_argument_of_a_model_names_the_nearest(conf_root: Path, system: str, right: str, place: str) -> None:
    wrong = place.rpartition(".")[2]
    path = next((conf_root / "conf" / "system").glob(f"*/{system}.yaml"))
    path.write_text(path.read_text().replace(f" {right}:", f" {wrong}:"))
    with pytest.raises(StudyError, match=f"no argument '{wrong}'") as caught:
        build_system(load([f"system={system}"]).system)
    assert f"did you mean {right}" in str(caught.value)
    assert place in str(caught.value)


def test_seeds_depend_on_the_protocol_and_epochs_on_the_profile_and_data() -> None:
    for protocol, seeds in (("cold", 5), ("cold_grouped", 3), ("warm", 3)):  # of an ablation
        config = load(["dataset=task2mcp", "system=t2mrec_wo_cl", f"protocol={protocol}"])
        assert list(config.system.seeds) == list(range(1, seeds + 1))
    of_profile = ("laptop", "task2mcp", 200), ("smoke", "task2mcp", 4), ("laptop", "synthetic", 50)
    for profile, dataset, epochs in of_profile:
        config = load([f"profile={profile}", f"dataset={dataset}"])
        assert build_system(config.system).training.epochs == config.system.model.training.epochs == epochs


def test_paper_settings_are_the_defaults() -> None:
    built = build_system(load().system)
    assert (built.towers.hidden, built.towers.output, built.towers.layers, built.towers.dropout) == (512, 256, 3, 0.2)
    assert (built.training.temperature, built.training.learning_rate, built.training.batch_size) == (0.07, 1e-3, 256)
    assert (built.scoring.semantic_weight, built.scoring.anchors, built.scoring.pool) == (0.9, 5, 20)


def test_the_configuration_is_read_only_and_a_changed_copy_leaves_it_as_it_is() -> None:
    config = load(["system=t2mrec", "dataset=task2mcp"])
    with pytest.raises(ReadonlyConfigError):
        config.protocol.name = "warm"
    copy = change_settings(config, {"protocol.name": "warm", "system.model.training": {"epochs": 3}})
    assert (copy.protocol.name, config.protocol.name) == ("warm", "cold")
    assert (copy.system.model.training.epochs, config.system.model.training.epochs) == (3, 200)
    assert copy.system.model.training.batch_size == 256  # laid over, not replaced
    other = change_settings(config, {"system.model.training": {"epochs": 3}}, merge=False)
    assert list(other.system.model.training) == ["epochs"]
    with pytest.raises(ReadonlyConfigError):
        copy.protocol.name = "loo"


VARIED = """
title: Mine
protocols: [cold]
model: {_target_: baselines.bm25.Bm25, k1: {smoke: 1.0, laptop: {scaled: 100}, full: 3.0}, b: 0.5}
variants:
  long: {title: Longer, model: {k1: {laptop: {scaled: 300}}}}
  plain: {of: long, title: Plain, model: {k1: 2.0}}
  other: {of: tfidf, title: Other}
  alone: {of: null, title: Alone, protocols: [warm], model: {model_of: mine, b: 0.1}}
"""


def test_a_variant_differs_from_its_parent_by_what_it_states(conf_root: Path) -> None:
    (conf_root / "conf" / "system" / "own" / "mine.yaml").write_text(VARIED)
    names = ["mine", "mine_alone", "mine_long", "mine_other", "mine_plain"]
    assert [name for name in choices("system") if name.startswith("mine")] == names
    assert {folder_of(name) for name in names} == {"own"}

    def model(name: str, profile: str) -> Any:
        config = load([f"system={name}", f"profile={profile}", "dataset=task2mcp"])
        assert config.system.name == name
        return config.system.model

    assert [model("mine", profile).k1 for profile in ("smoke", "laptop", "full")] == [1.0, 100, 3.0]
    assert [model("mine_long", profile).k1 for profile in ("smoke", "laptop", "full")] == [1.0, 300, 3.0]
    assert [model("mine_plain", profile).k1 for profile in ("smoke", "laptop")] == [2.0, 2.0]
    assert (model("mine_plain", "laptop").b, parents("mine_plain")) == (0.5, ["mine_long", "mine"])
    assert model("mine_other", "laptop") == load(["system=tfidf"]).system.model
    assert (model("mine_alone", "full").k1, model("mine_alone", "full").b) == (3.0, 0.1)
    assert load(["system=mine_alone"]).system.family == "baseline"
    assert parents("mine_alone") == []
    # On the command line, a size is one value, or that of one profile.
    assert load(["system=mine", "system.model.k1=7"]).system.model.k1 == 7
    assert load(["system=mine", "system.model.k1.laptop=8"]).system.model.k1 == 8
    assert load(["system=mine", "system.model.k1.full=8", "dataset=task2mcp"]).system.model.k1 == 100
    # A scale that changes later counts, as the trials of a search need.
    config = load(["system=mine", "dataset=task2mcp"])
    assert change_settings(config, {"profile.scale": 0.5}).system.model.k1 == 50


def test_four_keys_are_a_model_of_recbole(conf_root: Path) -> None:
    text = "title: ENMF\nrecbole: ENMF\nepochs: 20\nsettings: {embedding_size: 8}\n"
    (conf_root / "conf" / "system" / "own" / "enmf.yaml").write_text(text)
    system = load(["system=enmf", "dataset=task2mcp"]).system
    assert (list(system.protocols), system.trains, system.subprocess) == (["warm", "loo"], True, True)
    built = build_system(system)
    assert (built.model, built.epochs, built.patience, built.settings) == ("ENMF", 20, 10, {"embedding_size": 8})


def test_the_settings_of_a_base_that_is_another_system_are_overridden_like_others() -> None:
    model = load(["system=lightgcn_transfer", "system.model.base.settings.n_layers=7"]).system.model
    assert (model.base.settings.n_layers, model.base.patience) == (7, None)
    assert model.base.model == load(["system=lightgcn"]).system.model.model


def test_a_value_of_a_search_is_that_of_its_profile() -> None:
    name = "training.learning_rate.laptop"
    config, smaller = load(["system=tiger_tuned"]), load(["system=tiger_tuned", "profile=smoke"])
    assert value_of(config, name) == 0.004
    assert with_values(config, {name: 0.5}).system.model.training.learning_rate == 0.5
    assert with_values(smaller, {name: 0.5}) == smaller
    # A range keeps its proportion to the value in the yaml, which is half as large there.
    ranges = [config.system.search[name], smaller.system.search["training.learning_rate.smoke"]]
    assert ranges[1].low == pytest.approx(ranges[0].low / 2)


def test_a_file_that_changes_is_read_again_from_any_folder(conf_root: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(["system.title='中文'"]).system.title == "中文"
    assert load(["system=bm25"]).system.model.k1 == 1.2
    path = system_file("bm25")
    path.write_text(path.read_text().replace("k1: 1.2", "k1: 1.45"))
    assert load(["system=bm25"]).system.model.k1 == 1.45
