"""Masked and left-to-right training on a language whose best predictions can be computed.

    python -m toolkit.bert.objective_experiments learning   # pre-train, and keep the models
    python -m toolkit.bert.objective_experiments reading    # fine-tune them as classifiers
    python -m toolkit.bert.objective_experiments writing    # let them write

The first keeps its models in `build/objectives.pt`, from which the others start. Each writes a
file of `toolkit/measured/`, which `read_rows` reads; together they take seven minutes of one core.
Models are trained side by side (`toolkit.many_models`), with five seeds. Which learning rate is
best is decided on other texts than those that are reported.

The language: a text is six days of the week. It runs forwards or backwards through the week, but
every step slips to any day with probability 0.3.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor
from torch.nn import functional as F

from toolkit.many_models import (
    FOLDER,
    SEEDS,
    Parameters,
    best_lr,
    cross_entropy,
    embed,
    read_rows,
    repeated,
    run_named,
    train,
    uniform,
    write_rows,
)

NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAYS, STRIDES, LENGTH, SLIP = 7, (1, -1), 6, 0.3
MASK, CLS = DAYS, DAYS + 1
SEARCH_LRS = ((1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2), (3.2e-2,))  # in groups, trained side by side
READ_LRS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
D_MODEL, NUM_HEADS, NUM_LAYERS, D_FF = 32, 2, 2, 64
MASK_PROB = 0.15
SEARCH, BATCH = 300, 32
LOOKS = (50, 75, 100, 150, 200, 300, 400, 600, 800, 1000, 1250, 1500, 1750, 2000, 2400)
KEPT = Path(__file__).resolve().parents[1] / "build" / "objectives.pt"
Row = dict[str, object]

# --------------------------------------------------------------------------- the language


def transitions() -> Tensor:
    """What follows what, for each stride: probabilities (strides, days, days)."""
    follows = torch.full((len(STRIDES), DAYS, DAYS), SLIP / DAYS)
    for number, stride in enumerate(STRIDES):
        for day in range(DAYS):
            follows[number, day, (day + stride) % DAYS] += 1 - SLIP
    return follows


def texts(*shape: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random texts (*shape, T), and the number of each one's stride (*shape)."""
    kind = torch.randint(len(STRIDES), shape, generator=draw)
    stride = torch.tensor(STRIDES)[kind]
    slips = torch.rand(*shape, LENGTH, generator=draw) < SLIP
    drawn = torch.randint(DAYS, (*shape, LENGTH), generator=draw)
    days = [drawn[..., 0]]
    for t in range(1, LENGTH):
        days.append(torch.where(slips[..., t], drawn[..., t], (days[-1] + stride) % DAYS))
    return torch.stack(days, -1), kind


