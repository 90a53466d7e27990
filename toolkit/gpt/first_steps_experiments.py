"""Stored experiment of the page on training a GPT: its first 200 steps with one thing changed.

    python -m toolkit.gpt.first_steps_experiments            # everything, about 2 minutes of a core
    python -m toolkit.gpt.first_steps_experiments "lr"       # variants with this in their name

The text is that beside the shipped GPT. Its last functions are kept apart, and the loss is measured
there. Each variant changes one thing of the page's training and has five seeds. Nothing is
searched: a variant that is behind with the page's learning rate may be ahead with another one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import own_models, translate
from toolkit.many_models import FOLDER, SEEDS, read_rows, replace_rows

SIZES = {"d_model": 64, "num_layers": 2, "num_heads": 4, "dropout": 0.0}
TRAIN = {"total_steps": 200, "length": 64, "batch_size": 8, "max_lr": 5e-3, "warmup_steps": 20}
KEPT = 6000  # tokens at the end that are not trained on
USUAL = "as on the page"
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    USUAL: ({}, {}),
    "lr 5e-4": ({}, {"max_lr": 5e-4}),
    "lr 5e-2": ({}, {"max_lr": 5e-2}),
    "no warm-up": ({}, {"warmup_steps": 0}),
    "width 128": ({"d_model": 128}, {}),
}
FILE = FOLDER / "gpt_first_steps.csv"
NEEDED = ("GPT", "init_weights", "train")


@torch.no_grad()
def loss_on(model: nn.Module, stream: Tensor, length: int = 64) -> float:
    """The mean loss in nats on a stream (M,), cut into blocks of so many tokens."""
    model.eval()
    blocks = stream[: len(stream) // length * length].view(-1, length)  # (B, T)
    logits = model(blocks)[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), blocks[:, 1:].flatten()).item()


def first_steps(parts: Any, part: str = "") -> list[dict[str, object]]:
    """Rows of variant, seed and loss; written as they come.

    Args:
        parts: a module with `NEEDED`.
        part: only variants with this in their name.
    """
    shipped = own_models.read("gpt")
    stream = own_models.functions(shipped)
    found: list[dict[str, object]] = []
    for name, (sizes, training) in VARIANTS.items():
        if part not in name:
            continue
        began, rows = time.process_time(), []
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            model = parts.GPT(shipped.sizes["vocab_size"], 128, **(SIZES | sizes))
            parts.init_weights(model)
            parts.train(model, stream[:-KEPT], **(TRAIN | training))
            loss = loss_on(model, stream[-KEPT:])
            rows.append({"variant": name, "seed": seed, "loss": round(loss, 4)})
        replace_rows(FILE, rows, list(VARIANTS))
        print(f"{name}: {time.process_time() - began:.0f} s", flush=True)
        found += rows
    return found


def read() -> dict[str, Tensor]:
    """The stored losses by variant, one a seed."""
    found: dict[str, list[float]] = {}
    for row in read_rows(FILE):
        found.setdefault(row["variant"], []).append(float(row["loss"]))
    return {name: torch.tensor(losses) for name, losses in found.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat the experiment, or a part of it, and write its file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="", help="variants with this in their name")
    parser.add_argument("--model", default="solutions.gpt", help="module with GPT and train")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    first_steps(translate.load_module(given.model, NEEDED), given.part)
    print(FILE)


if __name__ == "__main__":
    main()
