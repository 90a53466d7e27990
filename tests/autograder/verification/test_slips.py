"""Right answers with a bad habit: where it is put, and that it does what its name says."""

from __future__ import annotations

import torch
from torch import nn

from autograder.units.assignment import Exercise
from autograder.verification import slips

STUB = """
class Two(nn.Module):
    def forward(self, x):
        raise NotImplementedError

    def decode(self, x):
        raise NotImplementedError

    def size(self, x):
        return len(x)
"""


class Two(nn.Module):
    """A module with two methods that a student writes, and one that is given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3))

    def forward(self, x):
        return x * self.weight

    def decode(self, x):
        return x + self.weight

    def size(self, x):
        return len(x)


def with_habit(slip, place):
    return slips.with_habit(Two, slips.SLIPS[slip](), place)


def test_a_habit_is_put_around_one_method_at_a_time(monkeypatch):
    monkeypatch.setattr(slips.variants, "reference_namespace", lambda unit: {"Two": Two})
    found = slips.of("toy", Exercise("Two", "", 1.0, "", stub=STUB))
    assert [place for slip, place in found if slip == "leaves the mode"] == ["forward", "decode"]
    assert [place for slip, place in found if slip == "shares memory"] == ["__init__"]
    two = with_habit("leaves the mode", "decode")()
    two(torch.ones(3))
    assert two.training
    two.decode(torch.ones(3))
    assert not two.training


def test_a_graph_is_cut_in_place():
    x = torch.ones(3, requires_grad=True) * 2
    with_habit("cuts a graph", "forward")()(x)
    assert not x.requires_grad


def test_what_is_made_alike_has_its_memory_in_common():
    cls = with_habit("shares memory", "__init__")
    one, other = cls(), cls()
    with torch.no_grad():
        one.weight.fill_(5)
    assert other.weight.tolist() == [5, 5, 5]
