"""The three stored experiments of the sequence-to-sequence chapter, and how to repeat them.

    python -m toolkit.seq2seq.experiments memory      # which cell names a symbol it saw long ago
    python -m toolkit.seq2seq.experiments bottleneck  # digits through one vector, and looking back
    python -m toolkit.seq2seq.experiments forcing     # which inputs a decoder learns most from

Each takes ten to twenty minutes of one core and writes a file of `toolkit/measured/`, which `read`
reads. Every variant is trained with five learning rates and five seeds, 25 models side by side
(`toolkit.many_models`). Which learning rate is best is decided on sequences for
validation; what is reported is measured on others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor

from toolkit.many_models import (
    FOLDER,
    SEEDS,
    Parameters,
    best_lr,
    cross_entropy,
    embed,
    read_rows,
    run_named,
    train,
    uniform,
    write_rows,
)

LRS = (1e-3, 2.5e-3, 6e-3, 1.5e-2, 4e-2)
MODELS = len(LRS) * SEEDS
SYMBOLS = 8  # of the recall task
DELAY = 20  # symbols between the one that counts and the question
DIGITS = 10
LENGTHS = (2, 4, 6, 8, 10)
CELLS = {"RNN": 1, "GRU": 3, "LSTM": 4}  # blocks of rows of the parameters
# Cells of the memory experiment: kind, and what is added to the bias of the gate that keeps.
REMEMBER = {
    "RNN": ("RNN", 0.0), "GRU": ("GRU", 0.0), "LSTM": ("LSTM", 0.0),
    "GRU, gate open": ("GRU", 2.0), "LSTM, gate open": ("LSTM", 2.0),
}  # fmt: skip
# Models of the bottleneck experiment: width, and whether the decoder looks back.
CARRY = {
    "fixed context, width 16": (16, False),
    "fixed context, width 32": (32, False),
    "attention, width 16": (16, True),
}


# Models of the forcing experiment: the probability that training feeds the right digit, at the
# first step and at the last; in between it changes evenly.
FORCED = {
    "always forced": (1.0, 1.0), "half forced": (0.5, 0.5), "free": (0.0, 0.0),
    "ever less forced": (1.0, 0.0),
}  # fmt: skip


# --------------------------------------------------------------------------- 25 models at once


def _uniform(bound: float, *shape: int) -> Tensor:
    return uniform(bound, MODELS, *shape)


def _cell(kind: str, name: str, inputs: int, width: int, keep: float = 0.0) -> Parameters:
    """Parameters of a recurrent cell, initialised as PyTorch does, for all models."""
    bound, rows = 1 / math.sqrt(width), CELLS[kind] * width
    made = {
        f"{name}.weight_ih": _uniform(bound, inputs, rows),
        f"{name}.weight_hh": _uniform(bound, width, rows),
        f"{name}.bias_ih": _uniform(bound, 1, rows),
        f"{name}.bias_hh": _uniform(bound, 1, rows),
    }
    made[f"{name}.bias_ih"][..., width : 2 * width] += keep  # z and f are the second block
    return made


def _run(
    kind: str, at: Parameters, name: str, x: Tensor, state: tuple[Tensor, ...]
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """A cell over a sequence: x (M, B, T, I) and states (M, B, H) -> T states h, the last state."""
    weights = at[f"{name}.weight_ih"], at[f"{name}.weight_hh"]
    given = x.flatten(1, 2) @ weights[0] + at[f"{name}.bias_ih"]  # (M, B * T, rows)
    states = []
    for part in given.unflatten(1, x.shape[1:3]).unbind(2):
        from_state = torch.baddbmm(at[f"{name}.bias_hh"], state[0], weights[1])  # (M, B, rows)
        if kind == "RNN":
            state = (torch.tanh(part + from_state),)
        elif kind == "GRU":
            (x_r, x_z, x_n), (h_r, h_z, h_n) = part.chunk(3, -1), from_state.chunk(3, -1)
            z = torch.sigmoid(x_z + h_z)
            n = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
            state = (torch.lerp(n, state[0], z),)
        else:
            i, f, g, o = (part + from_state).chunk(4, -1)
            c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
            state = (torch.sigmoid(o) * torch.tanh(c), c)
        states.append(state[0])
    return states, state


def _train(at: Parameters, loss: Callable[[Parameters, int], Tensor], steps: int) -> Iterator[int]:
    return train(at, loss, steps, LRS)


# --------------------------------------------------------------------------- memory


def _recall(batch: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random symbols with a question mark behind them; the first symbol is the answer."""
    ids = torch.randint(SYMBOLS, (MODELS, batch, DELAY + 1), generator=draw)
    question = torch.full((MODELS, batch, 1), SYMBOLS)
    return torch.cat([ids, question], 2), ids[:, :, 0]


