"""The walk-through of docs/extending.md does what it says."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import baselines
from study import paths
from study.cli.main import app
from study.config.compose import load
from study.data.splits import make
from study.errors import StudyError
from study.search.tune import present_values
from tests.baselines.collaborative_toys import quality, told_apart
from tests.baselines.recbole_toys import in_subprocess, toy, toy_planted, untuned
from tests.baselines.toys import block_dataset
from tests.config.test_comments import documented
from tests.tiny_study import REPOSITORY, SIZE, lay_out, rooted

GUIDE = REPOSITORY / "docs" / "extending.md"
TEMPLATE = REPOSITORY / "conf" / "system" / "_template.yaml"
TINY = [*SIZE, "profile=smoke"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def named_block(path: str) -> str:
    """The yaml that the guide shows for a file."""
    (found,) = (code for code in blocks("yaml") if code.startswith(f"# {path}"))
    return found


def filled_in(form: str, shown: str) -> str:
    """A yaml copied from `form`: values and `model` as the guide shows them, explanations as they stand in the form."""
    values, model = shown.split("model:\n")
    text = form.split("model:\n")[0]
    for key, value in re.findall(r"^(\w+): *(.*)$", values, re.MULTILINE):
        text, changed = re.subn(rf"^({key}: *)(\"[^\"]*\"|\[.*?\]|[^#\n]*?)( *#)", rf"\g<1>{value}\3", text, flags=re.M)
        assert changed == 1, key
    return f"{text}model:\n{model}"


def study(*words: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (words, done.output, done.exception)


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """The root of a tiny study to which the files of the guide were added."""
    root = tmp_path_factory.mktemp("study")
    lay_out(root)
    (root / "baselines").unlink()  # a link to this repository, which gets no file
    shutil.copytree(REPOSITORY / "baselines", root / "baselines", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "baselines" / "same_theme.py").write_text(blocks("python")[0])
    systems = root / "conf" / "system"
    for name, form in (("same_theme", "_template"), ("enmf", "lightgcn")):
        text = filled_in((systems / f"{form}.yaml").read_text(), named_block(f"conf/system/{name}.yaml"))
        (systems / f"{name}.yaml").write_text(text)
    (systems / "same_theme_tuned.yaml").write_text(named_block("conf/system/same_theme_tuned.yaml"))
    with rooted(root), pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "__path__", [*baselines.__path__, str(root / "baselines")])
        for stage in ("fetch", "prepare", "split"):
            study(stage, *TINY)
        yield root
    sys.modules.pop("baselines.same_theme", None)


def test_the_example_runs_and_is_short(tmp_path, monkeypatch):
    (code,) = blocks("python")
    assert len(code.splitlines()) < 60
    (tmp_path / "same_theme.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("same_theme")
    data = block_dataset()
    split = make(data, "cold")
    system = module.SameTheme(power=2.0)
    system.fit(data, split, seed=1, workdir=tmp_path)
    asked = split.tasks("test")
    known = data.tasks["theme"].to_numpy()
    expected = [split.train.toarray()[known == known[task]].sum(axis=0) ** 2 for task in asked]
    np.testing.assert_array_equal(system.score(asked), np.array(expected))


def test_the_template_has_every_key_and_explains_it():
    lines = TEMPLATE.read_text().splitlines()
    template = yaml.safe_load(TEMPLATE.read_text())
    for path in (paths.conf() / "system").glob("*.yaml"):
        assert set(yaml.safe_load(path.read_text())) - {"defaults"} <= set(template), path.name
    keys = [line for line in lines if re.match(r"\w+:", line) and not line.startswith("model:")]
    assert all("# " in line for line in keys)
    assert all(yaml.safe_load(code) for code in blocks("yaml"))


def test_the_commands_of_the_guide_run_the_example_and_tune_it(extended):
    (shown,) = (code for code in blocks("sh") if "study run" in code)
    commands = [line.split("#")[0].split() for line in shown.splitlines() if line.startswith("study ")]
    assert [words[1] for words in commands] == ["run", "tune", "run"]
    for _, stage, *words in commands:
        own = [word for word in words if not word.startswith("dataset=")]
        study(stage, *own, *TINY, *(["tuning.trials=2"] if stage == "tune" else []))
    results = extended / "results" / "synthetic"
    best = yaml.safe_load((results / "sweeps" / "same_theme_tuned" / "best.yaml").read_text())
    assert best["trials"] == 2
    powers = {}
    for name in ("same_theme", "same_theme_tuned"):
        written = json.loads((results / "records" / "cold" / f"{name}.json").read_text())
        powers[name] = written["config"]["system"]["model"]["power"]
    assert powers == {"same_theme": 1.0, "same_theme_tuned": best["values"]["power"]}


def test_a_searched_argument_without_a_value_names_the_file_to_write_it_in(extended):
    assert present_values(load(["system=same_theme_tuned"])) == {"power": 1.0}
    base = extended / "conf" / "system" / "same_theme.yaml"
    text = base.read_text()
    base.write_text(re.sub(r"\n  power: .*", "", text))
    try:
        with pytest.raises(StudyError, match="'power' is searched") as caught:
            present_values(load(["system=same_theme_tuned"]))
    finally:
        base.write_text(text)
    assert str(caught.value.file).endswith("same_theme_tuned.yaml")
    assert "below `model` in conf/system/same_theme.yaml" in caught.value.fix


@pytest.mark.parametrize("name", ["same_theme", "same_theme_tuned", "enmf"])
def test_every_key_of_the_guides_files_is_explained(name, extended):
    known, own = documented(extended / "conf" / "system" / f"{name}.yaml")
    assert [".".join(at) for at in own if not known[at]] == []


def test_a_recbole_model_needs_its_yaml_alone(extended):
    study("run", "system=enmf", "protocol=warm", *TINY)
    written = json.loads((extended / "results" / "synthetic" / "records" / "warm" / "enmf.json").read_text())
    assert written["config"]["system"]["model"]["model"] == "ENMF"
    # The tests of RecBole's models find it and have sizes for it.
    systems = in_subprocess()
    assert "enmf" in untuned(systems)
    assert toy_planted("enmf").settings["train_neg_sample_args"] is None


def test_the_guides_recbole_model_learns_the_toys_as_it_stands(extended, planted, floor, tmp_path):
    """With the bars of `test_recbole`, which asks the models of this repository."""
    data = block_dataset()
    split, known = make(data, "warm"), make(planted, "warm")
    small, large = toy("enmf"), toy_planted("enmf")
    small.fit(data, split, seed=1, workdir=tmp_path / "small")
    own, recall = told_apart(small, data, split)
    assert own >= 0.95
    assert recall >= 0.9
    large.fit(planted, known, seed=1, workdir=tmp_path / "large")
    assert quality(large, planted, known) > floor["warm"]
