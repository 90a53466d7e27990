"""Learning from a prompt, in the small: what examples in the input do while no weight changes.

    result = few_shot(make_model)
    print(result.table())
    print(attention_to_answer(result).table())
    print(shots_of(model, encode, build_prompt, answer_scores, CODE_PATTERNS).table())

* A made language: every row has a mapping of its own, shown as pairs, so that the right answer
  stands nowhere but in the prompt. A small GPT is trained on it and then asked.
* A model that was trained on something else: the loss of an answer by the number of examples.

Modules and functions that the chapter builds are arguments. A *GPT* is made of (vocab_size,
max_length, d_model, num_layers, num_heads, dropout=) and has `token`, `position`, `blocks` (each
with `norm_1` and `attention`, and that with `qkv` and `num_heads`); its forward takes ids (B, T)
and returns logits (B, T, V).
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import device, plots, training
from toolkit.objectives_lab import rescale

SPECIAL = 5  # ids below it are special in the chapter, and none of them is used here
CONDITIONS = ("seen", "new", "renamed", "as before")
_WIDTH, _LAYERS, _HEADS = 48, 2, 2
_START = 6.0  # times 0.02: the start of a GPT is made for widths of hundreds
_MEANINGS = {
    "seen": "mappings of the training",
    "new": "mappings never seen",
    "renamed": "labels renamed: as the prompt says",
    "as before": "labels renamed: as the mapping was before",
}

# --------------------------------------------------------------------------- a made language


@dataclass(frozen=True)
class MappingTask:
    """Rows of pairs `input => label`, each row with a mapping of its own.

    An input with its arrow is one token and a label is one, so a pair is two tokens. All mappings
    are listed in an order drawn by `seed`; the first half is for training, the rest is never seen.

    inputs: how many there are, S. labels: L. pairs: of a training row.
    """

    inputs: int = 4
    labels: int = 8
    pairs: int = 9
    seed: int = 0

    @property
    def vocab_size(self) -> int:
        return SPECIAL + self.inputs + self.labels

    @property
    def max_length(self) -> int:
        return 2 * self.pairs

    @functools.cached_property
    def mappings(self) -> tuple[Tensor, Tensor]:
        """The mappings of the training and the others, (M, S) each: the label of every input."""
        count = self.labels**self.inputs
        order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))
        places = self.labels ** torch.arange(self.inputs)  # (S,)
        every = order[:, None] // places % self.labels  # (M, S), number written to base L
        return every[: count // 2], every[count // 2 :]

    def rows(self, mappings: Tensor, inputs: Tensor) -> Tensor:
        """mappings (B, S) and inputs (B, n) as ids (B, 2n): input, label, input, label, ..."""
        shown = mappings.gather(1, inputs)  # (B, n)
        pairs = torch.stack([inputs + SPECIAL, shown + SPECIAL + self.inputs], -1)  # (B, n, 2)
        return pairs.flatten(1)  # (B, 2n)

    def batch(self, size: int, draw: torch.Generator) -> Tensor:
        """Training rows (size, 2 pairs): every input drawn evenly, so that they come again."""
        known = self.mappings[0]
        chosen = known[torch.randint(len(known), (size,), generator=draw)]  # (B, S)
        inputs = torch.randint(self.inputs, (size, self.pairs), generator=draw)  # (B, pairs)
        return self.rows(chosen, inputs)

    def prompts(
        self, mappings: Tensor, examples: int, draw: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One prompt for each mapping: examples drawn evenly, then a query.

        Returns:
            ids (B, 2 examples + 1), which end with the query; answers (B,), numbers of labels; and
            (B,) bool, whether the query is among the examples.
        """
        inputs = torch.randint(self.inputs, (len(mappings), examples + 1), generator=draw)
        ids = self.rows(mappings, inputs)[:, :-1]  # (B, 2n + 1)
        shown = (inputs[:, :-1] == inputs[:, -1:]).any(1)  # (B,)
        return ids, mappings.gather(1, inputs[:, -1:])[:, 0], shown

    def ideal(self, examples: int) -> float:
        """How often a reader is right who knows all that was shown, and else guesses evenly."""
        hidden = (1 - 1 / self.inputs) ** examples
        return 1 - hidden * (1 - 1 / self.labels)

    def text(self, ids: Tensor) -> str:
        """ids (n,) as lines, a pair each."""
        ends = {True: "\n", False: " "}
        return "".join(name + ends[name.isdigit()] for name in self.names(ids)).rstrip()

    def names(self, ids: Tensor) -> list[str]:
        """ids (n,) as they are written: `a =>` for an input, a digit for a label."""
        return [
            f"{chr(97 + i)} =>" if i < self.inputs else str(i - self.inputs)
            for i in (ids - SPECIAL).tolist()
        ]


