"""A checkpoint brings back the weights, the optimiser's state and the facts, or nothing at all."""

import pytest
import torch
from torch import nn

from baselines.checkpoints import load_checkpoint, save_checkpoint
from baselines.choices import require_choice
from study.errors import StudyError

OPTIMISERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.1),
}


class Tied(nn.Module):
    """Two layers with one weight, as a language model's first and last table are."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


def step(model, optimiser, times):
    for number in range(times):
        optimiser.zero_grad()
        model(torch.full((2, 3), 1.0 + number)).square().sum().backward()
        optimiser.step()


@pytest.mark.parametrize("name", OPTIMISERS)
def test_what_goes_on_from_a_checkpoint_equals_what_was_never_stopped(name, tmp_path):
    path, whole = tmp_path / "a.safetensors", Tied(0)
    optimiser = OPTIMISERS[name](whole.parameters())
    step(whole, optimiser, 2)
    best = {"best.x": whole.first.weight.detach().clone().T}  # safetensors takes no transposed view
    save_checkpoint(path, whole, optimiser, "this", {"epoch": "2"}, best)
    step(whole, optimiser, 3)

    resumed = Tied(1)
    optimiser = OPTIMISERS[name](resumed.parameters())
    found = load_checkpoint(path, resumed, optimiser, "this")
    assert found is not None
    facts, others = found
    assert facts == {"epoch": "2"}
    assert others.keys() == best.keys()
    torch.testing.assert_close(others["best.x"], best["best.x"], rtol=0, atol=0)
    assert resumed.second.weight is resumed.first.weight
    step(resumed, optimiser, 3)
    for key, value in whole.named_parameters():
        torch.testing.assert_close(dict(resumed.named_parameters())[key], value, rtol=0, atol=0)


@pytest.mark.parametrize("damage", ["missing", "cut", "other", "without identity"])
def test_nothing_is_restored_where_there_is_nothing_to_go_on_from(damage, tmp_path):
    from safetensors.torch import save_file

    path, model = tmp_path / "a.safetensors", Tied(0)
    optimiser = OPTIMISERS["adam"](model.parameters())
    step(model, optimiser, 1)
    if damage == "without identity":
        save_file({f"model.{key}": value.detach() for key, value in model.named_parameters()}, path)
    elif damage != "missing":
        save_checkpoint(path, model, optimiser, "other" if damage == "other" else "this", {})
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])

    fresh, untouched = Tied(1), Tied(1)
    optimiser = OPTIMISERS["adam"](fresh.parameters())
    assert load_checkpoint(path, fresh, optimiser, "this") is None
    assert not optimiser.state_dict()["state"]
    for a, b in zip(fresh.parameters(), untouched.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_choice_is_one_of_those_allowed():
    require_choice("colour", "red", ("red", "blue"))
    with pytest.raises(StudyError, match="unknown colour 'green'") as caught:
        require_choice("colour", "green", ("red", "blue"))
    assert caught.value.column == "system.model.colour"
    assert caught.value.fix == "one of: red, blue"
