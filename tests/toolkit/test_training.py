"""The loop trains, stops, is interrupted and goes on, and is the same every time."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from toolkit import device, training
from toolkit.training import fit

CPU = device.preset("cpu")


def regression(seed: int = 0, dropout: float = 0.0) -> tuple[nn.Module, Callable, torch.Generator]:
    """A small model, its loss on fresh random data, and the generator of the data."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 1))
    generator = torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        x = torch.randn(32, 4, generator=generator)
        return nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))

    return model, loss, generator


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# --------------------------------------------------------------------------- the loop


def test_training_lowers_the_loss_and_leaves_the_model_in_eval_mode() -> None:
    model, loss, _ = regression(dropout=0.1)
    modes = []

    def watched(step: int) -> Tensor:
        modes.append((step, model.training))
        return loss(step)

    history = fit(model, watched, 200, lr=1e-2, preset=CPU)
    assert modes == [(step, True) for step in range(200)]
    assert sum(history.loss[-20:]) < 0.1 * sum(history.loss[:20])
    assert not model.training
    assert not history.stopped_early
    assert history.validation == []
    assert history.best_step is None


@pytest.mark.parametrize("clip", [1.0, None])
def test_the_steps_are_those_of_adam_written_out(clip: float | None) -> None:
    model, loss, _ = regression()
    fit(model, loss, 30, lr=1e-2, clip=clip, preset=CPU)
    other, loss, _ = regression()
    optimiser = torch.optim.Adam(other.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, 2.0 * (1.0 - step / 30) + 0.02)
    )
    for step in range(30):
        optimiser.zero_grad()
        loss(step).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(other.parameters(), clip)
        optimiser.step()
        schedule.step()
    torch.testing.assert_close(weights(model), weights(other), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [1, 1, 1, 1]),
        ("linear", [1, 1, 1, 0.52]),
        ("cosine", [1, 0.853553, 0.5, 0.146447]),
        ("warm-up", [0.02, 0.835333, 0.557556, 0.279778]),
        (lambda step: 1 / (1 + step), [1, 1 / 2, 1 / 3, 1 / 4]),
    ],
)
def test_the_schedule_scales_the_rate(schedule, factors: list[float]) -> None:
    model = nn.Linear(1, 1, bias=False)
    sizes = []
    before = model.weight.item()

    def loss(step: int) -> Tensor:
        nonlocal before
        sizes.append(abs(model.weight.item() - before))
        before = model.weight.item()
        return model.weight.sum()

    fit(model, loss, 4, lr=0.5, schedule=schedule, optimiser=torch.optim.SGD, preset=CPU)
    sizes.append(abs(model.weight.item() - before))
    assert sizes[1:] == pytest.approx([0.5 * f for f in factors], abs=1e-5)


def test_gradients_are_clipped() -> None:
    model = nn.Linear(1, 1, bias=False)
    start = model.weight.item()
    fit(
        model, lambda step: 1000 * model.weight.sum(), 1, lr=1.0, clip=0.25,
        optimiser=torch.optim.SGD, preset=CPU,
    )  # fmt: skip
    assert model.weight.item() == pytest.approx(start - 0.25, abs=1e-4)


def test_frozen_parameters_stay() -> None:
    model, loss, _ = regression()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    fit(model, loss, 5, preset=CPU)
    assert torch.equal(model[0].weight, before)


def test_the_seed_decides_what_dropout_drops() -> None:
    def trained(seed: int | None, outside: int) -> Tensor:
        model, loss, _ = regression(dropout=0.5)
        torch.manual_seed(outside)
        fit(model, loss, 20, seed=seed, preset=CPU)
        return weights(model)

    assert torch.equal(trained(1, outside=1), trained(1, outside=2))
    assert not torch.equal(trained(1, outside=1), trained(2, outside=1))
    assert not torch.equal(trained(None, outside=1), trained(None, outside=2))


def test_training_leaves_the_random_numbers_outside_alone() -> None:
    model, loss, _ = regression(dropout=0.5)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(model, loss, 5, preset=CPU)
    assert torch.equal(torch.rand(3), expected)


