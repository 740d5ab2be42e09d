"""MPT-Rec: reversal, frozen experts, scenarios that do not mix, the sum of parts, and its features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.metrics import roc_auc_score

from baselines.mpt_networks import (
    ATTENTION_TEMPERATURE,
    UNKNOWN,
    Additive,
    Experts,
    PairFeatures,
    Prompt,
    bins,
    codes,
    reverse_gradient,
)
from baselines.mpt_rec import Batch, MPTRec, MPTRecEmerging, groups, only
from baselines.training import Optimisation
from study.data.normalise import spelling_key
from study.data.splits import Split, make
from study.errors import StudyError
from tests.baselines.toys import block_dataset, copy_dataset, make_dataset, recall10, rows_of, top10


def small(kind: type[MPTRec] = MPTRec, epochs: int = 2, **changes: object) -> MPTRec:
    stage = Optimisation(epochs=epochs, batch_size=64, learning_rate=1e-2, weight_decay=0.0, warm_up=0.0, clip=5.0)
    sizes = {"experts": (16, 8), "towers": (8,), "attention": 8, "dense": 6, "negatives": 2, "dropout": 0.0}
    return kind(**{**sizes, "first": stage, "second": stage, **changes})


def two_scenarios():
    """The blocks, with a category for each."""
    data = block_dataset()
    data.tasks["category"] = np.repeat(["left", "right"], 20)
    return data


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    data = two_scenarios()
    split = make(data, "warm")
    system = small()
    system.fit(data, split, seed=1, workdir=tmp_path_factory.mktemp("mpt_rec"))
    return system, data, split


def test_the_reversal_turns_the_gradient_of_what_is_below_it_alone():
    torch.manual_seed(0)
    expert, classifier, x = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2), torch.randn(6, 4)
    labels = torch.tensor([0, 1, 0, 1, 1, 0])

    def gradients(below):
        loss = torch.nn.functional.cross_entropy(classifier(below(expert(x))), labels)
        return torch.autograd.grad(loss, [expert.weight, classifier.weight])

    plain, reversed_ = gradients(lambda value: value), gradients(lambda value: reverse_gradient(value, 0.7))
    torch.testing.assert_close(reversed_[0], -0.7 * plain[0])
    torch.testing.assert_close(reversed_[1], plain[1])
    torch.testing.assert_close(reverse_gradient(x, 0.3), x)


def test_stage_2_leaves_stage_1_as_it_is(fitted, tmp_path):
    system, data, split = fitted
    alone = small(head="scenario")
    alone.fit(data, split, seed=1, workdir=tmp_path)
    before, after = alone.stage1.state_dict(), system.stage1.state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]), name
    assert not alone.prompts
    assert len(system.prompts) == 2
    assert system.parameters() > alone.parameters()
    names = {name.split(".", 1)[1].split(".")[0] for name, _ in system.prompts.named_parameters()}
    assert names == {"environment", "first", "second", "norm", "gate", "tower"}


def test_a_single_scenario_has_all_the_attention():
    torch.manual_seed(0)
    base = Experts(10, 1, experts=(8, 4), towers=(4,), dropout=0.0)
    prompt = Prompt(base, 10, attention=5, towers=(4,), dropout=0.0)
    x = torch.randn(7, 10)
    first = [layer(x) for layer in prompt.linears()]
    torch.testing.assert_close(prompt.attention(first[0]), torch.ones(7, 1))
    own, general = base.specific[0].finish(first[3]), base.shared.finish(first[2])
    weight = torch.softmax(prompt.gate(x), dim=1)
    fused = weight[:, :1] * own * prompt.environment + weight[:, 1:] * general
    torch.testing.assert_close(prompt.finish(first), prompt.tower(fused).squeeze(1))


def test_attention_is_the_papers_formula():
    torch.manual_seed(0)
    base = Experts(10, 3, experts=(8, 4), towers=(4,), dropout=0.0)
    prompt = Prompt(base, 10, attention=5, towers=(4,), dropout=0.0)
    x = torch.randn(2, 10)
    h = torch.relu(x @ prompt.first.weight.T) @ prompt.second.weight.T
    h = (h - h.mean(1, keepdim=True)) / torch.sqrt(h.var(1, keepdim=True, correction=0) + prompt.norm.eps)
    scores = h @ base.environments.T / ATTENTION_TEMPERATURE
    expected = scores.exp() / scores.exp().sum(dim=1, keepdim=True)
    torch.testing.assert_close(prompt.attention(prompt.first(x)), expected)


def test_l1_by_hand_and_what_it_tells_the_shared_expert(fitted):
    """All terms of L1; the environment's gradient reaches the shared expert times -a, its classifier as it is."""
    system, _, _ = fitted
    tasks, servers = np.array([0, 1, 30, 31, 5]), np.array([3, 4, 20, 21, 9])
    labels, progress = np.array([1, 0, 1, 0, 1], np.float32), 0.3
    strength = (1 - np.exp(-10 * progress)) / (1 + np.exp(-10 * progress))  # tanh(5 p)
    experts = system.stage1.experts
    system.stage1.requires_grad_(True)
    watched = [experts.shared.first.weight, experts.shared.second.bias, experts.classifier.weight]

    def parts():
        """Sums over samples of the three cross-entropies, one sample at a time and without any reversal."""
        fused_part = general_part = environment_part = torch.zeros(())
        for task, server, label in zip(tasks, servers, labels, strict=True):
            scenario = int(system.scenario[task])
            x = system.stage1.reader(np.array([task]), np.array([server]))[0]
            shared, own = experts.shared, experts.specific[scenario]
            g = torch.relu(shared.second(torch.relu(shared.first(x))))
            s = torch.relu(own.second(torch.relu(own.first(x)))) * experts.environments[scenario]
            share = torch.softmax(experts.gates[scenario].weight @ x, dim=0)
            judge, sign = experts.towers[scenario], 1 if label else -1
            fused_part = fused_part - torch.log(torch.sigmoid(sign * judge(share[0] * s + share[1] * g)[0]))
            general_part = general_part - torch.log(torch.sigmoid(sign * judge(g)[0]))
            environment_part = environment_part - torch.log_softmax(experts.classifier(g), dim=0)[scenario]
        return fused_part, general_part, environment_part

    fused, general, environment = parts()
    tables = [*system.stage1.reader.task_tables, *system.stage1.reader.server_tables]
    matrices = [
        weight
        for part in (experts.shared, experts.specific, experts.towers)
        for name, weight in part.named_parameters()
        if name.endswith("weight")
    ]
    decay = system.decay_tables / 2 * sum((table.weight**2).sum() for table in tables)
    decay = decay + system.decay_layers / 2 * sum((weight**2).sum() for weight in matrices)
    loss = system.loss1(Batch(tasks, servers, labels, progress))
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


