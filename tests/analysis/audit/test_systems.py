"""What scores of systems rest on: variants on planted labels, bugs by hand, codebooks and prompt templates."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from matplotlib.colors import to_rgba

from baselines.generative import quantisation
from baselines.generative.quantisation import Quantiser, fit_codes, standardised
from baselines.training import Optimisation
from study import paths
from study.analysis.audit import systems
from study.analysis.audit.figures_labels import plot_reference_bugs
from study.analysis.audit.settings import Codebooks, PromptTemplates, ReferenceBugs, Rules, read
from study.analysis.report.colours import GREEN, RED
from study.config.compose import load
from study.config.systems import sound_systems
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation import per_task, records
from study.files import write_csv, write_json
from study.runner.outputs import Outputs
from tests.analysis.toys import change, small_study

RULES = read(Rules)
BY_SEED = [((0.4, 0.5), GREEN), ((0.6, 0.3), None), ((0.1, 0.3), RED), ((0.2, 0.4), None)]


def test_the_table_holds_every_variant_on_both_parts(tmp_path):
    size = ["dataset=synthetic", "dataset.generator.n_servers=150", "dataset.generator.n_tasks=200"]
    with small_study(tmp_path, size):
        (written,) = systems.compute_rules(load(["dataset=synthetic"]))
        (paths.splits("synthetic") / f"{RULES.protocol}.parquet").unlink()
        with pytest.raises(StudyError, match="the split is missing"):
            systems.compute_rules(load(["dataset=synthetic"]))
    assert written.with_suffix(".json").exists()
    table = pd.read_csv(written).set_index(["variant", "part", "metric"]).sort_index()
    names = [*RULES.variants, *RULES.others]
    assert len(table) == len(names) * 2 * len(RULES.metrics)
    assert table["mean"].between(table["ci_low"], table["ci_high"]).all()
    first = names[0]
    assert table.loc[first, "diff"].eq(0).all()
    for name in names:
        gap = table.loc[name, "mean"] - table.loc[first, "mean"]
        np.testing.assert_allclose(table.loc[name, "diff"], gap, atol=1e-5)
    # Labels follow topics here, which only counts know of beyond the words.
    ndcg = table.xs("ndcg@10", level="metric")["mean"]
    assert (ndcg["counts of the four groups alone"] > ndcg["words alone"]).all()


def test_the_variants_change_settings_that_the_system_has():
    model = load([f"system={RULES.system}"]).system.model
    assert next(iter(RULES.variants.values())) == {}
    for name, changes in RULES.variants.items():
        changed = systems.configured(RULES, "synthetic", changes).system.model
        assert {key for key in model if changed[key] != model[key]} == set(changes), name


@pytest.fixture
def bugs(new_results):
    """The table of bugs, made anew at every call."""
    return lambda: systems.bug_table("synthetic", read(ReferenceBugs)).set_index("row")


def wrote(system, values, reports=None, first_seed=0):
    """A run under `warm`: values of shape (seeds, tasks)."""
    outputs = Outputs.of("synthetic", "warm", system)
    numbered = [
        (range(len(line)), seed, pd.DataFrame({"ndcg@10": line})) for seed, line in enumerate(values, first_seed)
    ]
    write_csv(outputs.per_task, pd.concat(per_task.table(*one) for one in numbered))
    write_json(outputs.record, records.record(seeds=reports or [{}] * len(values)))


def test_differences_by_hand(bugs):
    sound, faulty = [[0.5, 0.25, 0.0], [0.5, 0.75, 0.0]], [[0.25, 0.25, 0.25]] * 2
    wrote("tiger", sound, [{"report": {"answers": 90, "answers_of_no_server": 0}}] * 2)
    wrote("tiger_unconstrained", faulty, [{"report": {"answers": 90, "answers_of_no_server": n}} for n in (30, 15)])
    (path,) = systems.compute_bugs(load(["dataset=synthetic"]))
    table = pd.read_csv(path).set_index("row")
    assert list(table.index) == list(read(ReferenceBugs).rows)
    found = table.loc["tiger_unconstrained"]
    about = found[["system", "protocol", "state", "metric", "seeds", "n"]].tolist()
    assert about == ["tiger", "warm", "run", "ndcg@10", 2, 3]
    # Tasks, after the mean over seeds: 0.5, 0.5, 0 without and 0.25 each with the bug.
    assert found[["without", "with_bug", "diff"]].tolist() == pytest.approx([1 / 3, 0.25, -1 / 12], abs=1e-5)
    assert found["diff_ci_low"] <= found["diff"] <= found["diff_ci_high"]
    # Seed by seed: 1/4 - 1/4 and 1/4 - 5/12; of the six values one is the same.
    assert found[["least", "most", "unmoved"]].tolist() == pytest.approx([-1 / 6, 0.0, 1 / 6], abs=1e-5)
    assert found["no_server"] == pytest.approx(45 / 180)
    others = table.drop(index="tiger_unconstrained")
    assert (others["state"] == "not run").all()
    assert others.loc[:, "seeds":].isna().all(axis=None)
    assert path.with_suffix(".json").exists()


def test_one_of_two_runs_gives_no_number_and_two_are_compared_by_tasks_and_seeds_that_both_have(bugs):
    wrote("gdsrec", [[0.5, 0.25]])
    assert bugs().loc["gdsrec_with_target", "state"] == "not run"
    wrote("gdsrec_with_target", [[0.75, 0.25]])
    found = bugs().loc["gdsrec_with_target"]
    assert found["diff"] == pytest.approx(0.125)
    assert np.isnan(found["no_server"])
    wrote("gdsrec", [[0.5, 0.25, 0.0]])
    with pytest.raises(StudyError, match="same tasks"):
        bugs()
    # A single run is compared with the same seed.
    wrote("gdsrec", [[0.0, 0.0], [0.5, 0.25], [1.0, 1.0]])
    wrote("gdsrec_with_target", [[0.75, 0.25]], first_seed=1)
    found = bugs().loc["gdsrec_with_target"]
    # Seed 1 alone: 0.375 without and 0.5 with the bug; the mean over the method's three seeds would be 0.4583.
    assert found[["seeds", "without", "with_bug", "diff"]].tolist() == pytest.approx([1, 0.375, 0.5, 0.125])
    wrote("gdsrec_with_target", [[0.75, 0.25]], first_seed=7)
    with pytest.raises(StudyError, match="no seed of gdsrec_with_target is a seed of gdsrec"):
        bugs()


def test_the_figure_shows_what_the_table_holds(bugs):
    with pytest.raises(StudyError, match="no row with a reference bug has run"):
        plot_reference_bugs({"reference_bugs": bugs()})
    runs = {"tiger": 0.25, "tiger_unconstrained": 0.125, "gdsrec": 0.5, "gdsrec_with_target": 0.75}
    for system, value in runs.items():
        wrote(system, [[value] * 40])
    table = bugs()
    panel = plot_reference_bugs({"reference_bugs": table}).axes[0]
    assert len(panel.get_yticks()) == len(table)
    texts = [text.get_text() for text in panel.texts]
    assert sorted(texts) == ["+0.250", "-0.125", *["not run"] * (len(table) - 2)]
    drawn = [np.ma.filled(collection.get_offsets(), np.nan)[:, 0] for collection in panel.collections[1:3]]
    open_, filled = (values[~np.isnan(values)].tolist() for values in drawn)
    assert (open_, filled) == ([0.5, 0.25], [0.75, 0.125])


@pytest.mark.parametrize(("by_seed", "moved"), BY_SEED)
def test_a_bug_is_coloured_only_where_tasks_and_seeds_agree(bugs, by_seed, moved):
    wrote("gdsrec", [[0.2] * 40, [0.4] * 40])
    wrote("gdsrec_with_target", [[value] * 40 for value in by_seed])
    figure = plot_reference_bugs({"reference_bugs": bugs()})
    inks = set(map(tuple, figure.axes[0].collections[2].get_facecolors()))
    assert inks & {to_rgba(GREEN), to_rgba(RED)} == ({to_rgba(moved)} if moved else set())


def test_every_bug_of_the_configuration_is_in_the_table_and_differs_from_its_method_in_one_setting():
    settings, known = read(ReferenceBugs), sound_systems()
    assert {name for name, system in known.items() if system.family == "reference_bug"} <= set(settings.rows)
    for row, about in settings.rows.items():
        own = load([f"system={row}", f"protocol={about.protocol}"]).system
        method = load([f"system={about.system}", f"protocol={about.protocol}"]).system
        assert about.protocol in own.protocols
        assert own.reference is None
        assert len([key for key in method.model if own.model[key] != method.model[key]]) == 1


def test_use_of_a_level_by_hand():
    found = systems.use(np.array([0, 0, 0, 0, 1, 1, 2, 2]), 4)
    assert found["usage"] == 0.75
    assert found["entropy"] == pytest.approx(1.5 / 2)  # 1/2 x 1 bit + 2 x 1/4 x 2 bits, of log2(4)
    assert found["uneven"] == pytest.approx((2 + 0 + 0 + 2) / 4 / 2)
    assert systems.use(np.arange(8) % 4, 4) == {"usage": 1.0, "entropy": pytest.approx(1.0), "uneven": 0.0}
    assert systems.use(np.zeros(5, dtype=np.int64), 2) == {"usage": 0.5, "entropy": 0.0, "uneven": 1.0}
    assert systems.shared(np.array([[1, 2], [1, 2], [1, 2], [3, 4]])) == 0.5
    assert systems.shared(np.arange(8).reshape(4, 2)) == 0.0


def test_the_table_describes_the_codes_that_the_search_writes(monkeypatch, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32)
    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    monkeypatch.setattr(systems.datasets, "load", lambda name: SimpleNamespace(name=name, server_texts=list))
    monkeypatch.setattr(systems, "encode", lambda texts: vectors)
    quantiser = Quantiser(levels=2, codes=4, hidden=[8], width=4, training=Optimisation(epochs=2, batch_size=16))
    monkeypatch.setattr(systems, "build_system", lambda config: SimpleNamespace(quantiser=quantiser))
    config = load(["dataset=synthetic", "profile=smoke", "system=tiger"])
    table = systems.codebook_table(config, Codebooks(["tiger"]))
    seeds = list(config.system.seeds)
    rows = [["tiger", seed, level] for seed in seeds for level in (1, 2)]
    assert table[["system", "seed", "level"]].to_numpy().tolist() == rows
    model, _ = fit_codes(standardised(vectors), quantiser, seed=seeds[0])
    spread = quantisation.spread_last(model, standardised(vectors))[0]
    assert table["usage"].iloc[0] == len(set(spread[:, 0])) / 4
    assert (table["shared_after"] <= table["shared"]).all()
    nearest = model.codes(torch.from_numpy(standardised(vectors))).numpy()
    few = len(set(nearest[:, 0])) / 4 < quantisation.LEAST_USAGE
    assert table["collapsed"].iloc[0] == (few or systems.shared(nearest) > quantisation.MOST_COLLISIONS)


class _Words:
    """Its first template finds the one relevant server first, every other one puts it at its own place."""

    template = fits = 0

    def fit(self, data, split, *, seed, workdir):
        self.fits += 1

    def score(self, tasks):
        scores = -np.tile(np.arange(12, dtype=np.float32), (len(tasks), 1))
        scores[:, 11] = 0.5 - self.template
        return scores


@pytest.mark.parametrize(("shift", "same"), [(None, None), (0.0, True), (0.25, False)])
def test_one_training_is_asked_in_every_template_and_held_against_its_run(monkeypatch, new_results, shift, same):
    answers = sp.csr_matrix(([1.0, 1.0], ([0, 1], [11, 11])), shape=(2, 12), dtype=np.float32)
    nothing = sp.csr_matrix((2, 12), dtype=np.float32)
    data = SimpleNamespace(name="synthetic", n_servers=12, tasks=pd.DataFrame({"id": [7, 9]}))
    system = _Words()
    split = Split("cold", nothing, nothing, answers, cold=True)
    monkeypatch.setattr(paths, "cache", lambda: new_results / "cache")
    monkeypatch.setattr(systems, "load_inputs", lambda *_: (data, split))
    monkeypatch.setattr(systems, "build_system", lambda config: system)
    monkeypatch.setattr(systems, "fingerprint", lambda config: "0")
    if shift is not None:
        kept = pd.DataFrame({"task_id": [9, 7], "seed": 1, "ndcg@10": [1.0, 1.0 - shift]})
        write_csv(Outputs.of("synthetic", "cold", "lc_rec").per_task, kept)
    config = load(["dataset=synthetic", "profile=smoke", "system=lc_rec", "protocol=cold"])
    settings = PromptTemplates("lc_rec", 3, ["ndcg@10", "recall@5"], {"cold": [1]})
    table = systems.template_table(config, settings, 1)
    assert system.fits == 1
    assert table["template"].tolist() == [0, 1, 2]
    assert table["ndcg@10"].tolist() == pytest.approx([1.0, 1 / np.log2(3), 1 / np.log2(4)])
    assert table["recall@5"].tolist() == [1.0, 1.0, 1.0]
    assert table["as_run"].tolist() == [same, None, None]


def test_the_configured_parts_are_read_and_unknown_names_and_wrong_bugs_refused(tmp_path):
    assert read(Codebooks).systems
    assert read(PromptTemplates).templates == 5
    with pytest.raises(StudyError, match="unknown system 'tigre'"):
        Codebooks(["tigre"])
    with pytest.raises(StudyError, match="unknown protocol"):
        PromptTemplates("lc_rec", 5, [], {"hot": [1]})
    path = tmp_path / "reference_bugs.yaml"
    path.write_text((paths.conf() / "audit" / "reference_bugs.yaml").read_text())
    unknown, incomplete = {"system": "tigre", "protocol": "warm"}, {"system": "tiger"}
    for about, said in ((unknown, "tigre"), (incomplete, "missing key 'protocol'")):
        change(path, rows={"tiger_unconstrained": about | {"bug": "x"}})
        with pytest.raises(StudyError, match=said):
            read(ReferenceBugs, path)