def test_tokens_are_counted_if_their_number_is_known() -> None:
    model, loss, _ = regression()
    assert fit(model, loss, 3, preset=CPU).tokens_per_second is None
    assert fit(model, loss, 3, preset=CPU, tokens=32).tokens_per_second > 0
    with_count = fit(model, lambda step: (loss(step), 64), 3, preset=CPU)
    assert with_count.tokens_per_second > 0
    assert len(with_count.loss) == 3


# --------------------------------------------------------------------------- time


class Clock:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def lasting(self, loss: Callable, seconds: float) -> Callable:
        """The same loss, one call of which takes so long."""

        def slow(step: int) -> Tensor:
            self.now += seconds
            return loss(step)

        return slow


def test_training_stops_when_its_time_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    model, loss, _ = regression()
    history = fit(model, clock.lasting(loss, 2.0), None, seconds=9, preset=CPU)
    assert len(history.loss) == 5
    assert history.seconds == 10
    model, loss, _ = regression()
    assert len(fit(model, clock.lasting(loss, 2.0), 3, seconds=9, preset=CPU).loss) == 3


def test_validation_and_saving_are_not_training_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock(monkeypatch)
    model, loss, _ = regression()

    def validate() -> float:
        clock.now += 100.0
        return 1.0

    history = fit(
        model, clock.lasting(loss, 1.0), None, seconds=6, validate=validate, validate_every=2,
        checkpoint=tmp_path / "model.pt", checkpoint_every=2, preset=CPU,
    )  # fmt: skip
    assert history.validation_steps == [2, 4, 6]
    assert history.seconds == 6


@pytest.mark.parametrize(
    ("schedule", "steps", "factors"),
    [
        ("linear", None, [1, 1, 1, 0.52]),
        ("cosine", 2, [1, 0.5]),  # the steps are used up sooner than the time
        (lambda step: 1 / (1 + step), None, [1, 1 / 2, 1 / 3, 1 / 4]),
    ],
)
def test_with_seconds_a_schedule_runs_on_the_share_that_is_used(
    monkeypatch: pytest.MonkeyPatch, schedule, steps: int | None, factors: list[float]
) -> None:
    clock = Clock(monkeypatch)
    model = nn.Linear(1, 1, bias=False)
    seen = [model.weight.item()]

    def loss(step: int) -> Tensor:
        seen.append(model.weight.item())
        return model.weight.sum()

    fit(
        model, clock.lasting(loss, 1.0), steps, seconds=4, lr=0.5, schedule=schedule,
        optimiser=torch.optim.SGD, preset=CPU,
    )  # fmt: skip
    sizes = [a - b for a, b in zip(seen[1:], [*seen[2:], model.weight.item()], strict=True)]
    assert sizes == pytest.approx([0.5 * f for f in factors], abs=1e-5)


def test_a_training_by_time_goes_on_with_the_time_that_was_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock(monkeypatch)
    more = {"seconds": 10, "checkpoint": tmp_path / "m.pt", "checkpoint_every": 3, "preset": CPU}
    model, loss, _ = regression()

    def until(step: int) -> Tensor:
        if step == 7:
            raise PowerCut
        return loss(step)

    with pytest.raises(PowerCut):
        fit(model, clock.lasting(until, 1.0), None, **more)
    model, loss, _ = regression()
    assert len(fit(model, clock.lasting(loss, 1.0), None, **more).loss) == 10
    model, loss, _ = regression()
    with pytest.raises(ValueError, match="other seconds"):
        fit(model, loss, None, **{**more, "seconds": 11})


# --------------------------------------------------------------------------- accumulation


def test_the_parts_of_a_step_add_up() -> None:
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(6, 20, 4, generator=draw), torch.randn(6, 20, 1, generator=draw)
    whole, _, _ = regression()
    one = fit(
        whole, lambda step: nn.functional.mse_loss(whole(x[step]), y[step]), 6, preset=CPU
    )  # fmt: skip
    cut, _, _ = regression()
    calls = []

    def part(call: int) -> tuple[Tensor, int]:
        calls.append(call)
        step, which = divmod(call, 4)
        rows = slice(5 * which, 5 * which + 5)
        return nn.functional.mse_loss(cut(x[step, rows]), y[step, rows]) / 4, 5

    four = fit(cut, part, 6, accumulate=4, preset=CPU)
    assert calls == list(range(24))
    torch.testing.assert_close(weights(cut), weights(whole))
    assert four.loss == pytest.approx(one.loss)
    assert four.tokens_per_second > 0


