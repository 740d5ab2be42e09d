"""Two parameters that trade the pieces of a text which they took."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from study.tools.flow.slot_filler import Option, exchange


def option(value, start):
    return Option(value, np.zeros(1, np.float32), start)


def test_two_parameters_change_pieces_by_hand():
    listed = [option("a", 8), option("b", 40)]
    equal, better = np.array([1.0, 2.0], np.float32), np.array([3.0, 0.0], np.float32)
    # As good either way: the order of the text.
    places = [1, 0]
    exchange([(listed, equal), (listed, equal)], places)
    assert places == [0, 1]
    # Better the other way round, whatever the text says.
    places = [0, 1]
    exchange([(listed, equal), (listed, better)], places)
    assert places == [1, 0]
    # A value that the text does not hold, or that the other cannot take, stays.
    for other in ([option("a", None)], [option("c", 3)]):
        places = [1, 0]
        exchange([(listed, equal), (other, np.zeros(1, np.float32))], places)
        assert places == [1, 0]
    places = [None, 0]
    exchange([([], np.zeros(0, np.float32)), (listed, equal)], places)
    assert places == [None, 0]


@given(st.lists(st.lists(st.integers(-5, 5), min_size=4, max_size=4), min_size=2, max_size=4), st.randoms())
def test_an_exchange_never_fits_worse(rows, random):
    listed = [option(str(place), place) for place in range(4)]
    scores = [np.array(row, np.float32) for row in rows]
    places = random.sample(range(4), len(rows))
    before = sum(own[place] for own, place in zip(scores, places, strict=True))
    kept = sorted(places)
    exchange([(listed, own) for own in scores], places)
    assert sum(own[place] for own, place in zip(scores, places, strict=True)) >= before
    assert sorted(places) == kept
