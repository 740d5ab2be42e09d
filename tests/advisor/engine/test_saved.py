"""Which models can be saved and are there: what is refused, listed and read ahead, and which command a hint names."""

import shutil
from threading import Event

import pytest
from hydra.utils import get_object

from study.advisor.encoders import mpnet
from study.advisor.retrieval.field_dense import FieldDense
from study.advisor.saved import ahead, saved
from study.base.errors import StudyError
from study.config.compose import choices, load
from study.reranking.pools import PooledT2MRec
from study.reranking.system import RerankedT2MRec
from study.search.export import export
from study.t2mrec.system import T2MRec
from tests.tiny_study import TINY

pytestmark = pytest.mark.usefixtures("project")
FETCH = "study fetch dataset=synthetic && study prepare dataset=synthetic"
SPLIT, EXPORT = "study split dataset=synthetic", "study export dataset=synthetic system=field_dense"
ALL_STAGES = f"{FETCH} && {SPLIT} && {EXPORT}"
UNSAVED = {
    "--system tfidf": "tfidf cannot be saved\n  fix: one of: field_dense, ",
    "--system t2mrek": "unknown system 't2mrek'\n  fix: did you mean t2mrec",
    "--system ../../etc": "unknown system '../../etc'\n  fix: one of: field_dense, ",
    "--dataset livemcpbench": "no label file\n  fix: one of: synthetic, task2mcp\n",
    "--system field_dense_core": f"fix: run: {EXPORT}_core\n",
    "--dataset task2mcp": f"fix: run: {ALL_STAGES}\n".replace("synthetic", "task2mcp"),
}
UNSAVABLE = [([f"system={name}"], f"can be saved, not {name}") for name in ("popularity", "t2mrec_listwise")]
UNSAVABLE += [(["system=field_dense", "protocol=warm"], "not applicable under 'warm'")]


@pytest.fixture
def empty(project, new_root):
    """A root that holds nothing but the configuration, in force for the test."""
    (new_root / "conf").symlink_to(project / "conf")
    return new_root


def test_a_warning_names_the_saved_system_that_reads_the_attribute(project, empty):
    shutil.copytree(project / "models", empty / "models")
    t2mrec = empty / "models" / "synthetic" / "t2mrec" / "model.json"
    for there in (False, True):
        if there:
            t2mrec.parent.mkdir()
            t2mrec.write_text("{}")
        model = saved.load_saved_model("synthetic", "field_dense")
        # T2MRec reads no subcategory without its category.
        warnings = model.warnings("read a table", language="Go", subcategory="b")
        assert ["--system t2mrec" in warning for warning in warnings] == [there, False]


@pytest.mark.parametrize("words", UNSAVED)
def test_what_was_not_saved_is_refused_with_what_can_be_done(ask, words):
    code, out, err = ask("read a table", *words.split())
    assert (code, out) == (2, "")
    assert UNSAVED[words] in err


def test_a_variant_saved_under_a_name_of_its_own_is_found_and_listed(project, empty):
    shutil.copytree(project / "models" / "synthetic" / "field_dense", empty / "models" / "synthetic" / "my_variant")
    assert saved.choose("synthetic", "my_variant") == ("synthetic", "my_variant")
    with pytest.raises(StudyError, match="did you mean my_variant"):
        saved.choose("synthetic", "my_varian")


@pytest.mark.parametrize("system", [(), ("--system", "t2mrec")])
def test_invented_servers_answer_only_where_they_are_named(call, project, system):
    """Models of generated data are there: without their name, the commands that bring real data are told instead."""
    code, out, err = call("recommend", "read a PDF", *system)
    assert (code, out) == (2, "")
    for command in ("study fetch dataset=task2mcp", "study prepare dataset=task2mcp", "study export dataset=task2mcp"):
        assert command in err
    code, out, _ = call("recommend", "read a PDF", "--dataset", "synthetic")
    assert code == 0
    assert "INVENTED SERVERS" in out


def test_the_stages_before_an_export_are_named_where_their_files_are_missing(project, empty):
    assert saved.how_to_save("synthetic", "field_dense") == ALL_STAGES
    shutil.copytree(project / "data" / "prepared", empty / "data" / "prepared")
    assert saved.how_to_save("synthetic", "field_dense") == f"{SPLIT} && {EXPORT}"
    shutil.copytree(project / "data" / "splits", empty / "data" / "splits")
    assert saved.how_to_save("synthetic", "field_dense") == EXPORT


@pytest.mark.slow
def test_the_systems_listed_are_those_that_export_accepts():
    """What the files say agrees with the classes, for every system whose class is one of the two that can be saved."""
    listed = set(saved.savable())
    for name in choices("system"):
        config = load([f"system={name}"]).system
        cls = get_object(config.model._target_)
        bases = cls.__mro__ if isinstance(cls, type) else ()
        two_tower = T2MRec in bases and not {RerankedT2MRec, PooledT2MRec} & set(bases)
        trained = two_tower and config.model.towers.enabled and config.model.lexical.kind == "tfidf"
        assert (name in listed) == (FieldDense in bases or trained), name
        assert name not in listed or "cold" in config.protocols  # the protocol of `study export`
    assert {"field_dense", "field_dense_core", "t2mrec", "t2mrec_tuned"} <= listed
    assert not {"tfidf", "t2mrec_wo_lexical", "t2mrec_wo_two_tower", "_template"} & listed
    assert not {"t2mrec_listwise", "t2mrec_llm"} & listed  # the re-ranker would be missing
    assert "t2mrec_same_training" not in listed  # the pools of a file have no model


def test_a_damaged_file_of_the_configuration_is_not_listed(project, empty):
    (empty / "conf").unlink()
    shutil.copytree(project / "conf", empty / "conf")
    damage = {"damaged": "model: [", "listed": "- a list", "lost": "of: nowhere"}
    for name, text in damage.items():
        (empty / "conf" / "system" / "own" / f"{name}.yaml").write_text(text)
    assert not set(damage) & set(saved.savable())
    assert "field_dense" in saved.savable()


def test_only_what_can_be_saved_is_exported():
    for overrides, reason in UNSAVABLE:
        with pytest.raises(StudyError, match=reason):
            export(load([*TINY, *overrides]))


@pytest.mark.parametrize(("saved", "fails"), [(True, False), (True, True), (False, False)])
def test_the_encoder_is_read_once_and_waited_for_where_a_saved_system_needs_it(monkeypatch, saved, fails):
    go, done = Event(), []

    def encode(texts, *, store):
        assert go.wait(10)
        done.append(texts)
        if fails:
            raise StudyError("not there", fix="fetch it")

    monkeypatch.setattr(mpnet, "encode", encode)
    monkeypatch.setattr(
        ahead, "exists", lambda dataset, system: saved and (dataset, system) == ("toy", ahead.USEFUL[0])
    )
    monkeypatch.setattr(ahead, "limit_threads", done.append)
    thread = ahead.read_ahead("toy", ahead.USEFUL[0])
    assert done == [1] * saved  # one thread; nothing waits for the encoder
    go.set()
    if saved:
        thread.join()
    assert len(done) == 2 * saved