# --------------------------------------------------------------------------- processes


def test_only_the_first_process_writes_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "model.pt"
    for rank in (1, 0):
        monkeypatch.setattr(training, "_rank", lambda rank=rank: rank)
        model, loss, _ = regression()
        fit(model, loss, 4, checkpoint=path, preset=CPU)
        assert path.exists() == (rank == 0)


def test_processes_have_no_common_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_together", lambda: 2)
    model, loss, _ = regression()
    with pytest.raises(ValueError, match="no common clock"):
        fit(model, loss, None, seconds=1, preset=CPU)


@pytest.mark.parametrize("theirs", [3, 5])
def test_processes_that_stand_at_different_steps_do_not_begin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, theirs: int
) -> None:
    path = tmp_path / "model.pt"
    model, loss, _ = regression()
    fit(model, loss, 4, checkpoint=path, preset=CPU)

    def reduce(ends: Tensor, operation: object) -> None:
        ends.copy_(torch.maximum(ends, torch.tensor([theirs, -theirs])))

    monkeypatch.setattr(training, "_together", lambda: 2)
    monkeypatch.setattr(training, "_rank", lambda: 0)
    monkeypatch.setattr(training.dist, "all_reduce", reduce)
    low, high = sorted((theirs, 4))
    with pytest.raises(ValueError, match=rf"done {low} steps and another {high}.*same checkpoint"):
        fit(model, loss, 4, checkpoint=path, preset=CPU)


# --------------------------------------------------------------------------- validation


def scripted(values: list[float]) -> Callable[[], float]:
    left = iter(values)
    return lambda: next(left)


def test_validation_is_in_eval_mode_without_gradients() -> None:
    model, loss, _ = regression()
    seen = []

    def validate() -> Tensor:
        seen.append((model.training, torch.is_grad_enabled()))
        return torch.tensor(1.5)

    history = fit(model, loss, 10, validate=validate, validate_every=4, preset=CPU)
    assert history.validation_steps == [4, 8, 10]
    assert history.validation == [1.5] * 3
    assert seen == [(False, False)] * 3


def test_validation_does_not_change_the_training() -> None:
    trained = []
    for validate in (None, lambda: torch.rand(())):
        model, loss, _ = regression(dropout=0.5)
        fit(model, loss, 20, validate=validate, preset=CPU)
        trained.append(weights(model))
    assert torch.equal(*trained)


def test_training_stops_when_the_validation_gets_no_better() -> None:
    model, loss, _ = regression()
    copies = []
    values = scripted([3.0, 1.0, 2.0, 1.0, 4.0, 0.0])

    def validate() -> float:
        copies.append(weights(model))
        return values()

    history = fit(model, loss, 100, validate=validate, validate_every=5, patience=3, preset=CPU)
    assert history.stopped_early
    assert history.validation == [3.0, 1.0, 2.0, 1.0, 4.0]
    assert len(history.loss) == 25
    assert history.best_step == 10
    assert torch.equal(weights(model), copies[1])
    assert not torch.equal(weights(model), copies[-1])


def test_patience_brings_back_the_best_weights_after_the_last_step_too() -> None:
    model, loss, _ = regression()
    copies = []
    values = scripted([1.0, 2.0])

    def validate() -> float:
        copies.append(weights(model))
        return values()

    history = fit(model, loss, 10, validate=validate, validate_every=5, patience=9, preset=CPU)
    assert not history.stopped_early
    assert torch.equal(weights(model), copies[0])


def test_without_patience_the_last_weights_stay() -> None:
    model, loss, _ = regression()
    other, same_loss, _ = regression()
    fit(model, loss, 10, validate=scripted([1.0, 2.0]), validate_every=5, preset=CPU)
    fit(other, same_loss, 10, preset=CPU)
    assert torch.equal(weights(model), weights(other))