def _adam(parameters: Sequence[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)


def train_on_mappings(
    model: nn.Module, task: MappingTask, steps: int, *, batch: int = 32, lr: float = 5e-3,
    seed: int = 0,
) -> list[float]:  # fmt: skip
    """Train on rows of a task; the loss is taken at the labels, since inputs are drawn evenly.

    Returns:
        The loss of each step. The model is in eval mode afterwards.
    """
    draw = torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        ids = task.batch(batch, draw)  # (B, T)
        logits = model(ids)[:, 0::2]  # (B, pairs, V), at the inputs
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1::2].flatten())

    history = training.fit(
        model, loss, steps, lr=lr, schedule="warm-up", optimiser=_adam, seed=seed,
        preset=device.preset("cpu"), progress=False,
    )  # fmt: skip
    return history.loss


@torch.no_grad()
def _answers(model: nn.Module, task: MappingTask, ids: Tensor) -> Tensor:
    """The label that the model thinks likeliest after the last token of ids (B, T): (B,)."""
    labels = model(ids)[:, -1, SPECIAL + task.inputs :]  # (B, L)
    return labels.argmax(-1)


@dataclass
class FewShot:
    """What a model that was trained on a made language answers to prompts.

    task, shots: the language, and the numbers of examples. models: one for each seed.
    accuracy: of a condition and a number of examples, share right, one a seed. "seen": mappings of
    the training. "new": mappings never seen. "renamed": mappings of the training whose labels were
    renamed, right is what the prompt says. "as before": the same, right is what it said before.
    when_shown, when_hidden: new mappings, split by whether the query is among the examples; None
    where there is no such prompt. losses: of every training step, one list a seed. seconds: of the
    processor, training alone.
    """

    task: MappingTask
    shots: tuple[int, ...]
    models: list[nn.Module] = field(default_factory=list)
    accuracy: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    when_shown: dict[int, list[float] | None] = field(default_factory=dict)
    when_hidden: dict[int, list[float] | None] = field(default_factory=dict)
    losses: list[list[float]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def chance(self) -> float:
        return 1 / self.task.labels

    @property
    def ideal(self) -> dict[int, float]:
        """Share right of a reader who uses all that the prompt says, by number of examples."""
        return {n: self.task.ideal(n) for n in self.shots}

    def mean(self, condition: str, examples: int) -> float:
        """Share right, mean over the seeds."""
        found = self.accuracy[condition][examples]
        return sum(found) / len(found)

    def spread(self, condition: str, examples: int) -> tuple[float, float]:
        """Share right of the worst and of the best seed."""
        found = self.accuracy[condition][examples]
        return min(found), max(found)

    def table(self) -> str:
        """Percent right by number of examples: mean over the seeds, and from worst to best."""
        lines = [f"{'percent right, examples':42s}" + "".join(f"{n:>14d}" for n in self.shots)]
        for condition in CONDITIONS:
            cells = ""
            for n in self.shots:
                low, high = self.spread(condition, n)
                mean = 100 * self.mean(condition, n)
                cells += f"{f'{mean:.0f} ({100 * low:.0f}-{100 * high:.0f})':>14s}"
            lines.append(f"{_MEANINGS[condition]:42s}" + cells)
        ideal = "".join(f"{100 * self.ideal[n]:14.0f}" for n in self.shots)
        lines.append(f"{'an ideal reader of the prompt':42s}" + ideal)
        lines.append(f"{'chance':42s}" + f"{100 * self.chance:14.0f}" * len(self.shots))
        return "\n".join(lines)

    def example(self, examples: int = 4, seed: int = 0) -> str:
        """A prompt with a new mapping as text, and below it the right answer."""
        draw = torch.Generator().manual_seed(seed)
        chosen = self.task.mappings[1][seed : seed + 1]
        ids, answer, _ = self.task.prompts(chosen, examples, draw)
        return f"{self.task.text(ids[0])}\nright: {answer.item()}"

    def figure(self) -> Figure:
        """Share right by number of examples: means as lines, seeds as dots."""
        figure, ax = plt.subplots(figsize=(7.2, 3.6))
        across = range(len(self.shots))
        for number, condition in enumerate(CONDITIONS):
            colour = plots.PALETTE[number]
            means = [100 * self.mean(condition, n) for n in self.shots]
            ax.plot(across, means, "-", color=colour, label=_MEANINGS[condition])
            for place, n in zip(across, self.shots, strict=True):
                found = [100 * share for share in self.accuracy[condition][n]]
                beside = place + 0.05 * (number - 1.5)
                ax.plot([beside] * len(found), found, "o", color=colour, markersize=4)
        ideal = [100 * self.ideal[n] for n in self.shots]
        ax.plot(across, ideal, "--", color=plots.INK, lw=1.2, label="ideal reader of the prompt")
        ax.axhline(100 * self.chance, ls=":", color=plots.INK, lw=1.2, label="chance")
        ax.set_xticks(across, [str(n) for n in self.shots])
        ax.set_ylim(0, 105)
        ax.set(
            xlabel="examples in the prompt",
            ylabel="right answers, percent",
            title="The answer is read from the prompt; no weight changes",
        )
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8.5)
        return figure


