"""CVH-REC: both propagation rules by hand and against dense algebra, contrast, tags, and what the graph leaves out."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import erf, log_expit, logsumexp, softmax

from baselines.cvh_rec import CVHRec, Network, global_hypergraph, similarity, spread, tags
from study.data.splits import make
from tests.baselines.toys import all_epochs, block_dataset, fit, weights_of


def dense(hypergraph, n):
    """The matrix of a propagation."""
    return spread(hypergraph, torch.eye(n)).numpy()


# Nodes 0 and 1 are equal, node 2 shares one of two members with them, node 3 is empty.
FOUR_NODES = np.array([[1, 0, 0], [1, 0, 0], [1, 1, 0], [0, 0, 0]])


@example(FOUR_NODES, 0.5)
@example(FOUR_NODES, 0.6)  # node 2 keeps to itself
@given(arrays(np.int8, (9, 5), elements=st.integers(0, 1)), st.sampled_from([0.2, 0.5, 1.0]))
def test_signatures_give_the_same_as_all_nodes(matrix, alpha):
    matrix[0, 0] = 1
    common = matrix.astype(int) @ matrix.T
    either = matrix.sum(axis=1)[:, None] + matrix.sum(axis=1) - common
    H = np.divide(common, either, out=np.zeros(common.shape), where=either > 0)
    H[alpha > H] = 0
    degree = H.sum(axis=1, keepdims=True)
    step = np.divide(H, degree, out=np.zeros_like(H), where=degree > 0)
    said = dense(similarity(sp.csr_matrix(matrix), alpha), len(matrix))
    np.testing.assert_allclose(said, step @ step, atol=1e-6)
    np.testing.assert_allclose(said.sum(axis=1), matrix.any(axis=1), atol=1e-6)  # rows sum to 1


def test_the_global_hypergraph_by_hand():
    """One task with server 0 and tag 0, servers 0 and 1, server 1 has the tag: hyperedges {t, m0, g}, {m0}, {m1, g}."""
    parts = [sp.csr_matrix(np.array(part)) for part in ([[1, 0]], [[1]], [[0], [1]])]
    H = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1]])  # nodes x hyperedges
    by_edge, by_node = np.diag(1 / H.sum(axis=0)), np.diag(1 / H.sum(axis=1))
    said = dense(global_hypergraph(*parts, "repo"), 4)
    np.testing.assert_allclose(said, H @ by_edge @ H.T @ by_node, atol=1e-6)
    np.testing.assert_allclose(said.sum(axis=0), 1, atol=1e-6)  # columns sum to 1
    assert not np.allclose(said.sum(axis=1), 1)
    by_rows = dense(global_hypergraph(*parts, "row"), 4)
    np.testing.assert_allclose(by_rows, by_node @ H @ by_edge @ H.T, atol=1e-6)
    np.testing.assert_allclose(by_rows.sum(axis=1), 1, atol=1e-6)


def prepared(data, split, **settings):
    sizes = {"width": 8, "hidden": 12, "contrasted": None, "tags_every": 1, "batch_size": 32, "encoder_epochs": 0}
    return fit(CVHRec(**sizes | settings, schedule=all_epochs(0)), data, split, Path("nowhere"))


SIZES = {"task": 4, "server": 5, "tag": 3}


def toy_network():
    """A network with random weights in all places, for each table a graph of its own, and hypergraphs; width 2."""
    torch.manual_seed(0)
    network = Network(tuple(torch.zeros(size, 2) for size in SIZES.values()), layers=3, hidden=4).double()
    for weight in network.parameters():
        weight.data.normal_()
    rng = np.random.default_rng(0)
    graphs = {name: rng.random((len(table), len(table))) / len(table) for name, table in network.tables.items()}
    return network, graphs, {name: [sp.csr_matrix(graph)] for name, graph in graphs.items()}


def views_by_hand(network, graphs):
    """Call, tag, local, global and final vectors of both kinds."""
    spread = {}
    for name, graph in graphs.items():
        table, share = network.tables[name].detach().numpy(), softmax(network.depths[name].detach().numpy())
        spread[name] = share[0] * table + share[1] * graph @ table + share[2] * graph @ graph @ table
    views = {}
    for kind, overall in (("task", spread["all"][:4]), ("server", spread["all"][4:9])):
        near, far = (softmax(weights[kind].detach().numpy()) for weights in (network.local, network.final))
        assert abs(near[0] - near[1]) > 0.1  # equal shares would not tell which view has which
        assert abs(far[0] - far[1]) > 0.1
        call, tag = spread[f"{kind}_call"], spread[f"{kind}_tag"]
        local = near[0] * call + near[1] * tag
        views[kind] = call, tag, local, overall, far[0] * local + far[1] * overall
    return views


def cross_view_by_hand(network, kind, views, nodes):
    """C(call, tag) + C(local, global): the first three views through the local head, the last one through its own."""
    near, far = (weights_of(network.heads[f"{kind}_{scope}"]) for scope in ("local", "global"))

    def headed(view, head):
        weight, bias, scale, shift, last, last_bias = head
        x = view[nodes] @ weight.T + bias
        x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * scale + shift
        return x * (1 + erf(x / 2**0.5)) / 2 @ last.T + last_bias

    def c(first, second):
        similarity = -np.linalg.norm(first[:, None] - second, axis=2) / 0.5
        return np.mean(logsumexp(similarity, axis=1) - np.diag(similarity))

    call, tag, local, overall, _ = views
    return c(headed(call, near), headed(tag, near)) + c(headed(local, near), headed(overall, far))


def test_the_views_and_their_contrast_by_hand():
    """Five tables over five graphs, whose layers and views all have unequal shares."""
    network, graphs, hypergraphs = toy_network()
    said, nodes = network(hypergraphs), torch.tensor([3, 0, 2])
    assert set(said) == {"task", "server"}
    for kind, views in views_by_hand(network, graphs).items():
        for one, other in zip(said[kind], views, strict=True):
            np.testing.assert_allclose(one.detach().numpy(), other)
        expected = cross_view_by_hand(network, kind, views, nodes.numpy())
        assert network.cross_view(kind, said[kind], nodes).item() == pytest.approx(expected)


@pytest.mark.parametrize("predicts_tags", [True, False])
def test_the_loss_by_hand(predicts_tags):
    network, graphs, hypergraphs = toy_network()
    labels = {kind: np.random.default_rng(1).integers(0, 2, (SIZES[kind], 3)) for kind in ("task", "server")}
    system = CVHRec(contrast=0.3, decay=0.2)
    system.network, system.hypergraphs = network, hypergraphs
    system.tag_labels = {kind: torch.from_numpy(matrix).double() for kind, matrix in labels.items()}
    nodes = {"task": np.array([0, 2, 3]), "server": np.array([1, 4])}
    tasks, listed, drawn = np.array([2, 0]), np.array([3, 1]), np.array([0, 4])
    contrasted = {kind: torch.from_numpy(rows) for kind, rows in nodes.items()}
    step = (*map(torch.from_numpy, (tasks, listed, drawn)), contrasted, predicts_tags)
    views = views_by_hand(network, graphs)
    e_tasks, e_servers = views["task"][-1], views["server"][-1]
    expected = 0.0
    for t, p, n in zip(tasks, listed, drawn, strict=True):
        expected -= log_expit(e_tasks[t] @ e_servers[p] - e_tasks[t] @ e_servers[n]) / 2
        expected += 0.2 / (2 * 2) * sum(e @ e for e in (e_tasks[t], e_servers[p], e_servers[n]))
    for kind, own in views.items():
        expected += 0.3 * cross_view_by_hand(network, kind, own, nodes[kind])
        if predicts_tags:
            weight, bias = weights_of(network.tag_layers[kind])
            logits, y = own[-1] @ weight.T + bias, labels[kind]
            expected -= np.mean(y * log_expit(logits) + (1 - y) * log_expit(-logits))
    assert system.loss(step).item() == pytest.approx(expected)


def test_tags_join_spellings_and_leave_out_new_tasks_and_rare_names():
    data = block_dataset()
    split = make(data, "cold")
    known = np.isin(np.arange(data.n_tasks), split.tasks("train"))
    data.tasks["theme"] = np.where(known, "Web_Apps", "only new tasks")
    data.servers["category"], data.servers["language"] = "web-app", "Python, Rust"
    data.servers.loc[0, "subcategory"] = "once"
    names, of_tasks, of_servers = tags(data, split.tasks("train"))
    assert {"web app", "python", "rust"} <= set(names)
    assert not {"only new task", "once"} & set(names)
    shared = names.index("web app")
    assert sp.vstack([of_tasks, of_servers])[:, [shared]].toarray().all()
    assert of_tasks.shape[0] == known.sum()


def test_new_tasks_are_nowhere_in_the_graph():
    """Whatever a new task's text and attributes are, every hypergraph, label and starting vector stays the same."""
    data, other = block_dataset(), block_dataset()
    split = make(data, "cold")
    new = np.setdiff1d(np.arange(data.n_tasks), split.tasks("train"))
    other.tasks.loc[new, ["name", "description", "category", "subcategory", "theme", "language"]] = "database query"
    systems = [prepared(each, split) for each in (data, other)]
    assert systems[0].network.sizes[0] == len(split.tasks("train"))
    for name, operator in systems[0].hypergraphs.items():
        n = len(systems[0].network.tables[name])
        np.testing.assert_array_equal(dense(operator, n), dense(systems[1].hypergraphs[name], n))
    for one, other in zip(systems[0].starts, systems[1].starts, strict=True):
        torch.testing.assert_close(one, other)
    for kind in ("task", "server"):
        torch.testing.assert_close(systems[0].tag_labels[kind], systems[1].tag_labels[kind])
