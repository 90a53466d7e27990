"""GPT's part of the bench: who is compared, on what, and how; never how fast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autograder.benchmarks import gpt as bench_gpt
from solutions import gpt

TINY = bench_gpt.Sizes(
    vocabulary=12, num_layers=2, width=8, num_heads=2, context=6, batch=3, rows=2, prompt=2,
    rounds=(2, 1),
)  # fmt: skip


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def make() -> gpt.GPT:
    model = gpt.GPT(12, 6, 8, num_layers=2, num_heads=2, dropout=0.0).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


TWINS = {
    "torch.nn": bench_gpt.library_twin,
    "Hugging Face": bench_gpt.hugging_face_twin,
    "nanoGPT": bench_gpt.plain_twin,
}


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_says_and_learns_what_our_model_does(name: str) -> None:
    torch.manual_seed(0)
    model, ids = make(), torch.randint(12, (3, 6))
    twin = TWINS[name](model)
    said = []
    for one in (model, twin):
        one.train()
        logits = one(ids)
        logits = logits if isinstance(logits, torch.Tensor) else logits.logits
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        said.append(logits)
    torch.testing.assert_close(said[1], said[0])
    table = twin.transformer.wte if name == "Hugging Face" else twin.token
    torch.testing.assert_close(table.weight.grad, model.token.weight.grad)
    assert sum(p.numel() for p in twin.parameters()) == sum(p.numel() for p in model.parameters())
    assert not any(module.p for module in twin.modules() if isinstance(module, nn.Dropout))


@pytest.mark.usefixtures("on_the_cpu")
def test_every_path_is_measured_beside_the_libraries() -> None:
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    figures = {figure.name: figure for figure in bench_gpt.gpt_speed(TINY)}
    for what in ("training", "generation"):
        assert figures[f"{what}, fast path"].unit == "tokens/s"
        for other in ("clear path", "Hugging Face", "torch.nn", "nanoGPT"):
            assert figures[f"{what}, {other}"].unit == "tokens/s"
            assert figures[f"{what}, fast path against {other}"].unit == "times faster"
    assert figures["training, fast path"].detail.endswith("3 x 6 tokens, one thread")
    assert figures["generation, fast path"].detail == "2 rows, 2 tokens given, 4 written"
    assert figures["training, share of a matrix product's speed"].unit == "%"
    assert "training, share of the stated peak" not in figures  # of a GPU alone
    assert all(figure.value > 0 for figure in figures.values())
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.usefixtures("on_the_cpu")
def test_what_says_or_writes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            model.blocks[0].feed_forward.w_1.weight.mul_(50)
            model.token.weight.mul_(3)
        return model

    honest = gpt.fast_generate
    with monkeypatch.context() as patch:
        patch.setattr(gpt, "fused", broken)
        with pytest.raises(RuntimeError, match="fast path and clear path differ by"):
            bench_gpt.gpt_speed(TINY)

    def other(*given: Any, **more: Any) -> torch.Tensor:
        return (honest(*given, **more) + 1) % 12

    monkeypatch.setattr(gpt, "fast_generate", other)
    with pytest.raises(RuntimeError, match="fast path and clear path agree on 0%"):
        bench_gpt.gpt_speed(TINY)


def test_the_stated_speed_is_that_of_the_chip() -> None:
    assert bench_gpt.stated_speed("NVIDIA H200") == bench_gpt.stated_speed("NVIDIA H100 80GB HBM3")
    assert bench_gpt.stated_speed("NVIDIA A100-SXM4-80GB") == 312e12
    assert bench_gpt.stated_speed("a chip of tomorrow") is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the GPU's bench needs a GPU")
def test_the_gpu_is_measured_in_bf16_with_its_share_of_the_peak() -> None:
    figures = {figure.name: figure for figure in bench_gpt.gpt_speed(TINY)}
    assert figures["training, fast path"].detail.endswith("bf16")
    assert figures["training, fast path"].value > 0
