"""What the GPT chapter is given: samples, whether they compile, baselines, attention weights.

    shipped = models.load("gpt")
    corpus = toolkit.pretrain.gpt.corpus(shipped.tokenizer)
    sum(compiles(one.text) for one in sample(shipped.model, corpus, gpt, 100))

`parts` is whatever holds what the chapter builds, by the chapter's names: a module, or a
`types.SimpleNamespace`. Nothing that is sampled is ever executed.
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit.corpora.code_corpus import END, NAMES, SPECIAL, START, Corpus, Example, Task


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers of torch from a seed; afterwards they go on as if untouched."""
    cuda = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(cuda):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[torch.device]:
    """The model in eval mode and no gradients; gives the model's device."""
    mode = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield _where(model)
    finally:
        model.train(mode)


def _where(model: nn.Module) -> torch.device:
    return next(iter([*model.parameters(), *model.buffers()])).device


# --------------------------------------------------------------------------- pre-training


def start(model: nn.Module, parts: Any, seed: int = 0) -> nn.Module:
    """New random weights in place, as wide as a small model needs; returns the model.

    `parts.init_weights` draws with a deviation of 0.02, chosen for a width of 768. Sums of fewer
    terms need larger weights: all matrices and tables are multiplied by sqrt(768 / D), 3.5 for 64.
    """
    with _seeded(seed), torch.no_grad():
        parts.init_weights(model)
        factor = math.sqrt(768 / model.token.embedding_dim)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)
    return model


# --------------------------------------------------------------------------- loss


@torch.no_grad()
def stream_loss(model: nn.Module, stream: Tensor, length: int) -> float:
    """Nats per token of a stream (M,) that is cut into chunks of `length` tokens."""
    count = (len(stream) - 1) // length
    inputs, targets = (stream[i : i + count * length].view(count, length) for i in (0, 1))
    total = 0.0
    for some, wanted in zip(inputs.split(64), targets.split(64), strict=True):
        logits = model(some)  # (B, T, V)
        total += F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum").item()
    return total / targets.numel()


# --------------------------------------------------------------------------- samples


@dataclass(frozen=True)
class Sample:
    """A text that was written after a prompt, which is part of it.

    ids: of the whole text, without START and END. finished: whether END was written. tokens: how
    many were written, END not counted.
    """

    text: str
    prompt: str
    ids: list[int] = field(repr=False)
    finished: bool
    tokens: int


def sample(
    model: nn.Module, corpus: Corpus, parts: Any, count: int = 100, *,
    prompts: Sequence[str] | None = None, temperature: float = 1.0, top_k: int | None = None,
    top_p: float | None = None, length: int | None = None, seed: int = 0,
) -> list[Sample]:  # fmt: skip
    """Let a model write functions.

    Args:
        model: the chapter's GPT, or another with `max_length` such as `parts.TableModel`.
        parts: with `generate`, and `fast_generate` for a GPT if it is there.
        count: how many after START alone; not used if there are prompts.
        prompts: texts to go on from, each after START; one sample each.
        temperature, top_k, top_p: of the draws.
        length: longest text with START; the context if not given.

    Raises:
        ValueError: no sample to write, or a prompt that leaves no place to write.
    """
    length = length or model.max_length
    made: list[Sample | None] = [None] * (count if prompts is None else len(prompts))
    if not made:
        raise ValueError("there is nothing to write: give a count of 1 or more, or prompts")
    rows = [[START, *corpus.tokens.encode(p)] for p in prompts or [""] * len(made)]
    groups: dict[int, list[int]] = {}  # prompts of one length are written side by side
    for number, row in enumerate(rows):
        groups.setdefault(len(row), []).append(number)
    if max(groups) >= length:
        raise ValueError(
            f"a prompt has {max(groups)} tokens with START, and at most {length} may be written"
        )
    network = hasattr(model, "blocks")
    write: Callable = (getattr(parts, "fast_generate", None) if network else None) or parts.generate
    with _evaluating(model) as where:
        for size, numbers in groups.items():
            ids = torch.tensor([rows[n] for n in numbers], device=where)  # (B, T)
            written = write(
                model, ids, length - size, temperature=temperature, top_k=top_k, top_p=top_p,
                stop=END, seed=seed + size,
            ).tolist()  # fmt: skip
            for number, row in zip(numbers, written, strict=True):
                made[number] = _as_sample(corpus, row, size)
    return made


