"""Reference scores: every system computes what is stored, and a change of what it computes is named."""

import inspect
import shutil
import sys
import types
from functools import cache

import numpy as np
import pytest

from baselines import popularity
from study.base import paths
from study.base.registry import OWN, folder_of, system_file
from study.config import compose
from study.runner import reference
from study.runner.identity import CLASSES, read_versions
from study.runner.reference import EVALUATOR, Entry, Run, Scores, differs, read_entries
from study.runner.toy_fits import SCHEDULES, Case, cases, model_settings, starts_program
from tests.tiny_study import REPOSITORY

# `study run` stores entries of own ones.
SYSTEMS = [name for name in compose.choices("system") if folder_of(name) != OWN]
IN_PROCESS = [name for name in SYSTEMS if not starts_program(name)]
CASES = [Case(EVALUATOR, ""), *cases(SYSTEMS)]
# Their scores hold numbers that are random, that start from random ones for each server, or that differ otherwise, so
# that no two are equal; by the start of their names.
NO_TIES = (
    *("cvh_rec", "gdsrec", "intent", "lc_rec", "lightgcn", "mf_softmax", "mpt_rec", "msbpr", "openp5", "random"),
    *("recafr", "rrf_tuned", "t2mrec_listwise", "t2mrec_wo_cl_program", "tiger"),
)
# Some that take no time, for tests of the command.
QUICK = ["bm25", "popularity", "popularity_subcategory", "popularity_theme", "random"]


@pytest.fixture(scope="module")
def stored() -> dict[Case, Entry]:
    return read_entries()


@cache
def run(case: Case) -> Run:
    """With the stored settings, which a change of conf/ leaves alone."""
    return reference.compute(case, read_entries()[case].model())


def marked(case: Case) -> object:
    """Slow where a fit starts a program."""
    slow = case.system not in (EVALUATOR, *IN_PROCESS)
    return pytest.param(case, id="-".join(case), marks=pytest.mark.slow if slow else [])


@pytest.mark.parametrize("case", list(map(marked, CASES)))
def test_a_system_computes_its_reference_scores(case: Case, stored: dict[Case, Entry]) -> None:
    assert case in stored, f"no entry: run `study reference --update {case.system}`"
    assert run(case).encoders <= set(read_versions()[case.system].encoders)
    assert differs(stored[case].scores, run(case).scores, case.system) is None


def test_every_system_has_a_version_and_nothing_that_is_none(stored: dict[Case, Entry]) -> None:
    assert {EVALUATOR, *SYSTEMS} <= read_versions().keys() <= {EVALUATOR, *compose.choices("system")}
    assert {case.system for case in stored} == read_versions().keys()


@pytest.mark.parametrize("system", IN_PROCESS)
def test_the_toys_make_a_system_stop_early_go_on_and_break_a_tie(system: str) -> None:
    runs = [run(case) for case in cases([system])]
    keys = list(_keys(model_settings(cases([system])[0])))
    if any(key == "patience" and value is not None for key, value in keys):
        longest = SCHEDULES["patience"]["epochs"]
        assert any(each.epochs < longest for each in runs)
    if "checkpoint_seconds" in dict(keys) or ("checkpoint_every" in dict(keys) and ("enabled", False) not in keys):
        assert any(each.resumed for each in runs)
    assert any(each.tie for each in runs) != system.startswith(NO_TIES)


def _keys(value):
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield key, item
        yield from _keys(item)


SCORES = Scores(
    np.array([3.0, -2.0, 0.0, -np.inf], np.float32),
    np.array([4, 7, 1, 0, 2, 3, 5, 6, 8, 9, -1]),
    np.array([0.9, 0.7, 0.7, 0.500001, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, -np.inf], np.float32),
    0.5,
)


def test_servers_may_change_ranks_where_rounding_decides_and_scores_differ_by_a_ten_thousandth() -> None:
    # Equal scores; some that differ by rounding; others.
    for one, other, same in ((1, 2, False), (3, 4, True), (0, 1, False), (4, 5, False)):
        order = np.arange(11)
        order[[one, other]] = other, one
        assert (differs(SCORES, SCORES._replace(top=SCORES.top[order])) is None) == same
    for factor, place, same in ((1.00005, 0, True), (1.0003, 0, False), (0.9997, 1, False), (1.00005, 1, True)):
        scores = SCORES.scores.copy()
        scores[place] *= factor
        assert (differs(SCORES, SCORES._replace(scores=scores)) is None) == same
    assert differs(SCORES, SCORES._replace(scores=np.array([3, -2, -np.inf, -np.inf], np.float32))) == "scores"
    assert differs(SCORES, SCORES._replace(scores=SCORES.scores[:3])) == "other tasks or servers"
    assert differs(SCORES, SCORES._replace(ndcg=0.51)) == "NDCG@10"