def _both_ways(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Joint probabilities of all that stands before each position and of all that follows.

    ids: (N, T), MASK where nothing is known.

    Returns:
        Two tensors (N, T, strides, days). The first is p(stride, days before, day here), the
        second p(days after | stride, day here).
    """
    follows = transitions()
    known = torch.where((ids == MASK)[..., None], 1.0, F.one_hot(ids % DAYS, DAYS).float())[
        :, :, None
    ]  # (N, T, 1, days)
    start = torch.full((len(ids), len(STRIDES), DAYS), 1 / len(STRIDES) / DAYS)
    before, after = [start], [torch.ones_like(start)]
    for t in range(1, ids.shape[1]):
        before.append(torch.einsum("nki,kij->nkj", before[-1] * known[:, t - 1], follows))
        after.append(torch.einsum("nkj,kij->nki", after[-1] * known[:, -t], follows))
    return torch.stack(before, 1), torch.stack(after[::-1], 1)


def best_from_left(ids: Tensor) -> Tensor:
    """The perfect left-to-right model: log-probabilities (N, T, days) of texts (N, T)."""
    before = _both_ways(ids)[0].sum(2)  # (N, T, days)
    return (before / before.sum(-1, keepdim=True)).log()


def best_from_both(ids: Tensor) -> Tensor:
    """The perfect masked model: log-probabilities (N, T, days), right where ids has MASK."""
    before, after = _both_ways(ids)
    joint = (before * after).sum(2)  # (N, T, days)
    return (joint / joint.sum(-1, keepdim=True)).log()


def log_likelihood(ids: Tensor) -> Tensor:
    """log p(text) of texts (N, T) in the language: (N,)."""
    return best_from_left(ids).gather(-1, ids[..., None])[..., 0].sum(1)


def best_losses(mask_prob: float = MASK_PROB) -> dict[str, float]:
    """Exact losses of the perfect models: nats per predicted token, averaged over all texts.

    Returns:
        "left to right", "masked" (each token with probability mask_prob), and "one masked" (one
        token at a time, as for a pseudo-log-likelihood).
    """
    every = torch.cartesian_prod(*[torch.arange(DAYS)] * LENGTH)
    joint = log_likelihood(every).double().exp().view((DAYS,) * LENGTH)
    entropy = {}  # of the tokens at a set of positions
    for known in itertools.product((False, True), repeat=LENGTH):
        away = [t for t in range(LENGTH) if not known[t]]
        p = joint.sum(away) if away else joint
        entropy[known] = -(p * p.log()).sum().item()
    losses = {"left to right": entropy[(True,) * LENGTH] / LENGTH}
    loss, chance, targets = [0.0] * (LENGTH + 1), 0.0, 0.0  # sums by the number of masked tokens
    for known, given in entropy.items():
        masked = [t for t in range(LENGTH) if not known[t]]
        for t in masked:
            loss[len(masked)] += entropy[(*known[:t], True, *known[t + 1 :])] - given
    for count in range(1, LENGTH + 1):
        weight = mask_prob**count * (1 - mask_prob) ** (LENGTH - count)
        chance += weight * loss[count]
        targets += weight * count * math.comb(LENGTH, count)
    return losses | {"masked": chance / targets, "one masked": loss[1] / LENGTH}


def likeliest_stride(ids: Tensor) -> Tensor:
    """The number of the stride that each text (N, T) most probably has: (N,)."""
    before = _both_ways(ids)[0][:, -1]  # (N, strides, days)
    last = ids[:, -1][:, None, None].expand(-1, len(STRIDES), 1)
    return before.gather(-1, last)[..., 0].argmax(-1)


# --------------------------------------------------------------------------- the network


@dataclass(frozen=True)
class Model:
    """A small pre-norm Transformer, for several models at once.

    causal: attention sees no later position. models: M. outputs: of the last layer.
    """

    causal: bool
    models: int
    outputs: int = DAYS

    def parameters(self) -> Parameters:
        """Fresh parameters of all models: matrices by Glorot's rule."""

        def glorot(inputs: int, outputs: int) -> Tensor:
            return uniform(math.sqrt(6 / (inputs + outputs)), self.models, inputs, outputs)

        made = {
            "embedding": torch.randn(self.models, DAYS + 2, D_MODEL) * math.sqrt(0.5),
            "positions": torch.randn(self.models, 1, LENGTH + 1, D_MODEL) * math.sqrt(0.5),
            "gain": torch.ones(self.models, 2 * NUM_LAYERS + 1, 1, 1, D_MODEL),
            "shift": torch.zeros(self.models, 2 * NUM_LAYERS + 1, 1, 1, D_MODEL),
            "outputs": glorot(D_MODEL, self.outputs),
        }
        for layer in range(NUM_LAYERS):
            made[f"{layer}.qkv"] = torch.cat([glorot(D_MODEL, D_MODEL) for _ in range(3)], -1)
            made[f"{layer}.out"] = glorot(D_MODEL, D_MODEL)
            made[f"{layer}.up"] = glorot(D_MODEL, D_FF)
            made[f"{layer}.up_bias"] = torch.zeros(self.models, 1, D_FF)
            made[f"{layer}.down"] = glorot(D_FF, D_MODEL)
        return made

    def states(self, at: Parameters, ids: Tensor) -> Tensor:
        """Ids (M, B, T) without [CLS] -> states (M, B, T + 1, D)."""
        x = embed(at["embedding"], F.pad(ids, (1, 0), value=CLS))
        x = x + at["positions"][:, :, : x.shape[2]]
        gains, shifts = at["gain"].unbind(1), at["shift"].unbind(1)

        def norm(number: int) -> Tensor:
            return torch.addcmul(shifts[number], F.layer_norm(x, x.shape[-1:]), gains[number])

        for layer in range(NUM_LAYERS):
            parts = _linear(norm(2 * layer), at[f"{layer}.qkv"]).unflatten(-1, (3, NUM_HEADS, -1))
            q, k, v = (part.transpose(2, 3) for part in parts.unbind(3))  # (M, B, H, T, d)
            scores = q @ k.mT / math.sqrt(q.shape[-1])  # (M, B, H, T, T)
            if self.causal:
                later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
                scores = scores.masked_fill(later, -1e9)
            weights = (scores - scores.detach().amax(-1, keepdim=True)).exp()
            weights = weights / weights.sum(-1, keepdim=True)
            x = x + _linear((weights @ v).transpose(2, 3).flatten(3), at[f"{layer}.out"])
            inner = (
                _linear(norm(2 * layer + 1), at[f"{layer}.up"]) + at[f"{layer}.up_bias"][:, None]
            )
            x = x + _linear(inner.relu(), at[f"{layer}.down"])
        return norm(-1)

    def logits(self, at: Parameters, ids: Tensor) -> Tensor:
        """Ids (M, B, T) -> logits (M, B, T, days); of a causal model from what stands before."""
        states = self.states(at, ids)
        return _linear(states[:, :, :-1] if self.causal else states[:, :, 1:], at["outputs"])

    def classify(self, at: Parameters, ids: Tensor) -> Tensor:
        """Ids (M, B, T) -> logits (M, B, outputs) from the mean of the states."""
        return self.states(at, ids).mean(2) @ at["outputs"]


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """x (M, B, T, I) and weight (M, I, O) -> (M, B, T, O)."""
    return (x.flatten(1, 2) @ weight).unflatten(1, x.shape[1:3])


# --------------------------------------------------------------------------- learning

VALIDATION, TEST = 10_000, 20_000  # what the held-out texts are drawn from
OBJECTIVES = ("masked", "left to right", "left to right, 15 %")


def asked(objective: str, ids: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """What a model of that objective reads, and at which positions it has a loss: both (…, T)."""
    if objective == "left to right":
        return ids, torch.ones_like(ids, dtype=torch.bool)
    chosen = torch.rand(ids.shape, generator=draw) < MASK_PROB
    return (ids.masked_fill(chosen, MASK) if objective == "masked" else ids), chosen


def _loss(log_probs: Tensor, ids: Tensor, chosen: Tensor) -> Tensor:
    """Mean loss (M,) over the chosen positions of ids (M, B, T)."""
    each = -log_probs.gather(-1, ids[..., None])[..., 0]  # (M, B, T)
    return (each * chosen).sum((1, 2)) / chosen.sum((1, 2)).clamp(min=1)


def _held_out(objective: str, seed: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """Held-out texts: what is read of them, they themselves, the positions, the best loss.

    The sparse left-to-right model is measured as the dense one, at every position.
    """
    draw = torch.Generator().manual_seed(seed)
    ids, _ = texts(1000, draw=draw)
    masked = objective == "masked"
    given, chosen = asked("masked" if masked else "left to right", ids, draw)
    best = best_from_both(given) if masked else best_from_left(ids)
    return given, ids, chosen, float(_loss(best[None], ids[None], chosen[None]))


def _fit(
    objective: str, lrs: Sequence[float], looks: Sequence[int], seed: int,
    at_look: Callable[[int, int, Model, Parameters], None],
) -> None:  # fmt: skip
    """Pre-train five models for each learning rate; `at_look` is called at each of `looks`.

    It is given the step, the number of targets of one model so far, the model and its parameters.
    """
    models, targets = len(lrs) * SEEDS, 0
    torch.manual_seed(seed)
    model = Model(objective != "masked", models)
    at, draw = model.parameters(), torch.Generator().manual_seed(seed)

    def loss(at: Parameters, step: int) -> Tensor:
        nonlocal targets
        ids, _ = texts(models, BATCH, draw=draw)
        given, chosen = asked(objective, ids, draw)
        targets += int(chosen.sum())
        return _loss(model.logits(at, given).log_softmax(-1), ids, chosen)

    for step in train(at, loss, looks[-1], lrs, warmup=50):
        if step in looks:
            at_look(step, targets // models, model, at)


def _excess(objective: str, seed: int, model: Model, at: Parameters) -> Tensor:
    """Loss on held-out texts beyond that of the best model with the same objective: (M,)."""
    given, ids, chosen, best = _held_out(objective, seed)
    with torch.no_grad():
        logits = model.logits(at, given.expand(model.models, -1, -1))
    wanted, where = (x.expand(model.models, -1, -1) for x in (ids, chosen))
    return _loss(logits.log_softmax(-1), wanted, where) - best


def learning(
    objectives: Sequence[str] = OBJECTIVES, search: int = SEARCH, looks: Sequence[int] = LOOKS,
    kept: Path = KEPT,
) -> list[Row]:  # fmt: skip
    """Pre-training: rows of objective, part, step, targets, learning rate, seed and excess loss.

    Part "search" has short runs with six learning rates, measured on validation texts; part
    "training" is the long run at the best of them, from other seeds, measured on test texts.
    """
    rows: list[Row] = []
    states: dict[str, Parameters] = {}
    for objective in objectives:
        began = time.process_time()
        about = {"objective": objective, "best": f"{_held_out(objective, TEST)[3]:.4f}"}

        def note(
            part: str, lrs: Sequence[float], about: Row = about, objective: str = objective
        ) -> Callable[[int, int, Model, Parameters], None]:
            def at_look(step: int, targets: int, model: Model, at: Parameters) -> None:
                seed = VALIDATION if part == "search" else TEST
                found = _excess(objective, seed, model, at)
                row = about | {"part": part, "step": step, "targets": targets}
                rows.extend(_rows(row, lrs, {"excess": found}))
                if part == "training":
                    states[f"{objective}, {step}"] = {n: p.detach().clone() for n, p in at.items()}

            return at_look

        for lrs in SEARCH_LRS:
            _fit(objective, lrs, (search,), 1, note("search", lrs))
        lr = best_lr(
            [row for row in rows if row["objective"] == objective and row["part"] == "search"],
            "excess", least=True,
        )  # fmt: skip
        _fit(objective, (lr,), looks, 2, note("training", (lr,)))
        print(f"{objective}: lr {lr}, {time.process_time() - began:.0f} s", flush=True)
    kept.parent.mkdir(exist_ok=True)
    torch.save(states, kept)
    return rows


# --------------------------------------------------------------------------- reading

STARTS = (
    "masked", "left to right", "left to right, early", "both sides, new", "left to right, new",
)  # fmt: skip
LABELLED = 64
READ_LOOKS = (10, 25, 50, 100, 200)


def reading(
    starts: Sequence[str] = STARTS, looks: Sequence[int] = READ_LOOKS, kept: Path = KEPT,
) -> list[Row]:  # fmt: skip
    """Fine-tuning: rows of start, step, learning rate, seed and shares right.

    The label is the direction of a text; the classifier reads the mean of the last states. Seed s
    starts from pre-trained model s, or from new parameters, and has its own labelled texts.
    """
    states = torch.load(kept)
    last = LOOKS[-1]
    early = equal_quality(read("learning"))
    steps = {"masked": ("masked", last), "left to right": ("left to right", last),
             "left to right, early": ("left to right", early)}  # fmt: skip
    models = len(READ_LRS) * SEEDS
    held = [texts(1000, draw=torch.Generator().manual_seed(seed)) for seed in (VALIDATION, TEST)]
    rows: list[Row] = []
    for start in starts:
        began = time.process_time()
        torch.manual_seed(3)
        model = Model("left" in start, models, outputs=len(STRIDES))
        at = model.parameters()
        if "new" not in start:
            trained = states["{}, {}".format(*steps[start])]
            at |= {name: repeated(trained[name], len(READ_LRS)) for name in at if name != "outputs"}
        draw = torch.Generator().manual_seed(4)
        ids, kind = (repeated(x, len(READ_LRS)) for x in texts(SEEDS, LABELLED, draw=draw))

        def loss(
            at: Parameters, step: int, model: Model = model, ids: Tensor = ids,
            kind: Tensor = kind, draw: torch.Generator = draw,
        ) -> Tensor:  # fmt: skip
            chosen = torch.randperm(ids.shape[1], generator=draw)[:16]
            return cross_entropy(model.classify(at, ids[:, chosen]), kind[:, chosen])

        for step in train(at, loss, looks[-1], READ_LRS, warmup=10):
            if step not in looks:
                continue
            with torch.no_grad():
                validation, test = (
                    (model.classify(at, x.expand(models, -1, -1)).argmax(-1) == y)
                    .float().mean(1)
                    for x, y in held
                )  # fmt: skip
            rows += _rows(
                {"start": start, "step": step}, READ_LRS,
                {"validation": validation, "accuracy": test},
            )  # fmt: skip
        print(f"{start}: {time.process_time() - began:.0f} s", flush=True)
    return rows


# --------------------------------------------------------------------------- writing

LogProbs = Callable[[Tensor], Tensor]  # ids (N, T) -> log-probabilities (N, T, days)
SWEEPS = (1, 2, 5, 20)


def _draw(log_probs: Tensor, draw: torch.Generator) -> Tensor:
    """log-probabilities (..., days) -> days (...)."""
    flat = torch.multinomial(log_probs.exp().flatten(0, -2), 1, generator=draw)
    return flat.view(log_probs.shape[:-1])


def write_from_left(predict: LogProbs, count: int, draw: torch.Generator) -> Tensor:
    """Texts (count, T) of a model, one day after the other; what is not yet written is [MASK]."""
    ids = torch.full((count, LENGTH), MASK)
    for t in range(LENGTH):
        ids[:, t] = _draw(predict(ids)[:, t], draw)
    return ids


def write_at_once(predict: LogProbs, count: int, draw: torch.Generator) -> Tensor:
    """Texts (count, T) of a masked model, all positions drawn from one prediction."""
    return _draw(predict(torch.full((count, LENGTH), MASK)), draw)


def write_by_filling(
    predict: LogProbs, count: int, draw: torch.Generator, sweeps: Sequence[int]
) -> dict[int, Tensor]:
    """Texts (count, T) of a masked model after some sweeps of repeated filling.

    All is [MASK] at first. A sweep masks every position once, in random order, and draws it given
    all others as they are (Wang and Cho 2019).
    """
    ids, every, found = torch.full((count, LENGTH), MASK), torch.arange(count), {}
    for sweep in range(1, max(sweeps) + 1):
        orders = torch.rand(count, LENGTH, generator=draw).argsort(-1)
        for at in orders.unbind(1):
            ids[every, at] = MASK
            ids[every, at] = _draw(predict(ids)[every, at], draw)
        if sweep in sweeps:
            found[sweep] = ids.clone()
    return found


def equal_quality(rows: Sequence[Mapping[str, object]]) -> int:
    """The step at which the left-to-right model's excess was nearest to the masked one's last."""

    def excess(objective: str, step: int) -> float:
        return mean(
            float(str(row["excess"])) for row in rows
            if row["objective"] == objective and row["part"] == "training"
            and int(str(row["step"])) == step
        )  # fmt: skip

    steps = sorted({int(str(row["step"])) for row in rows if row["part"] == "training"})
    last = excess("masked", steps[-1])
    return min(steps, key=lambda step: abs(excess("left to right", step) - last))


@torch.no_grad()
def writing(count: int = 1000, kept: Path = KEPT) -> list[Row]:
    """Writing: rows of writer, way, seed, and nats per token that the language itself gives."""
    states = torch.load(kept)
    early = equal_quality(read("learning"))
    rows: list[Row] = []

    def note(writer: str, way: str, seed: int, ids: Tensor) -> None:
        nats = -log_likelihood(ids).mean().item() / LENGTH
        kinds = len(set(map(tuple, ids.tolist()))) / count
        rows.append({"writer": writer, "way": way, "seed": seed, "nats": f"{nats:.4f}",
                     "different": f"{kinds:.3f}"})  # fmt: skip

    def writer(name: str, seed: int) -> LogProbs:
        model = Model("left" in name, 1)
        at = {key: p[seed : seed + 1] for key, p in states[name].items()}
        return lambda ids: model.logits(at, ids[None])[0].log_softmax(-1)

    def masked(name: str, predict: LogProbs, seed: int, draw: torch.Generator) -> None:
        note(name, "all at once", seed, write_at_once(predict, count, draw))
        note(name, "from the left", seed, write_from_left(predict, count, draw))
        for sweeps, ids in write_by_filling(predict, count, draw, SWEEPS).items():
            note(name, f"filling, {sweeps}", seed, ids)

    for seed in range(SEEDS):
        draw = torch.Generator().manual_seed(100 + seed)
        note("the language", "real", seed, texts(count, draw=draw)[0])
        note("any days", "at random", seed,
             torch.randint(DAYS, (count, LENGTH), generator=draw))  # fmt: skip
        for name, step in (("left to right", LOOKS[-1]), ("left to right, early", early)):
            predict = writer(f"left to right, {step}", seed)
            note(name, "from the left", seed, write_from_left(predict, count, draw))
        masked("masked", writer(f"masked, {LOOKS[-1]}", seed), seed, draw)
        masked("best masked", best_from_both, seed, draw)
    return rows


# --------------------------------------------------------------------------- files

RUNS: dict[str, Callable[[], list[Row]]] = {
    "learning": learning, "reading": reading, "writing": writing,
}  # fmt: skip


def _rows(about: Row, lrs: Sequence[float], found: Mapping[str, Tensor]) -> list[Row]:
    """A row for each model (M,), five for each learning rate."""
    return [
        about
        | {"lr": lrs[model // SEEDS], "seed": model % SEEDS}
        | {name: f"{values[model].item():.4f}" for name, values in found.items()}
        for model in range(len(lrs) * SEEDS)
    ]


def read(name: str) -> list[dict[str, str]]:
    """The rows of a stored experiment: "learning", "reading" or "writing"."""
    return read_rows(FOLDER / f"objective_{name}.csv")


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat an experiment and write its file."""
    name, rows = run_named(__doc__, RUNS, arguments)
    print(write_rows(FOLDER / f"objective_{name}.csv", rows))


if __name__ == "__main__":
    main()
