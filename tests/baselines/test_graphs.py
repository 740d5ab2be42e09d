"""Training interactions as pairs, lists, ratings and a graph, over which ReCAFR and the softmax rows spread vectors: by
hand, and against RecBole."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.special import log_softmax, logsumexp

from baselines.interactions import Pairs, bipartite, propagate, stars
from baselines.recafr import Network, ReCAFR
from baselines.softmax_graph import SoftmaxGraph
from study.data.lists import training_lists
from study.data.splits import make
from tests.baselines.toys import with_other_answers


@pytest.fixture
def interactions():
    matrix = sp.random(7, 5, density=0.4, format="csr", random_state=np.random.default_rng(3))
    matrix.data[:] = 1
    return matrix


def test_propagation_has_the_value_and_gradient_of_the_dense_product(interactions):
    matrix, whole = sp.csr_matrix(interactions, dtype=np.float32), torch.from_numpy(interactions.toarray()).float()
    dense, weight = torch.randn(5, 3, requires_grad=True), torch.randn(7, 3)
    product = propagate(matrix, dense)
    torch.testing.assert_close(product, whole @ dense)
    (gradient,) = torch.autograd.grad((product * weight).sum(), dense)
    torch.testing.assert_close(gradient, whole.T @ weight)


def test_the_vectors_are_the_sum_of_powers_of_the_normalised_graph_as_lightgcns(interactions):
    """D^-1/2 A D^-1/2 of the graph of tasks and servers; without alignment and dropout."""
    graph, links = bipartite(interactions), interactions.toarray()
    adjacency = np.block([[np.zeros((7, 7)), links], [links.T, np.zeros((5, 5))]])
    degree = adjacency.sum(axis=1)
    scale = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1)), 0)
    dense = scale[:, None] * adjacency * scale
    np.testing.assert_allclose(graph.toarray(), dense, atol=1e-6)
    model = Network(7, 5, 4, 3, 6)
    z = model(graph).detach()
    expected = sum(np.linalg.matrix_power(dense, power) for power in range(4)) @ model.embedding.detach().numpy()
    np.testing.assert_allclose(z.numpy(), expected, atol=1e-5)
    # RecBole's LightGCN takes the mean of the layers, so its vectors times L + 1 are these.
    lightgcn = pytest.importorskip("recbole.model.general_recommender.lightgcn").LightGCN
    other = lightgcn.__new__(lightgcn)
    torch.nn.Module.__init__(other)
    other.n_users, other.n_items, other.n_layers = 7, 5, 3
    other.user_embedding = torch.nn.Embedding.from_pretrained(model.embedding.detach()[:7])
    other.item_embedding = torch.nn.Embedding.from_pretrained(model.embedding.detach()[7:])
    other.norm_adj_matrix = torch.from_numpy(dense.astype(np.float32)).to_sparse_coo()
    users, items = other.forward()
    torch.testing.assert_close(z, torch.cat([users, items]) * 4, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("keep", [0.3, 0.8, 1.0])
def test_every_batch_has_a_graph_with_its_own_share_of_the_edges(keep, blocks):
    split = blocks[1]
    system = ReCAFR(keep_edges=keep, batch_size=64)
    system.pairs, system.graph, system.known = Pairs(split.train), bipartite(split.train), split.tasks("train")
    graphs = [graph.toarray() for *_, graph, _ in system.batches(np.random.default_rng(0), 0)]
    whole = system.graph.toarray()
    assert len(graphs) == 4
    for graph in graphs:
        np.testing.assert_array_equal(graph[graph != 0], whole[graph != 0])
        assert np.count_nonzero(graph) / np.count_nonzero(whole) == pytest.approx(keep, abs=0.08 if keep < 1 else 0)
    for one, other in zip(graphs[1:], graphs[:-1], strict=True):
        assert np.array_equal(one, other) == (keep == 1)


@pytest.mark.parametrize("others", [[0, 1, 2], [1, 0]])
@pytest.mark.parametrize("view_weight", [0.7, 0.0])
@pytest.mark.parametrize("alignment", [0.3, 0.0])
def test_the_loss_by_hand(alignment, view_weight, others):
    """Three tasks and four servers; with fewer others task 2 is not among them, and is added to its denominator."""
    torch.manual_seed(0)
    system = ReCAFR(alignment=alignment, temperature=0.25, view_weight=view_weight, view_temperature=0.4, decay=0.01)
    network = system.network = Network(3, 4, 2, layers=2, q=6)
    for weight in network.parameters():
        weight.data.normal_()
    system.texts, *system.views = torch.randn(3, 7, 6)
    graph = np.random.default_rng(0).random((7, 7)).astype(np.float32) / 7
    tasks, listed, drawn = np.array([0, 2, 0, 1]), np.array([3, 1, 2, 3]), np.array([0, 0, 1, 2])
    said = system.loss((tasks, listed, drawn, sp.csr_matrix(graph), np.array(others))).item()

    weights = [weight.detach().double().numpy() for weight in network.parameters()]
    embedding, first, first_bias, last, last_bias = weights
    z = embedding + graph @ embedding + graph @ graph @ embedding

    def g(texts):
        x = texts.numpy() @ first.T + first_bias
        return np.where(x > 0, x, 0.01 * x) @ last.T + last_bias

    def nce(anchors, partners, denominators, temperature):
        """Mean over i, with one denominator for each i."""
        values = []
        for a, b, texts in zip(anchors, partners, denominators, strict=True):
            close = [a @ text / np.linalg.norm(a) / np.linalg.norm(text) / temperature for text in (b, *texts)]
            values.append(logsumexp(close[1:]) - close[0])
        return np.mean(values)

    gap = np.diag(z[tasks] @ (z[3 + drawn] - z[3 + listed]).T)
    expected = np.log1p(np.exp(gap)).mean() + 0.01 * sum((weight**2).sum() for weight in weights)
    texts = g(system.texts)
    expected += alignment * nce(z[tasks], texts[tasks], [texts[sorted({*others, t})] for t in tasks], 0.25)
    for servers in (3 + listed, 3 + drawn):  # in the batch, a server as often as it stands there
        expected += alignment * nce(z[servers], texts[servers], [texts[servers]] * 4, 0.25)
    for rows in (tasks, 3 + listed):
        one, other = (z[rows] + g(view)[rows] for view in system.views)
        expected += view_weight * nce(one, other, [other] * 4, 0.4)
    assert said == pytest.approx(expected, rel=1e-5)


TRAIN = sp.csr_matrix(np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=np.float32))  # 3 tasks, 4 servers
START = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
ASKED, PAIRS = np.array([0, 1]), ([0, 0, 1], [0, 3, 1])


def ready(**settings):
    """A system with the vectors `START`, which learns `TRAIN`."""
    system = SoftmaxGraph(**settings)
    system.histories, system.graph = TRAIN, bipartite(TRAIN)
    system.network = torch.nn.ParameterDict({"start": torch.from_numpy(START)})
    return system


def unit(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def layers(n):
    """E^0 ... E^n by the dense graph."""
    degree = np.array([2, 1, 0, 1, 1, 0, 1])
    dense = np.zeros((7, 7))
    dense[:3, 3:] = TRAIN.toarray()
    scale = np.divide(1, np.sqrt(degree), out=np.zeros(7), where=degree > 0)
    graph = scale[:, None] * (dense + dense.T) * scale
    found = [START.astype(np.float64)]
    for _ in range(n):
        found.append(graph @ found[-1])
    return found


def cosines(vectors):
    return unit(vectors)[:3] @ unit(vectors)[3:].T


@pytest.mark.parametrize("n", [0, 1, 2])
def test_full_softmax_by_hand(n):
    logits = cosines(np.mean(layers(n), axis=0))[ASKED] / 0.2
    expected = -log_softmax(logits, axis=1)[PAIRS].mean()
    loss = ready(layers=n, temperature=0.2).loss((ASKED, np.array([], dtype=np.int64)))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_sampled_softmax_by_hand():
    drawn, scores = np.array([2, 2, 0]), cosines(START) / 0.2
    logits = [[scores[ASKED[row], own], *scores[ASKED[row], drawn]] for row, own in zip(*PAIRS, strict=True)]
    expected = -log_softmax(logits, axis=1)[:, 0].mean()
    loss = ready(layers=0, temperature=0.2, loss_over="sampled").loss((ASKED, drawn))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_xsimgcl_by_hand_with_hardly_any_noise():
    """Its vectors leave E^0 out, and tell each task and server of the batch from the others by its first layer."""
    first, second = layers(2)[1:]
    mean = unit((first + second) / 2)
    expected = -log_softmax(cosines((first + second) / 2)[ASKED] / 0.2, axis=1)[PAIRS].mean()
    for chosen in (ASKED, 3 + np.array([0, 1, 3])):
        expected += 0.5 * -np.diag(log_softmax(mean[chosen] @ unit(first[chosen]).T / 0.3, axis=1)).mean()
    settings = {"temperature": 0.2, "noise": 1e-9, "contrast": 0.5, "contrast_temperature": 0.3}
    loss = ready(layers=2, **settings).loss((ASKED, np.array([], dtype=np.int64)))
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_a_noisy_pass_moves_every_vector_by_the_noise_in_its_own_direction():
    torch.manual_seed(0)
    system = ready(layers=1, noise=0.25)
    quiet, noisy = (system.layers_of(perturbed)[1].detach().numpy() for perturbed in (False, True))
    moved = (noisy - quiet)[np.abs(quiet).sum(axis=1) > 0]
    assert np.linalg.norm(moved, axis=1) == pytest.approx(0.25, rel=1e-5)
    assert (np.sign(moved) == np.sign(quiet[np.abs(quiet).sum(axis=1) > 0])).all()


def test_training_lists_keep_the_listed_order_and_hold_no_other_server(blocks):
    data, split = blocks
    lists = training_lists(data, split)
    for task, row in enumerate(lists):
        assert set(row) == set(split.train[[task]].indices)
        places = [data.lists[task].tolist().index(server) for server in row]
        assert places == sorted(places)
    changed, other = with_other_answers(data, split, ("valid", "test"))
    for before, after in zip(lists, training_lists(changed, other), strict=True):
        np.testing.assert_array_equal(before, after)
    cold = make(data, "cold")
    assert [len(row) for row in training_lists(data, cold)] == np.diff(cold.train.indptr).tolist()


def test_pairs_answer_as_the_matrix_does_and_negatives_are_uniform_outside_of_it():
    rng = np.random.default_rng(0)
    matrix = sp.random(20, 15, density=0.3, format="csr", random_state=rng)
    pairs, dense = Pairs(matrix), matrix.toarray() > 0
    rows, columns = rng.integers(20, size=200), rng.integers(15, size=200)
    np.testing.assert_array_equal(pairs.hold(rows, columns), dense[rows, columns])
    pool = np.array([1, 4, 9])
    np.testing.assert_array_equal(pairs.outside(pool), 3 - dense[:, pool].sum(axis=1))
    drawn = pairs.draw_outside(rows, rng, pool)
    free = pairs.outside(pool)[rows] > 0
    assert not dense[rows, drawn][free].any()
    counted = np.bincount(pairs.draw(np.zeros(3000, dtype=np.int64), rng), minlength=15)
    assert not counted[~dense[0]].any()
    np.testing.assert_allclose(counted[dense[0]] / 3000, 1 / dense[0].sum(), atol=0.05)
    # Negatives are uniform over what a task does not list.
    pairs = Pairs(sp.csr_matrix(np.array([[1, 0, 0, 1, 0], [1, 1, 1, 1, 1]], dtype=np.float32)))
    drawn = pairs.draw_outside(np.zeros(6000, dtype=np.int64), np.random.default_rng(0))
    found = np.bincount(drawn, minlength=5)
    assert found[[0, 3]].tolist() == [0, 0]
    assert abs(found[[1, 2, 4]] - 2000).max() < 5 * np.sqrt(6000 * 2 / 9)
    assert len(pairs.draw_outside(np.ones(4, dtype=np.int64), np.random.default_rng(0))) == 4


def test_stars_follow_the_place_of_training_servers_in_the_list(blocks):
    data, split = blocks
    ratings = stars(data, split, "rank")
    for task in (0, 4, 17):
        for server in split.train[[task]].indices:
            place = list(data.lists[task]).index(server) + 1
            assert ratings[task, server] == [5, 5, 4, 4, 3, 3, 2, 2, 1, 1][place - 1]
    assert set(stars(data, split, "binary").data) == {5.0}
