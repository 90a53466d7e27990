"""What the GPT chapter is given: pre-training on code, samples and their judge, fine-tuning.

    shipped = models.load("gpt")
    corpus = toolkit.pretrain.gpt.corpus(shipped.tokenizer)
    verdict = judge(sample(shipped.model, corpus, gpt, 100), corpus)

* Pre-training: the loss at every step, and the loss on modules held out beside that of counting.
* Samples: functions that the model writes, judged by whether Python would compile them (nothing is
  ever executed) and by how much of them was copied.
* The next token: its distribution under temperature, top-k and top-p, on a page that moves.
* Fine-tuning: a classifier on a copy of the model, with and without the language model's loss.

`parts` is whatever holds what the chapter builds, by the chapter's names: a module, or a
`types.SimpleNamespace`.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import dataclasses
import functools
import html
import math
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ipywidgets
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import device, plots, text, training, widgets
from toolkit.code_corpus import END, EXTRACT, NAMES, PAD, SPECIAL, START, Corpus, Example, Task

# Of a training that one only sees begin; that of the shipped model is in `toolkit.pretrain.gpt`.
BATCH = 16
RATE = 1e-2
WARMUP = 20


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


@dataclass(frozen=True)
class Check:
    """What a model knows of a held-out stream.

    loss: nats per token. bits_per_byte: the same for a byte of text.
    """

    loss: float
    bits_per_byte: float


@dataclass(frozen=True)
class Pretraining:
    """What a pre-training went through.

    losses: of every step, before its update. tokens: targets that were trained on.
    """

    losses: list[float] = field(repr=False)
    tokens: int

    @property
    def steps(self) -> int:
        return len(self.losses)


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


def pretrain(
    model: nn.Module, corpus: Corpus, parts: Any, steps: int, *, batch: int = BATCH,
    lr: float = RATE, warmup_steps: int = WARMUP, weight_decay: float = 0.1, seed: int = 0,
    preset: device.Preset | None = None, progress: bool = True,
) -> Pretraining:  # fmt: skip
    """Train on blocks of the training stream, as the chapter's `train` does.

    Args:
        model: forward(ids (B, T)) -> logits (B, T, V), with `max_length`; trained in place,
            afterwards in eval mode and on the CPU.
        parts: with `sample_blocks`, `decay_groups` and `cosine_lr`.
        steps, batch, lr, warmup_steps: how many, of how many blocks as long as the context, the
            largest learning rate and the steps up to it.
    """
    chosen = preset or device.preset()
    warmup_steps = min(warmup_steps, steps - 1)
    length = model.max_length
    stream = corpus.stream("train").to(chosen.device)

    def loss(step: int) -> tuple[Tensor, int]:
        inputs, targets = parts.sample_blocks(stream, length, batch)  # (B, T) both
        logits = model(inputs)  # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()), targets.numel()

    def optimiser(_: Any, lr: float) -> torch.optim.Optimizer:
        groups = parts.decay_groups(model, weight_decay)
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True)

    history = training.fit(
        model, loss, steps, lr=lr, optimiser=optimiser, seed=seed, preset=chosen,
        schedule=lambda step: parts.cosine_lr(step + 1, 1.0, warmup_steps, steps),
        progress=progress,
    )  # fmt: skip
    model.cpu()
    return Pretraining(history.loss, steps * batch * length)


def evaluate(
    model: nn.Module, corpus: Corpus, *, split: str = "validation", most: int = 20_000
) -> Check:
    """The mean loss over the beginning of a split's stream, in blocks that follow each other.

    Args:
        model: forward(ids (B, T)) -> logits (B, T, V), with `max_length`.
        most: tokens to look at.
    """
    ids = corpus.stream(split)[:most]
    total, number = 0.0, 0
    with _evaluating(model) as where:
        for inputs, targets in text.in_order(ids.to(where), model.max_length, 32):
            logits = model(inputs).flatten(0, 1).float()  # (B T, V)
            total += float(F.cross_entropy(logits, targets.flatten(), reduction="sum"))
            number += targets.numel()
    loss = total / number
    return Check(loss, corpus.bits_per_byte(loss, split))


def ngram(corpus: Corpus, order: int) -> Tensor:
    """What counting the training stream says of the next token, a row for each token before it.

    Order 1 takes no token into account: all rows are alike, the tokens' frequency with every count
    raised by one. Order 2 takes one, mixed with order 1 by the method of Witten and Bell: the more
    different tokens followed a token, the more is left for others.

    Returns:
        (V, V) float32, logarithms of probabilities.

    Raises:
        ValueError: another order.
    """
    if order not in (1, 2):
        raise ValueError(f"the order of these n-grams is 1 or 2, not {order}")
    stream, words = corpus.stream("train"), len(corpus.tokens)
    single = (torch.bincount(stream, minlength=words) + 1).double()
    single = single / single.sum()  # (V,)
    if order == 1:
        return single.log().float().repeat(words, 1)  # (V, V)
    pairs = torch.bincount(stream[:-1] * words + stream[1:], minlength=words * words)
    pairs = pairs.view(words, words).double()  # (V, V)
    kinds = (pairs > 0).sum(1, keepdim=True).clamp(min=1)  # (V, 1)
    mixed = (pairs + kinds * single) / (pairs.sum(1, keepdim=True) + kinds)
    return mixed.log().float()


def baselines(corpus: Corpus, split: str = "validation", most: int = 20_000) -> dict[str, float]:
    """Nats per token of the same stream as `evaluate`, without a network.

    "uniform": all tokens alike. "unigram", "bigram": `ngram` of order 1 and 2.
    """
    ids = corpus.stream(split)[:most]
    found = {"uniform": math.log(len(corpus.tokens))}
    for order, name in ((1, "unigram"), (2, "bigram")):
        found[name] = -float(ngram(corpus, order)[ids[:-1], ids[1:]].double().mean())
    return found


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


def headers(corpus: Corpus, count: int, split: str = "test") -> list[str]:
    """`def` lines of a split such as "def read(self, size=-1):", all of as many tokens.

    It is the number of tokens that most of them have, so that texts after them can be written side
    by side; there may be fewer than `count`.
    """
    groups: dict[int, list[str]] = {}
    for line in dict.fromkeys(f.header for f in corpus.of(split)):
        groups.setdefault(len(corpus.tokens.encode(line)), []).append(line)
    return max(groups.values(), key=len)[:count]


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


def sample_like(
    table: Tensor, corpus: Corpus, parts: Any, like: Sequence[Sample], seed: int = 0
) -> list[Sample]:
    """Texts of a table of next tokens, as long as other samples.

    Args:
        table: (V, V) logits of the next token after each, such as `ngram`'s.
        parts: with `TableModel` and `generate`.
        like: samples whose lengths are taken over. END and the other special tokens are never
            drawn, so that none is finished.
    """
    table = table.clone()
    table[:, :SPECIAL] = -torch.inf
    longest = max(1, *(s.tokens for s in like))
    ids = torch.full((len(like), 1), START)  # (B, 1)
    model = parts.TableModel(table, 1)  # it looks at one token
    with torch.no_grad():
        rows = parts.generate(model, ids, longest, seed=seed).tolist()
    decode = corpus.tokens.decode
    return [
        Sample(decode(row[1 : s.tokens + 1]), "", row[1 : s.tokens + 1], False, s.tokens)
        for row, s in zip(rows, like, strict=True)
    ]


def _cut(samples: Sequence[Sample], corpus: Corpus, like: Sequence[Sample]) -> list[Sample]:
    """Samples after START, no longer than others."""
    pairs = zip(samples, like, strict=True)
    return [_as_sample(corpus, [START, *s.ids[: other.tokens]], 1) for s, other in pairs]


def real(corpus: Corpus, count: int, split: str = "test", length: int = 128) -> list[Sample]:
    """Functions of a split as if they were samples, cut where those are."""
    return [_as_sample(corpus, row[:length], 1) for row in corpus.documents(split)[:count]]


def compiles(text: str) -> bool:
    """Whether Python would take a text as a program. It is compiled and thrown away, never run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as invalid escapes and "is" with a literal
        try:
            compile(text, "sample", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
            return False
    return bool(text.strip())


@dataclass(frozen=True)
class Verdict:
    """What is to be said of samples; shares are from 0 to 1.

    compiles: share that Python would take. finished: share that ended by itself. novel: share that
    is no function of the training part; novel_compiles: share that is new and compiles. copied: of
    an average sample, the share of its tokens in its longest piece that stands in a function of the
    training part. length: tokens on average.
    """

    count: int
    compiles: float
    finished: float
    novel: float
    novel_compiles: float
    copied: float
    length: float


class Copies:
    """Finds what of a text stands in the training part, in tokens."""

    def __init__(self, corpus: Corpus) -> None:
        self._texts = {f.text for f in corpus.of("train")}
        # A token as a character: suffixes of functions are strings, which sort fast.
        rows = ["".join(map(chr, document[1:-1])) for document in corpus.documents("train")]
        self._suffixes = sorted({row[i:] for row in rows for i in range(len(row))})

    def is_whole(self, text: str) -> bool:
        """Whether the text is a function of the training part."""
        return text in self._texts

    def longest(self, ids: Sequence[int]) -> int:
        """Tokens of the longest piece of a text that stands in a training function."""
        row = "".join(map(chr, ids))
        best = 0
        for start in range(len(row)):
            rest = row[start:]
            if len(rest) <= best:
                break
            place = bisect.bisect(self._suffixes, rest)
            for near in self._suffixes[max(0, place - 1) : place + 1]:
                if near.startswith(rest[: best + 1]):  # else it is no longer than the best
                    best = _common(rest, near)
        return best


def _common(first: str, second: str) -> int:
    """How many characters two texts share at their beginning."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


@functools.lru_cache(maxsize=2)
def _copies(corpus: Corpus) -> Copies:
    return Copies(corpus)


def judge(samples: Sequence[Sample], corpus: Corpus) -> Verdict:
    """Count what compiles, what is finished and what is new.

    Raises:
        ValueError: no samples.
    """
    if not samples:
        raise ValueError("there is no sample to judge")
    copies = _copies(corpus)
    good = [compiles(s.text) for s in samples]
    new = [not copies.is_whole(s.text) for s in samples]
    copied = [copies.longest(s.ids) / max(1, len(s.ids)) for s in samples]
    mean = statistics.fmean
    return Verdict(
        len(samples), mean(good), mean(s.finished for s in samples), mean(new),
        mean(g and n for g, n in zip(good, new, strict=True)),
        mean(copied), mean(s.tokens for s in samples),
    )  # fmt: skip


@dataclass(frozen=True)
class Study:
    """Verdicts on several ways of writing, one for each seed of the draws.

    rows: name of a way to its verdicts. groups: heading to names of ways. examples: name to some
    samples of the first seed. The seeds draw the texts; the network is the same one.
    """

    rows: dict[str, list[Verdict]]
    groups: dict[str, list[str]]
    examples: dict[str, list[Sample]] = field(repr=False)
    cpu_seconds: float = field(compare=False)

    def mean(self, row: str, what: str = "compiles") -> float:
        return statistics.fmean(getattr(v, what) for v in self.rows[row])

    def spread(self, row: str, what: str = "compiles") -> float:
        """Standard deviation over the seeds, 0 for a single one."""
        values = [getattr(v, what) for v in self.rows[row]]
        return statistics.stdev(values) if len(values) > 1 else 0.0

    def table(self) -> str:
        """As HTML: a row for each way, shares in percent."""
        shown = {
            "compiles": "compiles", "ends": "finished", "new": "novel",
            "new and compiles": "novel_compiles", "longest copied piece": "copied",
        }  # fmt: skip
        head = "".join(f"<th scope=col>{name}</th>" for name in shown)
        lines = []
        for group, names in self.groups.items():
            lines.append(
                f"<tr><th scope=rowgroup colspan={len(shown) + 2} style='text-align:left'>"
                f"{html.escape(group)}</th></tr>"
            )
            for name in names:
                first = f"<td>{100 * self.mean(name):.0f} ± {100 * self.spread(name):.0f}</td>"
                others = [f"<td>{100 * self.mean(name, w):.0f}</td>" for w in shown.values()]
                cells = "".join([first, *others[1:]])
                lines.append(
                    f"<tr><th scope=row>{html.escape(name)}</th>{cells}"
                    f"<td>{self.mean(name, 'length'):.0f}</td></tr>"
                )
        head = f"<th scope=col>percent of samples</th>{head}<th scope=col>tokens</th>"
        return _table(head, lines)

    def figure(self) -> Figure:
        """Bars of what compiles, and in them of what compiles and is new; a point for each seed."""
        names = [name for group in self.groups.values() for name in group]
        figure, ax = plt.subplots(figsize=(7.6, 0.3 * len(names) + 1.1))
        places = []
        top = 0.0
        for group in self.groups.values():
            places += [top + k for k in range(len(group))]
            top += len(group) + 0.6  # a gap between two groups
        ax.barh(places, [self.mean(n) for n in names], 0.75, color=plots.PALETTE[0], alpha=0.35,
                label="compiles")  # fmt: skip
        ax.barh(places, [self.mean(n, "novel_compiles") for n in names], 0.75,
                color=plots.PALETTE[0], label="compiles and is new")  # fmt: skip
        for place, name in zip(places, names, strict=True):
            values = [v.compiles for v in self.rows[name]]
            ax.plot(values, [place] * len(values), "o", color=plots.INK, markersize=3)
        ax.set_yticks(places, names)
        ax.invert_yaxis()
        ax.set(xlabel="share of samples", xlim=(0, 1.02))
        ax.legend(fontsize=8)
        return figure


def _table(head: str, lines: Sequence[str]) -> str:
    return (
        "<div style='overflow-x:auto'><table style='white-space:nowrap;font-size:13px;"
        "border-collapse:separate;border-spacing:.7em 0'>"
        f"<tr>{head}</tr>{''.join(lines)}</table></div>"
    )


SETTINGS: dict[str, dict[str, Any]] = {
    "temperature 0.5": {"temperature": 0.5},
    "temperature 0.8": {"temperature": 0.8},
    "temperature 1": {},
    "temperature 1.3": {"temperature": 1.3},
    "top-k 10": {"top_k": 10},
    "top-p 0.9": {"top_p": 0.9},
    "temperature 0.8, top-p 0.9": {"temperature": 0.8, "top_p": 0.9},
}


def compile_study(
    model: nn.Module, untrained: nn.Module, corpus: Corpus, parts: Any, *, count: int = 60,
    seeds: Sequence[int] = (0, 1, 2), settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Study:  # fmt: skip
    """What compiles of functions written in different ways, with what it is to be compared to.

    * Tokens of counting, in texts as long as those of the trained network at temperature 1.
    * The trained network with several settings, and on from `def` lines of the test part.
    * The same network untrained, at temperature 1; as it does not know where to end, its texts are
      cut to the same lengths.
    * Functions of the test part, cut where samples are: what cannot be surpassed.

    Args:
        model, untrained: the trained network, and one with new weights.
        count: samples of a way for each seed.
        settings: name to arguments of `sample`; `SETTINGS` if not given, which has "temperature 1".

    Raises:
        ValueError: no seed.
    """
    if not seeds:
        raise ValueError("a study needs at least one seed")
    began = time.process_time()
    settings = SETTINGS if settings is None else settings
    rows: dict[str, list[Verdict]] = {}
    examples: dict[str, list[Sample]] = {}

    def add(name: str, write: Callable[[int], list[Sample]]) -> None:
        made = [write(seed) for seed in seeds]
        rows[name] = [judge(one, corpus) for one in made]
        examples[name] = made[0][:10]

    plain = {seed: sample(model, corpus, parts, count, seed=seed) for seed in seeds}
    for order, name in ((1, "tokens by frequency"), (2, "tokens by the one before")):
        table = ngram(corpus, order)
        add(name, lambda seed, table=table: sample_like(table, corpus, parts, plain[seed], seed))
    groups = {"counting, same lengths": list(rows)}
    for name, chosen in settings.items():
        add(name, lambda seed, chosen=chosen: plain[seed] if not chosen
            else sample(model, corpus, parts, count, seed=seed, **chosen))  # fmt: skip
    groups["trained"] = list(settings)
    lines = headers(corpus, count)
    add(
        "after a def line",
        lambda seed: sample(model, corpus, parts, prompts=lines, seed=seed),
    )
    groups["trained"].append("after a def line")
    add(
        "untrained",
        lambda seed: _cut(sample(untrained, corpus, parts, count, seed=seed), corpus, plain[seed]),
    )
    groups["no training, temperature 1"] = ["untrained"]
    shares = real(corpus, count * len(seeds))
    add("functions held out", lambda seed: shares[list(seeds).index(seed) :: len(seeds)])
    groups["real"] = ["functions held out"]
    return Study(rows, groups, examples, time.process_time() - began)


# --------------------------------------------------------------------------- the next token

PROMPTS = (
    "def read(self, size):\n    if",
    "def get(self, key, default=None):\n    return self",
    "def __init__(self, name",
    "def close(self):",
)


def _next_logits(model: nn.Module, corpus: Corpus, prompt: str) -> Tensor:
    """The logits of the token after START and a prompt: (V,) on the CPU."""
    ids = [START, *corpus.tokens.encode(prompt)]
    if len(ids) > model.max_length:
        raise ValueError(f"{len(ids)} tokens are too many for a max_length of {model.max_length}")
    with _evaluating(model) as where:
        return model(torch.tensor([ids], device=where))[0, -1].float().cpu()  # (V,)


def _kept(
    logits: Tensor, parts: Any, temperature: float, top_k: int | None, top_p: float | None
) -> Tensor:
    """The probabilities from which a token is drawn: (V,), in the order of `sample_token`."""
    logits = parts.scale_temperature(logits[None], temperature)  # (1, V)
    logits = logits if top_k is None else parts.keep_top_k(logits, top_k)
    logits = logits if top_p is None else parts.keep_top_p(logits, top_p)
    return logits.softmax(-1)[0]  # (V,)


def distribution_page(
    model: nn.Module, corpus: Corpus, parts: Any, prompts: Sequence[str] = PROMPTS, *,
    temperatures: Sequence[float] = (0.5, 0.8, 1.0, 1.5), ks: Sequence[int | None] = (None, 10, 3),
    ps: Sequence[float | None] = (None, 0.9, 0.6), shown: int = 12,
) -> ipywidgets.VBox:  # fmt: skip
    """The distribution of the next token, to be looked at without a kernel.

    A bar is the probability with which a token is drawn; tokens that a setting cuts stay in the
    list in grey, with the probability that they had before the cut.

    Args:
        parts: with `scale_temperature`, `keep_top_k` and `keep_top_p`.
        prompts: texts to choose from, each after START.
        temperatures, ks, ps: settings to choose from; None for no cut.
        shown: tokens of a list, the most probable ones.

    Raises:
        ValueError: a prompt that is too long for the model.
    """
    logits = {prompt: _next_logits(model, corpus, prompt) for prompt in prompts}
    sign = {None: "off"}

    def draw(prompt: str, temperature: str, k: str, p: str) -> str:
        top_k, top_p = (None if k == "off" else int(k)), (None if p == "off" else float(p))
        before = _kept(logits[prompt], parts, float(temperature), None, None)  # (V,)
        after = _kept(logits[prompt], parts, float(temperature), top_k, top_p)  # (V,)
        ids = before.argsort(descending=True, stable=True)[:shown].tolist()
        lines = []
        for i, name in zip(ids, corpus.tokens.names(ids), strict=True):
            kept = bool(after[i] > 0)
            share = float(after[i] if kept else before[i])
            ink = "" if kept else ";color:#5b6069!important"
            fill = plots.PALETTE[0] if kept else "#cfd2d8"
            end = f"{share:.3f}" if kept else f"({share:.3f})"
            lines.append(
                f"<tr><th scope=row style='text-align:right{ink}'>{html.escape(name)}</th><td "
                f"style='text-align:left!important{ink}'><span style='display:inline-block;"
                f"height:.8em;background:{fill};width:{max(0.1, 16 * share):.1f}em'></span> {end}"
                "</td></tr>"
            )
        number = int((after > 0).sum())
        entropy = -float(torch.special.xlogy(after, after).sum()) / math.log(2)
        note = f"{number} of {len(after)} tokens can be drawn; {entropy:.1f} bits"
        return widgets.side_by_side(
            f"<table class=heat><caption>{note}</caption>{''.join(lines)}</table>"
        )

    controls = {
        "after": list(prompts), "temperature": [f"{t:g}" for t in temperatures],
        "top-k": [sign.get(k, str(k)) for k in ks], "top-p": [sign.get(p, str(p)) for p in ps],
    }  # fmt: skip
    start = {"temperature": list(temperatures).index(1.0) if 1.0 in temperatures else 0}
    return widgets.frames(controls, draw, start=start)


# --------------------------------------------------------------------------- fine-tuning

LABELLED = {"small": 60, "large": 500}
TUNE_STEPS = {"small": 40, "large": 63}
TUNE_BATCH = 8
TUNE_RATE = 2e-3
WEIGHTS = (0.0, 0.5)  # of the language model's loss
SMOOTH = 10  # steps over which a curve of losses is averaged


@dataclass(frozen=True)
class Result:
    """What a way of solving a task reached on its test examples.

    l2, l1: of every step, the loss of the labels and that of the language model, empty without a
    network. weight: of l1 in the loss. model: the `GPTClassifier`, None without a network.
    """

    accuracy: float
    labelled: int
    weight: float
    l2: list[float] = field(repr=False)
    l1: list[float] = field(repr=False)
    cpu_seconds: float = field(compare=False)
    model: nn.Module | None = field(repr=False, compare=False, default=None)


def fresh(gpt: nn.Module, parts: Any, seed: int = 0) -> nn.Module:
    """A copy with new random weights, as before pre-training: nothing was learned."""
    made = copy.deepcopy(gpt)
    return start(made, parts, seed)


def _rows(examples: Sequence[Example], parts: Any) -> list[list[int]]:
    """Inputs as GPT-1 writes them: [START] text [EXTRACT], of a pair with [DELIMITER] between."""
    return [
        parts.entailment_input(e.first, e.second) if e.second else [START, *e.first, EXTRACT]
        for e in examples
    ]


def _batch(rows: Sequence[list[int]], where: torch.device) -> Tensor:
    """Rows padded at their ends: (B, T)."""
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows], device=where)


def fine_tune(
    gpt: nn.Module, task: Task, parts: Any, *, labelled: int | str = "small",
    weight: float = 0.5, steps: int | None = None, lr: float = TUNE_RATE,
    batch: int = TUNE_BATCH, seed: int = 0, most_test: int | None = None,
    preset: device.Preset | None = None,
) -> Result:  # fmt: skip
    """Train a `GPTClassifier` on a copy of a GPT with the joint loss, then test it.

    Args:
        gpt: stays as it is.
        parts: with `GPTClassifier`, `joint_loss` and `entailment_input`.
        labelled: how many training examples, or "small" or "large" for those of `LABELLED`; which
            ones depends on `seed`, and the first of them are the same for any number.
        weight: of the language model's loss.
        steps: of training; by the number of examples if not given.
        most_test: test examples at most; all if not given.

    Raises:
        ValueError: more labelled examples than there are, or fewer than one.
    """
    chosen = preset or device.preset()
    few = _few(task, labelled, seed)
    steps = steps or TUNE_STEPS["small" if len(few) < LABELLED["large"] else "large"]
    rows, labels = _rows(few, parts), torch.tensor([e.label for e in few])
    with _seeded(seed):
        model = parts.GPTClassifier(copy.deepcopy(gpt), len(task.labels))
    queue: list[Tensor] = []
    seen: dict[str, list[Tensor]] = {"l2": [], "l1": []}

    def loss(step: int) -> Tensor:
        if not queue:
            queue.extend(torch.randperm(len(few)).split(batch))
        order = queue.pop()
        ids = _batch([rows[n] for n in order.tolist()], chosen.device)  # (B, T)
        scores, logits = model(ids)  # (B, L), (B, T, V)
        truth = labels[order].to(chosen.device)
        both, l2, l1 = parts.joint_loss(scores.float(), truth, logits.float(), ids, weight)
        seen["l2"].append(l2.detach())
        seen["l1"].append(l1.detach())
        return both

    def optimiser(_: Any, lr: float) -> torch.optim.Optimizer:
        groups = parts.decay_groups(model, 0.01)
        return torch.optim.AdamW(groups, lr=lr, fused=True)

    began = time.process_time()
    training.fit(
        model, loss, steps, lr=lr, schedule="warm-up", seed=seed, optimiser=optimiser,
        preset=chosen, progress=False,
    )  # fmt: skip
    accuracy = score(model, task, parts, most=most_test)
    used = time.process_time() - began
    l2, l1 = (torch.stack(seen[name]).tolist() for name in ("l2", "l1"))
    return Result(accuracy, len(few), weight, l2, l1, used, model)


def _few(task: Task, labelled: int | str, seed: int) -> list[Example]:
    number = LABELLED.get(labelled, labelled)
    if not isinstance(number, int) or not 1 <= number <= len(task.train):
        raise ValueError(
            f"the task {task.name!r} has {len(task.train)} training examples, not {labelled!r}"
        )
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(seed))
    return [task.train[n] for n in order[:number].tolist()]


def score(
    model: nn.Module, task: Task, parts: Any, *, split: str = "test", most: int | None = None
) -> float:
    """The share of examples of a split of which a `GPTClassifier` says the label."""
    examples = getattr(task, split)[:most]
    rows = _rows(examples, parts)
    order = sorted(range(len(rows)), key=lambda n: len(rows[n]))  # little padding
    right = 0
    with _evaluating(model) as where:
        for begin in range(0, len(order), 64):
            some = order[begin : begin + 64]
            scores, _ = model(_batch([rows[n] for n in some], where))  # (B, L)
            truth = torch.tensor([examples[n].label for n in some])
            right += int((scores.argmax(-1).cpu() == truth).sum())
    return right / len(examples)


def majority(task: Task) -> float:
    """The share of test examples that the best constant answer has right."""
    counts = task.counts("test").values()
    return max(counts) / sum(counts)


def bag_of_tokens(
    task: Task, *, labelled: int | str = "small", seed: int = 0, most_test: int | None = None
) -> Result:
    """Logistic regression on which tokens an example has, with the same examples as `fine_tune`.

    Of a single text also which two tokens stand side by side; of a pair which tokens each text has
    and which both have. Only what occurs in two labelled examples or more counts.
    """
    began = time.process_time()
    few = _few(task, labelled, seed)
    test = task.test[:most_test]
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
        guesses = (matrix(test) @ weight + bias).argmax(-1)
    accuracy = float((guesses == torch.tensor([e.label for e in test])).double().mean())
    return Result(accuracy, len(few), 0.0, [], [], time.process_time() - began)


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


@dataclass(frozen=True)
class Comparison:
    """Results of several ways on several tasks with few and more labels, one for each seed.

    results: (task, size, way) to a result for each seed. majority: by task.
    """

    results: dict[tuple[str, str, str], list[Result]] = field(repr=False)
    majority: dict[str, float]
    cpu_seconds: float = field(compare=False)

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(task for task, _, _ in self.results))

    @property
    def sizes(self) -> list[str]:
        return list(dict.fromkeys(size for _, size, _ in self.results))

    @property
    def ways(self) -> list[str]:
        return list(dict.fromkeys(way for _, _, way in self.results))

    def scores(self, task: str, size: str, way: str) -> list[float]:
        """The accuracy of each seed."""
        return [result.accuracy for result in self.results[task, size, way]]

    def mean(self, task: str, size: str, way: str) -> float:
        return statistics.fmean(self.scores(task, size, way))

    def spread(self, task: str, size: str, way: str) -> float:
        """Standard deviation over the seeds, 0 for a single one."""
        scores = self.scores(task, size, way)
        return statistics.stdev(scores) if len(scores) > 1 else 0.0

    def gain(self, task: str, size: str, way: str, other: str) -> tuple[float, float]:
        """Mean and standard deviation over the seeds of the accuracy of a way less another's.

        Both had the same examples with the same seed, so what the examples do falls out.
        """
        pairs = zip(self.scores(task, size, way), self.scores(task, size, other), strict=True)
        each = [a - b for a, b in pairs]
        return statistics.fmean(each), statistics.stdev(each) if len(each) > 1 else 0.0

    def table(self) -> str:
        """As HTML: mean and spread in percent, a row for each task and number of labels."""
        head = "<th scope=col>task</th><th scope=col>labelled</th>" + "".join(
            f"<th scope=col>{html.escape(way)}</th>" for way in self.ways
        )
        lines = []
        for task in self.tasks:
            for size in self.sizes:
                labelled = self.results[task, size, self.ways[0]][0].labelled
                cells = "".join(
                    f"<td>{100 * self.mean(task, size, way):.1f} ± "
                    f"{100 * self.spread(task, size, way):.1f}</td>" for way in self.ways
                )  # fmt: skip
                lines.append(
                    f"<tr><th scope=row>{task}</th><td>{labelled}</td>{cells}"
                    f"<td>{100 * self.majority[task]:.1f}</td></tr>"
                )
        return _table(f"{head}<th scope=col>constant answer</th>", lines)

    def figure(self) -> Figure:
        """For each task and number of labels a bar for each way, with a point for each seed."""
        figure, axes = plt.subplots(
            1, len(self.tasks), figsize=(4.3 * len(self.tasks), 3.5), squeeze=False, sharey=True
        )
        width = 0.84 / len(self.ways)
        for ax, task in zip(axes.flat, self.tasks, strict=True):
            for k, way in enumerate(self.ways):
                xs = [n + (k - (len(self.ways) - 1) / 2) * width for n in range(len(self.sizes))]
                ax.bar(xs, [self.mean(task, size, way) for size in self.sizes], width * 0.92,
                       color=plots.PALETTE[k], label=way)  # fmt: skip
                for x, size in zip(xs, self.sizes, strict=True):
                    scores = self.scores(task, size, way)
                    ax.plot([x] * len(scores), scores, "o", color=plots.INK, markersize=3)
            ax.axhline(self.majority[task], color=plots.INK, linestyle=":", linewidth=1,
                       label="constant answer")  # fmt: skip
            ticks = [
                f"{self.results[task, size, self.ways[0]][0].labelled} labelled"
                for size in self.sizes
            ]
            ax.set_xticks(range(len(self.sizes)), ticks)
            ax.set(ylim=(0, 1), title=task)
        axes.flat[0].set_ylabel("accuracy on test")
        figure.legend(
            *axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3,
            fontsize=8,
        )  # fmt: skip
        return figure

    def convergence(self) -> Figure:
        """The loss of the labels by step, averaged over seeds and ten steps."""
        figure, axes = plt.subplots(
            len(self.sizes), len(self.tasks), squeeze=False, sharey=True,
            figsize=(4.0 * len(self.tasks), 2.7 * len(self.sizes)),
        )  # fmt: skip
        for line, size in zip(axes, self.sizes, strict=True):
            for ax, task in zip(line, self.tasks, strict=True):
                for k, way in enumerate(self.ways):
                    curves = [r.l2 for r in self.results[task, size, way] if r.l2]
                    if not curves:
                        continue
                    mean = torch.tensor(curves).mean(0)  # (steps,)
                    window = min(SMOOTH, len(mean))
                    smooth = mean.unfold(0, window, 1).mean(1)
                    steps = range(window, len(mean) + 1)
                    ax.plot(steps, smooth, color=plots.PALETTE[k], label=way)
                labelled = self.results[task, size, self.ways[0]][0].labelled
                ax.set(title=f"{task}, {labelled} labelled", ylim=(0, None), xlabel="step")
            line[0].set_ylabel("L2 in training (nats)")
        axes[0, 0].legend(fontsize=8)
        return figure


def compare(
    gpt: nn.Module, corpus: Corpus, tasks: Mapping[str, Task], parts: Any, *,
    seeds: Sequence[int] = (0, 1, 2, 3), labelled: Mapping[str, int] | None = None,
    weights: Sequence[float] = WEIGHTS, random_weights: Sequence[float] = (0.0,),
    most_test: int | None = 200, preset: device.Preset | None = None, **more: Any,
) -> Comparison:  # fmt: skip
    """Each task with few and more labels: with and without the language model's loss, on the
    pre-trained network and on the same from random weights, and a bag of tokens.

    A seed draws the labelled examples, the head, the order and the random network; all ways get
    the same examples, all networks the same steps and rate.

    Args:
        gpt: pre-trained on the corpus; copies of it are trained.
        labelled: name to number of examples, `LABELLED` if not given.
        weights, random_weights: of the language model's loss, for either network.
        most_test: test examples of a task at most.
        more: for `fine_tune`, such as lr.

    Raises:
        ValueError: no seed, or a network for other tokens than the corpus has.
    """
    if gpt.token.num_embeddings != len(corpus.tokens):
        raise ValueError(
            f"the network has {gpt.token.num_embeddings} tokens and the corpus {len(corpus.tokens)}"
        )
    if not seeds:
        raise ValueError("a comparison needs at least one seed")
    began = time.process_time()
    results: dict[tuple[str, str, str], list[Result]] = {}
    for name, task in tasks.items():
        for size, number in (labelled or LABELLED).items():
            for origin, each in (("pre-trained", weights), ("random", random_weights)):
                for weight in each:
                    made = []
                    for seed in seeds:
                        body = gpt if origin == "pre-trained" else fresh(gpt, parts, seed)
                        result = fine_tune(
                            body, task, parts, labelled=number, weight=weight, seed=seed,
                            most_test=most_test, preset=preset, **more,
                        )  # fmt: skip
                        made.append(dataclasses.replace(result, model=None))
                    results[name, size, f"{origin}, λ = {weight:g}"] = made
            results[name, size, "bag of tokens"] = [
                bag_of_tokens(task, labelled=number, seed=seed, most_test=most_test)
                for seed in seeds
            ]
    rest = {name: majority(task) for name, task in tasks.items()}
    return Comparison(results, rest, time.process_time() - began)