@pytest.fixture
def quick_root(conf_root):
    """A study with the systems of `QUICK` alone, and their reference scores."""
    for file in (conf_root / "conf/system").glob("*/[!_]*.yaml"):
        if file.stem not in QUICK:
            file.unlink()
    shutil.copytree(REPOSITORY / "tests/reference", conf_root / "tests/reference")
    return conf_root


def test_one_changed_line_of_a_helper_names_the_three_systems_that_share_it(quick_root, call, monkeypatch) -> None:
    line = "combined = counts.astype(np.int64) * (rank.max(initial=0) + 1) + rank"
    source = inspect.getsource(popularity.refine)
    assert line in source
    scope = dict(vars(popularity))
    exec(source.replace(line, line.replace("(rank", "-(rank")), scope)
    assert call("reference")[0] == 0
    monkeypatch.setattr(popularity, "refine", scope["refine"])
    code, printed, error = call("reference")
    named = [line.partition(":")[0] for line in printed.splitlines()]
    assert (code, named) == (2, ["popularity", "popularity_subcategory", "popularity_theme"])
    assert "study reference --update popularity popularity_subcategory popularity_theme" in error
    before = read_versions()
    assert call("reference", "--update")[0] == 0
    after = read_versions()
    raised = {name for name in QUICK if after[name].version == before[name].version + 1}
    assert raised == set(named)
    assert call("reference")[0] == 0


def test_a_system_without_an_entry_is_an_error_and_entries_of_one_that_is_gone_go(quick_root, call) -> None:
    path = paths.conf() / "system/own/bm25_other.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text("of: bm25\n")
    code, printed, _ = call("reference", "bm25_other", "random")
    assert (code, printed) == (2, "bm25_other: cold: no entry; cold_grouped: no entry; loo: no entry; warm: no entry\n")
    assert call("reference", "--update", "bm25_other")[0] == 0
    assert read_versions()["bm25_other"].version == 1
    assert call("reference", "bm25_other")[0] == 0
    path.unlink()
    system_file("random").unlink()
    assert call("reference", "--update", "bm25")[0] == 0
    assert read_versions().keys() == {EVALUATOR, *QUICK} - {"random"}
    code, _, error = call("reference", "random")
    assert (code, "no system 'random'" in error) == (2, True)


def test_other_settings_are_no_other_code(quick_root, call) -> None:
    path = system_file("popularity_theme")
    versions, before, text = read_versions(), read_entries(), path.read_text()
    path.write_text(text.replace("levels: [theme", "levels: [category"))
    assert path.read_text() != text
    assert call("reference", "popularity_theme")[:2] == (0, "")
    assert call("reference", "--update", "popularity_theme")[0] == 0
    case = Case("popularity_theme", "cold")
    assert read_versions() == {name: own for name, own in versions.items() if name in {EVALUATOR, *QUICK}}
    assert differs(before[case].scores, read_entries()[case].scores)
    assert call("reference", "popularity_theme")[:2] == (0, "")


def test_a_class_that_moved_is_named_until_its_line_is_in_the_table(quick_root, call, monkeypatch) -> None:
    moved = types.ModuleType("baselines.moved")
    moved.Popular = popularity.Popularity
    monkeypatch.setitem(sys.modules, "baselines.moved", moved)
    monkeypatch.delattr(popularity, "Popularity")
    for file in (quick_root / "conf/system").glob("*/popularity*.yaml"):
        file.write_text(file.read_text().replace("baselines.popularity.Popularity", "baselines.moved.Popular"))
    code, printed, _ = call("reference")
    assert code == 2
    assert "there is no class 'baselines.popularity.Popularity'" in printed
    monkeypatch.setitem(CLASSES, "baselines.popularity.Popularity", "baselines.moved.Popular")
    assert call("reference")[:2] == (0, "")
