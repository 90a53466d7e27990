"""The stored experiment of the Transformer's training pages, and how to repeat it.

    python -m toolkit.transformer.training_experiments    # single checkpoints and their average

It takes about two minutes of one core and writes a file of `toolkit/measured/`, which `read`
reads: for ten seeds, the share of 500 reversed sequences that each of the last five checkpoints
gets right, and the share of the model whose weights are their mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from toolkit.corpora import tasks
from toolkit.corpora.translation import PAD
from toolkit.many_models import FOLDER, read_rows, write_rows
from toolkit.translate import load_module

FILE = FOLDER / "transformer_averaging.csv"
SEEDS = 10
SYMBOLS, LENGTHS, BATCH = 10, (3, 7), 64
SIZES = {"num_layers": 1, "d_model": 32, "d_ff": 64, "num_heads": 4, "dropout": 0.0}
STEPS, WARMUP, EVERY, KEPT = 400, 200, 20, 5  # checkpoints: the last KEPT, EVERY steps apart
NEEDED = ("make_model", "train_step", "learning_rate", "average_states", "greedy_decode")
AVERAGE = "average"


def exact(
    model: nn.Module, parts: ModuleType, *, count: int = 500, symbols: int = SYMBOLS,
    lengths: tuple[int, int] = LENGTHS, seed: int = 9,
) -> float:  # fmt: skip
    """Share of fresh sequences that greedy search reverses without a mistake."""
    batch = tasks.reverse_task(count, lengths, symbols, torch.Generator().manual_seed(seed))
    mode = model.training
    model.eval()
    written = parts.greedy_decode(model, batch.source, lengths[1] + 1)  # (B, U')
    model.train(mode)
    goal = batch.target_out  # (B, U)
    found = torch.zeros_like(goal)
    wide = min(goal.shape[1], written.shape[1])
    found[:, :wide] = written[:, :wide]
    return ((found == goal) | (goal == PAD)).all(dim=1).float().mean().item()


def target_of(batch: tasks.Batch) -> Tensor:
    """Whole targets (B, U + 1), from BOS to EOS."""
    return torch.cat([batch.target_in[:, :1], batch.target_out], dim=1)


def averaging(parts: ModuleType, seeds: int = SEEDS, steps: int = STEPS) -> list[dict[str, object]]:
    """Train a small Transformer for each seed; a row for each checkpoint, and one for their mean.

    Args:
        parts: the chapter's module.
    """
    rows: list[dict[str, object]] = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = parts.make_model(SYMBOLS + 4, SYMBOLS + 4, **SIZES).train()
        draw = torch.Generator().manual_seed(seed + 100)
        moments: dict[str, tuple[Tensor, Tensor]] = {}
        states = []
        for step in range(1, steps + 1):
            batch = tasks.reverse_task(BATCH, LENGTHS, SYMBOLS, draw)
            lr = parts.learning_rate(step, SIZES["d_model"], WARMUP)
            _, moments = parts.train_step(model, batch.source, target_of(batch), moments, step, lr)
            if step > steps - KEPT * EVERY and (steps - step) % EVERY == 0:
                states.append({name: t.clone() for name, t in model.state_dict().items()})
                rows.append({"seed": seed, "step": step, "right": round(exact(model, parts), 4)})
        model.load_state_dict(parts.average_states(states))
        rows.append({"seed": seed, "step": AVERAGE, "right": round(exact(model, parts), 4)})
        print(f"seed {seed}: {[row['right'] for row in rows[-KEPT - 1 :]]}", flush=True)
    return rows


def read(file: Path = FILE) -> tuple[list[list[float]], list[float]]:
    """For each seed the shares of its single checkpoints, and the share of their average."""
    rows = read_rows(file)
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    singles = [
        [float(r["right"]) for r in rows if r["seed"] == seed and r["step"] != AVERAGE]
        for seed in seeds
    ]
    return singles, [float(r["right"]) for r in rows if r["step"] == AVERAGE]


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat the experiment and write its file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="solutions.transformer", help="the module of the parts")
    parts = load_module(parser.parse_args(arguments).model, NEEDED)
    torch.set_num_threads(1)
    print(write_rows(FILE, averaging(parts)))


if __name__ == "__main__":
    main()
