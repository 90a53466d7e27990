"""What the BERT chapter is given: initialisation, fine-tuning on four tasks, baselines, gaps.

    shipped = models.load("bert")
    corpus = docstrings.Corpus(docstrings.read(), shipped.tokenizer)
    comparison = compare(shipped.model, corpus, docstrings.make_tasks(corpus), parts)
    blanks = fill_mask(shipped.model, shipped.tokenizer, "Return the [MASK] of items.")

* Fine-tuning: a copy of the encoder with one of the three heads, a few labelled examples.
* Baselines: the same network from random weights, and logistic regression on bags of words.
* Gaps: the candidates for each [MASK], and the probabilities of tags.

`parts` is whatever holds what the chapter builds, by the chapter's names: a module, or a
`types.SimpleNamespace` with `build_input`, `next_sentence_pairs`, `mask_tokens`,
`SequenceClassifier`, `SpanFinder`, `Tagger`, `best_span`, `align_labels` and `word_tags`, or those
of them that a call needs.
"""

from __future__ import annotations

import copy
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import device, training
from toolkit.corpora.docstrings import (
    IGNORE,
    PAD,
    SEP,
    Corpus,
    Example,
    Task,
)  # fmt: skip
from toolkit.tokenizer import WordPieceTokenizer

MAX_LENGTH = 64  # of an input, special tokens included

# Few labels, because that is what pre-training is for; the same steps and rate for both networks.
LABELLED = {"module": 100, "pair": 400, "span": 300, "tagging": 60}
TUNE_STEPS = {"module": 100, "pair": 80, "span": 100, "tagging": 80}
TUNE_RATE = 2e-3
BAG_STEPS = 50  # of the regressions, each on all examples
METRICS = {"single": "accuracy", "pair": "accuracy", "span": "exact", "tagging": "f1"}
WAYS = ("pre-trained", "random", "bag of words")

# --------------------------------------------------------------------------- inputs


@dataclass(frozen=True)
class Rows:
    """Inputs of BERT side by side. ids, token_type_ids: (N, T) int64. mask: (N, T) bool."""

    ids: Tensor
    token_type_ids: Tensor
    mask: Tensor

    @classmethod
    def of(cls, rows: Sequence[tuple[list[int], list[int]]]) -> Rows:
        """Rows of (ids, segments), padded at their ends to the longest."""
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([r + [PAD] * (longest - len(r)) for r, _ in rows])  # (N, T)
        segments = torch.tensor([s + [0] * (longest - len(s)) for _, s in rows])  # (N, T)
        lengths = torch.tensor([len(r) for r, _ in rows])  # (N,)
        return cls(ids, segments, torch.arange(longest) < lengths[:, None])

    def take(self, chosen: Tensor, where: torch.device) -> Rows:
        """Some of the rows, without columns that only have padding, on a device."""
        mask = self.mask[chosen]  # (B, T)
        longest = int(mask.sum(1).max())
        return Rows(
            *(x[chosen, :longest].to(where) for x in (self.ids, self.token_type_ids, self.mask))
        )


def _orders(lengths: Tensor, batch: int) -> list[Tensor]:
    """All rows once in batches of rows of similar length; order drawn from torch's generator."""
    noise = torch.rand(len(lengths))  # shorter and longer by chance, so that batches mix
    order = (lengths * (1 + 0.1 * noise)).argsort()
    parts = order.split(batch)
    return [parts[i] for i in torch.randperm(len(parts)).tolist()]


# --------------------------------------------------------------------------- pre-training


def start(model: nn.Module, seed: int = 0) -> nn.Module:
    """New random weights in place, as wide as a small model needs; returns the model.

    BERT draws weights with a deviation of 0.02 for a width of 768. Sums of fewer terms need larger
    ones, or the context is nearly silent at first: here it is 0.02 sqrt(768 / D), 0.07 for 64.
    Biases are 0; normalisations 1 and 0.
    """
    with training.seeded(seed):
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                width = module.weight.shape[1]
                nn.init.normal_(module.weight, std=0.02 * math.sqrt(768 / width))
            if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
                nn.init.zeros_(module.bias)
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
    return model


def adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay 0.01, as in BERT's appendix A.2; in one kernel."""
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01, fused=True)


# --------------------------------------------------------------------------- fine-tuning


@dataclass(frozen=True)
class Result:
    """What a way of solving a task reached on its test examples.

    score: by the metric of the task. scores: all metrics. loss: of every step.
    labelled: how many labelled examples it learned from.
    """

    score: float
    scores: dict[str, float]
    metric: str
    labelled: int
    steps: int
    loss: list[float] = field(repr=False)
    cpu_seconds: float = field(compare=False, default=0.0)


def fresh(bert: nn.Module, seed: int = 0) -> nn.Module:
    """The same network with new random weights, as before pre-training: nothing was learned."""
    made = copy.deepcopy(bert)
    return start(made, seed)


def make_head(parts: Any, bert: nn.Module, task: Task, seed: int = 0) -> nn.Module:
    """A copy of an encoder with the head of a task on it, its weights drawn anew.

    Raises:
        ValueError: a task of another kind.
    """
    if task.kind not in METRICS:
        raise ValueError(f"there is a head for {', '.join(METRICS)}, not for {task.kind!r}")
    bert = copy.deepcopy(bert)
    with training.seeded(seed):
        if task.kind == "span":
            head = parts.SpanFinder(bert)
        elif task.kind == "tagging":
            head = parts.Tagger(bert, len(task.labels))
        else:
            head = parts.SequenceClassifier(bert, len(task.labels))
        nn.init.normal_(head.classifier.weight, std=0.02)
        nn.init.zeros_(head.classifier.bias)
    return head


@dataclass(frozen=True)
class _Labelled:
    """Inputs of a task with their targets: (N,) labels, (N, 2) spans, or (N, T) tags."""

    rows: Rows
    targets: Tensor
    examples: list[Example]


def _labelled(task: Task, examples: Sequence[Example], parts: Any) -> _Labelled:
    rows = Rows.of([parts.build_input(e.first, e.second, MAX_LENGTH) for e in examples])
    if task.kind == "span":  # no answer is a span of [CLS] alone
        shift = [len(e.first) + 2 for e in examples]
        targets = [
            [0, 0] if e.span is None else [e.span[0] + s, e.span[1] + s]
            for e, s in zip(examples, shift, strict=True)
        ]
    elif task.kind == "tagging":
        longest = rows.ids.shape[1]
        targets = []
        for e in examples:
            aligned = parts.align_labels(e.word_labels, [None, *e.word_ids, None])[:longest]
            targets.append(aligned + [IGNORE] * (longest - len(aligned)))
    else:
        targets = [e.label for e in examples]
    return _Labelled(rows, torch.tensor(targets), list(examples))


def _head_loss(head: nn.Module, task: Task, rows: Rows, targets: Tensor) -> Tensor:
    scores = head(rows.ids, rows.token_type_ids, rows.mask)
    if task.kind == "span":
        start, end = scores  # (B, T) both
        return head.loss(start.float(), end.float(), targets[:, 0], targets[:, 1])
    return head.loss(scores.float(), targets)


def batch_loss(
    head: nn.Module, task: Task, examples: Sequence[Example], parts: Any, batch: int,
    device: torch.device,
) -> Callable[[int], Tensor]:  # fmt: skip
    """The loss of a head on the next batch of some examples, for `training.fit`."""
    data = _labelled(task, examples, parts)
    queue: list[Tensor] = []

    def loss(step: int) -> Tensor:
        if not queue:
            queue.extend(_orders(data.rows.mask.sum(1), batch))
        order = queue.pop()
        rows = data.rows.take(order, device)
        targets = data.targets[order].to(device)
        if task.kind == "tagging":
            targets = targets[:, : rows.ids.shape[1]]
        return _head_loss(head, task, rows, targets)

    return loss


