"""Stored experiment of the pages on today's models: GPT-2 with one component changed at a time.

    python -m toolkit.gpt.modern_experiments           # everything, about 7 minutes of a core
    python -m toolkit.gpt.modern_experiments "RoPE"    # contestants with this in their name

A model of some 109,000 parameters learns functions of Python's library (`code_corpus`) with
the tokens of the shipped GPT. Each contestant changes one component of a small GPT-2; the width of
its feed-forward networks is set so that the number of parameters stays. Five learning rates are
tried with seed 0, and the one with the smallest loss on the validation modules is taken; with it,
five seeds are trained. What is reported is the loss on the test modules. A seed
fixes the initialisation and the chunks of text, so contestants can be compared seed by seed.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import models
from toolkit.gpt.measures import stream_loss
from toolkit.gpt.modern import Attention, RMSNorm, SwiGLU
from toolkit.many_models import FOLDER, best_lr, read_rows, replace_rows
from toolkit.pretrain import gpt

FILE = FOLDER / "gpt_modern.csv"
LRS = (3e-3, 6e-3, 1.2e-2, 2.4e-2, 4.8e-2)
SEARCHED, SEEDS = 1, 5  # seeds for each learning rate; seeds at the best one
VOCABULARY, LENGTH, NUM_LAYERS, NUM_HEADS = 1024, 64, 2, 4
STEPS, BATCH, WARMUP, DECAY = 400, 4, 80, 0.1
MEASURED = 30_000  # tokens of validation and test
Row = dict[str, object]


@dataclass(frozen=True)
class Recipe:
    """What a model is made of; the defaults are those of GPT-2."""

    rms_norm: bool = False
    swiglu: bool = False
    rope: bool = False
    num_kv_heads: int = NUM_HEADS
    bias: bool = True
    tied: bool = True
    d_model: int = 48
    free: bool = False  # may have more parameters than the others

    @property
    def d_ff(self) -> int:
        """The width of the feed-forward networks that comes closest to the common size."""
        if self.free:
            return 4 * self.d_model
        sizes = {d_ff: abs(self.size(d_ff) - TARGET) for d_ff in range(16, 400)}
        return min(sizes, key=sizes.__getitem__)

    def size(self, d_ff: int) -> int:
        """Parameters of a model with feed-forward networks of this width."""
        d, kv, bias = self.d_model, self.d_model * self.num_kv_heads // NUM_HEADS, self.bias
        matrices = 3 if self.swiglu else 2
        attention = 2 * d * d + 2 * d * kv + bias * (2 * d + 2 * kv)
        hidden = matrices * d * d_ff + bias * ((matrices - 1) * d_ff + d)
        norm = d * (1 if self.rms_norm or not bias else 2)
        outside = VOCABULARY * d * (1 if self.tied else 2) + (0 if self.rope else LENGTH * d)
        return outside + NUM_LAYERS * (attention + hidden + 2 * norm) + norm


TARGET = Recipe().size(4 * 48)
BASE, ALL = "GPT-2", "all"
CONTESTANTS = {
    BASE: Recipe(),
    "RMSNorm": Recipe(rms_norm=True),
    "SwiGLU": Recipe(swiglu=True),
    "RoPE": Recipe(rope=True),
    "GQA": Recipe(num_kv_heads=2),
    "no biases": Recipe(bias=False),
    "untied": Recipe(tied=False, d_model=40),
    ALL: Recipe(True, True, True, 2, False, tied=False, d_model=40),
    "all but untied": Recipe(True, True, True, 2, False),
    "untied, larger": Recipe(tied=False, free=True),
}

# --------------------------------------------------------------------------- model


class FeedForward(nn.Sequential):
    """GPT-2's feed-forward network."""

    def __init__(self, d_model: int, d_ff: int, bias: bool) -> None:
        super().__init__(
            nn.Linear(d_model, d_ff, bias), nn.GELU(approximate="tanh"),
            nn.Linear(d_ff, d_model, bias),
        )  # fmt: skip


