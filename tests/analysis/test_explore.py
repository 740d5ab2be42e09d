"""The views, computed by Vega itself: what they count and draw for tables that a reader can check by hand."""

import re

import pandas as pd
import pytest
import vl_convert

from study.analysis import explore

VALUES = pd.DataFrame({"a": [0.1, 0.5, 0.0, 0.25], "b": [0.2, 0.1, 0.0, 1.0]}, index=[3, 4, 5, 9])
ABOUT = pd.DataFrame({"language": ["Go", "Go", "C#", "C#"], "twin": ["yes", "no", "no", "no"]}, index=VALUES.index)
ABOUT["theme"] = ["Art", "Cars", "art", "Law"]
COSTED = pd.DataFrame({"system": ["x", "y", "z"], "title": ["X", "Y", "Z"], "good": [0.5, 0.25, float("nan")]})
COSTED["family"] = ["dense", "trivial", "no such family"]
COSTED = COSTED.assign(useful=[0.1, 0.2, 0.3], seconds=[100.0, 0.0, 3.0])


def drawn(view, **chosen):
    """The picture of a view after a reader chose values."""
    found = view.to_dict()
    names = {param["name"]: param for param in found["params"]}
    for name, value in chosen.items():
        names[name]["value"] = value
    return vl_convert.vegalite_to_svg(found, vl_version="5.20")


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({}, "4 tasks. Mean across 0.2125, up 0.3250. Better across: 1, up: 2"),
        ({"across": "b", "up": "a"}, "4 tasks. Mean across 0.3250, up 0.2125. Better across: 2, up: 1"),
        ({"only_language": "Go"}, "2 tasks. Mean across 0.3000, up 0.1500. Better across: 1, up: 1"),
        ({"only_language": "C#", "letters": "ART"}, "1 tasks. Mean across 0.0000, up 0.0000. Better across: 0, up: 0"),
        ({"only_twin": "yes"}, "1 tasks. Mean across 0.1000, up 0.2000. Better across: 0, up: 1"),
    ],
)
def test_means_and_wins_are_those_of_the_chosen_tasks(chosen, words):
    view = explore.head_to_head(VALUES, ABOUT, "theme", {"a": "System <A>", "b": "B"}, ("a", "b"))
    bound = {param["name"]: param.get("bind") for param in view.to_dict()["params"]}
    assert bound["across"]["labels"] == ["System <A>", "B"]
    assert bound["only_language"]["options"] == ["all", "C#", "Go"]
    picture = drawn(view, **chosen)
    assert words in picture
    # One point per task, beside the three of the legend.
    assert picture.count('aria-roledescription="circle"') == int(words.split()[0])


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ("good", {"X": (0.5, 100.0), "Y": (0.25, 0.001)}),
        ("useful", {"X": (0.1, 100.0), "Y": (0.2, 0.001), "Z": (0.3, 3.0)}),
    ],
)
def test_a_system_has_a_point_where_both_were_measured(chosen, found):
    view = explore.quality_against_cost(COSTED, {"good": "G", "useful": "U"}, {"seconds": "S"}, 1e-3)
    labels = re.findall(r'aria-label="cost: ([\d.]+); NDCG@10: ([\d.]+);[^"]*?title: (\w)', drawn(view, quality=chosen))
    assert {title: (float(good), float(spent)) for spent, good, title in labels} == found
