"""The training loop of all chapters.

    def loss(step):
        batch = next(train)
        return sequence_loss(model(batch.source, ...), batch.target_out), batch.tokens

    history = fit(model, loss, 400, validate=error, patience=5, checkpoint="translator.pt")

Adam with gradient clipping and a schedule; device and precision from `toolkit.device.preset`; a
progress bar; early stopping; and checkpoints from which an interrupted training goes on as if it
had never stopped.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm import tqdm

from toolkit import device
from toolkit.files import write_whole

_FLUSH = 50  # steps between two looks at the losses: each look makes a GPU wait
_SHOWN = 10  # steps between two looks when there is a bar to keep up


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers of torch and Python from a seed; both go on afterwards as if untouched."""
    state = random.getstate()
    random.seed(seed)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(state)


@dataclass
class History:
    """What a training went through.

    loss: the loss of every step.
    validation: what `validate` returned, each time it was called.
    validation_steps: how many steps had been done when it was called.
    tokens_per_second: training tokens per second, None if their number is not known. Time spent
        in validation and in saving is not counted.
    stopped_early: whether the validation stopped it before the last step.
    best_step: steps done at the best validation, None without validation.
    seconds: what the training took, without validation and saving.
    """

    loss: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    validation_steps: list[int] = field(default_factory=list)
    tokens_per_second: float | None = None
    stopped_early: bool = False
    best_step: int | None = None
    seconds: float = field(default=0.0, compare=False)  # never the same twice


SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "constant": lambda step, steps: 1.0,
    "linear": lambda step, steps: min(1.0, 2.0 * (1.0 - step / steps) + 0.02),
    "warm-up": lambda step, steps: min(
        max(step / steps, 0.002) / 0.1, (1.0 - step / steps) / 0.9 + 0.002
    ),
    "cosine": lambda step, steps: 0.5 * (1.0 + math.cos(math.pi * step / steps)),
}