class Model(nn.Module):
    """A GPT of `NUM_LAYERS` pre-norm blocks, made by a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        d, bias = recipe.d_model, recipe.bias

        def norm() -> nn.Module:
            return RMSNorm(d) if recipe.rms_norm else nn.LayerNorm(d, bias=bias)

        make: Callable[..., nn.Module] = SwiGLU if recipe.swiglu else FeedForward
        self.embedding = nn.Embedding(VOCABULARY, d)
        self.positions = None if recipe.rope else nn.Parameter(torch.zeros(LENGTH, d))
        self.blocks = nn.ModuleList(
            nn.ModuleList([
                norm(),
                Attention(
                    d, NUM_HEADS, recipe.num_kv_heads, base=10_000.0 if recipe.rope else None,
                    bias=bias,
                ),
                norm(),
                make(d, recipe.d_ff, bias),
            ])
            for _ in range(NUM_LAYERS)
        )  # fmt: skip
        self.norm = norm()
        self.lm_head = nn.Linear(d, VOCABULARY, bias=False)
        if recipe.tied:
            self.lm_head.weight = self.embedding.weight
        self._initialise()

    def _initialise(self) -> None:
        """As GPT-2, whose 0.02 is 0.55 / √768; embeddings of this width need larger numbers."""
        for name, weight in self.named_parameters():
            if name.startswith(("embedding", "lm_head")):
                nn.init.normal_(weight, std=0.1)
            elif name == "positions":
                nn.init.normal_(weight, std=0.02)
            elif weight.dim() == 2:
                last = name.endswith(("o_proj.weight", "down_proj.weight", "3.2.weight"))
                share = 1 / math.sqrt(2 * NUM_LAYERS) if last else 1.0
                nn.init.normal_(weight, std=share * 0.55 / math.sqrt(weight.shape[1]))
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> logits (B, T, VOCABULARY)."""
        x = self.embedding(ids)  # (B, T, D)
        if self.positions is not None:
            x = x + self.positions[: ids.shape[1]]
        for before, attention, between, feed_forward in self.blocks:
            x = x + attention(before(x))
            x = x + feed_forward(between(x))
        return self.lm_head(self.norm(x))


# --------------------------------------------------------------------------- training


@dataclass(frozen=True)
class Text:
    """The streams of tokens: to train on, to choose on, to report on."""

    train: Tensor
    validation: Tensor
    test: Tensor

    @classmethod
    def load(cls) -> Text:
        """The functions of Python's library in the tokens of the shipped GPT."""
        tokens = gpt.Tokens.load(models.FOLDER / "gpt" / "tokenizer.json")
        corpus = gpt.corpus(tokens)
        return cls(*(corpus.stream(split) for split in ("train", "validation", "test")))


def train(recipe: Recipe, lr: float, seed: int, text: Text, steps: int = STEPS) -> Model:
    """Train a model: AdamW, linear warm-up, cosine decay to a tenth."""
    torch.manual_seed(seed)
    model = Model(recipe)
    draw = torch.Generator().manual_seed(1000 + seed)
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)
    offsets = torch.arange(LENGTH + 1)
    for step in range(steps):
        decay = 0.55 + 0.45 * math.cos(math.pi * step / steps)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(decay, (step + 1) / WARMUP)
        starts = torch.randint(len(text.train) - LENGTH, (BATCH, 1), generator=draw)
        chunk = text.train[starts + offsets]  # (B, T + 1)
        loss = F.cross_entropy(model(chunk[:, :-1]).flatten(0, 1), chunk[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def run(name: str, text: Text, steps: int = STEPS, lrs: Sequence[float] = LRS) -> list[Row]:
    """Rows of contestant, parameters, learning rate, seed, validation and test loss."""
    recipe, rows = CONTESTANTS[name], []

    def one(lr: float, seed: int) -> None:
        model = train(recipe, lr, seed, text, steps)
        size = sum(p.numel() for p in model.parameters())
        validation, test = (
            round(stream_loss(model, stream[: MEASURED + 1], LENGTH), 4)
            for stream in (text.validation, text.test)
        )
        rows.append({
            "contestant": name, "parameters": size, "lr": lr, "seed": seed,
            "validation": validation, "test": test,
        })  # fmt: skip
        print(rows[-1], f"{time.process_time():.0f} s", flush=True)

    for lr in lrs:
        for seed in range(SEARCHED):
            one(lr, seed)
    best = best_lr(rows, least=True)
    for seed in range(SEARCHED, SEEDS):
        one(best, seed)
    return rows


# --------------------------------------------------------------------------- files


@dataclass(frozen=True)
class Found:
    """What a contestant reached: its size, the chosen learning rate, the test loss by seed."""

    parameters: int
    lr: float
    test: tuple[float, ...]

    @property
    def result(self) -> tuple[float, float]:
        """Mean and standard deviation over the seeds, in nats per token."""
        return mean(self.test), stdev(self.test)


def read(file: Path = FILE) -> dict[str, Found]:
    """The stored results by contestant, at the learning rate that validation chose."""
    groups: dict[str, list[dict[str, str]]] = {}
    for row in read_rows(file):
        groups.setdefault(row["contestant"], []).append(row)
    found = {}
    for name, rows in groups.items():
        # Chosen from the seeds that every learning rate has
        lr = best_lr([r for r in rows if int(r["seed"]) < SEARCHED], least=True)
        chosen = sorted((int(r["seed"]), float(r["test"])) for r in rows if float(r["lr"]) == lr)
        found[name] = Found(int(rows[0]["parameters"]), lr, tuple(test for _, test in chosen))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat the experiment, or a part of it, and write its file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="", help="contestants with this in their name")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    text = Text.load()
    for name in CONTESTANTS:
        if given.part in name:
            replace_rows(FILE, run(name, text), list(CONTESTANTS), "contestant")
    print(FILE)


if __name__ == "__main__":
    main()
