"""GDSRec: hand-computed deviations, what padding and the masked target may not change, and whether it can learn."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.special import softmax

from baselines import gdsrec as networks
from baselines.gdsrec import PADDING, GDSRec, Network
from tests.baselines.toys import all_epochs, fit, weights_of

#            m0 m1 m2
RATINGS = [[5, 4, 0], [1, 0, 2], [0, 0, 0]]
SIDES = ["task", "server", "friend"]


def test_deviations_and_friend_weights_of_a_small_matrix_by_hand():
    ratings = sp.csr_matrix(np.array(RATINGS, dtype=float))
    rows, columns = networks.Averages(ratings), networks.Averages(sp.csr_matrix(ratings.T))
    np.testing.assert_allclose(rows.of(np.arange(3)), [4.5, 1.5, 3.0])  # the third row has none: the mean of 5 4 1 2
    np.testing.assert_allclose(columns.of(np.arange(3)), [3.0, 4.0, 2.0])
    np.testing.assert_allclose(rows.of(np.array([0, 0]), np.array([5.0, 0.0])), [4.0, 4.5])
    tasks = networks.deviation_lists(ratings, columns)
    np.testing.assert_array_equal(tasks.entries, [[0, 1], [0, 2], [PADDING, PADDING]])
    np.testing.assert_array_equal(tasks.deviations, [[2, 0], [2, 0], [0, 0]])
    servers = networks.deviation_lists(sp.csr_matrix(ratings.T), rows)
    np.testing.assert_array_equal(servers.entries, [[0, 1], [0, PADDING], [1, PADDING]])
    np.testing.assert_array_equal(servers.deviations, [[1, 1], [1, 0], [1, 0]])  # halves are rounded up
    # Friends weigh as many servers as they rate alike.
    ratings = sp.csr_matrix(np.array([[5, 4, 0], [5, 3, 1], [0, 0, 0]], dtype=float))
    friends = np.array([[1, 2], [0, PADDING], [0, 1]])
    np.testing.assert_array_equal(networks.friend_weights(ratings, friends, 0.0), [[2, 1], [2, 0], [1, 1]])
    np.testing.assert_array_equal(networks.friend_weights(ratings, friends, 1.0), [[3, 1], [3, 0], [1, 1]])


def test_the_aggregation_by_hand():
    """Two owners with the same two entries and a padding, which attend to them differently."""
    torch.manual_seed(0)
    block = networks.Aggregation(2).double()
    for weight in block.parameters():
        weight.data.normal_()
    owners, entries, deviations = torch.tensor([[1.0, 2.0], [-2.0, 1.0]]).double(), *torch.randn(2, 3, 2).double()
    valid, both = torch.tensor([[True, True, False]] * 2), (2, 3, 2)
    said = block(owners, entries.expand(both), deviations.expand(both), valid).detach().numpy()
    arrays = weights_of(block)
    o1, o1_bias, o2, o2_bias, a1, a1_bias, a2, a2_bias, last, last_bias = arrays
    x = [o2 @ np.tanh(o1 @ [*entries[row], *deviations[row]] + o1_bias) + o2_bias for row in range(2)]
    weights = []
    for owner, row in zip(owners, said, strict=True):
        logits = [a2 @ np.maximum(a1 @ [*opinion, *owner] + a1_bias, 0) + a2_bias for opinion in x]
        weights.append(softmax(np.concatenate(logits)))
        np.testing.assert_allclose(row, np.tanh(last @ (weights[-1] @ x) + last_bias))
    assert abs(weights[0][0] - weights[1][0]) > 0.1


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Network(4, 5, 6)


@pytest.mark.parametrize("side", SIDES)
def test_padded_entries_change_nothing(side, network):
    rows, entries, deviations = torch.tensor([0, 1]), torch.tensor([[3, 1], [2, -1]]), torch.tensor([[0, 2], [1, 0]])
    plain = network.aggregate(side, rows, entries, deviations)
    padding, noise = torch.full((2, 3), -1), torch.tensor([[4, 1, 0], [2, 2, 3]])
    longer = network.aggregate(side, rows, torch.cat([entries, padding], 1), torch.cat([deviations, noise], 1))
    torch.testing.assert_close(longer, plain)
    entries[0, 1] = -1
    assert not torch.allclose(network.aggregate(side, rows, entries, deviations)[0], plain[0])
    nothing = network.aggregate(side, torch.arange(4), torch.full((4, 2), -1), torch.zeros(4, 2, dtype=torch.long))
    assert torch.isfinite(nothing).all()
    torch.testing.assert_close(nothing, nothing[:1].expand_as(nothing))


@pytest.mark.parametrize("side", SIDES)
def test_deviation_0_has_a_vector_of_its_own_unless_it_is_padding(side, network):
    """The reference programs look deviation 0 up in the row of padding, which stays zero."""
    rows, entries, deviations = torch.tensor([0, 1]), torch.tensor([[3, 1], [2, 0]]), torch.tensor([[0, 2], [1, 3]])

    def said(zero_is_padding):
        network.zero_is_padding = zero_is_padding
        return network.aggregate(side, rows, entries, deviations).detach()

    plain, padded = said(False), said(True)
    assert not torch.allclose(plain[0], padded[0])
    torch.testing.assert_close(plain[1], padded[1])  # it has no deviation 0
    network.deviations.data[0] = 0
    torch.testing.assert_close(said(False), padded)  # a row of zeros; the entry itself still counts


def groups(tasks, servers, ratings):
    """Tasks with servers of which the first one, and of drawn ones nothing, is left out."""
    servers = np.asarray(servers)
    values = np.zeros(servers.shape, dtype=np.float32)
    values[:, 0] = ratings
    return tasks, servers, np.broadcast_to(tasks[:, None], servers.shape), values


def prepared(data, split, **settings):
    sizes = {"width": 8, "list_length": 50, "friends": 3, "schedule": all_epochs(0)}
    system = fit(GDSRec(**sizes | settings), data, split, Path("nowhere"))
    system.task_lists, system.server_lists = system.all_task_lists, system.all_server_lists
    return system


def test_a_drawn_server_loses_a_task_as_a_listed_one_does(blocks):
    """Otherwise a list that is one short, or an average without a rating, would tell that the pair is listed."""
    system, seen = prepared(*blocks), []
    train, ratings = blocks[1].train.toarray(), system.ratings.toarray()
    system._aggregate = lambda side, rows, entries, deviations: (
        seen.append((side, rows, entries)) or torch.zeros(len(rows), system.width)
    )
    for batch in system.batches(np.random.default_rng(0), 0):
        tasks, servers, targets, left_out = batch
        np.testing.assert_array_equal(left_out, ratings[targets, servers])
        assert train[targets, servers].all()  # every server of the toy is listed
        np.testing.assert_array_equal(targets[:, 0], tasks)
        system.logits(batch)
    for side, rows, entries in seen:
        if side == "server":
            np.testing.assert_array_equal((entries != PADDING).sum(axis=1), train.sum(axis=0)[rows] - 1)


@pytest.mark.parametrize("rating", ["rank", "binary"])
def test_scores_equal_the_logits_of_training_where_nothing_is_masked(rating, blocks):
    system, tasks = prepared(*blocks, rating=rating, mask_target_edge=False), np.array([0, 7, 31])
    system.finish()
    every = groups(tasks, np.tile(np.arange(30), (3, 1)), 0)
    np.testing.assert_allclose(system.score(tasks), system.logits(every).detach().numpy(), atol=1e-5)


def test_nearest_friends_are_training_tasks_and_never_the_task_itself():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(9, 4)).astype(np.float32)
    known = np.array([0, 2, 3, 7])
    found = networks.nearest(vectors, known, 2, seed=0)
    for task, row in enumerate(found):
        others = known[known != task]
        np.testing.assert_array_equal(row, others[np.argsort(-(vectors[others] @ vectors[task]))[:2]])
    found = networks.nearest(np.eye(3, dtype=np.float32), np.array([1]), 2, seed=0)
    np.testing.assert_array_equal(found, [[1, PADDING], [PADDING, PADDING], [1, PADDING]])


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("rating", ["rank", "binary"])
def test_a_masked_prediction_does_not_depend_on_whether_the_pair_is_stored(rating, masked, blocks):
    """No friend lists the server: a friend's deviation would still know the server's average (docs/deviations.md)."""
    data, split = blocks
    train = split.train.toarray()
    friends = prepared(data, split).near
    task, server = next((task, server) for task, server in np.argwhere(train) if not train[friends[task], server].any())
    drawn = np.flatnonzero(train[task] == 0)[:2]
    train[task, server] = 0
    without = sp.csr_matrix(train)
    other = type(split)("warm", without, sp.csr_matrix(split.valid + split.train - without), split.test, cold=False)
    value = prepared(data, split, rating=rating).ratings[task, server]
    assert 1 <= value <= 5
    said = []
    for each, own in ((split, value), (other, 0.0)):
        system = prepared(data, each, rating=rating, mask_target_edge=masked)
        np.testing.assert_array_equal(system.near, friends)
        pair = groups(np.array([task]), [[server, *drawn]], own if masked else 0)
        said.append(system.logits(pair).detach())
    assert torch.allclose(*said) == masked
