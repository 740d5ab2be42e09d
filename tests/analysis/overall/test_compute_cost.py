"""Core hours, long fits and the figure of costs, on hand-made records."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.overall import compute_cost
from study.analysis.report import plots
from tests.analysis.report.helpers import LONG_CAPTION, boxes, misplaced, results_of
from tests.rows import put_row

# Seconds of fitting each seed; scoring takes 36 s each time. The mean of `a` hides the long one.
WARM = {"a": [324, 684, 324], "a_tuned": [600, 600], "a_fault": [684], "b": [324], "other": [7164]}
SECONDS = {("warm", name): seconds for name, seconds in WARM.items()} | {("cold", "a_transfer"): [3564]}
ABOVE = {"a_tuned": ["a"], "a_fault": ["a"]}
FAMILIES = dict.fromkeys(("a", "a_tuned"), "published") | {"a_transfer": "hybrid", "a_fault": "reference_bug"}
FAMILIES |= {"b": "graph", "other": "graph"}
SEARCHES = pd.DataFrame({"system": ["a_tuned"] * 2 + ["other", "b_tuned"], "seconds": [1800.0, 1800.0, 720.0, None]})


@pytest.fixture
def results(new_root, monkeypatch):
    monkeypatch.setattr("study.analysis.report.results.parents", lambda name: ABOVE.get(name, []))
    for (protocol, system), seconds in SECONDS.items():
        seeds = [{"seed": seed, "seconds_fit": value, "seconds_score": 36} for seed, value in enumerate(seconds)]
        put_row("synthetic", protocol, system, record={"seeds": seeds})
    put_row("synthetic", "cold", "b")  # a row that no table holds yet
    costs = pd.DataFrame(SECONDS.keys(), columns=["protocol", "system"])
    applies = {name: ["warm"] for name in FAMILIES}
    return results_of("synthetic", ["cold", "warm"], FAMILIES, families=FAMILIES, applies=applies, costs=costs)


def test_every_seed_of_every_run_is_a_fit_and_a_long_one_is_named_though_the_mean_is_short(results):
    fitted = compute_cost.fits(results)
    assert len(fitted) == sum(map(len, SECONDS.values()))
    assert fitted.loc[fitted["system"] == "a", "seconds_fit"].tolist() == [324, 684, 324]
    assert set(fitted["seconds_score"]) == {36}
    table = compute_cost.long_fits(fitted).set_index("title")
    assert table.index.tolist() == ["OTHER", "A_TRANSFER", "A", "A_FAULT"]
    assert table.loc["A", ["longest", "mean", "seeds"]].tolist() == pytest.approx([11.4, 7.4, 3])


def test_core_hours_by_kind_and_their_sums_with_the_published_rows_apart(results):
    def core_hours(**printed):
        fitted = compute_cost.fits(results)
        return compute_cost.core_hours(results, fitted, SEARCHES, printed)

    hours = core_hours(A="a", B="b", C="c")
    rows = hours.set_index("printed")[[*compute_cost.KINDS, "total"]]
    assert rows.index.tolist() == ["A", "B"]  # nothing of C has run
    a = [0.4, 1272 / 3600, 1.0, 1.2]
    assert rows.loc["A"].tolist() == pytest.approx([*a, sum(a)])
    assert rows.loc["B"].tolist() == pytest.approx([0.1, 0, 0, 0, 0.1])
    table = compute_cost.summed(hours)
    assert table["printed"].tolist() == ["A", "B", "sum of the 1 of family published", "sum of all 2"]
    totals = table["total"].tolist()
    assert totals[2:] == pytest.approx([totals[0], totals[0] + totals[1]])
    assert compute_cost.summed(hours.iloc[:0]).empty
    none = core_hours(C="c")  # no row has run: still numbers
    assert none.empty
    assert set(none[[*compute_cost.KINDS, "total"]].dtypes.map(str)) == {"float64"}


def test_cost_quality_draws_unmeasurable_times_at_the_resolution():
    columns = ["title", "family", "quality", "tasks", "seconds_fit", "milliseconds_per_task", "seeds", "rising"]
    rows = [("A", "lexical", 0.2, 100, 0.0, 0.0, 3, 2), ("B", "oracle", 0.4, 100, 2.0, 5.0, 3, 1)]
    figure = compute_cost.cost_quality(pd.DataFrame(rows, columns=columns), "caption")
    fit, rank = ({line.get_label(): float(line.get_xdata()[0]) for line in axes.get_lines()} for axes in figure.axes)
    assert fit == {"A †": 0.001, "B": 2.0}
    assert rank == {"A †": pytest.approx(0.01), "B": 5.0}
    assert figure.axes[0].get_xscale() == "log"


def costs_of(n, family=None):
    """`n` systems with names of the usual lengths and times over eight powers of ten."""
    kinds = ["t2mrec", "ablation", "ablation", "dense", "trivial", "oracle", "lexical", "hybrid"]
    rng, families = np.random.default_rng(n), [family or kinds[i % len(kinds)] for i in range(n)]
    titles = [f"System {i}" + " (reads the answers)" * (i % 7 == 0) for i in range(n)]
    costs = pd.DataFrame({"title": titles, "family": families, "quality": rng.uniform(0, 0.7, n), "tasks": 100})
    costs[["seeds", "rising"]] = 3, 1
    times = {"seconds_fit": 10 ** rng.uniform(-4, 4, n), "milliseconds_per_task": 10 ** rng.uniform(-1, 2.5, n)}
    return costs.assign(**times)


def test_the_best_marker_lies_inside_however_alike_the_systems_are():
    for quality in (np.linspace(0.79, 0.82, 9), np.linspace(0, 0.7, 9), np.zeros(9)):
        for panel in compute_cost.cost_quality(costs_of(9, "graph").assign(quality=quality), "caption").axes:
            low, high = panel.get_ylim()
            assert low == 0
            assert quality.max() <= 0.97 * high


LONG = {"title": [f"{i} " + "a system with a rather long name, " * 2 for i in range(9)]}
CLOSE = {"seconds_fit": [0.365, 0.398], "milliseconds_per_task": [2.1, 2.1]}


@pytest.mark.parametrize("caption", [LONG_CAPTION, "Short."])
@pytest.mark.parametrize(("n", "changes"), [(1, {}), (26, {}), (45, {}), (9, LONG), (2, CLOSE)], ids=str)
def test_everything_beside_the_points_has_a_place_of_its_own(n, changes, caption):
    costs = costs_of(n).assign(**changes)
    figure = compute_cost.cost_quality(costs, caption)
    assert misplaced(figure) == ([], [])
    (legend,) = figure.legends
    ranked = costs.sort_values("quality", ascending=False)
    entries = []
    for family, kind in plots.FAMILIES.items():
        own = ranked.loc[ranked["family"] == family, "title"].tolist()
        entries += [(kind.words, "bold"), *((title, "normal") for title in own)] if own and family != "ablation" else []
    assert [(t.get_text(), t.get_fontweight()) for t in legend.get_texts() if t.get_text()] == entries
    lowest = min(box.y0 for name, box in boxes(figure)[0] if name in set(costs["title"]))
    caption_box = next(box for name, box in boxes(figure)[0] if name == figure.get_supxlabel())
    assert lowest > caption_box.y1
    for panel in figure.axes:
        low, high = panel.get_xlim()
        assert sum(low <= place <= high for place in panel.get_xticks()) >= 2


def test_ablations_are_left_out_in_so_many_words():
    for costs in (costs_of(8), costs_of(8, "graph")):
        figure = compute_cost.cost_quality(costs, "caption")
        drawn = {line.get_label() for line in figure.axes[0].get_lines()}
        ablations = costs["family"] == "ablation"
        assert drawn == set(costs.loc[~ablations, "title"])
        assert ("Left out: ablation of T2MRec." in " ".join(figure.get_supxlabel().split())) == ablations.any()


def test_a_tuned_system_has_the_shape_of_the_untuned_one_which_is_open():
    titles = ["A", "B (tuned)", "B", "A (tuned)", "C"]
    figure = compute_cost.cost_quality(costs_of(5, "graph").assign(title=titles), "caption")
    look = {line.get_label(): (line.get_marker(), line.get_markerfacecolor()) for line in figure.axes[0].get_lines()}
    ink = plots.colour("graph")
    assert look["A"] == (look["A (tuned)"][0], "none")
    assert look["B"] == (look["B (tuned)"][0], "none")
    assert {look[title][1] for title in ("A (tuned)", "B (tuned)", "C")} == {ink}
    assert len({marker for marker, _ in look.values()}) == 3
    assert "Open marker: a system at its own settings" in " ".join(figure.get_supxlabel().split())
    assert "Open" not in compute_cost.cost_quality(costs_of(5), "caption").get_supxlabel()


def test_systems_too_close_together_are_drawn_once_more_enlarged():
    near = costs_of(45).assign(quality=[0.9, *np.linspace(0.6, 0.5, 30), *np.linspace(0.3, 0, 14)])
    near = near.replace("ablation", "graph")
    near.loc[0, "family"] = "oracle"
    figure = compute_cost.cost_quality(near, LONG_CAPTION)
    assert misplaced(figure) == ([], [])
    everything, enlarged = ({line.get_label() for line in panel.get_lines()} for panel in figure.axes[:2])
    assert everything == set(near["title"])
    systems = near[near["family"] != "oracle"].nlargest(len(near), "quality")["title"]
    assert enlarged == set(systems.iloc[: (len(systems) + 1) // 2])
    assert figure.axes[1].get_ylim()[0] > 0.4
    assert "Right: the better half" in figure.get_supxlabel()
    apart = near.assign(quality=np.linspace(0.9, 0, 45))
    assert len(compute_cost.cost_quality(apart, LONG_CAPTION).axes) == 2
    assert len(compute_cost.cost_quality(near.iloc[:20], LONG_CAPTION).axes) == 2


def test_the_check_of_places_can_fail():
    figure = compute_cost.cost_quality(costs_of(40), LONG_CAPTION)
    (legend,) = figure.legends
    legend.set_bbox_to_anchor((0.01, 0.0), figure.transFigure)
    assert misplaced(figure)[1]
    legend.set_bbox_to_anchor((0.6, 0.1), figure.transFigure)
    assert misplaced(figure)[0]


@pytest.mark.parametrize("family", ["collaborative", None])
def test_no_two_systems_look_alike(family):
    costs = costs_of(45, family).replace("ablation", "graph")
    costs.loc[3, "title"] = costs.loc[11, "title"] + " (tuned)"
    figure = compute_cost.cost_quality(costs, "caption")
    for panel in figure.axes:
        lines = panel.get_lines()
        looks = {
            (line.get_marker(), line.get_fillstyle(), line.get_color(), line.get_mfc() == "none") for line in lines
        }
        assert len(looks) == len(lines) == 45
