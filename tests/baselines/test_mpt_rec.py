"""MPT-Rec: reversal, frozen experts, scenarios that do not mix, the sum of parts, and its features."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from baselines.mpt_rec import ATTENTION_TEMPERATURE, UNKNOWN, Experts, MPTRec, Prompt, Reader, bins, codes
from study.base.errors import StudyError
from study.data.normalise import spelling_key
from study.data.splits import make
from tests.baselines.generative_toys import steps
from tests.baselines.toys import all_training, block_dataset, copy_dataset, fit, make_dataset, recall10, split_of


def small(epochs: int = 2, **changes: object) -> MPTRec:
    stage = steps(epochs, 64, 1e-2, weight_decay=0.0, warm_up=0.0, clip=5.0)
    sizes = {"experts": (16, 8), "towers": (8,), "attention": 8, "dense": 6, "negatives": 2, "dropout": 0.0}
    return MPTRec(**{**sizes, "first": stage, "second": stage, **changes})


def with_categories(values, protocol="warm"):
    """The blocks with other categories, and their split."""
    data = block_dataset()
    data.tasks["category"] = values
    return data, make(data, protocol)


TWO = np.repeat(["left", "right"], 20)  # one for each block
THREE = np.tile(["one"] * 10 + ["two"] * 6 + ["three"] * 4, 2)  # across the blocks, of 20, 12 and 8 tasks


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    data, split = with_categories(TWO)
    return fit(small(), data, split, tmp_path_factory.mktemp("mpt_rec")), data, split


def test_stage_2_leaves_stage_1_as_it_is(fitted, tmp_path):
    system, data, split = fitted
    alone = fit(small(head="scenario"), data, split, tmp_path)
    torch.testing.assert_close(alone.stage1.state_dict(), system.stage1.state_dict(), rtol=0, atol=0)
    assert not alone.prompts
    assert len(system.prompts) == 2
    assert system.parameters() > alone.parameters()


@pytest.mark.parametrize("scenarios", [1, 3])
def test_prompts_by_hand(scenarios):
    torch.manual_seed(0)
    base = Experts(10, scenarios, experts=(8, 4), towers=(4,), dropout=0.0)
    prompt, x = Prompt(10, 4, attention=5, towers=(4,), dropout=0.0), torch.randn(7, 10)
    h = torch.relu(x @ prompt.first.weight.T) @ prompt.second.weight.T
    h = (h - h.mean(1, keepdim=True)) / torch.sqrt(h.var(1, keepdim=True, correction=0) + prompt.norm.eps)
    close = (h @ base.environments.T / ATTENTION_TEMPERATURE).exp()
    attention = close / close.sum(dim=1, keepdim=True)
    torch.testing.assert_close(prompt.attention(base, [x]), attention)
    own = sum(attention[:, [k]] * base.specific[k]([x]) for k in range(scenarios))
    weight = torch.softmax(x @ prompt.gate.weight.T, dim=1)
    fused = weight[:, :1] * own * prompt.environment + weight[:, 1:] * base.shared([x])
    torch.testing.assert_close(prompt(base, [x]), prompt.tower(fused).squeeze(1))


def test_l1_by_hand_and_what_it_tells_the_shared_expert(fitted):
    """All terms of L1; the environment's gradient reaches the shared expert times -a, its classifier as it is."""
    system, _, _ = fitted
    tasks, servers = np.array([0, 1, 30, 31, 5]), np.array([3, 4, 20, 21, 9])
    labels, progress = np.array([1, 0, 1, 0, 1], np.float32), 0.3
    strength = (1 - np.exp(-10 * progress)) / (1 + np.exp(-10 * progress))  # tanh(5 p)
    experts = system.network
    system.stage1.requires_grad_(True)
    watched = [experts.shared[0].weight, experts.shared[3].bias, experts.classifier.weight]

    def parts():
        """Sums over samples of the three cross-entropies, one sample at a time and without any reversal."""
        fused_part = general_part = environment_part = torch.zeros(())
        for task, server, label in zip(tasks, servers, labels, strict=True):
            scenario = int(system.scenario[task])
            x = system.reader(np.array([task]), np.array([server]))[0]
            shared, own = experts.shared, experts.specific[scenario]
            g = torch.relu(shared[3](torch.relu(shared[0].weight @ x + shared[0].bias)))
            s = torch.relu(own[3](torch.relu(own[0].weight @ x + own[0].bias))) * experts.environments[scenario]
            share = torch.softmax(experts.gates[scenario].weight @ x, dim=0)
            judge, sign = experts.towers[scenario], 1 if label else -1
            fused_part = fused_part - torch.log(torch.sigmoid(sign * judge(share[0] * s + share[1] * g)[0]))
            general_part = general_part - torch.log(torch.sigmoid(sign * judge(g)[0]))
            environment_part = environment_part - torch.log_softmax(experts.classifier(g), dim=0)[scenario]
        return fused_part, general_part, environment_part

    fused, general, environment = parts()
    tables = [*system.reader.tasks.tables, *system.reader.servers.tables]
    layers = [weight for part in (experts.shared, experts.specific, experts.towers) for weight in part.parameters()]
    decay = system.decay_tables / 2 * sum((table.weight**2).sum() for table in tables)
    decay = decay + system.decay_layers / 2 * sum((weight**2).sum() for weight in layers if weight.ndim == 2)
    loss = system.loss1((tasks, servers, labels, progress))
    torch.testing.assert_close(loss, (fused + 0.9 * general + 0.1 * environment) / 5 + decay)
    found = torch.autograd.grad(loss, watched)
    plain = torch.autograd.grad((fused + 0.9 * general) / 5 + decay, watched, retain_graph=True, allow_unused=True)
    told = torch.autograd.grad(0.1 * environment / 5, watched)
    system.stage1.requires_grad_(False)
    for place in (0, 1):
        assert told[place].abs().max() > 0
        torch.testing.assert_close(found[place], plain[place] - strength * told[place])
    assert plain[2] is None
    torch.testing.assert_close(found[2], told[2])


