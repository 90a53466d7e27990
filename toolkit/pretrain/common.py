"""What the trainings of all shipped models share: files, curves, snapshots, fixed answers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from toolkit import device, training
from toolkit.files import write_whole

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
CURVES, ANSWERS, CARD = "training.csv", "answers.json", "README.md"
SHARES = (0.01, 0.1, 1.0)  # of the steps, after which answers to fixed inputs are kept
EVERY = 50  # steps of training whose mean loss is one row of the curves


@dataclass
class Job:
    """A training: where it writes, whose classes it takes, how it tells.

    out: folder of the result and of all that is needed to go on after an interruption.
    module: has the classes and functions by the names of the chapter.
    preset: device and precision. steps: instead of the preset's. checkpoints: keep the weights
    after each of `SHARES`. progress: a bar, if stderr is a terminal. say: called with lines.
    """

    out: Path
    module: ModuleType
    preset: device.Preset = field(default_factory=device.preset)
    steps: int | None = None
    checkpoints: bool = False
    progress: bool = True
    say: Callable[[str], None] = print

    @property
    def large(self) -> bool:
        return self.preset.name != "cpu"


# --------------------------------------------------------------------------- files


def write_text(path: Path, text: str) -> None:
    """Write a file in one go: whoever reads sees the old one or the new one."""
    write_whole(path, lambda half: half.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Any) -> None:
    """Write JSON that a person can read."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def save_weights(path: Path, model: nn.Module, half: bool = True) -> None:
    """Write a model's parameters and buffers; a tensor that has two names is written once.

    Args:
        half: as float16, half the size.
    """
    from safetensors.torch import save

    seen: set[int] = set()
    kept: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen or not tensor.numel():
            seen.add(tensor.data_ptr())
            value = tensor.detach().cpu().contiguous()
            kept[name] = value.half() if half and value.is_floating_point() else value
    write_whole(path, lambda part: part.write_bytes(save(kept)))


def load_weights(path: Path, model: nn.Module) -> nn.Module:
    """Read what `save_weights` wrote into a model of the same shape, in its own precision.

    Raises:
        ValueError: a name that is missing or unknown, or a tensor of another shape.
    """
    from safetensors.torch import load

    given = load(Path(path).read_bytes())
    wanted = model.state_dict()
    by_storage = {wanted[name].data_ptr(): name for name in given if name in wanted}
    missing = [n for n, t in wanted.items() if n not in given and t.data_ptr() not in by_storage]
    unknown = [name for name in given if name not in wanted]
    if missing or unknown:
        raise ValueError(
            f"{path} does not fit this model: it lacks {missing[:3] or 'nothing'} and has the "
            f"unknown {unknown[:3] or 'nothing'}"
        )
    full = {n: given[n if n in given else by_storage[t.data_ptr()]] for n, t in wanted.items()}
    for name, tensor in full.items():
        if tensor.shape != wanted[name].shape:
            raise ValueError(
                f"{path} does not fit this model: {name} is {tuple(tensor.shape)} there and "
                f"{tuple(wanted[name].shape)} here"
            )
    model.load_state_dict(full)
    return model


# --------------------------------------------------------------------------- curves


class Curves:
    """Rows of numbers by step, kept in a file so that an interruption loses none.

    A step that is trained again after an interruption replaces its row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[str, int], dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._take(json.loads(line))

    def _take(self, row: dict[str, Any]) -> None:
        self.rows[row["model"], row["step"]] = self.rows.get((row["model"], row["step"]), {}) | row

    def add(self, model: str, step: int, **numbers: float) -> None:
        """Add numbers to the row of a step."""
        row = {"model": model, "step": step, **{k: round(v, 5) for k, v in numbers.items()}}
        self._take(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def write(self, path: Path) -> None:
        """All rows as a table in CSV, one a line."""
        rows = [self.rows[key] for key in sorted(self.rows)]
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        table = csv.DictWriter(text, names, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        write_text(path, text.getvalue())


@dataclass
class Watch:
    """Looks on while a model is trained: mean losses, held-out numbers, snapshots.

    name: of the model in the curves. steps: of this training. before_it: steps that the model had
    before. total: of all its trainings; `steps` if not given.
    """

    job: Job
    name: str
    steps: int
    model: nn.Module
    curves: Curves
    before_it: int = 0
    total: int = 0
    pending: dict[str, list[Tensor]] = field(default_factory=dict)

    @property
    def marks(self) -> list[tuple[int, float]]:
        """The steps after which the weights are kept, and which share of all they are."""
        return [(max(1, round(share * (self.total or self.steps))), share) for share in SHARES]

    def snapshot(self, share: float) -> Path:
        """Where the weights after this share of the steps are kept while training."""
        return self.job.out / "training" / f"{self.name}-{share:g}.safetensors"

    def before(self, step: int) -> None:
        """To be called at the beginning of each step with how many were done."""
        if not step and self.before_it:
            return  # said at the end of the training before
        done = self.before_it + step
        for mark, share in self.marks:
            if mark == done:
                save_weights(self.snapshot(share), self.model)
        if step and step % EVERY == 0 and self.pending:
            means = {k: float(torch.stack(v).mean()) for k, v in self.pending.items()}
            self.pending.clear()
            self.curves.add(self.name, done, **means)

    def losses(self, **parts: Tensor) -> None:
        """The losses of a step."""
        for name, value in parts.items():
            self.pending.setdefault(name, []).append(value.detach())


def fit(
    watch: Watch, loss: Callable[[int], Any], check: Callable[[], dict[str, float]], *,
    checks: int = 12, **more: Any,
) -> training.History:  # fmt: skip
    """Train with `toolkit.training.fit`, which goes on where an interrupted training stopped.

    Args:
        watch: what looks on.
        loss: called with the number of the step, as `toolkit.training.fit` does.
        check: numbers of held-out data; the first is the one that shall fall.
        checks: how often to look at them.
    """
    job, steps = watch.job, watch.steps
    done = {"step": 0}

    def step_loss(step: int) -> Any:
        done["step"] = step
        watch.before(step)
        value = loss(step)
        done["step"] = step + 1
        return value

    def validate() -> float:
        numbers = check()
        step = watch.before_it + done["step"]
        watch.curves.add(watch.name, step, **numbers)
        told = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        job.say(f"{watch.name}: step {step:,} of {watch.total or steps:,}, {told}")
        return next(iter(numbers.values()))

    history = training.fit(
        watch.model, step_loss, steps, validate=validate, validate_every=-(-steps // checks),
        checkpoint=job.out / "training" / f"{watch.name}-{watch.before_it}.pt",
        checkpoint_every=max(1, min(500, steps // 10)),
        preset=job.preset, progress=job.progress, **more,
    )  # fmt: skip
    watch.before(steps)
    return history


def finish(
    watch: Watch, asked: str, inputs: Sequence[str], answer: Callable[[], list[Any]]
) -> None:
    """Write the weights, the curves and what the snapshots answer.

    Args:
        watch: of the training that is over.
        asked: what the inputs are called in the file of answers.
        inputs: what the model is asked.
        answer: the model's answers to them, with the weights that it has now.
    """
    out, model = watch.job.out, watch.model.cpu()
    table = {asked: list(inputs), "answers": {}}
    for share in SHARES:
        load_weights(watch.snapshot(share), model).eval()
        table["answers"][f"{share:.0%}"] = answer()
        if watch.job.checkpoints:
            save_weights(out / "checkpoints" / f"{share:.0%}.safetensors", model)
    write_json(out / ANSWERS, table)
    save_weights(out / WEIGHTS, model)
    watch.curves.write(out / CURVES)
