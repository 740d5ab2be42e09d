"""Which answers count, and what becomes of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.base.errors import StudyError
from study.reranking.system import FAULTS, Rules

POOL = [11, 12, 13, 14, 15, 16]
# 16 and 15 lie below the first three: 16 takes the one free place, 15 has to wait.
FREE = [(1, [16, 15, 12, 14, 13, 11], [16, 12, 13, 15, 14, 11]), (1, [12, 11], [12, 11]), (1, [], [])]
FREE += [(1, [12, 16, 13, 15, 11, 14], [12, 16, 13, 15, 11, 14])]
FREE += [(0, [16, 15, 12, 14, 13, 11], [12, 13, 11, 16, 15, 14])]
NO_LISTS = [(13, 11, 12), {"servers": [13, 11, 12]}, None]
ANSWERS = {
    None: [[13, 11, 12], [16, 11, 15]],
    "too_many_substitutions": [[16, 14, 15]],
    "wrong_length": [[13, 11], [13, 11, 12, 14], []],
    "repeat": [[13, 11, 13], [13, 13, 99]],
    "outside_pool": [[13, 11, 99], [13, 11, -12]],
    "wrong_form": [["13", "11", "12"], [13.0, 11.0, 12.0], [True, 11, 12], [[13], 11, 12], *NO_LISTS],
}
FAULTY = [(Rules(3, 2).fault, fault, one) for fault, answers in ANSWERS.items() for one in answers]
ORDERS = {None: [11, 13, 15, 12, 14, 16], "wrong_length": [11, 12, 13], "wrong_form": [11.0, 12, 13, 14, 15, 16]}
ORDERS |= {"too_many_substitutions": [15, 16, 11, 12, 13, 14], "repeat": [11, 11, 12, 13, 14, 15]}
ORDERS |= {"outside_pool": [11, 12, 13, 14, 15, 99]}
FAULTY += [(Rules(3, 1).fault_of_order, *each) for each in ORDERS.items()]


@pytest.mark.parametrize(("find", "fault", "answer"), FAULTY)
def test_faults_of_an_answer_and_of_a_whole_order(find, fault, answer):
    assert find(answer, POOL) == fault


def test_the_papers_rule_and_the_programs_each_refuse_what_the_other_takes():
    pool = list(range(100, 120))
    paper, program = Rules(10, 2), Rules(20, 0)
    permutation, ten = [*pool[10:], *pool[:10]], [*pool[:8], 119, 118]
    assert (program.fault(permutation, pool), paper.fault(permutation, pool)) == (None, "wrong_length")
    assert (program.fault(ten, pool), paper.fault(ten, pool)) == ("wrong_length", None)
    assert paper.fault_of_order(permutation, pool) == "too_many_substitutions"
    assert program.fault([*permutation[:-1], 100], pool) == "repeat"
    assert program.order(permutation, pool) == permutation
    # A pool below K is named whole, and the rest of a larger one keeps its order.
    assert (paper.fault([12, 11], [11, 12]), paper.fault([12], [11, 12])) == (None, "wrong_length")
    assert Rules(k=3).order([16, 11, 13], POOL) == [16, 11, 13, 12, 14, 15]


@given(
    pool=st.lists(st.integers(-50, 50), unique=True, max_size=12),
    answer=st.one_of(st.lists(st.integers(-50, 50), max_size=12), st.lists(st.one_of(st.text(), st.booleans()))),
    k=st.integers(1, 12),
    substitutions=st.integers(0, 3),
)
def test_what_counts_can_add_and_remove_nothing(pool, answer, k, substitutions):
    rules = Rules(k, substitutions)
    fault = rules.fault(answer, pool)
    assert fault is None or fault in FAULTS
    if fault is None:
        order = rules.order(answer, pool)
        assert sorted(order) == sorted(pool)
        assert order[: len(answer)] == answer
        assert len(set(order[:k]) - set(pool[:k])) <= substitutions


@pytest.mark.parametrize(("substitutions", "free", "allowed"), FREE)
def test_a_free_order_is_brought_within_the_rules(substitutions, free, allowed):
    assert Rules(k=3, substitutions=substitutions).within(free, sorted(free)) == allowed


@given(
    st.integers(0, 20).flatmap(lambda size: st.permutations(range(100, 100 + size))),
    st.integers(1, 22),
    st.integers(0, 20),
    st.randoms(use_true_random=False),
)
def test_an_order_within_the_rules_is_the_nearest_to_the_free_one(free, k, substitutions, random):
    pool = random.sample(free, len(free))
    rules = Rules(k, substitutions)
    order = rules.within(free, pool)
    named, rest = order[:k], order[k:]
    assert rules.fault(named, pool) is None
    assert rules.fault_of_order(order, pool) is None
    assert sorted(order) == sorted(pool)
    rank_of = {item: number for number, item in enumerate(free)}
    assert named == sorted(named, key=rank_of.__getitem__)
    assert rest == sorted(rest, key=rank_of.__getitem__)
    below = set(pool[k:])
    moved = sum(item in below for item in free[:k])
    assert sum(item in below for item in named) == min(moved, substitutions)
    if moved <= substitutions:
        assert order == free
    # Of those from below, and of the first K, the named are those that the free order puts first.
    for kind in (below, set(pool[:k])):
        ordered = [item for item in free if item in kind]
        assert [item for item in named if item in kind] == ordered[: sum(item in kind for item in named)]


@pytest.mark.parametrize("values", [{"k": 0}, {"k": True}, {"substitutions": -1}])
def test_settings_are_checked(values):
    with pytest.raises(StudyError, match="is no value"):
        Rules(**values)
