"""The parts that figures share."""

import matplotlib as mpl
import numpy as np
import pandas as pd

from study.analysis.report import plots
from study.base import paths
from study.config.compose import sound_systems

CAPTION = "Question: fitting the released labels. Protocol: cold (new tasks), 961 test tasks."


def test_rows_and_matrices_show_their_values_at_their_places():
    table = pd.DataFrame({"system": ["a", "b", "a"], "part": ["x", "x", "y"], "mean": [1.0, np.nan, 3.0]})
    table = table.assign(ci_low=table["mean"] - 1, ci_high=table["mean"] + 1, sd=0.5)
    _, axes = plots.canvas(3, 2)
    looks = {"y": plots.Look("Y", "red", "s"), "x": plots.Look("X", face="white")}
    about = {"names": {"b": "B", "a": "A"}, "hue": "part", "looks": looks, "dodge": 0.2, "spread": "sd"}
    assert plots.forest(axes[0, 0], table, zero=True, xlabel="value", **about) == {"b": 0, "a": 1}
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes[0, 0].get_lines()[1:]}
    assert drawn["Y"] == [[3.0, 0.9]]
    assert drawn["X"][0] == [1.0, 1.1]
    cells = pd.DataFrame([[0.5, np.nan], [0.05, 2.0]], index=["r", "s"], columns=["c", "d"])
    plots.heat(axes[0, 1], cells, cells.map("{:g}".format), bold=cells > 1)
    shown = [(text.get_text(), text.get_position(), text.get_fontweight()) for text in axes[0, 1].texts]
    assert shown == [("0.5", (0.5, 0.5), "normal"), ("0.05", (0.5, 1.5), "normal"), ("2", (1.5, 1.5), "bold")]


def test_every_configured_family_has_a_look_of_its_own_and_legends_name_kinds_once_in_one_order():
    configured = {str(system.family) for system in sound_systems().values()}
    assert configured <= set(plots.FAMILIES), "a family of conf/system would be drawn as: other"
    looks = [*plots.FAMILIES.values(), plots.OTHER]
    assert len({kind.words for kind in looks}) == len({(kind.ink, kind.marker) for kind in looks}) == len(looks)
    words = ["T2MRec", "ablation of T2MRec", "T2MRec on other labels", "trivial (rules, popularity, chance)", "other"]
    kinds = ["new", "trivial", "ablation", "supervision", "t2mrec", "trivial"]
    assert plots.marker_legend(kinds)[1] == words


def test_a_saved_figure_is_the_same_bytes_again_and_leaks_no_style(new_root):
    before = dict(mpl.rcParams)
    figures = [plots.one_panel(2, title="Title", caption=CAPTION)[0] for _ in range(2)]
    files = [plots.save_figure(own, name, "toy") for own, name in zip(figures, ("first", "second"), strict=True)]
    assert files[1] == paths.figures("toy") / "second.png"
    assert files[0].read_bytes() == files[1].read_bytes()
    assert dict(mpl.rcParams) == before
