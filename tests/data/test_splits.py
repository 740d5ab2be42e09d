"""Splits: disjoint, complete, of the stated sizes; and no near copy straddles in the grouped one."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import train_test_split

from study.base.errors import StudyError
from study.data import splits
from study.data.dataset import Dataset, relevance_from_lists

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def dataset(lists, texts=None, n_servers=40):
    """Ids are not row numbers (servers 100, 103, ...; tasks 7, 9, ...), so a mix-up cannot pass."""
    n = len(lists)
    texts = texts or [f"unique{row} text{row}" for row in range(n)]
    tasks = pd.DataFrame({"id": 7 + 2 * np.arange(n), "name": texts, "description": ""})
    servers = pd.DataFrame({"id": 100 + 3 * np.arange(n_servers)})
    rows = tuple(np.array(row, dtype=np.int64) for row in lists)
    return Dataset("t", servers, tasks, relevance_from_lists(rows, n_servers), rows)


@st.composite
def datasets(draw):
    n = draw(st.integers(10, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lists = [rng.permutation(40)[: rng.integers(1, 12)].tolist() for _ in range(n)]
    texts = [" ".join(rng.choice(WORDS, rng.integers(3, 6))) for _ in range(n)]
    for _ in range(n // 4):
        one, other = rng.integers(n, size=2)
        lists[one] = rng.permutation(lists[other]).tolist()
    return dataset(lists, texts)


def parts_of(split):
    """Part x task x server."""
    return np.stack([split.part(name).toarray() for name in splits.PARTS])


@settings(max_examples=25)
@given(datasets(), st.sampled_from(["cold", "cold_grouped", "warm", "loo"]), st.integers(0, 1000))
def test_parts_are_disjoint_cover_and_repeat_with_their_seed(data, protocol, seed):
    try:
        split = splits.make(data, protocol, seed=seed)
    except StudyError as error:
        # A random data set may hang together as one group; then nothing is left to test.
        assume("leaves training or test empty" not in error.reason)
        raise
    parts = parts_of(split)
    np.testing.assert_array_equal(parts.sum(axis=0), data.relevance.toarray())
    assert ((parts != 0).sum(axis=0) <= 1).all()
    np.testing.assert_array_equal(parts_of(splits.make(data, protocol, seed=seed)), parts)
    if split.cold:
        assert (parts.any(axis=2).sum(axis=0) == 1).all()


@settings(max_examples=25)
@given(st.integers(5, 300), st.integers(0, 1000))
def test_cold_is_the_authors_split(n, seed):
    data = dataset([[0]] * n)
    ids = data.tasks["id"].tolist()
    train, rest = train_test_split(ids, test_size=0.4, random_state=seed)
    valid, test = train_test_split(rest, test_size=0.5, random_state=seed)
    split = splits.make(data, "cold", seed=seed)
    for name, expected in (("train", train), ("valid", valid), ("test", test)):
        assert set(data.tasks["id"].iloc[split.tasks(name)]) == set(expected)


@settings(max_examples=25)
@given(datasets(), st.floats(0.5, 1.0))
def test_grouped_keeps_near_copies_together(data, similarity):
    groups = splits.task_groups(data, similarity=similarity)
    part = splits.split_groups(groups, seed=1)
    texts = data.task_texts(("name", "description"))
    vectors = TfidfVectorizer(sublinear_tf=True).fit_transform(texts).toarray()
    near = vectors @ vectors.T > similarity + 1e-6
    same = np.array([[set(a) == set(b) for b in data.lists] for a in data.lists])
    straddles = part[:, None] != part[None, :]
    assert not (straddles & (near | same)).any()
    # Nothing else hangs together: every group is connected through such pairs.
    allowed = (vectors @ vectors.T >= similarity - 1e-6) | same
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        reached = {members[0]}
        while (more := set(np.flatnonzero(allowed[sorted(reached)].any(axis=0)))) - reached:
            reached |= more
        assert set(members) <= reached


def test_groups_do_not_depend_on_the_chunk(monkeypatch):
    rng = np.random.default_rng(0)
    data = dataset([[row % 40] for row in range(50)], [" ".join(rng.choice(WORDS, 3)) for _ in range(50)])
    whole = splits.task_groups(data, similarity=0.8)
    monkeypatch.setattr(splits, "CHUNK", 7)
    np.testing.assert_array_equal(splits.task_groups(data, similarity=0.8), whole)
    assert 1 < len(np.unique(whole)) < 50


@settings(max_examples=50)
@given(st.lists(st.integers(1, 8), min_size=20, max_size=80), st.integers(0, 100))
def test_group_shares(sizes, seed):
    groups = np.repeat(np.arange(len(sizes)), sizes).astype(np.int64)
    part = splits.split_groups(groups, seed=seed)
    counts = np.bincount(part, minlength=3)
    assert (np.abs(counts - np.array([0.6, 0.2, 0.2]) * len(groups)) <= max(sizes)).all()
    assert all(len(set(part[groups == group])) == 1 for group in np.unique(groups))


def test_shares_of_interactions():
    data = dataset([list(range(length)) for length in (10, 5, 3, 2, *[10] * 7)])
    for protocol, shares in {
        "warm": [(6, 2, 2), (3, 1, 1), None, (2, 0, 0)],
        "loo": [(8, 1, 1), None, (1, 1, 1), None],
    }.items():
        split = splits.make(data, protocol)
        for row, counts in enumerate(shares):
            assert counts in (None, tuple(int(split.part(name)[row].sum()) for name in splits.PARTS))


def test_leave_one_out_lies_within_warm():
    data = dataset([list(range(length)) for length in (2, 3, 4, 5, 7, 10, 13)] * 20)
    warm, loo, other = splits.make(data, "warm"), splits.make(data, "loo"), splits.make(data, "loo", seed=1)
    for part in ("valid", "test"):
        assert loo.part(part).multiply(warm.part(part)).nnz == loo.part(part).nnz
    # So what was tuned on warm's validation part has seen no test label; with another seed it would have.
    assert loo.test.multiply(warm.valid).nnz == 0
    assert other.test.multiply(warm.valid).nnz > 0


def test_warm_holds_out_every_position_equally():
    data = dataset([list(range(10))] * 3000)
    held = np.asarray(splits.make(data, "warm").test.sum(axis=0)).ravel()[:10]
    # Binomial(3000, 0.2): mean 600, standard deviation 21.9; five deviations on each side.
    assert (np.abs(held - 600) < 110).all()


def test_sampled_candidates():
    data = dataset([list(range(row % 3, 10 + row % 3)) for row in range(20)])
    split = splits.make(data, "loo99", negatives=25)
    assert split.candidates.shape == (20, 26)
    for row, listed in zip(split.tasks("test"), split.candidates, strict=True):
        assert len(set(listed)) == 26
        held_out = split.test[row].indices
        assert set(listed) & set(data.lists[row]) == set(held_out)
        assert len(held_out) == 1
    with pytest.raises(StudyError, match="too small for 99"):
        splits.make(data, "loo99")


def test_known_interactions_an_unknown_protocol_and_wrong_splits():
    data = dataset([list(range(10))] * 10)
    split = splits.make(data, "warm")
    np.testing.assert_array_equal(split.known("valid").toarray(), split.train.toarray())
    np.testing.assert_array_equal(split.known("test").toarray(), (split.train + split.valid).toarray())
    with pytest.raises(StudyError, match="unknown protocol 'hot'"):
        splits.make(data, "hot")
    # The check sees overlap, loss and straddling.
    good = split
    with pytest.raises(StudyError, match="overlap or do not add up"):
        splits.check(data, splits.Split("warm", good.train + good.test, good.valid, good.test, False))
    with pytest.raises(StudyError, match="overlap or do not add up"):
        splits.check(data, splits.Split("warm", good.train, good.train * 0, good.test, False))
    with pytest.raises(StudyError, match="one task in two parts"):
        splits.check(data, splits.Split("cold", good.train, good.valid, good.test, True))


@pytest.mark.parametrize("protocol", ["cold", "cold_grouped", "warm", "loo", "loo99"])
def test_saved_splits_come_back(protocol, tmp_path, synthetic_data):
    split = splits.make(synthetic_data, protocol)
    path = tmp_path / f"{protocol}.parquet"
    splits.save(split, synthetic_data, path)
    before = path.read_bytes()
    back = splits.load(path, synthetic_data)
    assert (back.protocol, back.cold) == (split.protocol, split.cold)
    np.testing.assert_array_equal(parts_of(back), parts_of(split))
    assert (back.candidates is None) == (protocol != "loo99")
    np.testing.assert_array_equal(split.candidates, back.candidates)
    splits.save(back, synthetic_data, path)
    assert path.read_bytes() == before
    if split.candidates is None:
        pd.read_parquet(path).sample(frac=1, random_state=0).to_parquet(path, index=False)
        np.testing.assert_array_equal(parts_of(splits.load(path, synthetic_data)), parts_of(split))


def test_damaged_split_files(tmp_path):
    data = dataset([list(range(10))] * 10)
    path = tmp_path / "warm.parquet"
    with pytest.raises(StudyError, match="the file is missing"):
        splits.load(path, data)
    splits.save(splits.make(data, "warm"), data, path)
    table = pd.read_parquet(path)
    for damaged, reason in (
        (table.iloc[:-1], "do not add up"),
        (table.drop(columns="part"), "column part"),
        (table.iloc[:0], "the table is empty"),
        (table.replace({"server_id": {103: 104}}), r"column server_id\): an id that the data set does not have"),
    ):
        damaged.to_parquet(path)
        with pytest.raises(StudyError, match=reason):
            splits.load(path, data)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StudyError, match="not a readable parquet file"):
        splits.load(path, data)


def test_summary_by_hand():
    data = dataset([[0, 1], [1, 2], [3], [0]])
    lists = ([[0, 1], [1], [], []], [[], [2], [], []], [[], [], [3], [0]])
    keep = [dataset(rows).relevance for rows in lists]
    split = splits.Split("warm", *keep, False)
    # Another split, whose validation part holds one pair of this one's training part and two of its test part.
    first = keep[0].multiply([[1], [0], [0], [0]]).multiply(np.arange(40) == 0)
    other = splits.Split("cold", keep[0], keep[2] + first, keep[1], True)
    summary = splits.summary(data, split, {"cold": other, "warm": split}).set_index("part")
    assert summary["in_cold_valid"].tolist() == [1, 0, 2]
    assert summary["in_warm_valid"].tolist() == [0, 1, 0]
    assert summary.loc["train", ["tasks", "servers", "interactions"]].tolist() == [2, 2, 3]
    counts = summary[["warm_tasks", "cold_tasks", "warm_servers", "cold_servers"]]
    assert counts.loc[["valid", "test"]].to_numpy().tolist() == [[1, 0, 0, 1], [0, 2, 1, 1]]
    assert summary.loc["test", "candidates"] == 40
