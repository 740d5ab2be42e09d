"""MPT-Rec: reversal, frozen experts, scenarios that do not mix, the sum of parts, and its features."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
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
from baselines.mpt_rec import Batch, MPTRec, groups
from baselines.training import Optimisation
from study.data.normalise import spelling_key
from study.data.splits import Split, make
from study.errors import StudyError
from tests.baselines.toys import block_dataset, copy_dataset, make_dataset, recall10, rows_of, top10


def small(epochs: int = 2, **changes: object) -> MPTRec:
    stage = Optimisation(epochs=epochs, batch_size=64, learning_rate=1e-2, weight_decay=0.0, warm_up=0.0, clip=5.0)
    sizes = {"experts": (16, 8), "towers": (8,), "attention": 8, "dense": 6, "negatives": 2, "dropout": 0.0}
    return MPTRec(**{**sizes, "first": stage, "second": stage, **changes})


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


def test_prompts_are_trained(fitted):
    system, _, _ = fitted
    torch.manual_seed(1)
    fresh = Prompt(system.stage1.experts, sum(system.stage1.reader.widths), attention=8, towers=(8,), dropout=0.0)
    for name, value in fresh.named_parameters():
        assert not torch.equal(value, dict(system.prompts[0].named_parameters())[name]), name


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


def test_the_loss_of_a_scenario_does_not_know_the_labels_of_another(fitted):
    system, _, _ = fitted
    tasks, servers = np.array([0, 1, 30, 31]), np.array([3, 4, 20, 21])
    labels = np.array([1, 0, 1, 0], np.float32)

    def gradient_of(labels, scenario):
        system.stage1.requires_grad_(True)
        system.stage1.zero_grad()
        system.loss1(Batch(tasks, servers, labels, 0.5)).backward()
        found = system.stage1.experts.towers[scenario][0].weight.grad.clone()
        system.stage1.requires_grad_(False)
        return found

    left = int(system.scenario[0])
    assert left != system.scenario[30]
    flipped = np.array([1, 0, 0, 1], np.float32)
    torch.testing.assert_close(gradient_of(labels, left), gradient_of(flipped, left), rtol=0, atol=0)
    assert not torch.equal(gradient_of(labels, 1 - left), gradient_of(flipped, 1 - left))


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


def test_an_unknown_head_is_refused(tmp_path):
    data, split = copy_dataset()
    with pytest.raises(StudyError, match="tower"):
        small(head="tower").fit(data, split, seed=1, workdir=tmp_path)
