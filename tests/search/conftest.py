"""A tiny study in a folder of its own, with small sweeps in its conf/."""

import shutil

import pytest
import yaml

from tests.tiny_study import rooted


def shrink(folder, name, **changes):
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes, sort_keys=False))


@pytest.fixture(scope="module")
def tiny(prepared_root, tmp_path_factory):
    """The root of a study of 60 servers and 80 tasks, prepared and split."""
    copy = tmp_path_factory.mktemp("sweeps") / "study"
    shutil.copytree(prepared_root, copy, symlinks=True)
    sweeps = copy / "conf" / "sweep"
    shrink(sweeps, "fusion_weight", seeds=[1, 2], space={"scoring.semantic_weight": {"choices": [0.0, 0.9, 1.0]}})
    shrink(sweeps, "temperature", seeds=[1, 2], space={"training.temperature": {"choices": [0.07, 0.5]}})
    shrink(sweeps, "joint", trials=3)
    with rooted(copy):
        yield copy