def few_shot(
    make_model: Callable[..., nn.Module], *, shots: Sequence[int] = (0, 1, 2, 4, 8),
    seeds: Sequence[int] = (0, 1, 2), steps: int = 560, tests: int = 600,
    prepare: Callable[[nn.Module], nn.Module] | None = None, task: MappingTask | None = None,
) -> FewShot:  # fmt: skip
    """Train small GPTs on rows with a mapping each, and ask them by prompts.

    Args:
        make_model: the chapter's; it makes a GPT with new weights.
        shots: numbers of examples, each below the pairs of a training row.
        seeds: one model is trained for each.
        steps: of each training.
        tests: prompts for every condition and number of examples.
        prepare: called with each new model, such as the chapter's `fused`.
        task: the language, None for `MappingTask()`.

    Raises:
        ValueError: a number of examples that does not fit a row, or no seed.
        RuntimeError: a parameter changed while the model was asked.
    """
    task = task or MappingTask()
    if not seeds or min(shots) < 0 or max(shots) >= task.pairs:
        raise ValueError(f"needs a seed, and numbers of examples from 0 to {task.pairs - 1}")
    result = FewShot(task, tuple(shots))
    result.accuracy = {name: {n: [] for n in shots} for name in CONDITIONS}
    split: dict[bool, dict[int, list[float]]] = {True: {}, False: {}}
    for seed in seeds:
        torch.manual_seed(seed)
        size = task.vocab_size, task.max_length, _WIDTH, _LAYERS, _HEADS
        model = rescale(make_model(*size, dropout=0.0), _START)
        model = model if prepare is None else prepare(model)
        began = time.process_time()
        result.losses.append(train_on_mappings(model, task, steps, seed=seed))
        result.seconds += time.process_time() - began
        result.models.append(model)
        before = [p.detach().clone() for p in model.parameters()]
        draw = torch.Generator().manual_seed(1000 + seed)
        for n in shots:
            for name, known in zip(("seen", "new"), task.mappings, strict=True):
                chosen = known[torch.randint(len(known), (tests,), generator=draw)]  # (B, S)
                ids, answers, shown = task.prompts(chosen, n, draw)
                right = (_answers(model, task, ids) == answers).double()  # (B,)
                result.accuracy[name][n].append(right.mean().item())
            for which in (True, False):  # of the new ones
                part = right[shown == which]
                if len(part):
                    split[which].setdefault(n, []).append(part.mean().item())
            known = task.mappings[0]
            chosen = known[torch.randint(len(known), (tests,), generator=draw)]
            further = torch.randint(1, task.labels, (tests, 1), generator=draw)  # never 0
            ids, answers, _ = task.prompts((chosen + further) % task.labels, n, draw)
            said = _answers(model, task, ids)
            old = (answers - further[:, 0]) % task.labels
            result.accuracy["renamed"][n].append((said == answers).double().mean().item())
            result.accuracy["as before"][n].append((said == old).double().mean().item())
        if not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)):
            raise RuntimeError("a parameter changed while the model was asked")
    result.when_shown = {n: split[True].get(n) for n in shots}
    result.when_hidden = {n: split[False].get(n) for n in shots}
    return result


