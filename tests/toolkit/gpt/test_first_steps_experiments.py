"""The stored experiment on the first steps of a GPT."""

import math

import pytest
import torch
from torch import nn

from toolkit.gpt import first_steps_experiments as first_steps


def test_a_model_that_knows_nothing_has_the_logarithm_of_the_vocabulary() -> None:
    class Even(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.zeros(*ids.shape, 9)

    stream = torch.randint(9, (200,))
    assert first_steps.loss_on(Even(), stream) == pytest.approx(math.log(9), abs=1e-5)


def test_every_variant_has_a_loss_for_each_seed() -> None:
    found = first_steps.read()
    assert list(found) == list(first_steps.VARIANTS)
    assert all(losses.shape == (first_steps.SEEDS,) for losses in found.values())
