"""What scores of systems rest on: variants on planted labels, bugs by hand."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.audit import systems
from study.analysis.audit.systems import ReferenceBugs, Rules
from study.analysis.framework import load_settings, run_analyses
from study.base import paths
from study.base.errors import StudyError
from study.config.compose import load, sound_systems
from tests.analysis.toys import seeded, small_study
from tests.rows import put_row

RULES = load_settings(Rules)


def test_the_table_holds_every_variant_on_both_parts(tmp_path):
    size = ["dataset=synthetic", "dataset.generator.n_servers=150", "dataset.generator.n_tasks=200"]
    with small_study(tmp_path, size):
        (written,) = run_analyses(["audit/rules"], load(["dataset=synthetic"]))
        (paths.splits("synthetic") / f"{RULES.protocol}.parquet").unlink()
        with pytest.raises(StudyError, match="the split is missing"):
            list(run_analyses(["audit/rules"], load(["dataset=synthetic"])))
    table = pd.read_csv(written).set_index(["variant", "part", "metric"]).sort_index()
    names = [*RULES.variants, *RULES.others]
    assert len(table) == len(names) * 2 * len(RULES.metrics)
    assert table["mean"].between(table["ci_low"], table["ci_high"]).all()
    for name in names:
        gap = table.loc[name, "mean"] - table.loc[names[0], "mean"]
        np.testing.assert_allclose(table.loc[name, "diff"], gap, atol=1e-5)
    # Labels follow topics here, which only counts know of beyond the words.
    ndcg = table.xs("ndcg@10", level="metric")["mean"]
    assert (ndcg["counts of the four groups alone"] > ndcg["words alone"]).all()


def test_the_variants_change_settings_that_the_system_has():
    model, made = load([f"system={RULES.system}"]).system.model, systems.configure_variants(RULES, "synthetic")
    assert next(iter(RULES.variants.values())) == {}
    assert list(made) == [*RULES.variants, *RULES.others]
    for name, changes in RULES.variants.items():
        assert {key for key in model if made[name].system.model[key] != model[key]} == set(changes), name


def wrote(system, values, first_seed=0):
    """A run under `warm`: values of shape (seeds, tasks)."""
    put_row("synthetic", "warm", system, seeded(dict(enumerate(values, first_seed))))


def test_a_bug_is_compared_where_both_rows_ran_over_the_tasks_and_seeds_that_both_have(conf_root):
    wrote("gdsrec", [[0.5, 0.25]])
    assert list(run_analyses(["audit/reference_bugs"], load(["dataset=synthetic"]))) == []
    # Seed 1 alone: 0.375 without and 0.5 with the bug; the mean over the method's three seeds would be 0.4583.
    wrote("gdsrec", [[0.0, 0.0], [0.5, 0.25], [1.0, 1.0]])
    wrote("gdsrec_with_target", [[0.75, 0.25]], first_seed=1)
    wrote("tiger", [[0.5, 0.25, 0.0], [0.5, 0.75, 0.0]])
    wrote("tiger_unconstrained", [[0.25, 0.25, 0.25]] * 2)
    (path,) = run_analyses(["audit/reference_bugs"], load(["dataset=synthetic"]))
    table = pd.read_csv(path).set_index("row")
    assert table.index.tolist() == ["gdsrec_with_target", "tiger_unconstrained"]
    columns = ["seeds", "without", "with_bug", "diff"]
    assert table.loc["gdsrec_with_target", columns].tolist() == pytest.approx([1, 0.375, 0.5, 0.125])
    row = table.loc["tiger_unconstrained"]
    assert row[["system", "protocol", "metric", "seeds", "n"]].tolist() == ["tiger", "warm", "ndcg@10", 2, 3]
    # Tasks, after the mean over seeds: 0.5, 0.5, 0 without and 0.25 each with the bug.
    assert row[["without", "with_bug", "diff"]].tolist() == pytest.approx([1 / 3, 0.25, -1 / 12], abs=1e-5)
    assert row["diff_ci_low"] <= row["diff"] <= row["diff_ci_high"]
    # Seed by seed: 1/4 - 1/4 and 1/4 - 5/12; of the six values one is the same.
    assert row[["least", "most", "unmoved"]].tolist() == pytest.approx([-1 / 6, 0.0, 1 / 6], abs=1e-5)


def test_every_bug_of_the_configuration_is_in_the_table_and_differs_from_its_method_in_one_setting():
    settings, known = load_settings(ReferenceBugs), sound_systems()
    assert {name for name, system in known.items() if system.family == "reference_bug"} <= set(settings.rows)
    for row, about in settings.rows.items():
        protocol = f"protocol={about['protocol']}"
        own, method = (load([f"system={name}", protocol]).system for name in (row, about["system"]))
        assert about["protocol"] in own.protocols
        assert own.reference is None
        assert len([key for key in method.model if own.model[key] != method.model[key]]) == 1