def fit(
    model: nn.Module,
    loss: Callable[[int], Tensor | tuple[Tensor, int]],
    steps: int | None,
    *,
    seconds: float | None = None,
    accumulate: int = 1,
    lr: float = 3e-3,
    clip: float | None = 1.0,
    schedule: str | Callable[[int], float] = "linear",
    optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    validate: Callable[[], float | Tensor] | None = None,
    validate_every: int | None = None,
    patience: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = True,
    seed: int | None = 0,
    generators: Sequence[torch.Generator] = (),
    preset: device.Preset | None = None,
    progress: bool = True,
    tokens: int | None = None,
) -> History:
    """Trains a model. Afterwards it is in eval mode, on the device of the preset.

    Args:
        model: moved to the device and trained in place.
        loss: called with the number of the step, 0 to steps - 1, in the precision of the preset;
            returns a scalar, or a scalar and the number of tokens it was computed from.
        steps: how many steps to train; None for as many as `seconds` allow.
        seconds: stop after so much training time, if the steps take longer; validation and saving
            do not count. A named schedule then runs on the share of the time that is used, or on
            that of the steps where it is larger.
        accumulate: how many calls of `loss` make one step; their gradients are added up. `loss`
            is then called with 0 to accumulate * steps - 1.
        lr: the learning rate; `schedule` gives the factor for each step: "linear" (1 in the
            first half, then falling to 0.02), "warm-up" (rising in the first tenth, then falling
            to 0), "cosine", "constant", or a function of the step.
        clip: largest norm of the gradient; None not to clip.
        optimiser: called with the parameters and `lr=lr`.
        validate: called in eval mode and without gradients every `validate_every` steps (default:
            20 times in all) and after the last; returns a number, smaller is better. It draws no
            numbers that the training would draw.
        patience: stop after so many validations in a row without a new best one, and go back to
            the weights of the best. None never to stop and to keep the last weights.
        checkpoint: a file to save the state in every `checkpoint_every` steps (default: 10 times
            in all) and at the end; a training interrupted later goes on from there. Of several
            processes of `torch.distributed` all read it, and only the first writes it.
        resume: whether to go on from `checkpoint` if it exists; otherwise it is overwritten.
        seed: for everything drawn from torch's own generators, such as dropout; they are left as
            they were found. None to draw from them as they are.
        generators: what `loss` draws from besides. Their states are part of the checkpoint, so
            that a resumed training sees the batches it would have seen.
        preset: device and precision; None for `toolkit.device.preset()`.
        progress: show a bar with loss and tokens per second, if stderr is a terminal.
        tokens: tokens of a call of `loss`, if it does not say it.

    Raises:
        ValueError: an argument that makes no sense; a model without parameters to train; a loss
            that is no scalar; a checkpoint that is damaged or of another training.
        FloatingPointError: the loss became infinite or not a number.
    """
    chosen = preset if preset is not None else device.preset()
    _check(steps, seconds, accumulate, lr, clip, validate, patience)
    validate_every = _every("validate_every", validate_every, steps, 20, validate is not None)
    checkpoint_every = _every(
        "checkpoint_every", checkpoint_every, steps, 10, checkpoint is not None
    )
    model.to(chosen.device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameters to train")
    cuda = [torch.cuda.current_device()] if chosen.device.type == "cuda" else []
    with torch.random.fork_rng(cuda, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        run = _Run(model, optimiser(parameters, lr=lr), list(generators))
        plan = {"steps": steps, "lr": lr, "clip": clip, "seed": seed, "seconds": seconds}
        plan["schedule"] = schedule if isinstance(schedule, str) else "a function"
        plan["accumulate"] = None if accumulate == 1 else accumulate
        factor = _factor(schedule)
        path = None if checkpoint is None else Path(checkpoint)
        if path is not None and resume and path.exists():
            run.load(path, plan, chosen.device)
        _agree(run.step, chosen.device)
        shown = progress and sys.stderr.isatty()
        bar = tqdm(
            total=steps,
            initial=run.step,
            disable=not shown,
            unit="step",
        )
        model.train()
        began = time.perf_counter()

        def used() -> float:
            """The share of the steps or of the time that is used up, whichever is larger."""
            of_steps = 0.0 if steps is None else run.step / steps
            spent = run.seconds + time.perf_counter() - began
            return of_steps if seconds is None else max(of_steps, spent / seconds)

        last = used() >= 1
        try:
            while not last and not run.history.stopped_early:
                if seconds is None or callable(schedule):
                    scale = factor(run.step, steps)
                else:
                    scale = factor(used(), 1.0)
                for group in run.optimiser.param_groups:
                    group["lr"] = lr * scale
                total, counted = None, 0
                for part in range(accumulate):
                    with chosen.autocast():
                        result = loss(run.step * accumulate + part)
                    value, count = result if isinstance(result, tuple) else (result, tokens)
                    if not isinstance(value, Tensor) or value.numel() != 1:
                        raise ValueError(
                            "loss must return a tensor with one number, or it and a count"
                        )
                    if part == 0:
                        run.optimiser.zero_grad(set_to_none=True)
                    value.backward()
                    detached = value.detach().reshape(()).double()
                    total = detached if total is None else total + detached
                    counted += int(count or 0)
                if clip is not None:
                    nn.utils.clip_grad_norm_(parameters, clip)
                run.optimiser.step()
                run.done(total, counted)
                last = used() >= 1
                look = validate is not None and (run.step % validate_every == 0 or last)
                save = path is not None and (run.step % checkpoint_every == 0 or last)
                if look or save or last or run.step % (_SHOWN if shown else _FLUSH) == 0:
                    run.flush()
                    bar.update(run.step - bar.n)
                    bar.set_postfix_str(run.summary(time.perf_counter() - began), refresh=False)
                if look or save:
                    run.seconds += time.perf_counter() - began
                    if look:
                        run.validate(validate, patience, chosen)
                    if last or run.history.stopped_early:
                        run.restore_best(patience)
                    if path is not None and (save or run.history.stopped_early):
                        run.save(path, plan)
                    began = time.perf_counter()
            run.seconds += time.perf_counter() - began
        finally:
            bar.close()
            model.eval()
    run.history.seconds = run.seconds
    if run.tokens and run.seconds:
        run.history.tokens_per_second = run.tokens / run.seconds
    return run.history


class _Run:
    """The state of a training between two steps: all that a checkpoint holds."""

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        generators: list[torch.Generator],
    ) -> None:
        self.model, self.optimiser, self.generators = model, optimiser, generators
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        self.history = History()
        self.best: dict[str, Tensor] | None = None
        self.pending: list[Tensor] = []

    def done(self, value: Tensor, count: int) -> None:
        self.step += 1
        self.tokens += count
        self.pending.append(value)

    def flush(self) -> None:
        """Losses become numbers, all at once."""
        if not self.pending:
            return
        losses = torch.stack(self.pending).tolist()
        for place, loss in enumerate(losses):
            if not math.isfinite(loss):
                step = self.step - len(losses) + place
                raise FloatingPointError(
                    f"the loss of step {step} is {loss}: train with a smaller lr, or look for a "
                    "division by zero or a logarithm of zero"
                )
        self.history.loss += losses
        self.pending = []

    def summary(self, seconds: float) -> str:
        recent = self.history.loss[-_FLUSH:]
        text = f"loss {sum(recent) / len(recent):.3f}" if recent else ""
        if self.tokens:
            text += f", {self.tokens / (self.seconds + seconds):,.0f} tokens/s"
        return text

    def validate(
        self, validate: Callable[[], float | Tensor], patience: int | None, chosen: device.Preset
    ) -> None:
        history = self.history
        self.model.eval()
        cuda = [torch.cuda.current_device()] if chosen.device.type == "cuda" else []
        with torch.random.fork_rng(cuda), torch.no_grad(), chosen.autocast():
            value = float(validate())
        self.model.train()
        previous = min(history.validation, default=math.inf)
        history.validation.append(value)
        history.validation_steps.append(self.step)
        if value < previous or history.best_step is None:
            history.best_step = self.step
            if patience is not None:
                self.best = {k: v.clone() for k, v in self.model.state_dict().items()}
        elif patience is not None:
            since = sum(step > history.best_step for step in history.validation_steps)
            history.stopped_early = since >= patience

    def restore_best(self, patience: int | None) -> None:
        if patience is not None and self.best is not None:
            self.model.load_state_dict(self.best)

    def save(self, path: Path, plan: dict[str, Any]) -> None:
        """Writes the checkpoint; whoever reads sees the old file or the new one, no half of it."""
        if _rank() != 0:
            return
        state = {
            "plan": plan,
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "history": vars(self.history),
            "model": self.model.state_dict(),
            "best": self.best,
            "optimiser": self.optimiser.state_dict(),
            "random": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
            "generators": [generator.get_state() for generator in self.generators],
        }
        write_whole(path, lambda half: torch.save(state, half))

    def load(self, path: Path, plan: dict[str, Any], where: torch.device) -> None:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            theirs = state["plan"]
        except Exception as error:
            raise ValueError(
                f"the checkpoint {path} cannot be read ({type(error).__name__}); delete it, or "
                "train with resume=False"
            ) from None
        different = [name for name in plan if theirs.get(name) != plan[name]]
        if not different:
            try:
                self._take(state)
            except (KeyError, RuntimeError, ValueError, TypeError):
                different = ["model or generators"]
        if different:
            raise ValueError(
                f"the checkpoint {path} is of another training (other {', '.join(different)}); "
                "delete it, or train with resume=False"
            )

    def _take(self, state: dict[str, Any]) -> None:
        if len(state["generators"]) != len(self.generators):
            raise ValueError("another number of generators")
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        for generator, saved in zip(self.generators, state["generators"], strict=True):
            generator.set_state(saved)
        torch.set_rng_state(state["random"])
        if state["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.best = state["best"]
        self.history = History(**state["history"])


def _rank() -> int:
    """Which of the processes that train together this one is; 0 if it is alone."""
    return dist.get_rank() if _together() > 1 else 0


def _together() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _agree(step: int, where: torch.device) -> None:
    """Refuses to begin if the processes that train together stand at different steps."""
    if _together() == 1:
        return
    ends = torch.tensor([step, -step], device=where)
    dist.all_reduce(ends, dist.ReduceOp.MAX)
    if int(ends[0]) != -int(ends[1]):
        raise ValueError(
            f"one process has done {-int(ends[1])} steps and another {int(ends[0])}: give all of "
            "them the same checkpoint, in a folder that all of them can read"
        )


def _factor(schedule: str | Callable[[int], float]) -> Callable[[float, float | None], float]:
    if callable(schedule):
        return lambda step, steps: schedule(step)
    if schedule not in SCHEDULES:
        raise ValueError(
            f"schedule must be a function or one of {', '.join(SCHEDULES)}, not {schedule!r}"
        )
    return SCHEDULES[schedule]


def _check(
    steps: int | None,
    seconds: float | None,
    accumulate: int,
    lr: float,
    clip: float | None,
    validate: Callable[[], float | Tensor] | None,
    patience: int | None,
) -> None:
    if steps is None and seconds is None:
        raise ValueError("say how long to train: steps, seconds, or both")
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be 1 or more, not {steps}")
    if seconds is not None and not seconds > 0:
        raise ValueError(f"seconds must be larger than 0, not {seconds}")
    if seconds is not None and _together() > 1:
        raise ValueError("processes that train together have no common clock: give steps alone")
    if accumulate < 1:
        raise ValueError(f"accumulate must be 1 or more, not {accumulate}")
    if not lr > 0:
        raise ValueError(f"lr must be larger than 0, not {lr}")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be larger than 0, or None not to clip, not {clip}")
    if patience is not None and (validate is None or patience < 1):
        raise ValueError("patience needs a validate function, and must be 1 or more")


def _every(name: str, every: int | None, steps: int | None, times: int, needed: bool) -> int:
    if every is None:
        if steps is None:
            if needed:
                raise ValueError(f"without a number of steps {name} must be given")
            return 1
        return max(1, steps // times)
    if every < 1:
        raise ValueError(f"{name} must be 1 or more, not {every}")
    return every