# --------------------------------------------------------------------------- checkpoints


class PowerCut(Exception):
    pass


@pytest.mark.parametrize("cut", [3, 10, 17, 29])
def test_an_interrupted_training_ends_as_one_that_was_not(tmp_path: Path, cut: int) -> None:
    fixed = torch.randn(64, 4, generator=torch.Generator().manual_seed(2))

    def run(path: Path, stop: int | None) -> tuple[Tensor, training.History]:
        model, loss, generator = regression(seed=1, dropout=0.3)

        def until(step: int) -> Tensor:
            if step == stop:
                raise PowerCut
            return loss(step)

        history = fit(
            model, until, 30,
            validate=lambda: -nn.functional.mse_loss(model(fixed), fixed.sum(1, keepdim=True)),
            validate_every=3, patience=20, checkpoint=path, checkpoint_every=5,
            generators=[generator], preset=CPU, seed=4,
        )  # fmt: skip
        return weights(model), history

    expected, whole = run(tmp_path / "whole.pt", None)
    with pytest.raises(PowerCut):
        run(tmp_path / "cut.pt", cut)
    assert (tmp_path / "cut.pt").exists() == (cut >= 5)
    resumed, history = run(tmp_path / "cut.pt", None)
    assert torch.equal(resumed, expected)
    assert history == whole
    assert whole.best_step < 10  # these weights were kept across a later interruption
    assert list(tmp_path.glob("*.part")) == []


def test_a_finished_training_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "model.pt"
    model, loss, _ = regression()
    first = fit(model, loss, 10, checkpoint=path, preset=CPU)
    other, _, _ = regression(seed=9)

    def never(step: int) -> Tensor:
        raise AssertionError("it trains again")

    second = fit(other, never, 10, checkpoint=path, preset=CPU)
    assert torch.equal(weights(other), weights(model))
    assert second.loss == first.loss