def fine_tune(
    head: nn.Module, task: Task, parts: Any, *, labelled: int | None = None,
    steps: int | None = None, lr: float | None = None, batch: int = 16, seed: int = 0,
    most_test: int | None = None, preset: device.Preset | None = None,
) -> Result:  # fmt: skip
    """Train a head and the encoder below it on a few labelled examples, then test.

    Args:
        head: of `make_head`; trained in place.
        labelled: how many training examples, `LABELLED` of the task if not given; which ones
            depends on `seed`.
        steps, lr: of training; the same for every network if not given.
        most_test: test examples at most; all if not given.

    Raises:
        ValueError: more labelled examples than there are, or fewer than one.
    """
    chosen = preset or device.preset()
    few = few_examples(task, labelled, seed)
    loss = batch_loss(head, task, few, parts, batch, chosen.device)
    steps = steps or TUNE_STEPS[task.name]
    began = time.process_time()
    history = training.fit(
        head, loss, steps, lr=lr or TUNE_RATE, schedule="warm-up", seed=seed, optimiser=adam,
        preset=chosen, progress=False,
    )  # fmt: skip
    used = time.process_time() - began
    scores = score(head, task, parts, most=most_test)
    metric = METRICS[task.kind]
    return Result(scores[metric], scores, metric, len(few), steps, history.loss, used)


def few_examples(task: Task, labelled: int | None, seed: int) -> list[Example]:
    """Some training examples; the first of them are the same for any number."""
    number = LABELLED[task.name] if labelled is None else labelled
    if not 1 <= number <= len(task.train):
        raise ValueError(
            f"the task {task.name!r} has {len(task.train)} training examples, not {number}"
        )
    return random.Random(seed).sample(task.train, len(task.train))[:number]


@torch.no_grad()
def score(
    head: nn.Module, task: Task, parts: Any, *, split: str = "test", most: int | None = None
) -> dict[str, float]:
    """All metrics of a head on a split.

    * "single", "pair": accuracy.
    * "span": exact, the share of questions answered by exactly the right pieces or rightly not at
      all; found, the same of those with an answer; none, of those without.
    * "tagging": f1 of the label 1 over words, with its precision and recall, and accuracy.
    """
    examples = getattr(task, split)[:most]
    data = _labelled(task, examples, parts)
    where = next(head.parameters()).device
    head.eval()
    guesses: list[Any] = [None] * len(examples)
    for order in data.rows.mask.sum(1).argsort().split(64):
        rows = data.rows.take(order, where)
        scores = head(rows.ids, rows.token_type_ids, rows.mask)
        if task.kind == "span":
            start, end = (x.float().cpu() for x in scores)  # (B, T) both
            passage = _passage(rows).cpu()  # (B, T)
            for k, n in enumerate(order.tolist()):
                guesses[n] = parts.best_span(start[k], end[k], passage[k], null_threshold=0.0)
        elif task.kind == "tagging":
            for k, n in enumerate(order.tolist()):
                numbers = [None, *examples[n].word_ids, None]
                guesses[n] = parts.word_tags(scores[k, : len(numbers)].float().cpu(), numbers)
        else:
            for n, guess in zip(order.tolist(), scores.argmax(-1).tolist(), strict=True):
                guesses[n] = guess
    return _metrics(task, examples, guesses, data.targets)


def _passage(rows: Rows) -> Tensor:
    """(B, T): places of the second text, without its [SEP]."""
    return (rows.token_type_ids == 1) & rows.mask & (rows.ids != SEP)