def _as_sample(corpus: Corpus, row: list[int], prompt: int) -> Sample:
    new = row[prompt:]
    finished = END in new
    new = new[: new.index(END)] if finished else new
    decode = corpus.tokens.decode
    # A special token in the middle stays visible: what has one is no function.
    shown = "".join(decode([i]) if i >= SPECIAL else NAMES[i] for i in new)
    ids = row[1:prompt] + new
    return Sample(decode(row[:prompt]) + shown, decode(row[:prompt]), ids, finished, len(new))


def compiles(text: str) -> bool:
    """Whether Python would take a text as a program. It is compiled and thrown away, never run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as invalid escapes and "is" with a literal
        try:
            compile(text, "sample", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
            return False
    return bool(text.strip())


# --------------------------------------------------------------------------- fine-tuning


def fresh(gpt: nn.Module, parts: Any, seed: int = 0) -> nn.Module:
    """A copy with new random weights, as before pre-training: nothing was learned."""
    made = copy.deepcopy(gpt)
    return start(made, parts, seed)


def _few(task: Task, number: int, seed: int) -> list[Example]:
    if not 1 <= number <= len(task.train):
        raise ValueError(
            f"the task {task.name!r} has {len(task.train)} training examples, not {number!r}"
        )
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(seed))
    return [task.train[n] for n in order[:number].tolist()]


def majority(task: Task) -> float:
    """The share of test examples that the best constant answer has right."""
    counts = task.counts("test").values()
    return max(counts) / sum(counts)


def bag_of_tokens(task: Task, *, labelled: int, seed: int = 0) -> float:
    """The accuracy on the test examples of logistic regression on which tokens an example has.

    Of a single text also which two tokens stand side by side; of a pair which tokens each text has
    and which both have. Only what occurs in two labelled examples or more counts.
    """
    few = _few(task, labelled, seed)
    found = Counter(f for example in few for f in sorted(_features(example)))
    shared = (feature for feature, times in found.items() if times > 1)
    number = {feature: n for n, feature in enumerate(shared)}

    def matrix(examples: Sequence[Example]) -> Tensor:
        x = torch.zeros(len(examples), len(number))  # (N, F)
        for row, example in zip(x, examples, strict=True):
            row[[number[f] for f in _features(example) if f in number]] = 1.0
        return x

    x, y = matrix(few), torch.tensor([e.label for e in few])
    weight = torch.zeros(len(number), len(task.labels), requires_grad=True)
    bias = torch.zeros(len(task.labels), requires_grad=True)
    optimiser = torch.optim.Adam([weight, bias], lr=0.03)
    for _ in range(60):
        loss = F.cross_entropy(x @ weight + bias, y) + 1e-3 * weight.square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        guesses = (matrix(task.test) @ weight + bias).argmax(-1)
    return float((guesses == torch.tensor([e.label for e in task.test])).double().mean())


def _features(example: Example) -> set[tuple]:
    first = set(example.first)
    if example.second is None:
        sides = set(zip(example.first, example.first[1:], strict=False))
        return {("has", i, 0) for i in first} | {("side by side", *pair) for pair in sides}
    second = set(example.second)
    return (
        {("first", i) for i in first} | {("second", i) for i in second}
        | {("both", i) for i in first & second}
    )  # fmt: skip


# --------------------------------------------------------------------------- attention


def attention_scores(model: nn.Module, ids: Tensor) -> Tensor:
    """All attention scores of a GPT that reads ids (B, T), before the mask: (N, B, H, T, T)."""
    taken: list[Tensor] = []

    def take(attention: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        q, k, _ = attention.qkv(inputs[0]).chunk(3, -1)  # (B, T, D) each
        q, k = (x.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for x in (q, k))
        taken.append(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]))  # (B, H, T, T)

    hooks = [block.attention.register_forward_pre_hook(take) for block in model.blocks]
    try:
        model(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(taken)  # (N, B, H, T, T)


def attention_weights(model: nn.Module, ids: Tensor) -> Tensor:
    """All attention weights of a GPT in eval mode that reads ids (B, T): (N, B, H, T, T)."""
    scores = attention_scores(model.eval(), ids)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1)
