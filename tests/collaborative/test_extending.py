"""The walk-through of docs/extending.md does what it says."""

from __future__ import annotations

import importlib
import re

import numpy as np
import yaml
from baseline_toys import block_dataset

from study import paths
from study.data.splits import make

GUIDE = paths.root() / "docs" / "extending.md"
TEMPLATE = paths.root() / "conf" / "system" / "_template.yaml"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)


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