def _metrics(
    task: Task, examples: Sequence[Example], guesses: Sequence[Any], targets: Tensor
) -> dict[str, float]:
    if task.kind == "span":
        right = [tuple(g) == tuple(t) for g, t in zip(guesses, targets.tolist(), strict=True)]
        has = [e.span is not None for e in examples]
        pairs = list(zip(right, has, strict=True))
        return {
            "exact": statistics.fmean(right),
            "found": sum(r for r, h in pairs if h) / max(1, sum(has)),
            "none": sum(r for r, h in pairs if not h) / max(1, len(has) - sum(has)),
        }
    if task.kind == "tagging":
        told = [g for guess in guesses for g in guess]
        true = [t for e in examples for t in e.word_labels]
        both = sum(g == t == 1 for g, t in zip(told, true, strict=True))
        precision, recall = both / max(1, told.count(1)), both / max(1, true.count(1))
        f1 = 2 * both / max(1, told.count(1) + true.count(1))
        accuracy = statistics.fmean(g == t for g, t in zip(told, true, strict=True))
        return {"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy}
    return {
        "accuracy": statistics.fmean(g == e.label for g, e in zip(guesses, examples, strict=True))
    }


# --------------------------------------------------------------------------- bags of words


def _bags(rows: Sequence[Sequence[int]], words: int) -> Tensor:
    """Which pieces each row has: (N, V) of 0 and 1."""
    bags = torch.zeros(len(rows), words)
    for bag, row in zip(bags, rows, strict=True):
        bag[torch.tensor(row)] = 1.0
    return bags


def _regression(
    x: Tensor,
    y: Tensor,
    labels: int,
    *,
    steps: int = BAG_STEPS,
    lr: float = 0.1,
    decay: float = 1e-3,
) -> tuple[Tensor, Tensor]:
    """Logistic regression of labels (N,) on features (N, F), all examples at each step."""
    weight = torch.zeros(x.shape[1], labels, requires_grad=True)
    bias = torch.zeros(labels, requires_grad=True)
    optimiser = torch.optim.Adam([weight, bias], lr=lr)
    for _ in range(steps):
        loss = F.cross_entropy(x @ weight + bias, y) + decay * weight.square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return weight.detach(), bias.detach()


def bag_of_words(
    task: Task, corpus: Corpus, *, labelled: int | None = None, seed: int = 0,
    most_test: int | None = None, compare: bool = True,
) -> Result:  # fmt: skip
    """Logistic regression on counts, with the same labelled examples as `fine_tune`.

    * "single": which pieces the sentence has.
    * "pair": which pieces each sentence has, and which both.
    * "tagging": each word by its pieces and those of two words on either side.
    * "span": each place of the passage by its piece and the three on either side, each with
      whether the question has it, too; the same again for the end. [CLS] has a feature of its own.

    Args:
        compare: of "span"; False leaves out what the question has.
    """
    began = time.process_time()
    few = few_examples(task, labelled, seed)
    test = task.test[:most_test]
    words = len(corpus.pieces)
    if task.kind in ("single", "pair"):
        x, x_test = (_text_features(task, part, words) for part in (few, test))
        y = torch.tensor([e.label for e in few])
        weight, bias = _regression(x, y, len(task.labels))
        guesses: list[Any] = (x_test @ weight + bias).argmax(-1).tolist()
        targets = torch.tensor([e.label for e in test])
    elif task.kind == "tagging":
        guesses, targets = _bag_tags(task, few, test, words), torch.zeros(0)
    else:
        guesses, targets = _bag_spans(few, test, words, compare)
    scores = _metrics(task, test, guesses, targets)
    metric = METRICS[task.kind]
    used = time.process_time() - began
    return Result(scores[metric], scores, metric, len(few), BAG_STEPS, [], used)


def _text_features(task: Task, examples: Sequence[Example], words: int) -> Tensor:
    first = _bags([e.first for e in examples], words)  # (N, V)
    if task.kind == "single":
        return first
    second = _bags([e.second for e in examples], words)  # (N, V)
    return torch.cat([first, second, first * second], -1)  # (N, 3 V)


def _sparse_regression(
    x: Tensor, y: Tensor, features: int, outputs: int, loss: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Regression whose places (N, k) name their k features by number; number 0 stands for none."""
    table = nn.EmbeddingBag(features, outputs, mode="sum", padding_idx=0)
    nn.init.zeros_(table.weight)
    bias = nn.Parameter(torch.zeros(outputs))
    optimiser = torch.optim.Adam([*table.parameters(), bias], lr=0.1)
    for _ in range(BAG_STEPS):
        value = loss(table(x) + bias) + 1e-3 * table.weight.square().sum()
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return lambda x: (table(x) + bias).detach()


def _bag_tags(
    task: Task, few: Sequence[Example], test: Sequence[Example], words: int
) -> list[list[int]]:
    def places(examples: Sequence[Example]) -> Tensor:
        rows = []
        for e in examples:
            pieces: list[list[int]] = [[] for _ in e.words]
            for piece, number in zip(e.first, e.word_ids, strict=True):
                pieces[number].append(piece)
            for k in range(len(pieces)):
                row = []
                for slot, near in enumerate(range(k - 2, k + 3)):
                    inside = pieces[near][:4] if 0 <= near < len(pieces) else [PAD]
                    row += [slot * words + piece + 1 for piece in inside]
                rows.append(row)
        longest = 20
        return torch.tensor([row + [0] * (longest - len(row)) for row in rows])  # (places, 20)

    y = torch.tensor([label for e in few for label in e.word_labels])
    tell = _sparse_regression(
        places(few), y, 5 * words + 1, len(task.labels), lambda scores: F.cross_entropy(scores, y)
    )
    told = tell(places(test)).argmax(-1).tolist()
    result, begin = [], 0
    for e in test:
        result.append(told[begin : begin + len(e.words)])
        begin += len(e.words)
    return result


def _bag_spans(
    few: Sequence[Example], test: Sequence[Example], words: int, compare: bool
) -> tuple[list[tuple[int, int]], Tensor]:
    reach, slots = 3, 7

    def places(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """Features of all places (N, T, 14), and which exist (N, T); place 0 is [CLS]."""
        longest = 1 + max(len(e.second) for e in examples)
        x = torch.zeros(len(examples), longest, 2 * slots, dtype=torch.int64)
        exists = torch.zeros(len(examples), longest, dtype=torch.bool)
        for n, e in enumerate(examples):
            asked = set(e.first) if compare else set()
            x[n, 0, 0] = slots * (words + 1) + 1
            exists[n, : len(e.second) + 1] = True
            for k in range(len(e.second)):
                for slot, near in enumerate(range(k - reach, k + reach + 1)):
                    if 0 <= near < len(e.second):
                        x[n, k + 1, 2 * slot] = slot * (words + 1) + e.second[near] + 1
                        if e.second[near] in asked:
                            x[n, k + 1, 2 * slot + 1] = slots * (words + 1) + 2 + slot
        return x, exists

    x, exists = places(few)
    targets = torch.tensor([(0, 0) if e.span is None else (e.span[0] + 1, e.span[1] + 1)
                            for e in few])  # fmt: skip

    def loss(scores: Tensor) -> Tensor:
        scores = scores.view(*exists.shape, 2).masked_fill(~exists[..., None], -1e9)  # (N, T, 2)
        return (F.cross_entropy(scores[..., 0], targets[:, 0])
                + F.cross_entropy(scores[..., 1], targets[:, 1])) / 2  # fmt: skip

    total = slots * (words + 1) + slots + 3
    tell = _sparse_regression(x.flatten(0, 1), targets, total, 2, loss)
    x, exists = places(test)
    scores = tell(x.flatten(0, 1)).view(*exists.shape, 2)  # (N, T, 2)
    guesses = []
    for n, e in enumerate(test):
        s, size = scores[n], len(e.second) + 1
        both = s[1:size, None, 0] + s[None, 1:size, 1]  # (T, T)
        both = both.masked_fill(~torch.ones_like(both).tril(29).triu().bool(), -torch.inf)
        i, j = divmod(int(both.argmax()), size - 1)
        null = float(s[0].sum()) > float(both.max())
        shift = len(e.first) + 2
        guesses.append((0, 0) if null else (i + shift, j + shift))
    true = [
        (0, 0) if e.span is None else (e.span[0] + len(e.first) + 2, e.span[1] + len(e.first) + 2)
        for e in test
    ]
    return guesses, torch.tensor(true)


def majority(task: Task) -> float:
    """The metric of the best answer that is always the same.

    One label for "single" and "pair", no answer for "span", every word a parameter for "tagging".
    """
    counts = list(task.counts("test").values())
    if task.kind == "tagging":
        return 2 * counts[1] / (sum(counts) + counts[1])
    return (counts[1] if task.kind == "span" else max(counts)) / sum(counts)


# --------------------------------------------------------------------------- comparison


@dataclass(frozen=True)
class Comparison:
    """Scores of several ways on several tasks, one for each seed.

    scores: (task, way) to the score of each seed. metrics, majority, labelled: by task.
    results: (task, way) to all that was measured.
    """

    scores: dict[tuple[str, str], list[float]]
    metrics: dict[str, str]
    majority: dict[str, float]
    labelled: dict[str, int]
    cpu_seconds: float = field(compare=False)
    results: dict[tuple[str, str], list[Result]] = field(repr=False)

    @property
    def tasks(self) -> list[str]:
        return list(self.metrics)

    @property
    def ways(self) -> list[str]:
        return list(dict.fromkeys(way for _, way in self.scores))

    def mean(self, task: str, way: str) -> float:
        return statistics.fmean(self.scores[task, way])

    def spread(self, task: str, way: str) -> float:
        """Standard deviation over the seeds, 0 for a single one."""
        scores = self.scores[task, way]
        return statistics.stdev(scores) if len(scores) > 1 else 0.0


def compare(
    model: nn.Module, corpus: Corpus, tasks: dict[str, Task], parts: Any, *,
    seeds: Sequence[int] = (0, 1, 2), labelled: dict[str, int] | None = None,
    ways: Sequence[str] = WAYS, most_test: int | None = 400,
    preset: device.Preset | None = None, **more: Any,
) -> Comparison:  # fmt: skip
    """Each task by the pre-trained network, by the same from random weights, and without one.

    A seed draws the labelled examples, the head's weights, the order and the random network; all
    ways get the same examples, both networks the same steps and rate.

    Args:
        model: pre-trained, with `bert`; copies of it are trained.
        labelled: examples by task, where not `LABELLED`.
        most_test: test examples of a task at most.
        more: for `fine_tune`, such as lr.

    Raises:
        ValueError: an unknown way, or no seed.
    """
    unknown = [way for way in ways if way not in WAYS]
    if unknown or not seeds:
        raise ValueError(f"ways are {', '.join(WAYS)}, with at least one seed; not {unknown}")
    began = time.process_time()
    results: dict[tuple[str, str], list[Result]] = {}
    amounts = {name: (labelled or {}).get(name, LABELLED[name]) for name in tasks}
    for name, task in tasks.items():
        shared = {"labelled": amounts[name], "most_test": most_test}
        for way in ways:
            made = []
            for seed in seeds:
                if way == "bag of words":
                    made.append(bag_of_words(task, corpus, seed=seed, **shared))
                    continue
                bert = model.bert if way == "pre-trained" else fresh(model.bert, seed)
                head = make_head(parts, bert, task, seed)
                made.append(
                    fine_tune(head, task, parts, seed=seed, preset=preset, **shared, **more)
                )
            results[name, way] = made
    return Comparison(
        {key: [one.score for one in made] for key, made in results.items()},
        {name: METRICS[task.kind] for name, task in tasks.items()},
        {name: majority(task) for name, task in tasks.items()},
        amounts, time.process_time() - began, results,
    )  # fmt: skip


# --------------------------------------------------------------------------- masked words


@dataclass(frozen=True)
class Blank:
    """A masked place and what the model would put there.

    position: in the input, [CLS] is 0. guesses: pieces with their probabilities, best first.
    """

    position: int
    guesses: list[tuple[str, float]]


def _with_masks(pieces: WordPieceTokenizer, text: str) -> list[int]:
    """Ids of a text in which [MASK] stands for one masked piece."""
    ids: list[int] = []
    mask = pieces.special.mask
    for number, part in enumerate(text.split(pieces.names[mask])):
        ids += ([mask] if number else []) + pieces.encode(part)
    return ids


def _joined(pieces: WordPieceTokenizer, parts: Sequence[list[int]]) -> tuple[list[int], list[int]]:
    """Ids and segments of one input: [CLS], then each part with [SEP] after it."""
    ids, segments = [pieces.special.cls], [0]
    for number, part in enumerate(parts):
        ids += [*part, pieces.special.sep]
        segments += [number] * (len(part) + 1)
    return ids, segments


def masked_input(pieces: WordPieceTokenizer, *texts: str) -> tuple[Tensor, Tensor]:
    """input_ids and token_type_ids, (1, T) each, of one or two texts in which [MASK] may stand."""
    ids, segments = _joined(pieces, [_with_masks(pieces, text) for text in texts])
    return torch.tensor([ids]), torch.tensor([segments])


@torch.no_grad()
def _masked_scores(
    model: nn.Module,
    pieces: WordPieceTokenizer,
    ids: list[int],
    segments: list[int],
    special_too: bool = False,
) -> Tensor:
    """Probabilities of every piece at every place: (T, V) on the CPU.

    Rows of the embedding matrix without a piece get 0, and special pieces, unless they may come.
    """
    where = next(model.parameters()).device
    mode = model.training
    model.eval()
    row = torch.tensor([ids], device=where)  # (1, T)
    hidden, _ = model.bert(row, torch.tensor([segments], device=where), None)  # (1, T, D)
    scores = model.mlm(hidden)[0].float()  # (T, V)
    scores[:, len(pieces) :] = -torch.inf
    if not special_too:
        scores[:, list(pieces.special)] = -torch.inf
    model.train(mode)
    return scores.softmax(-1).cpu()


def fill_mask(
    model: nn.Module,
    pieces: WordPieceTokenizer,
    text: str,
    k: int = 5,
    second: str | None = None,
    *,
    special_too: bool = False,
) -> list[Blank]:
    """The best pieces for each [MASK] of a text.

    Args:
        model: with `bert` and `mlm`.
        pieces: the model's vocabulary, which says what its special ids are: the course's, or that
            of a checkpoint.
        k: how many pieces.
        second: a second sentence, after [SEP].
        special_too: whether special tokens may be guessed, as in Hugging Face's pipeline; else
            their probability is 0 and the others add up to 1.

    Raises:
        ValueError: no [MASK], an empty sentence, a text too long for the model, or k below 1.
    """
    parts = [_with_masks(pieces, text)] + ([] if second is None else [_with_masks(pieces, second)])
    if not all(parts):
        raise ValueError("there is nothing in the sentence: type some words and a [MASK]")
    special = pieces.special
    if not any(special.mask in part for part in parts):
        raise ValueError(f"put {pieces.names[special.mask]} where a piece is to be guessed")
    if k < 1:
        raise ValueError(f"k must be 1 or more, not {k}")
    ids, segments = _joined(pieces, parts)
    _check_length(model, ids)
    scores = _masked_scores(model, pieces, ids, segments, special_too)  # (T, V)
    return [
        Blank(place, _best(scores[place], pieces, k))
        for place, i in enumerate(ids)
        if i == special.mask
    ]


def _check_length(model: nn.Module, ids: Sequence[int]) -> None:
    longest = model.bert.embeddings.position.num_embeddings
    if len(ids) > longest:
        raise ValueError(
            f"this is {len(ids)} tokens with the special ones, and the model has {longest} "
            "positions; type less"
        )


def _best(scores: Tensor, pieces: WordPieceTokenizer, k: int) -> list[tuple[str, float]]:
    values, ids = scores[: len(pieces)].topk(min(k, len(pieces)))  # a row may have no piece
    return [(pieces.names[i], v) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]


# --------------------------------------------------------------------------- tags


@torch.no_grad()
def tag_probabilities(head: nn.Module, example: Example, parts: Any) -> Tensor:
    """(words,): the probability of label 1 for each word of an example, from its first piece."""
    where = next(head.parameters()).device
    rows = Rows.of([parts.build_input(example.first, None, MAX_LENGTH)])
    rows = rows.take(torch.arange(1), where)
    head.eval()
    scores = head(rows.ids, rows.token_type_ids, rows.mask)[0].float().softmax(-1).cpu()  # (T, L)
    first = {}
    for place, number in enumerate(example.word_ids, 1):
        first.setdefault(number, place)
    return torch.stack([scores[first[number], 1] for number in sorted(first)])
