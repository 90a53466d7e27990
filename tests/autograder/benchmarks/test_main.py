"""The Transformer's part of the bench: who is compared, on what, and how; never how fast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from autograder.benchmarks import __main__ as bench
from solutions import transformer

# PyTorch's own encoder packs padded sentences, and says that this is new.
pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensors")

TINY = bench.Sizes(
    vocabulary=12, num_layers=2, d_model=8, d_ff=12, num_heads=2, batch=3, length=5, written=2,
    rounds=(2, 3, 1),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def make(**changes: Any) -> transformer.EncoderDecoder:
    sizes = {"num_layers": 2, "d_model": 8, "d_ff": 12, "num_heads": 2, "dropout": 0.0, **changes}
    model = transformer.make_model(12, 14, **sizes).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    source, target = torch.randint(4, 12, (3, 6)), torch.randint(4, 14, (3, 5))
    source[1, 4:], target[2, 3:] = transformer.PAD, transformer.PAD
    return source, target


@pytest.mark.parametrize("training", [True, False])
def test_the_librarys_twin_says_what_our_model_says(batch: Any, training: bool) -> None:
    torch.manual_seed(0)
    model = make()
    twin = bench.library_twin(model, dropout=0.0)
    real = batch[1] != transformer.PAD
    for one in (model, twin):
        one.train(training)
    ours, theirs = (one(*batch)[real] for one in (model, twin))
    torch.testing.assert_close(theirs, ours)
    assert sum(p.numel() for p in twin.parameters()) == sum(p.numel() for p in model.parameters())
    # The same decoder writes with both.
    for one in (model, twin):
        one.eval()
    with torch.no_grad():
        written = [transformer.greedy_decode(one, batch[0], 7) for one in (model, twin)]
    assert torch.equal(*written)


def test_the_twin_learns_as_our_model_learns(batch: Any) -> None:
    torch.manual_seed(1)
    model = make()
    twin = bench.library_twin(model, dropout=0.0)
    for one in (model, twin):
        one.train()
        transformer.label_smoothing_loss(one(*batch), batch[1]).backward()
    ours, theirs = (one.src_embed for one in (model, twin))
    torch.testing.assert_close(theirs.weight.grad, ours.lut.weight.grad)
    torch.testing.assert_close(twin.proj.weight.grad, model.generator.proj.weight.grad)


def test_the_twin_drops_out_where_our_model_does() -> None:
    rates = [module.p for module in bench.library_twin(make(), dropout=0.3).core.modules()
             if isinstance(module, nn.Dropout)]  # fmt: skip
    assert set(rates) == {0.3}


def test_every_path_is_measured_beside_the_library() -> None:
    threads = torch.get_num_threads()
    state = torch.random.get_rng_state()
    figures = {figure.name: figure for figure in bench.transformer_speed(TINY)}
    three = ["clear path", "fast path", "torch.nn.Transformer"]
    cached = ["clear path, cache", "fast path, cache"]
    for what, names in (("forward", three), ("training step", three),
                        ("generation", three + cached)):  # fmt: skip
        assert {f"{what}, {name}" for name in names} <= set(figures)
        for slow in ("torch.nn.Transformer", "clear path"):
            assert figures[f"{what}, fast path against {slow}"].unit == "times faster"
    assert "generation, clear path, cache against clear path" in figures
    assert "generation, fast path, cache against torch.nn.Transformer" in figures
    assert all(figure.value > 0 for figure in figures.values())
    assert figures["forward, fast path"].detail == "N=2, D=8, 3 x 5 tokens, one thread"
    assert figures["generation, fast path"].detail == "2 sentences of 5 tokens, one thread"
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Which kind of model ran, and whether it was in training mode, while the clock ran."""
    seen: list[tuple[str, bool]] = []
    turns = bench.taking_turns

    def watched(contestants: Any, rounds: int, clock: Any) -> Any:
        hooks = torch.nn.modules.module.register_module_forward_pre_hook(
            lambda module, _: seen.append((type(module).__name__, module.training))
        )
        try:
            return turns(contestants, rounds, clock)
        finally:
            hooks.remove()

    monkeypatch.setattr(bench, "taking_turns", watched)
    return seen


def test_each_contestant_runs_as_it_says(calls: list[tuple[str, bool]]) -> None:
    """Clear and fast attention, the library's, each in evaluation and in training."""
    bench.transformer_speed(TINY)
    fast = type(transformer.fused(transformer.MultiHeadAttention(4, 2))).__name__
    for kind in ("MultiHeadAttention", fast, "TransformerEncoder"):
        assert {(kind, True), (kind, False)} <= set(calls), kind
    ran = [training for kind, training in calls if kind == "EncoderDecoder"]
    # forward, then training, with one more round each that does not count
    assert ran == [False] * 6 + [True] * 8


def test_a_fast_path_that_says_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            model.encoder.layers[0].feed_forward.w_1.weight.mul_(1.5)
        return model

    monkeypatch.setattr(transformer, "fused", broken)
    with pytest.raises(RuntimeError, match="fast path and clear path differ by"):
        bench.transformer_speed(TINY)


def test_generation_that_writes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = transformer.cached_greedy_decode
    monkeypatch.setattr(
        transformer, "cached_greedy_decode", lambda *given: honest(*given).roll(1, dims=1) + 1
    )
    with pytest.raises(RuntimeError, match="clear path, cache and clear path agree on 0%"):
        bench.transformer_speed(TINY)
    monkeypatch.setattr(transformer, "cached_greedy_decode", lambda *given: honest(*given)[:, 1:])
    with pytest.raises(RuntimeError, match="wrote"):
        bench.transformer_speed(TINY)


def test_only_the_transformer_is_measured_if_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench.paths, "ROOT", tmp_path)
    monkeypatch.setattr(bench.paths, "BUILD", tmp_path / "build")
    measured = [bench.Figure("forward, fast path", 1.25, "ms", "here")]
    monkeypatch.setattr(bench, "transformer_speed", lambda: measured)
    assert bench.main(["--only", "transformer"]) == 0
    report = (tmp_path / "build" / "bench.json").read_text(encoding="utf-8")
    assert '"of": "transformer"' in report
    assert '"value": 1.25' in report
    assert report.count('"of"') == 1
    assert "forward, fast path" in " ".join(capsys.readouterr().out.split())
