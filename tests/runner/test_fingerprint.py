"""Which rows a change of code makes stale: exactly those whose classes import it, and only if a statement changed."""

import shutil

import pytest

from study.config.compose import load
from study.runner.fingerprint import closure, inputs
from tests.tiny_study import REPOSITORY, rooted

SYSTEMS = ["ease", "item_knn", "item_knn_transfer", "task_knn", "tfidf", "lightgcn", "tiger"]
SYSTEMS += ["t2mrec", "t2mrec_field_dense"]
# File of code -> the systems that import it.
IMPORTING = {
    # Two imports away: t2mrec.system -> t2mrec.lexical; task_knn -> lexical; knn_transfer -> task_knn -> lexical.
    "src/study/t2mrec/lexical.py": {"t2mrec", "t2mrec_field_dense", "task_knn", "item_knn_transfer", "tfidf"},
    "baselines/neighbours.py": {"item_knn", "item_knn_transfer"},
    "baselines/recbole_runner.py": {"lightgcn"},  # named in a text alone, as the program of a subprocess
    "src/study/usefulness/texts.py": {"t2mrec_field_dense"},  # the code of the teacher that its yaml names
    "src/study/data/dataset.py": set(SYSTEMS),
    "src/study/evaluation/ranking.py": set(SYSTEMS),  # imported by few, but its rule for ties decides every row
    "src/study/pipeline/report.py": set(),
    "src/study/errors.py": set(),  # the ground decides no number
}


@pytest.fixture(scope="module")
def configs():
    """The settings of every system, which no test changes."""
    return {name: load([f"system={name}"]) for name in SYSTEMS}


@pytest.fixture
def root(tmp_path):
    """A copy of the code, which a test may change."""
    for folder in ("src", "baselines"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=ignored)
    (tmp_path / "conf").symlink_to(REPOSITORY / "conf")  # settings name other systems' settings
    with rooted(tmp_path):
        yield tmp_path


def rows(configs):
    return {name: inputs(config) for name, config in configs.items()}


def stale(configs, before):
    return {name for name, value in rows(configs).items() if value != before[name]}


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(("file", "expected"), IMPORTING.items())
def test_a_statement_makes_those_stale_that_import_it(root, configs, file, expected):
    before = rows(configs)
    path = root / file
    path.write_text(path.read_text() + "\nCHANGED = 1\n")
    assert stale(configs, before) == expected


def test_comments_docstrings_and_layout_make_nothing_stale(root, configs):
    before = rows(configs)
    path = root / "src" / "study" / "data" / "dataset.py"
    edit(path, '"""', '"""Another sentence. ')
    edit(path, "import numpy as np\n", "import numpy as np  # a comment\n\n# and one more\n")
    edit(path, "return len(self.servers)", "return (\n            len(self.servers)\n        )")
    assert stale(configs, before) == set()
    edit(path, "return (\n            len(self.servers)", "return (\n            1 + len(self.servers)")
    assert stale(configs, before) == set(SYSTEMS)


def test_imports_for_type_checkers_do_not_count(root, configs):
    before = rows(configs)
    path = root / "baselines" / "ease.py"
    path.write_text(path.read_text() + "\nif TYPE_CHECKING:\n    from baselines import cosine\n")
    assert stale(configs, before) == {"ease"}  # its own text changed
    assert "baselines.cosine" not in closure(["baselines.ease"])
    path.write_text(path.read_text() + "\ndef late():\n    from baselines import cosine\n")
    assert "baselines.cosine" in closure(["baselines.ease"])
