"""Copies of models with other modules and the same parameters."""

from __future__ import annotations

from torch import nn

from toolkit.module_swap import swap_modules


class Tanh(nn.Module):
    def __init__(self, old: nn.Module) -> None:
        super().__init__()
        self.old = old


def test_parameters_and_buffers_are_shared_and_the_model_stays() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Sequential(nn.BatchNorm1d(2), nn.ReLU()))
    twin = swap_modules(model, {nn.ReLU: Tanh})
    assert [type(module) for module in model.modules()].count(nn.ReLU) == 2
    assert isinstance(twin[1], Tanh)
    assert isinstance(twin[2][1], Tanh)
    mine, theirs = dict(model.named_parameters()), dict(twin.named_parameters())
    assert mine.keys() == theirs.keys()
    assert all(theirs[name] is parameter for name, parameter in mine.items())
    buffers = dict(model.named_buffers())
    assert all(buffer is buffers[name] for name, buffer in twin.named_buffers())


def test_a_module_that_stands_twice_stays_one_and_what_is_made_is_not_swapped_again() -> None:
    relu = nn.ReLU()
    twin = swap_modules(nn.Sequential(relu, relu), {nn.ReLU: Tanh})
    assert twin[0] is twin[1]
    assert type(twin[0].old) is nn.ReLU


def test_the_model_itself_may_be_of_the_type() -> None:
    linear = nn.Linear(2, 3)
    twin = swap_modules(linear, {nn.Linear: Tanh})
    assert isinstance(twin, Tanh)
    assert twin.old is not linear
    assert twin.old.weight is linear.weight