def test_experts_are_in_evaluation_mode_while_prompts_are_trained(tmp_path):
    data = two_scenarios()
    system, modes = small(dropout=0.5), []
    plain = system.loss2
    system.loss2 = lambda batch: modes.append([part.training for part in system.stage1.modules()]) or plain(batch)
    system.fit(data, make(data, "warm"), seed=1, workdir=tmp_path)
    assert modes
    assert not any(map(any, modes))


def test_the_sum_of_parts_is_the_direct_product(fitted):
    system, data, split = fitted
    tasks = split.tasks("test")[:3]
    for layers, finish in (system._head(0, 0), system._head(-1, 1)):
        parts = Additive(system.stage1.reader, layers, tasks, data.n_servers)
        for task, first in zip(tasks, parts, strict=True):
            x = system.stage1.reader(np.full(data.n_servers, task), np.arange(data.n_servers))
            direct = [layer(x) for layer in layers]
            for a, b in zip(first, direct, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(finish(first), finish(direct), rtol=1e-4, atol=1e-5)
    whole = system.score(tasks)
    head = system._head(int(system.prompt[tasks[0]]), int(system.scenario[tasks[0]]))
    x = system.stage1.reader(np.full(data.n_servers, tasks[0]), np.arange(data.n_servers))
    with torch.no_grad():
        np.testing.assert_allclose(whole[0], head[1]([layer(x) for layer in head[0]]).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stage", [1, 2])
def test_256_pairs_are_learned_by_heart(stage, tmp_path):
    """Labels at random, so that only the pair itself can tell."""
    data = two_scenarios()
    split = make(data, "warm")
    system = small(epochs=1, experts=(64, 32), towers=(32,))
    system.fit(data, split, seed=1, workdir=tmp_path)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(data.n_tasks * data.n_servers)[:256]
    labels = (rng.random(256) < 0.3).astype(np.float32)
    batch = Batch(chosen // data.n_servers, chosen % data.n_servers, labels, 0.0)
    model, loss = (system.stage1, system.loss1) if stage == 1 else (system.prompts, system.loss2)
    # Without stage 1 the experts are random features, of which a prompt has to make do with few.
    model.requires_grad_(True)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        optimiser.zero_grad()
        loss(batch).backward()
        optimiser.step()
    system.prompts = system.prompts if stage == 2 else torch.nn.ModuleList()
    found = system.score(batch.tasks)[np.arange(256), batch.servers]
    assert roc_auc_score(labels, found) > (0.999 if stage == 1 else 0.9)


def test_blocks_are_told_apart_for_new_tasks(tmp_path):
    data = two_scenarios()
    split = make(data, "cold")
    system = small(epochs=12)
    system.fit(data, split, seed=1, workdir=tmp_path)
    # Ten of the fifteen servers of a block are listed.
    assert recall10(top10(system, data, split), split).mean() > 0.6


def test_a_subcategory_without_training_tasks_is_scored_by_its_category(tmp_path):
    data, split = copy_dataset()
    data.tasks.loc[20:29, "subcategory"] = "never seen"
    data.tasks.loc[30:39, "category"] = "never seen either"
    system = small()
    system.fit(data, split, seed=1, workdir=tmp_path)
    assert (system.prompt[20:30] == -1).all()
    assert (system.scenario == 0).all()
    found = system.score(np.arange(20, 40))
    assert np.isfinite(found).all()
    expected = system._head(-1, 0)
    parts = Additive(system.stage1.reader, expected[0], np.array([20]), data.n_servers)
    with torch.no_grad():
        np.testing.assert_allclose(found[0], expected[1](next(iter(parts))).numpy(), rtol=1e-5)


def test_an_epoch_holds_every_interaction_once_with_its_negatives(fitted):
    system, _, split = fitted
    parts = system.batches(3, 1, 1)
    tasks = np.concatenate([part.tasks for part in parts])
    servers = np.concatenate([part.servers for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    listed = set(zip(*split.train.nonzero(), strict=True))
    assert sorted(zip(tasks[labels == 1], servers[labels == 1], strict=True)) == sorted(listed)
    assert not listed & set(zip(tasks[labels == 0], servers[labels == 0], strict=True))
    assert len(labels) == 3 * len(listed)
    # Stage 2 has negatives and an order of its own.
    again = np.concatenate([part.servers for part in system.batches(3, 1, 2)])
    assert (np.sort(again) != np.sort(servers)).any()
    shares = [part.progress for part in system.batches(1, 1, 1)]
    assert shares[0] == 0.5
    assert shares == sorted(shares)
    assert shares[-1] < 1


# Features


def test_values_are_numbered_by_frequency_and_spelling():
    values = pd.Series(["Web", "web ", "API", "", "api", "web", None, "new"])
    assert codes(values, spelling_key).tolist() == [1, 1, 2, 0, 2, 1, 0, 3]
    assert codes(values, spelling_key, np.array([2, 4, 0])).tolist() == [2, 2, 1, UNKNOWN, 1, 2, UNKNOWN, UNKNOWN]


def test_counts_fall_into_logarithmic_bins():
    assert bins(pd.Series([0, 1, 3, 1000, 10**9, "", None, -1])).tolist() == [1, 2, 3, 10, 10, 0, 0, 1]


def test_features_match_texts_and_languages():
    tasks = [{"name": "query database", "language": "Go"}, {"name": "draw picture", "language": "Rust"}] * 2
    servers = [
        {"name": "database", "description": "query", "language": "Python, go"},
        {"name": "picture", "description": "draw", "language": ""},
        {"name": "x", "description": "", "language": "Rust"},
    ]
    data = make_dataset(tasks, servers, [[0], [1], [0], [1]])
    cold = Split(
        "cold",
        rows_of(data, np.array([1, 1, 0, 0])),
        data.relevance * 0,
        rows_of(data, np.array([0, 0, 1, 1])),
        cold=True,
    )
    features = PairFeatures(data, cold, width=2)
    assert features.cross(0)[:, 2].tolist() == [1, 0, 0]
    assert features.cross(3)[:, 2].tolist() == [0, 0, 1]
    assert features.cross(0)[0, 0] > features.cross(0)[1, 0]
    assert features.cross(0)[0, 1] > 0 == features.cross(0)[1, 1]
    every = features.crosses(np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4))
    np.testing.assert_allclose(every, np.concatenate([features.cross(task) for task in range(4)]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(features.server_dense[:, -1], np.log([2, 2, 1]), rtol=1e-6)
    # A new task has no field of its own; under a warm protocol a known one has.
    assert features.task_fields.shape == (4, 4)
    warm = Split("warm", data.relevance, data.relevance * 0, data.relevance * 0, cold=False)
    assert PairFeatures(data, warm, width=2).task_fields[:, 4].tolist() == [1, 2, 3, 4]


def test_groups_are_all_places():
    assert [(number, places.tolist()) for number, places in groups(np.array([2, -1, 2]))] == [(-1, [1]), (2, [0, 2])]


# One category new at a time


def three_categories():
    """The blocks, with categories across them, of 20, 12 and 8 tasks."""
    data = block_dataset()
    data.tasks["category"] = np.tile(["one"] * 10 + ["two"] * 6 + ["three"] * 4, 2)
    return data


@pytest.fixture(scope="module")
def emerging(tmp_path_factory):
    data = three_categories()
    split = make(data, "warm")
    system = small(MPTRecEmerging)
    system.fit(data, split, seed=1, workdir=tmp_path_factory.mktemp("emerging"))
    return system, data, split


def reversed_lists(part: sp.csr_matrix, rows: np.ndarray) -> sp.csr_matrix:
    """`part` with the lists of `rows` reversed along the servers."""
    dense = part.toarray()
    dense[rows] = dense[rows][:, ::-1]
    return sp.csr_matrix(dense)


def test_experts_never_see_a_label_of_the_new_category_and_prompts_none_of_another(emerging, tmp_path):
    """Changing the labels of one category moves every expert but those that it is new to, and its own prompts alone."""
    system, data, split = emerging
    rows = np.flatnonzero(data.tasks["category"] == "two")
    changed = replace(split, train=reversed_lists(split.train, rows), valid=reversed_lists(split.valid, rows))
    other = small(MPTRecEmerging)
    other.fit(data, changed, seed=1, workdir=tmp_path)
    new = int(system.category[rows[0]])
    assert sorted(system.models) == [1, 2, 3]
    for number in system.models:
        one, two = system.models[number], other.models[number]
        experts = [
            torch.equal(a, b)
            for a, b in zip(one.stage1.state_dict().values(), two.stage1.state_dict().values(), strict=True)
        ]
        assert all(experts) == (number == new)
    assert not torch.equal(*(next(each.models[new].prompts.parameters()) for each in (system, other)))


def test_there_is_an_expert_for_each_other_category(emerging):
    system, _, split = emerging
    for number, model in system.models.items():
        assert len(model.stage1.experts.specific) == 2
        new = np.flatnonzero(system.category == number)
        assert (model.prompt[np.intersect1d(new, split.tasks("train"))] >= 0).all()
        assert set(np.flatnonzero(model.listed.counts)) <= set(new)


def test_a_task_is_scored_by_the_model_to_which_its_category_is_new(emerging):
    system, _, _ = emerging
    rows = np.array([3, 12, 18, 25, 39])
    found = system.score(rows)
    for row, scores in zip(rows, found, strict=True):
        own = system.models[int(system.category[row])]
        np.testing.assert_allclose(scores, own.score(np.array([row]))[0], rtol=1e-5)
    assert len({system.category[row] for row in rows}) == 3


def test_prompts_of_a_new_category_tell_the_blocks_apart(tmp_path):
    """What the frozen experts learned of other categories carries over: the blocks are the same in all of them."""
    data = three_categories()
    split = make(data, "cold")
    system = small(MPTRecEmerging, epochs=12)
    system.fit(data, split, seed=1, workdir=tmp_path)
    assert recall10(top10(system, data, split), split).mean() > 0.6


def test_an_unknown_category_is_scored_by_the_first_model(emerging, monkeypatch):
    system, _, _ = emerging
    monkeypatch.setattr(system, "category", np.where(np.arange(40) == 3, 0, system.category))
    np.testing.assert_array_equal(system.score(np.array([3])), system.models[1].score(np.array([3])))


def test_one_category_is_refused(tmp_path):
    data = block_dataset()
    data.tasks["category"] = "one"
    with pytest.raises(StudyError, match="one category"):
        small(MPTRecEmerging).fit(data, make(data, "warm"), seed=1, workdir=tmp_path)


def test_only_some_tasks_keep_their_interactions(emerging):
    _, data, split = emerging
    mask = np.arange(data.n_tasks) % 2 == 0
    kept = only(split, mask)
    for name in ("train", "valid"):
        assert kept.part(name)[mask].toarray().tolist() == split.part(name)[mask].toarray().tolist()
        assert set(kept.tasks(name)) == set(split.tasks(name)) & set(np.flatnonzero(mask))
    assert kept.test is split.test
