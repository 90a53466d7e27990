"""The stored experiment on the learning-rate schedule: what warm-up and decay are worth.

    python -m toolkit.gpt.schedule_experiments            # everything, about 8 minutes of a core
    python -m toolkit.gpt.schedule_experiments "cosine"   # schedules with this in their name

Small GPTs learn to write Python functions character by character, from the text that lies beside
the shipped GPT. Each schedule gets the same steps, batches and initialisations, five learning rates
(the largest of the schedule) and five seeds; everything else is the chapter's recipe. The learning
rate is chosen on validation text; what is reported is measured on other text. The rows go to a file
of `toolkit/measured/`, which `read` reads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit.gpt.measures import stream_loss
from toolkit.many_models import FOLDER, best_lr, read_rows, replace_rows
from toolkit.models import FOLDER as MODELS
from toolkit.pretrain.gpt import BREAK, HELD_OUT
from toolkit.translate import load_module, on_fast_path

FILE = FOLDER / "gpt_schedule.csv"
NEEDED = ("GPT", "init_weights", "decay_groups", "cosine_lr", "sample_blocks")
SEEDS = 5
LRS = (4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2)
STEPS, WARMUP, LENGTH, BATCH, WEIGHT_DECAY, CLIP = 600, 60, 64, 8, 0.1, 1.0
SIZES = {"d_model": 32, "num_layers": 2, "num_heads": 2, "dropout": 0.0}
Row = dict[str, object]
# Share of the largest learning rate at a step from 1, of so many; the chapter's cosine is given.
Cosine = Callable[..., float]
SCHEDULES: dict[str, Callable[[int, int, int, Cosine], float]] = {
    "constant": lambda step, warmup, total, cosine: 1.0,
    "warm-up only": lambda step, warmup, total, cosine: min(1.0, step / warmup),
    "cosine only": lambda step, warmup, total, cosine: cosine(step, 1.0, 0, total),
    "warm-up and cosine": lambda step, warmup, total, cosine: cosine(step, 1.0, warmup, total),
}


def characters() -> tuple[dict[str, Tensor], list[str]]:
    """The text as a stream of characters for each split, and the characters by id.

    Returns:
        "train", "validation" and "test": (M,) int64; of ten functions one each is validation and
        test.
    """
    functions = (MODELS / "gpt" / HELD_OUT).read_text(encoding="utf-8").split(BREAK)
    letters = sorted(set("\n".join(functions)))
    number = {letter: i for i, letter in enumerate(letters)}
    parts = {
        "validation": functions[8::10],
        "test": functions[9::10],
        "train": [f for i, f in enumerate(functions) if i % 10 < 8],
    }
    streams = {
        name: torch.tensor([number[c] for c in "\n\n".join(part)]) for name, part in parts.items()
    }
    return streams, letters


def trained(
    parts: ModuleType, stream: Tensor, vocab_size: int, schedule: str, lr: float, seed: int,
    steps: int = STEPS,
) -> nn.Module:  # fmt: skip
    """One small GPT after its training; a seed has the same weights and batches everywhere."""
    torch.manual_seed(seed)
    model = parts.init_weights(parts.GPT(vocab_size, LENGTH, **SIZES))
    model = on_fast_path(parts, model).train()
    optimiser = torch.optim.AdamW(
        parts.decay_groups(model, WEIGHT_DECAY), lr=lr, betas=(0.9, 0.95), fused=True
    )
    warmup = min(WARMUP, steps // 10)
    for step in range(1, steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = lr * SCHEDULES[schedule](step, warmup, steps, parts.cosine_lr)
        inputs, targets = parts.sample_blocks(stream, LENGTH, BATCH)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
    return model.eval()


def compare(parts: ModuleType, part: str = "", lrs: Sequence[float] = LRS) -> list[Row]:
    """Rows of schedule, learning rate, seed and the losses of validation and test text (nats)."""
    streams, letters = characters()
    rows: list[Row] = []
    for schedule in SCHEDULES:
        if part not in schedule:
            continue
        began = time.perf_counter()
        for lr in lrs:
            for seed in range(SEEDS):
                model = trained(parts, streams["train"], len(letters), schedule, lr, seed)
                losses = {name: round(stream_loss(model, streams[name], LENGTH), 4)
                          for name in ("validation", "test")}  # fmt: skip
                rows.append({"schedule": schedule, "lr": lr, "seed": seed} | losses)
        print(f"{schedule}: {time.perf_counter() - began:.0f} s", flush=True)
    return rows


@dataclass(frozen=True)
class Found:
    """One schedule's result.

    validation: by learning rate, the losses of the seeds. lr: with the least mean of these.
    test: (seeds,) losses at that learning rate on text on which nothing was chosen.
    """

    validation: Mapping[float, Tensor]
    lr: float
    test: Tensor


def read() -> dict[str, Found]:
    """What is stored, by schedule."""
    rows = read_rows(FILE)
    found = {}
    for name in dict.fromkeys(row["schedule"] for row in rows):
        own = [row for row in rows if row["schedule"] == name]
        lr = best_lr(own, least=True)
        by_lr = {
            each: torch.tensor([float(r["validation"]) for r in own if float(r["lr"]) == each])
            for each in dict.fromkeys(float(row["lr"]) for row in own)
        }
        test = torch.tensor([float(row["test"]) for row in own if float(row["lr"]) == lr])
        found[name] = Found(by_lr, lr, test)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat the experiment and write its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="", help="schedules with this in their name")
    parser.add_argument("--model", default="solutions.gpt", help="the module of the parts")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = compare(load_module(given.model, NEEDED), given.part)
    print(replace_rows(FILE, rows, list(SCHEDULES), "schedule"))


if __name__ == "__main__":
    main()