def memory(
    checkpoints: Sequence[int] = tuple(range(100, 1201, 100)), batch: int = 32, width: int = 24
) -> list[dict[str, object]]:
    """Delayed recall: rows of cell, delay, step, learning rate, seed and accuracies."""
    rows: list[dict[str, object]] = []
    for name, (kind, keep) in REMEMBER.items():
        torch.manual_seed(1)
        at = {"embedding": torch.randn(MODELS, SYMBOLS + 1, width)}
        at |= _cell(kind, "cell", width, width, keep)
        at |= {"output": _uniform(1 / math.sqrt(width), width, SYMBOLS)}
        draw = torch.Generator().manual_seed(2)

        def answer(at: Parameters, ids: Tensor, kind: str = kind) -> Tensor:
            zeros = torch.zeros(MODELS, ids.shape[1], width)
            x = embed(at["embedding"], ids)
            _, last = _run(kind, at, "cell", x, (zeros,) * (2 if kind == "LSTM" else 1))
            return last[0] @ at["output"]  # (M, B, symbols)

        def loss(
            at: Parameters, step: int, draw: torch.Generator = draw,
            answer: Callable[[Parameters, Tensor], Tensor] = answer,
        ) -> Tensor:  # fmt: skip
            ids, wanted = _recall(batch, draw)
            return cross_entropy(answer(at, ids), wanted)

        began = time.perf_counter()
        for step in _train(at, loss, checkpoints[-1]):
            if step not in checkpoints:
                continue
            shares = []
            with torch.no_grad():
                for seed in (10_000, 20_000):  # validation, test
                    ids, wanted = _recall(200, torch.Generator().manual_seed(seed))
                    shares.append((answer(at, ids).argmax(-1) == wanted).float().mean(1))
            rows += _rows(name, DELAY, step, *shares)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    return rows


