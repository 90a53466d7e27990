"""Where the course runs, and how large its models are there.

A chapter asks for `preset()` once and takes every size that costs time from it, so the same cells
run in seconds on a laptop and with larger models on a GPU.
"""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Preset:
    """Sizes for one kind of machine.

    name: "cpu" or "gpu".
    device: where tensors and modules go.
    d_model: width of the small models trained in the chapters.
    batch_size: sequences per training step.
    steps: training steps of a small model.
    amp_dtype: dtype of `torch.autocast` while training, None for full float32.
    compile: whether cells that time or train larger models may use `torch.compile`.
    lengths: sequence lengths of the timing experiments.
    """

    name: str
    device: torch.device
    d_model: int
    batch_size: int
    steps: int
    amp_dtype: torch.dtype | None
    compile: bool
    lengths: tuple[int, ...]

    def autocast(self) -> contextlib.AbstractContextManager:
        """The context in which a training step runs: mixed precision, or nothing on a CPU."""
        if self.amp_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.amp_dtype)


def device() -> torch.device:
    """CUDA if a GPU is usable, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def preset(name: str | None = None) -> Preset:
    """The sizes for this machine, or for the kind of machine that `name` says.

    Args:
        name: None for what the machine offers, "cpu" or "gpu" to choose.

    Raises:
        ValueError: for another name, or for "gpu" on a machine without a usable GPU.
    """
    if name is None:
        name = "gpu" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return Preset(
            name="cpu",
            device=torch.device("cpu"),
            d_model=64,
            batch_size=64,
            steps=400,
            amp_dtype=None,
            compile=False,
            lengths=(32, 64, 128, 256, 512),
        )
    if name != "gpu":
        raise ValueError(f'preset must be "cpu" or "gpu", not {name!r}')
    if not torch.cuda.is_available():
        raise ValueError('no usable GPU here; use preset("cpu") or install a CUDA build of torch')
    return Preset(
        name="gpu",
        device=torch.device("cuda"),
        d_model=128,
        batch_size=256,
        steps=600,
        amp_dtype=torch.bfloat16,
        compile=True,
        lengths=(32, 64, 128, 256, 512, 1024, 2048),
    )


def describe() -> str:
    """One line for the reader: machine, threads, torch, Python."""
    if torch.cuda.is_available():
        where = f"GPU {torch.cuda.get_device_name()}"
    else:
        threads = torch.get_num_threads()
        where = f"CPU with {threads} thread{'s' if threads != 1 else ''}"
    return f"{where}, torch {torch.__version__}, Python {platform.python_version()}"
