"""What the rule baseline rests on: variants on planted labels, and the sentences about labels and tasks."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from study import paths
from study.analysis.audit import labels_settings, labels_text, lists_text, rules
from study.analysis.audit.labels_settings import Rules
from study.analysis.audit.paper_cells import AuditTables
from study.analysis.audit.provenance import RELEASED
from study.config.compose import load
from study.config.schema import choices
from study.errors import StudyError

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = labels_settings.read(Rules)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A small synthetic data set, split."""
    from study.pipeline.data import fetch, prepare, split

    folder = tmp_path_factory.mktemp("rules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(folder))
        shutil.copytree(ROOT / "conf", folder / "conf")
        config = load(["dataset=synthetic", "dataset.generator.n_servers=150", "dataset.generator.n_tasks=200"])
        fetch(config)
        prepare(config)
        with pytest.raises(StudyError, match="no split"):
            rules.compute(load(["dataset=synthetic"]))
        split(config)
    return folder


def test_the_table_holds_every_variant_on_both_parts(root, monkeypatch):
    monkeypatch.setenv("T2M_ROOT", str(root))
    written = rules.compute(load(["dataset=synthetic"]))
    assert [path.name for path in written] == ["rules.csv"]
    table = pd.read_csv(written[0]).set_index(["variant", "part", "metric"]).sort_index()
    assert len(table) == (len(SETTINGS.variants) + len(SETTINGS.others)) * 2 * len(SETTINGS.metrics)
    assert set(SETTINGS.others) <= set(table.index.get_level_values("variant"))
    assert (table["low"] <= table["mean"]).all()
    assert (table["mean"] <= table["high"]).all()
    first = next(iter(SETTINGS.variants))
    assert table.loc[first, "difference"].eq(0).all()
    for name in (*SETTINGS.variants, *SETTINGS.others):
        gap = table.loc[name, "mean"] - table.loc[first, "mean"]
        np.testing.assert_allclose(table.loc[name, "difference"], gap, atol=1e-5)
    # Labels follow topics here, which only counts know of beyond the words.
    ndcg = table.xs("ndcg@10", level="metric")["mean"]
    assert (ndcg["counts of the four groups alone"] > ndcg["words alone"]).all()
    assert paths.results("synthetic").joinpath("audit", "rules.json").exists()
    said = labels_text.about_rules(AuditTables("synthetic"))
    value = ndcg["words alone", "test"]
    assert f"words alone {value:.3f}" in said
    assert "valid tasks" in said


def test_the_variants_change_settings_that_the_system_has():
    model = load([f"system={SETTINGS.system}"]).system.model
    assert SETTINGS.system in choices("system")
    assert next(iter(SETTINGS.variants.values())) == {}
    for name, changes in SETTINGS.variants.items():
        changed = rules.configured(SETTINGS, "synthetic", changes).system.model
        assert {key for key in model if changed[key] != model[key]} == set(changes), name


def test_a_misspelt_key_is_an_error(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(vars(SETTINGS) | {"varients": {}}))
    with pytest.raises(StudyError, match="varients"):
        labels_settings.read(Rules, path)


def test_the_sentence_on_twins_sets_a_difference_against_the_reference():
    shares = pd.DataFrame([{"protocol": "cold", "kind": "any_twin", "n": 200, "share": 0.4, "low": 0.3, "high": 0.5}])
    rows = [
        {
            "system": system,
            "metric": "ndcg@10",
            "kind": "any_twin",
            "protocol": "cold",
            "mean_twin": 0.2 + gain,
            "mean_other": 0.1,
            "excess_bm25": gain,
            "excess_bm25_low": gain - 0.01,
            "excess_bm25_high": gain + 0.01,
        }
        for system, gain in (("bm25", 0.0), ("t2mrec", 0.125))
    ]
    said = labels_text.about_twins({"leakage": shares, "copying": pd.DataFrame(rows)})
    assert "40.0 % [30.0, 50.0] of 200 test tasks have a twin" in said
    assert "bm25, which reads no label and cannot copy, has NDCG@10 0.200 with and 0.100 without" in said
    assert "t2mrec 0.125 [0.115, 0.135] (cold)" in said


def test_the_sentence_on_signs_keeps_walks_apart():
    names = ("any rule of order", "any sign of content", "long_run", "none")
    orders = pd.DataFrame(
        [
            {"order": order, "class": name, "share": share, "low": share - 0.01, "high": share + 0.01}
            for order, shares in (("as stated", (0.2, 0.4, 0.1, 0.3)), ("other", (0.05, 0.55, 0.1, 0.3)))
            for name, share in zip(names, shares, strict=True)
        ]
    )
    detectors = pd.DataFrame(
        [
            {
                "detector": name,
                "n": 1000,
                "share": 0.25,
                "low": 0.24,
                "high": 0.26,
                "chance": 0.1,
                "kept": 0.02,
                "kept_high": 0.03,
                "even": 0.04,
                "even_high": 0.05,
            }
            for name in ("any rule of order", "any detector", "long_run", "language_run", "alphabetical", "balancing")
        ]
    )
    said = labels_text.about_signs({"class_orders": orders, "detectors": detectors})
    assert "Of 1,000 labels 20.0 % [19.0, 21.0] have a class that is a walk" in said
    assert "by other orders of the detectors walks have 5.0 to 20.0 %" in said
    assert "for at most 5.0 % where other servers stand in the same order" in said
    assert "alphabetical 25.0 % (2.0 to 4.0 %)" in said


def test_the_sentence_on_what_systems_find_sets_them_against_the_labels():
    rows = [
        (name, detector, 9, share, share - 0.01, share + 0.01)
        for name, share in ((RELEASED, 0.3), ("bm25", 0.02))
        for detector in ("alphabetical", "any rule of order")
    ]
    table = pd.DataFrame(rows, columns=["lists", "detector", "tasks", "share", "low", "high"])
    said = labels_text.about_retrieved({"retrieved_walks": table})
    assert "9 test tasks" in said
    assert "walk in bm25 2.0 % [1.0, 3.0]; the labels of the same tasks in 30.0 % [29.0, 31.0]" in said
    assert "does not explain" in said
    said = labels_text.about_retrieved({"retrieved_walks": table.assign(low=0.0, high=0.5)})
    assert "does not explain" not in said


def test_sentences_on_lists_and_their_use():
    lists = pd.DataFrame({"observed": [2.0, 1.0], "chance_high": [1.0, 1.5], "n_lists": 1200, "permutations": 9})
    assert "1 of 2 measures of order and repetition of the 1,200 lists" in lists_text.about_lists(
        {"label_lists": lists}
    )
    same = {
        f"{kind}_{name}": value
        for kind, value in (("same", 0.5), ("chance", 0.1))
        for name in ("theme", "language", "subcategory", "order")
    }
    groups = pd.DataFrame(
        [
            {"size": 7, "groups": 1, "tasks": 7, "pairs": 21} | same,
            {"size": 0, "groups": 4, "tasks": 13, "pairs": 27} | same,
        ]
    )
    said = lists_text.about_groups({"label_groups": groups})
    assert "4 sets of servers belong to more than one task, 13 tasks in all, up to 7 to one set" in said
    assert "theme in 50.0 % (all pairs of tasks: 10.0 %)" in said
    use = pd.DataFrame(
        [{"measure": "unused", "observed": 3.0, "chance": 1.0, "chance_low": 0.0, "chance_high": 2.0, "draws": 5}]
    )
    assert "unused 3 (1, 0 to 2)" in lists_text.about_use({"label_use": use})


def test_sentences_on_subcategories_and_grouped_splits():
    rows = [("a", "language_run", 10), ("a", "alphabetical", 10), ("a", "none", 80), ("b", "balancing", 5)]
    table = pd.DataFrame(rows, columns=["name", "class", "labels"]).assign(scope="subcategory", n=100)
    said = lists_text.about_subcategories({"provenance": table})
    assert "from 5.0 % (b: 5 of 100) to 20.0 % (a: 20 of 100)" in said
    grouped = pd.DataFrame(
        [
            {
                "system": system,
                "metric": metric,
                "first": 0.3,
                "second": 0.3 - gap,
                "difference": gap,
                "difference_low": gap - 0.05,
                "difference_high": gap + 0.05,
                "first_protocol": "cold",
                "second_protocol": "cold_grouped",
                "n_first": 9,
                "n_second": 8,
            }
            for system, gap in (("even", 0.01), ("copier", 0.2))
            for metric in ("recall@10", "ndcg@10")
        ]
    )
    said = lists_text.about_grouped({"grouped": grouped})
    assert "1 of 2 systems lose ndcg@10 beyond the 95 % interval over tasks, 0 gain; lost: copier 0.200" in said
    assert lists_text.grouped_rows({"grouped": grouped})["system"].tolist() == ["copier", "even"]


def test_the_sentence_on_tasks_names_the_blocks():
    pairs = (("name", "description", "within subcategory"), ("description", "theme", "all tasks"))
    table = pd.DataFrame(
        [
            {
                "block": block,
                "left": left,
                "right": right,
                "shuffled_in": how,
                "auc": 0.5,
                "auc_low": 0.4,
                "auc_high": 0.6,
            }
            for block in ("all", "up to task 9")
            for left, right, how in pairs
        ]
    )
    reading = pd.DataFrame(
        [{"block": "all", "code": "contradictory", "tasks": 4, "n": 10, "share": 0.4, "low": 0.2, "high": 0.7}]
    )
    said = labels_text.about_quality({"task_quality": table, "task_quality_reading": reading})
    assert "up to task 9: name and description 0.500 [0.400, 0.600]" in said
    assert "Of 10 tasks that a language model read once, 4 have" in said
    assert "there is no second reading" in said
    assert "read once" not in labels_text.about_quality({"task_quality": table})


def test_a_missing_table_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "results", lambda dataset: tmp_path / dataset)
    found = list(labels_text.sentences(AuditTables("toy")))
    found += labels_text.sentences(AuditTables("toy"), lists_text.PARTS)
    assert len(found) == len(labels_text.PARTS) + len(lists_text.PARTS)
    assert all("has not been made (run: study audit run dataset=toy" in text for text in found)