def test_the_sum_of_parts_is_the_direct_product(fitted):
    system, data, split = fitted
    tasks, experts, reader = split.tasks("test")[:3], system.network, system.reader
    for head in (lambda x: experts(1, x)[0], lambda x: system.prompts[0](experts, x)):
        found = head(reader.all_pairs(tasks))
        for task, row in zip(tasks, found, strict=True):
            x = reader(np.full(data.n_servers, task), np.arange(data.n_servers))
            torch.testing.assert_close(row, head([x]), rtol=1e-4, atol=1e-5)
    expected = system.prompts[system.prompt[tasks[0]]](experts, reader.all_pairs(tasks[:1]))[0]
    np.testing.assert_allclose(system.score(tasks)[0], expected.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", ["prompt", "emerging"])
def test_blocks_are_told_apart_for_new_tasks(head, tmp_path):
    """What frozen experts learned of other categories carries over: the blocks are the same in all of them."""
    data, split = with_categories(TWO if head == "prompt" else THREE, "cold")
    # Ten of the fifteen servers of a block are listed.
    assert recall10(fit(small(epochs=12, head=head), data, split, tmp_path), data, split).mean() > 0.6


def test_a_subcategory_without_training_tasks_is_scored_by_its_category(tmp_path):
    data, split = copy_dataset()
    data.tasks.loc[20:29, "subcategory"] = "never seen"
    data.tasks.loc[30:39, "category"] = "never seen either"
    system = fit(small(), data, split, tmp_path)
    assert (system.prompt[20:30] == -1).all()
    assert (system.scenario == 0).all()
    found = system.score(np.arange(20, 40))
    assert np.isfinite(found).all()
    with torch.no_grad():
        expected = system.network(0, system.reader.all_pairs(np.array([20])))[0]
    np.testing.assert_allclose(found[0], expected[0].numpy(), rtol=1e-5)


def test_values_are_numbered_by_frequency_and_spelling_and_counts_fall_into_logarithmic_bins():
    values = pd.Series(["Web", "web ", "API", "", "api", "web", None, "new"])
    assert codes(values, spelling_key).tolist() == [1, 1, 2, 0, 2, 1, 0, 3]
    assert codes(values, spelling_key, np.array([2, 4, 0])).tolist() == [2, 2, 1, UNKNOWN, 1, 2, UNKNOWN, UNKNOWN]
    assert bins(pd.Series([0, 1, 3, 1000, 10**9, "", None, -1])).tolist() == [1, 2, 3, 10, 10, 0, 0, 1]


def test_features_match_texts_and_languages():
    tasks = [{"name": "query database", "language": "Go"}, {"name": "draw picture", "language": "Rust"}] * 2
    servers = [
        {"name": "database", "description": "query", "language": "Python, go"},
        {"name": "picture", "description": "draw", "language": ""},
        {"name": "x", "description": "", "language": "Rust"},
    ]
    data = make_dataset(tasks, servers, [[0], [1], [0], [1]])
    features = Reader(data, split_of(data, [0, 1], [2, 3]), dense=2, width=4)
    every = features.cross(np.arange(4))
    assert every[[0, 3], :, 2].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert every[0, 0, 0] > every[0, 1, 0]
    assert every[0, 0, 1] > 0 == every[0, 1, 1]
    pairs = features.cross(np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4))
    torch.testing.assert_close(pairs, every.reshape(12, 3), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(features.servers.dense[:, -1], np.log([2, 2, 1]), rtol=1e-6)
    # A new task has no field of its own; under a warm protocol a known one has.
    assert features.tasks.fields.shape == (4, 4)
    assert Reader(data, all_training(data), dense=2, width=4).tasks.fields[:, 4].tolist() == [1, 2, 3, 4]


@pytest.fixture(scope="module")
def emerging(tmp_path_factory):
    data, split = with_categories(THREE)
    return fit(small(head="emerging"), data, split, tmp_path_factory.mktemp("emerging")), data, split


def test_experts_never_see_a_label_of_the_new_category_and_prompts_none_of_another(emerging, tmp_path):
    """Changing the labels of one category moves every expert but those that it is new to, and its own prompts alone."""
    system, data, split = emerging
    rows = data.tasks["category"].to_numpy() == "two"
    parts = {name: split.part(name).toarray() for name in ("train", "valid")}
    for part in parts.values():
        part[rows] = part[rows][:, ::-1]
    changed = replace(split, **{name: sp.csr_matrix(part) for name, part in parts.items()})
    other = fit(small(head="emerging"), data, changed, tmp_path)
    new = int(system.category[rows][0])
    assert sorted(system.models) == [1, 2, 3]
    for number in system.models:
        states = (each.models[number].stage1.state_dict().values() for each in (system, other))
        assert all(torch.equal(*pair) for pair in zip(*states, strict=True)) == (number == new)
    assert not torch.equal(*(next(each.models[new].prompts.parameters()) for each in (system, other)))


def test_a_task_is_scored_by_the_model_to_which_its_category_is_new_or_the_first(emerging, monkeypatch):
    system, _, _ = emerging
    category = np.where(np.arange(40) == 3, 0, system.category)  # one is unknown
    monkeypatch.setattr(system, "category", category)
    rows = np.array([3, 12, 18, 25, 39])
    assert set(category[rows]) == {0, 1, 2, 3}
    expected = [system.models[max(1, int(category[row]))].score(np.array([row]))[0] for row in rows]
    np.testing.assert_allclose(system.score(rows), expected, rtol=1e-5)


def test_one_category_is_refused(tmp_path):
    with pytest.raises(StudyError, match="one category"):
        fit(small(head="emerging"), *with_categories("one"), tmp_path)
