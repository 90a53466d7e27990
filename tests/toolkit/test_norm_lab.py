"""Experiments about the order of the norm: what is measured, and that equal runs are equal."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from solutions.gpt import make_model
from toolkit import norm_lab as lab


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Models this small gain nothing from a second thread, which would mostly wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(depth: int, norm_first: bool, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = make_model(11, 12, 16, depth, 2, dropout=0.0, norm_first=norm_first)
    return lab.same_start(model)


STREAM = torch.arange(400) % 11


def test_blocks_are_runs_of_the_stream_and_reach_both_ends() -> None:
    stream = torch.arange(9)
    inputs, targets = lab.blocks_of(stream, 7, 200, torch.Generator().manual_seed(0))
    assert inputs.shape == targets.shape == (200, 7)
    assert torch.equal(inputs + 1, targets)
    assert torch.equal(inputs, inputs[:, :1] + torch.arange(7))
    assert set(inputs[:, 0].tolist()) == {0, 1}


def test_a_narrow_model_starts_with_branches_as_strong_as_a_wide_one() -> None:
    x = F.layer_norm(torch.randn(50, 768), (768,))
    sizes = {}
    for width in (24, 768):
        torch.manual_seed(0)
        model = lab.same_start(make_model(11, 12, width, 1, 2, dropout=0.0))
        sizes[width] = lab.rms(model.blocks[0].feed_forward.w_1(x[:, :width]))
    assert sizes[24] == pytest.approx(sizes[768], rel=0.15)


def test_the_gradient_of_a_block_is_that_of_all_its_parameters() -> None:
    model = make(3, True)
    inputs, targets = lab.blocks_of(STREAM, 8, 4, torch.Generator().manual_seed(0))
    found = lab.layer_gradients(model, inputs, targets)
    assert all(p.grad is None for p in model.parameters())
    loss = F.cross_entropy(model(inputs).transpose(1, 2), targets)
    for block, norm in zip(model.blocks, found, strict=True):
        parts = torch.autograd.grad(loss, list(block.parameters()), retain_graph=True)
        assert norm == pytest.approx(torch.cat([g.flatten() for g in parts]).norm().item())


def test_the_stream_is_what_enters_and_leaves_the_blocks() -> None:
    model = make(2, True).train()
    ids = torch.randint(11, (3, 7))
    sizes = lab.stream_sizes(model, ids)
    assert model.training
    with torch.no_grad():
        x = model.token(ids) + model.position(torch.arange(7))
        assert sizes[0] == pytest.approx(lab.rms(x))
        for block, size in zip(model.blocks, sizes[1:], strict=True):
            x = block(x)
            assert size == pytest.approx(lab.rms(x))
    assert lab.stream_sizes(make(2, False), ids)[1:] == pytest.approx([1, 1], abs=0.01)
    assert not model.blocks[0]._forward_hooks
    assert not model.blocks[0]._forward_pre_hooks


def test_variances_of_branches_add_up() -> None:
    # a branch that returns independent numbers of variance 1/3
    noise = lambda: lambda x: torch.randn_like(x) / math.sqrt(3)  # noqa: E731
    found = lab.grow(noise, 24, 512)
    wanted = [math.sqrt(1 + n / 3) for n in range(1, 25)]
    assert found == pytest.approx(wanted, rel=0.02)
    assert lab.grow(lambda: torch.zeros_like, 5, 16) == pytest.approx([1] * 5, abs=1e-4)
    state = torch.get_rng_state()
    assert lab.grow(noise, 2, 16, seed=1) == lab.grow(noise, 2, 16, seed=1)
    assert lab.grow(noise, 2, 16, seed=1) != lab.grow(noise, 2, 16, seed=2)
    assert torch.equal(state, torch.get_rng_state())


def test_warm_up_is_the_only_difference_and_rises_linearly() -> None:
    class Recorder(nn.Module):
        """One number; its gradient is 1 in every step, so that Adam's step shows the rate."""

        def __init__(self) -> None:
            super().__init__()
            self.number = nn.Parameter(torch.zeros(1))
            self.seen: list[float] = []
            self.ids: list[torch.Tensor] = []

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            self.seen.append(self.number.item())
            self.ids.append(ids)
            logits = torch.zeros(*ids.shape, 11).scatter(-1, ((ids + 1) % 11)[..., None], 1.0)
            return logits * -self.number

    warm, cold = Recorder(), Recorder()
    for model, warmup in ((warm, 4), (cold, 0)):
        lab.train_once(model, STREAM, steps=8, lr=1e-3, warmup_steps=warmup, seed=3)
    steps = lambda model: [-b + a for a, b in zip(model.seen, model.seen[1:])]  # noqa: E731, B905
    assert steps(cold) == pytest.approx([1e-3] * 7, rel=0.01)
    rising = [0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3, 1e-3]
    assert steps(warm) == pytest.approx(rising, rel=0.01)
    assert all(torch.equal(a, b) for a, b in zip(warm.ids, cold.ids, strict=True))


def test_comparing_trains_every_combination_and_averages_the_last_steps() -> None:
    runs = lab.compare(
        make, STREAM, depths=(1, 2), warmups=(0, 3), seeds=(0, 1), steps=12, last=4, length=8,
        batch=4, lr=1e-2,
    )  # fmt: skip
    assert len(runs.losses) == 8
    assert all(len(losses) == 2 and len(losses[0]) == 12 for losses in runs.losses.values())
    alone = lab.train_once(
        make(2, False, 1), STREAM, steps=12, warmup_steps=3, seed=1, length=8, batch=4, lr=1e-2
    )
    assert runs.losses["post-norm", 3, 2][1] == pytest.approx(alone)
    ends = runs.ends("post-norm", 3, 2)
    assert ends[1] == pytest.approx(sum(alone[-4:]) / 4)
    assert runs.mean("post-norm", 3, 2) == pytest.approx(sum(ends) / 2)
    assert runs.spread("post-norm", 3, 2) == pytest.approx(abs(ends[0] - ends[1]) / math.sqrt(2))
    assert alone[-1] < alone[0]
    lines = runs.table().splitlines()
    assert len(lines) == 5
    assert f"{runs.mean('pre-norm', 0, 1):.2f} ±" in lines[3]


def test_characters_are_numbered_from_zero() -> None:
    stream, size = lab.characters(limit=5_000)
    assert len(stream) <= 5_000
    assert int(stream.min()) == 0
    assert int(stream.max()) == size - 1