def _rows(
    name: str, at: int, step: int, validation: Tensor, test: Tensor
) -> list[dict[str, object]]:
    """A row for each of the models."""
    return [
        {
            "model": name, "at": at, "steps": step, "lr": LRS[model // SEEDS],
            "seed": model % SEEDS, "validation": round(validation[model].item(), 4),
            "test": round(test[model].item(), 4),
        }
        for model in range(MODELS)
    ]  # fmt: skip


# --------------------------------------------------------------------------- bottleneck


def _translator(width: int, attend: bool) -> Parameters:
    words, bound = DIGITS + 1, 1 / math.sqrt(width)  # the last id starts the output
    made = {
        "source": torch.randn(MODELS, words, width),
        "target": torch.randn(MODELS, words, width),
    }
    made |= _cell("GRU", "encoder", width, width) | _cell("GRU", "decoder", 2 * width, width)
    made["output"] = _uniform(bound, 2 * width, DIGITS)
    if attend:
        made["look"] = _uniform(bound, width, width)
    return made


def _score(at: Parameters, states: Tensor, code: Tensor, seen: Tensor) -> Tensor:
    """Logits (M, B, U, digits) from the decoder's states `seen` (M, B, U, H).

    The context is the encoder's last state `code` (M, B, H), or with attention (general score of
    Luong et al. 2015) the weighted mean of its `states` (M, B, T, H).
    """
    context = code.unsqueeze(2).expand_as(seen)
    if "look" in at:
        queries = (seen.flatten(1, 2) @ at["look"]).view_as(seen)
        context = (queries @ states.mT).softmax(-1) @ states
    both = torch.cat([seen, context], -1)
    return (both.flatten(1, 2) @ at["output"]).unflatten(1, both.shape[1:3])


def _encode(at: Parameters, ids: Tensor, width: int) -> tuple[Tensor, Tensor]:
    zeros = torch.zeros(MODELS, ids.shape[1], width)
    states, last = _run("GRU", at, "encoder", embed(at["source"], ids), (zeros,))
    return torch.stack(states, 2), last[0]


def _decode(at: Parameters, given: Tensor, code: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Decoder states (M, B, U, H) for ids given (M, B, U), and the last."""
    y = embed(at["target"], given)
    x = torch.cat([y, code.unsqueeze(2).expand_as(y)], -1)
    seen, last = _run("GRU", at, "decoder", x, (state,))
    return torch.stack(seen, 2), last[0]


def _written(
    at: Parameters, ids: Tensor, width: int, forced: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Logits (M, B, U, digits) for strings (M, B, U), and the digits that they make likeliest.

    Each step reads the digit written before it, or the right one where `forced` (M, B, U) is true.
    """
    states, code = _encode(at, ids, width)
    previous, s = torch.full_like(ids[:, :, :1], DIGITS), code
    logits, digits = [], []
    for t in range(ids.shape[2]):
        seen, s = _decode(at, previous, code, s)
        logits.append(_score(at, states, code, seen))  # (M, B, 1, digits)
        digits.append(logits[-1].argmax(-1))  # (M, B, 1)
        previous = digits[-1]
        if forced is not None:
            previous = torch.where(forced[:, :, t : t + 1], ids[:, :, t : t + 1], previous)
    return torch.cat(logits, 2), torch.cat(digits, 2)


@torch.no_grad()
def _exact(at: Parameters, ids: Tensor, width: int) -> Tensor:
    """Share of strings that are copied without a mistake, each digit fed back: (M,)."""
    _, digits = _written(at, ids, width)
    return (digits == ids).all(-1).float().mean(1)


def bottleneck(
    checkpoints: Sequence[int] = (300, 1000, 3000), batch: int = 24
) -> list[dict[str, object]]:
    """Strings of 1 to 10 random digits, copied: rows of model, length, step, rate, seed, shares."""
    rows: list[dict[str, object]] = []
    for name, (width, attend) in CARRY.items():
        torch.manual_seed(width)
        at = _translator(width, attend)
        draw = torch.Generator().manual_seed(width + 1)

        def loss(
            at: Parameters, step: int, draw: torch.Generator = draw, width: int = width
        ) -> Tensor:
            length = int(torch.randint(1, max(LENGTHS) + 1, (1,), generator=draw))
            ids = torch.randint(DIGITS, (MODELS, batch, length), generator=draw)
            states, code = _encode(at, ids, width)
            start = torch.full_like(ids[:, :, :1], DIGITS)
            seen, _ = _decode(at, torch.cat([start, ids[:, :, :-1]], 2), code, code)
            return cross_entropy(_score(at, states, code, seen), ids)

        began = time.perf_counter()
        for step in _train(at, loss, checkpoints[-1]):
            if step not in checkpoints:
                continue
            for length in LENGTHS:
                shares = []
                for seed in (10_000, 20_000):  # validation, test
                    fresh = torch.Generator().manual_seed(seed + length)
                    ids = torch.randint(DIGITS, (MODELS, 100, length), generator=fresh)
                    shares.append(_exact(at, ids, width))
                rows += _rows(name, length, step, *shares)
            print(f"{name}, step {step}: {time.perf_counter() - began:.0f} s", flush=True)
    return rows


# --------------------------------------------------------------------------- forcing


def forcing(
    checkpoints: Sequence[int] = (300, 1000, 3000, 10_000),
    batch: int = 24,
    width: int = 16,
    length: int = 6,
) -> list[dict[str, object]]:
    """Strings of up to `length` digits through one vector, with other inputs in training.

    Returns:
        Rows of model, length, step, learning rate, seed and the shares of strings copied exactly
        with each digit fed back, and of single digits that are right when the right ones are fed
        (`digits`) and when its own are (`digits_free`), on the test strings.
    """
    rows: list[dict[str, object]] = []
    for name, (first, final) in FORCED.items():
        torch.manual_seed(width)
        at = _translator(width, False)
        draw = torch.Generator().manual_seed(width + 1)
        last = checkpoints[-1]

        def loss(
            at: Parameters, step: int, draw: torch.Generator = draw,
            first: float = first, final: float = final, last: int = last,
        ) -> Tensor:  # fmt: skip
            size = int(torch.randint(1, length + 1, (1,), generator=draw))
            ids = torch.randint(DIGITS, (MODELS, batch, size), generator=draw)
            probability = first + (final - first) * (step - 1) / max(last - 1, 1)
            forced = torch.rand(ids.shape, generator=draw) < probability
            logits, _ = _written(at, ids, width, forced)
            return cross_entropy(logits, ids)

        began = time.perf_counter()
        for step in _train(at, loss, last):
            if step not in checkpoints:
                continue
            measured = []
            for seed in (10_000, 20_000):  # validation, test
                fresh = torch.Generator().manual_seed(seed + length)
                ids = torch.randint(DIGITS, (MODELS, 200, length), generator=fresh)
                with torch.no_grad():
                    _, free = _written(at, ids, width)
                    _, fed = _written(at, ids, width, torch.ones_like(ids, dtype=torch.bool))
                measured.append([(free == ids).all(-1), fed == ids, free == ids])
            validation, test = ([m.float().flatten(1).mean(1) for m in ms] for ms in measured)
            for row, fed, free in zip(
                _rows(name, length, step, validation[0], test[0]), test[1], test[2], strict=True
            ):
                each = {"digits": round(fed.item(), 4), "digits_free": round(free.item(), 4)}
                rows.append(row | each)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    return rows


# --------------------------------------------------------------------------- files


RUNS = {"memory": memory, "bottleneck": bottleneck, "forcing": forcing}


def write(name: str, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write the rows of an experiment to its file."""
    return write_rows(FOLDER / f"seq2seq_{name}.csv", rows)


def read(
    name: str, column: str = "test"
) -> dict[str, dict[tuple[int, int], tuple[float, float, float]]]:
    """What a stored experiment found, with the learning rate that is best on validation.

    Args:
        name: one of `RUNS`.
        column: of its file; `test` is the share that is right on the test sequences.

    Returns:
        By model and (delay or length, steps): mean and standard deviation of the column over the
        seeds, and the learning rate. It is chosen for each model once, by the validation at its
        last step, over all lengths.
    """
    rows = read_rows(FOLDER / f"seq2seq_{name}.csv")
    last = max(int(row["steps"]) for row in rows)
    found: dict[str, dict[tuple[int, int], tuple[float, float, float]]] = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        best = best_lr([row for row in mine if int(row["steps"]) == last])
        tests: dict[tuple[int, int], list[float]] = {}
        for row in mine:
            if float(row["lr"]) == best:
                tests.setdefault((int(row["at"]), int(row["steps"])), []).append(float(row[column]))
        found[model] = {where: (mean(t), stdev(t), best) for where, t in tests.items()}
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat an experiment and write its file."""
    print(write(*run_named(__doc__, RUNS, arguments)))


if __name__ == "__main__":
    main()