def test_a_training_that_stopped_early_stays_stopped(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    model, loss, _ = regression()
    more = {"validate_every": 5, "patience": 1, "checkpoint": path, "preset": CPU}
    first = fit(model, loss, 100, validate=scripted([1.0, 2.0]), **more)
    assert first.stopped_early
    other, loss, _ = regression(seed=9)
    second = fit(other, loss, 100, validate=scripted([]), **more)
    assert second == first
    assert torch.equal(weights(other), weights(model))


def test_without_resume_training_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    model, loss, _ = regression()
    fit(model, loss, 10, checkpoint=path, preset=CPU)
    steps = []
    model, loss, _ = regression()
    fit(
        model, lambda step: steps.append(step) or loss(step), 10, checkpoint=path, resume=False,
        preset=CPU,
    )  # fmt: skip
    assert steps == list(range(10))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"steps": 11}, "steps"),
        ({"lr": 1.0}, "lr"),
        ({"schedule": "cosine"}, "schedule"),
        ({"seed": 1}, "seed"),
        ({"seconds": 60}, "seconds"),
        ({"accumulate": 2}, "accumulate"),
        ({"generators": [torch.Generator()]}, "model or generators"),
        ({"model": nn.Linear(2, 2)}, "model or generators"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(
    tmp_path: Path, change: dict, named: str
) -> None:
    path = tmp_path / "model.pt"
    model, loss, _ = regression()
    arguments = {"model": model, "loss": loss, "steps": 10, "checkpoint": path, "preset": CPU}
    fit(**arguments)
    with pytest.raises(
        ValueError, match=rf"model\.pt is of another training.*{named}.*resume=False"
    ):
        fit(**{**arguments, **change})


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 half a file"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    model, loss, _ = regression()
    with pytest.raises(ValueError, match=r"model\.pt cannot be read.*resume=False"):
        fit(model, loss, 10, checkpoint=path, preset=CPU)
    assert path.read_bytes() == content


# --------------------------------------------------------------------------- device, precision


def test_the_loss_is_computed_in_the_precision_of_the_preset() -> None:
    half = dataclasses.replace(CPU, amp_dtype=torch.bfloat16)
    seen = []
    finals = {}
    for preset in (CPU, half):
        model, _, generator = regression()

        def loss(step: int, model: nn.Module = model, generator=generator) -> Tensor:
            x = torch.randn(32, 4, generator=generator)
            guess = model(x)
            seen.append(guess.dtype)
            return nn.functional.mse_loss(guess.float(), x.sum(1, keepdim=True))

        history = fit(model, loss, 200, lr=1e-2, preset=preset)
        finals[preset.amp_dtype] = sum(history.loss[-20:]) / 20
        assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert seen == [torch.float32] * 200 + [torch.bfloat16] * 200
    assert finals[torch.bfloat16] < 0.5
    assert finals[torch.bfloat16] != finals[None]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_the_model_is_moved_and_a_resumed_training_is_the_same(tmp_path: Path) -> None:
    preset = device.preset("gpu")

    def run(path: Path, stop: int | None) -> Tensor:
        model, _, generator = regression(dropout=0.3)

        def loss(step: int) -> Tensor:
            if step == stop:
                raise PowerCut
            x = torch.randn(32, 4, generator=generator).to(preset.device)
            return nn.functional.mse_loss(model(x).float(), x.sum(1, keepdim=True))

        fit(model, loss, 30, checkpoint=path, generators=[generator], preset=preset)
        assert next(model.parameters()).is_cuda
        return weights(model)

    expected = run(tmp_path / "whole.pt", None)
    with pytest.raises(PowerCut):
        run(tmp_path / "cut.pt", 17)
    assert torch.equal(run(tmp_path / "cut.pt", None), expected)


# --------------------------------------------------------------------------- what people see


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_with_loss_and_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    model, loss, _ = regression()
    fit(model, loss, 40, preset=CPU, tokens=32)
    assert "40/40" in screen.getvalue()
    assert "loss " in screen.getvalue()
    assert "tokens/s" in screen.getvalue()


@pytest.mark.parametrize(("screen", "progress"), [(Terminal(), False), (io.StringIO(), True)])
def test_nothing_is_written_where_there_is_no_terminal_or_no_wish(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, progress: bool
) -> None:
    monkeypatch.setattr("sys.stderr", screen)
    model, loss, _ = regression()
    fit(model, loss, 5, preset=CPU, progress=progress)
    assert screen.getvalue() == ""


def test_a_loss_that_is_not_finite_is_named_with_its_step(tmp_path: Path) -> None:
    model, loss, _ = regression()
    path = tmp_path / "model.pt"
    with pytest.raises(FloatingPointError, match=r"loss of step 23 is nan.*smaller lr"):
        fit(
            model, lambda step: loss(step) * (float("nan") if step == 23 else 1), 60,
            checkpoint=path, checkpoint_every=10, preset=CPU,
        )  # fmt: skip
    assert torch.load(path, weights_only=True)["step"] == 20
    assert not model.training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": None}, "seconds"),
        ({"seconds": 0}, "seconds"),
        ({"accumulate": 0}, "accumulate"),
        ({"steps": None, "seconds": 1, "validate": lambda: 0.0}, "validate_every"),
        ({"steps": None, "seconds": 1, "checkpoint": "model.pt"}, "checkpoint_every"),
        ({"lr": 0.0}, "lr"),
        ({"clip": -1.0}, "clip"),
        ({"schedule": "square"}, "linear"),
        ({"patience": 3}, "validate"),
        ({"patience": 0, "validate": lambda: 0.0}, "patience"),
        ({"validate_every": 0}, "validate_every"),
        ({"checkpoint_every": -1}, "checkpoint_every"),
        ({"loss": lambda step: torch.zeros(3, requires_grad=True)}, "one number"),
        ({"loss": lambda step: 1.0}, "one number"),
        ({"model": nn.Tanh()}, "no parameters"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict, message: str) -> None:
    model, loss, _ = regression()
    with pytest.raises(ValueError, match=message):
        fit(**{"model": model, "loss": loss, "steps": 2, "preset": CPU, **arguments})