# --------------------------------------------------------------------------- where it looks


@torch.no_grad()
def attention_weights(model: nn.Module, ids: Tensor) -> Tensor:
    """All attention weights of a GPT that reads ids (B, T): (N, B, H, T, T)."""
    model.eval()
    taken: list[Tensor] = []

    def take(attention: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        q, k, _ = attention.qkv(inputs[0]).chunk(3, -1)  # (B, T, D) each
        q, k = (x.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for x in (q, k))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # (B, H, T, T)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        taken.append(scores.masked_fill(later, -torch.inf).softmax(-1))

    hooks = [block.attention.register_forward_pre_hook(take) for block in model.blocks]
    try:
        model(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(taken)  # (N, B, H, T, T)


@dataclass
class AnswerAttention:
    """Where a model looks that answers from the prompt. Shares of attention, by layer and head.

    answer: from the query, where the answer is predicted, to the labels that stand after the same
    input. input: from the query to the same input, where it was shown. pair: from a shown label to
    the input before it, the first half of an induction pattern in its usual form. even: what each
    of the three is when all places are looked at alike; "labels": what `answer` is when all shown
    labels are looked at alike, and nothing else. ids: a prompt. maps: (N, H, T, T), its
    attention. text: its tokens.
    """

    answer: list[list[float]]
    input: list[list[float]]
    pair: list[list[float]]
    even: dict[str, float]
    ids: Tensor
    maps: Tensor
    text: list[str]

    def strongest(self, kind: str) -> tuple[int, int, float]:
        """Layer and head (from 0) with the largest share, and that share; kind as the names."""
        shares = getattr(self, kind)
        return max(
            ((layer, head, share) for layer, row in enumerate(shares)
             for head, share in enumerate(row)),
            key=lambda found: found[2],
        )  # fmt: skip

    def table(self) -> str:
        lines = [f"{'share of attention, percent':28s}{'answer':>9s}{'input':>9s}{'pair':>9s}"]
        for layer in range(len(self.answer)):
            for head in range(len(self.answer[layer])):
                shares = (self.answer, self.input, self.pair)
                cells = "".join(f"{100 * kind[layer][head]:9.0f}" for kind in shares)
                lines.append(f"{f'layer {layer + 1}, head {head + 1}':28s}{cells}")
        even = "".join(f"{100 * self.even[kind]:9.0f}" for kind in ("answer", "input", "pair"))
        lines.append(f"{'all places alike':28s}{even}")
        lines.append(f"{'all labels alike':28s}{100 * self.even['labels']:9.0f}")
        return "\n".join(lines)

    def figure(self) -> Figure:
        """The attention of one prompt's query in every head; what answers it has a frame."""
        layers, heads = self.maps.shape[:2]
        rows = self.maps[:, :, -1].flatten(0, 1)  # (N H, T), of the query
        names = [f"layer {n + 1}, head {h + 1}" for n in range(layers) for h in range(heads)]
        figure, ax = plt.subplots(figsize=(8.2, 0.45 * len(names) + 1.6))
        plots.attention_map(
            ax, rows, names, self.text, numbers=".2f", row_label="",
            column_label="looked at from the last token", cmap=plots.MAP,
            title="Framed: the same input in the examples, and the label after it",
        )  # fmt: skip
        for place in (self.ids[:-1] == self.ids[-1]).nonzero()[:, 0].tolist():
            box = (place - 0.5, -0.5), 2, len(names)
            ax.add_patch(plt.Rectangle(*box, fill=False, edgecolor=plots.PALETTE[1], lw=2))
        return figure


def attention_to_answer(
    result: FewShot, *, model: int = 0, examples: int = 4, tests: int = 300, seed: int = 0
) -> AnswerAttention:
    """Measure where one of the models looks, over prompts whose query was shown.

    Args:
        model: which of the models. examples: of each prompt.
    """
    task, draw = result.task, torch.Generator().manual_seed(seed)
    known = task.mappings[1]
    chosen = known[torch.randint(len(known), (tests,), generator=draw)]
    ids, _, shown = task.prompts(chosen, examples, draw)
    ids = ids[shown]  # (B, 2n + 1)
    weights = attention_weights(result.models[model], ids)  # (N, B, H, T, T)
    same = F.pad(ids[:, :-1] == ids[:, -1:], (0, 1))  # (B, T), where the input was shown
    labels = same.roll(1, 1)  # (B, T), the labels after it
    query = weights[..., -1, :].transpose(1, 2)  # (N, H, B, T)
    at = torch.arange(1, 2 * examples, 2)
    own = weights[..., at, at - 1]  # (N, B, H, n)
    length = ids.shape[1]
    return AnswerAttention(
        answer=(query * labels).sum(-1).mean(-1).tolist(),
        input=(query * same).sum(-1).mean(-1).tolist(),
        pair=own.mean((1, 3)).tolist(),
        even={
            "answer": labels.double().sum(1).mean().item() / length,
            "input": same.double().sum(1).mean().item() / length,
            "pair": (1 / (at + 1)).mean().item(),
            "labels": labels.double().sum(1).mean().item() / examples,
        },
        ids=ids[0],
        maps=weights[:, 0],
        text=task.names(ids[0]),
    )


# --------------------------------------------------------------------------- a model of something

# Small patterns of Python: what is asked and what is to be answered, a list of pairs each.
_WORDS = ("data", "name", "value", "path", "line", "key", "text", "size", "index", "result")
CODE_PATTERNS: dict[str, list[tuple[str, str]]] = {
    "the same again": [(word, word) for word in _WORDS],
    "an attribute": [(word, f"self.{word} = {word}") for word in _WORDS],
    "a call": [(word, f"print({word})") for word in _WORDS],
    "a negation": [(f"if {word}:", f"if not {word}:") for word in _WORDS],
}


@dataclass
class ShotLoss:
    """The loss of right answers by the number of examples, in nats per token.

    loss: of a pattern and a number of examples, one value a draw. control: the same prompts, but
    each example has the answer of another one. left_out: prompts longer than the context.
    """

    shots: tuple[int, ...]
    loss: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    control: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    left_out: int = 0

    def mean(self, pattern: str, examples: int, *, control: bool = False) -> float:
        """Mean loss over the draws; not a number, if no prompt fitted."""
        found = (self.control if control else self.loss)[pattern][examples]
        return sum(found) / len(found) if found else math.nan

    def gain(self, pattern: str, examples: int, *, control: bool = False) -> tuple[float, float]:
        """How much the loss falls from no example to so many: mean over draws, standard error.

        control: instead, how much smaller the loss is than with the answers of other examples.
        """
        found = self.loss[pattern][examples]
        base = self.control[pattern][examples] if control else self.loss[pattern][0]
        falls = torch.tensor(base[: len(found)], dtype=torch.float64) - torch.tensor(found)
        return falls.mean().item(), (falls.std() / math.sqrt(max(len(falls), 1))).item()

    def table(self) -> str:
        lines = [f"{'nats per token, examples':38s}" + "".join(f"{n:>8d}" for n in self.shots)]
        for pattern in self.loss:
            for control in (False, True):
                name = f"{pattern}, answers exchanged" if control else pattern
                cells = "".join(
                    f"{self.mean(pattern, n, control=control):8.2f}" for n in self.shots
                )
                lines.append(f"{name:38s}{cells}")
        return "\n".join(lines)

    def figure(self) -> Figure:
        """Mean loss by number of examples; dashed with the answers of other examples."""
        figure, ax = plt.subplots(figsize=(6.8, 3.5))
        across = range(len(self.shots))
        for number, pattern in enumerate(self.loss):
            for control, line in ((False, "o-"), (True, "--")):
                means = [self.mean(pattern, n, control=control) for n in self.shots]
                ax.plot(
                    across, means, line, color=plots.PALETTE[number],
                    label=None if control else pattern,
                )  # fmt: skip
        ax.plot([], [], "--", color=plots.INK, label="answers exchanged")
        ax.set_xticks(across, [str(n) for n in self.shots])
        ax.set_ylim(bottom=0)
        ax.set(
            xlabel="examples in the prompt",
            ylabel="loss of the answer, nats per token",
            title="The loss of the right answer by number of examples",
        )
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8.5)
        return figure


@torch.no_grad()
def shots_of(
    model: nn.Module, encode: Callable[[str], list[int]], build_prompt: Callable[..., str],
    answer_scores: Callable[..., Tensor], patterns: Mapping[str, Sequence[tuple[str, str]]], *,
    shots: Sequence[int] = (0, 1, 2, 4), draws: int = 16, task: str = "", seed: int = 0,
) -> ShotLoss:  # fmt: skip
    """Ask a model to go on with patterns that it was never trained to go on with.

    For each draw: a pair to ask for, and other pairs of the same pattern as examples. The draws of
    all numbers of examples, and those of the control, ask for the same pairs.

    Args:
        model: a GPT with `max_length`. encode: text to ids.
        build_prompt, answer_scores: the chapter's functions.
        patterns: pairs of what is asked and what is answered, by name.
        shots: numbers of examples.
        task: what stands in the first line of every prompt; nothing, if empty.

    Raises:
        ValueError: a pattern with too few pairs.
    """
    needed = max(2, max(shots)) + 1
    for name, pairs in patterns.items():
        if len(pairs) < needed:
            raise ValueError(f"{name!r} has {len(pairs)} pairs, {needed} are needed")
    model.eval()
    result = ShotLoss(tuple(shots))
    for name, pairs in patterns.items():
        result.loss[name] = {n: [] for n in shots}
        result.control[name] = {n: [] for n in shots}
        draw = random.Random(seed)
        for _ in range(draws):
            (query, answer), *others = draw.sample(list(pairs), needed)
            for n in shots:
                # each example with the answer of the next one, never that of the query
                turned = [y for _, y in others[1:] + others[:1]]
                wrong = [(x, y) for (x, _), y in zip(others, turned, strict=True)]
                for examples, found in ((others, result.loss), (wrong, result.control)):
                    prompt = encode(build_prompt(task, examples[:n], query))
                    wanted = encode(f" {answer}")
                    if len(prompt) + len(wanted) > model.max_length:
                        result.left_out += 1
                        continue
                    found[name][n].append(-answer_scores(model, prompt, [wanted])[0].item())
    return result
