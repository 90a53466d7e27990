"""A stored experiment of the GPT chapter: what the auxiliary language modelling loss is worth.

    python -m toolkit.gpt.auxiliary_experiments            # all that is missing
    python -m toolkit.gpt.auxiliary_experiments answers    # what a classifier says, ten seconds

It takes about eleven minutes of one core and writes `toolkit/measured/gpt_auxiliary.csv` row by
row; rows that are there already are not measured again.

The task "name": which kind of name did a function have? The shipped GPT is fine-tuned with
L3 = L2 + λ L1 and λ of 0, 0.25, 0.5 and 1; controls are the same network from random weights with
λ = 0, a bag of tokens and a constant answer. Each network has its own search over the learning
rate, decided on validation examples with 200 labelled examples and two seeds; then five seeds at
the best one, with 50, 200 and 500 labelled examples (ten for λ up to 0.5 with 500). A seed draws
the labelled examples, the classifier's weights, the random network and the order, the same for
each λ. The number of steps is fixed; the learning rate rises for a tenth of them and then falls to
0. Labelled and validation examples come from the modules of pre-training, without overlap; what is
reported is measured on functions of modules that no training has seen. The pre-trained model is
one.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import device, models, training, tuned_results
from toolkit.corpora import code_corpus
from toolkit.corpora.code_corpus import EXTRACT, PAD, START, Example, Task
from toolkit.files import write_whole
from toolkit.gpt import measures
from toolkit.many_models import FOLDER, SEEDS, read_rows, write_rows
from toolkit.pretrain import gpt as pretrained
from toolkit.tuned_results import Row

FILE = FOLDER / "gpt_auxiliary.csv"
LONGEST = {"name": 36}  # tasks; tokens of an example, special ones not counted
WEIGHTS = (0.0, 0.25, 0.5, 1.0)  # λ
RANDOM, BAG, CONSTANT = "random", "bag of tokens", "constant"
BEFORE = "before fine-tuning"  # the shipped model's own loss on the texts, EXTRACT left out
BEFORE_ALL = "before fine-tuning, with EXTRACT"  # the same targets as after fine-tuning
TEXT_ONLY = ", EXTRACT left out"  # after the name of a way: the loss on the same targets as BEFORE
APART = (0.0, 0.5)  # λ whose loss is also measured without EXTRACT, with `MAIN` labelled examples
LRS = (1e-4, 2.5e-4, 6e-4, 1.5e-3, 4e-3, 1e-2)
SEARCH_SEEDS = 2
MORE_SEEDS = 10  # with most labels, where five seeds left it open; for λ up to 0.5
MAIN = 200  # labelled examples of the search
STEPS = {50: 50, 200: 100, 500: 160}  # labelled examples -> steps
LONG_STEPS = 300  # of the random network, trained three times as long
LONG = "random, long"
VALIDATION = 150  # examples
BATCH = 8
EVERY = 20  # steps of one entry of the stored curve


def way_of(weight: float) -> str:
    """What the file calls the pre-trained network with a weight λ: "λ = 0.5"."""
    return f"λ = {weight:g}"


NETWORKS = (*map(way_of, WEIGHTS), RANDOM)


def make_tasks(corpus: code_corpus.Corpus, part: str = "") -> dict[str, Task]:
    """Tasks of `code_corpus`: all held-out examples are the test, the last to train on validate."""
    tasks = {}
    for name, longest in LONGEST.items():
        if part not in name:
            continue
        task = code_corpus.make_tasks(corpus, longest=longest)[name]
        tasks[name] = replace(
            task, train=task.train[:-VALIDATION], validation=task.train[-VALIDATION:],
            test=[*task.validation, *task.test],
        )  # fmt: skip
    return tasks


@dataclass(frozen=True)
class Setting:
    """What all runs share: the tasks, the shipped model and the chapter's classes."""

    tasks: dict[str, Task]
    shipped: Any

    @classmethod
    def load(cls, part: str = "") -> Setting:
        """The tasks with `part` in their name, and the shipped model."""
        shipped = models.load("gpt")
        return cls(make_tasks(pretrained.corpus(shipped.tokenizer), part), shipped)


def padded(examples: Sequence[Example]) -> Tensor:
    """[START] text [EXTRACT] of each example, filled with [PAD] at the end: (B, T)."""
    rows = [[START, *e.first, EXTRACT] for e in examples]
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def batches(examples: Sequence[Example], steps: int, seed: int) -> Iterator[list[Example]]:
    """So many batches, epoch after epoch, each of examples of similar length."""
    draw = random.Random(seed)
    made: list[list[Example]] = []
    for _ in range(steps):
        if not made:
            order = draw.sample(list(examples), len(examples))
            for begin in range(0, len(order), 4 * BATCH):
                group = sorted(order[begin : begin + 4 * BATCH], key=lambda e: len(e.first))
                made += [group[i : i + BATCH] for i in range(0, len(group), BATCH)]
            draw.shuffle(made)
        yield made.pop()


@torch.no_grad()
def evaluate(model: nn.Module, examples: Sequence[Example]) -> tuple[float, float]:
    """The share of right labels, and the language model's loss in nats per target."""
    model.eval()
    right, text, targets = 0, 0.0, 0
    ordered = sorted(examples, key=lambda e: len(e.first))  # little padding
    for begin in range(0, len(ordered), 32):
        some = ordered[begin : begin + 32]
        ids = padded(some)  # (B, T)
        scores, logits = model(ids)  # (B, L), (B, T, V)
        right += int((scores.argmax(-1) == torch.tensor([e.label for e in some])).sum())
        text += float(
            F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], ignore_index=PAD, reduction="sum")
        )
        targets += int((ids[:, 1:] != PAD).sum())
    return right / len(examples), text / targets


@torch.no_grad()
def text_loss(gpt: nn.Module, examples: Sequence[Example], extract: bool = False) -> float:
    """A language model's loss on texts that begin with START, in nats per target.

    Args:
        extract: whether the texts end with EXTRACT, which is a target then.
    """
    total, targets = 0.0, 0
    for example in examples:
        ids = torch.tensor([[START, *example.first] + [EXTRACT] * extract])  # (1, T)
        logits = gpt(ids)  # (1, T, V)
        total += float(F.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum"))
        targets += len(example.first) + extract
    return total / targets


def tuned(
    setting: Setting, task: Task, way: str, labelled: int, lr: float, seed: int, steps: int
) -> tuple[nn.Module, Row]:
    """Fine-tune one network, then test it: the classifier, and its row."""
    parts, gpt = setting.shipped.module, setting.shipped.model
    if way in (RANDOM, LONG):
        weight, gpt = 0.0, measures.fresh(gpt, parts, seed)
    else:
        weight = float(way.removeprefix("λ = "))
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(seed))
    few = [task.train[n] for n in order[:labelled].tolist()]
    with training.seeded(seed):
        model = parts.GPTClassifier(copy.deepcopy(gpt), len(task.labels))
    source, seen = batches(few, steps, seed), []

    def loss(step: int) -> Tensor:
        some = next(source)
        ids, labels = padded(some), torch.tensor([e.label for e in some])  # (B, T), (B,)
        scores, logits = model(ids)  # (B, L), (B, T, V)
        joint, l2, _ = parts.joint_loss(scores, labels, logits, ids, weight)
        seen.append(l2.item())
        return joint

    def optimiser(_: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parts.decay_groups(model, 0.01), lr=lr, fused=True)

    training.fit(
        model, loss, steps, lr=lr, schedule="warm-up", optimiser=optimiser, seed=seed,
        preset=device.preset("cpu"), progress=False,
    )  # fmt: skip
    validation, _ = evaluate(model, task.validation)
    test, text = evaluate(model, task.test)
    curve = [fmean(seen[i : i + EVERY]) for i in range(0, steps, EVERY)]
    return model, {
        "task": task.name, "way": way, "labelled": labelled, "lr": lr, "seed": seed,
        "validation": round(validation, 4), "test": round(test, 4), "text": round(text, 4),
        "curve": " ".join(f"{1000 * value:.0f}" for value in curve),
    }  # fmt: skip


def without_network(task: Task, way: str, labelled: int, seed: int) -> Row:
    """A bag of tokens, or the best constant answer: its row."""
    if way == CONSTANT:
        test = measures.majority(task)
    else:
        test = measures.bag_of_tokens(task, labelled=labelled, seed=seed)
    return {
        "task": task.name, "way": way, "labelled": labelled, "lr": 0, "seed": seed,
        "validation": 0, "test": round(test, 4), "text": 0, "curve": "",
    }  # fmt: skip


def chosen(rows: Sequence[Row], task: str, way: str) -> float:
    """The learning rate of a network that its search found best."""
    return tuned_results.best(tuned_results.searched(rows, task, way, MAIN, SEARCH_SEEDS))


def measure(part: str) -> None:
    """Measure what is missing of the tasks with `part` in their name; the file grows by row."""
    setting = Setting.load(part)
    rows: list[Row] = list(read_rows(FILE)) if FILE.exists() else []

    def add(name: str, way: str, labelled: int, lr: float, seed: int) -> None:
        if (name, way, labelled, lr, seed) in map(tuned_results.key, rows):
            return
        began, task = time.process_time(), setting.tasks[name]
        if way in (*NETWORKS, LONG):
            steps = LONG_STEPS if way == LONG else STEPS[labelled]
            _, row = tuned(setting, task, way, labelled, lr, seed, steps)
        elif way.endswith(TEXT_ONLY):
            plain = way.removesuffix(TEXT_ONLY)
            model, row = tuned(setting, task, plain, labelled, lr, seed, STEPS[labelled])
            row |= {"way": way, "text": round(text_loss(model.gpt, task.test), 4)}
        elif way in (BEFORE, BEFORE_ALL):
            text = text_loss(setting.shipped.model, task.test, extract=way == BEFORE_ALL)
            row = without_network(task, CONSTANT, 0, 0)
            row |= {"way": way, "test": 0, "text": round(text, 4)}
        else:
            row = without_network(task, way, labelled, seed)
        rows.append(row)
        write_rows(FILE, rows)
        print({k: v for k, v in row.items() if k != "curve"}, end=" ")
        print(f"{time.process_time() - began:.1f} s", flush=True)

    for name in (name for name in LONGEST if part in name):
        for way in NETWORKS:
            for lr in LRS:
                for seed in range(SEARCH_SEEDS):
                    add(name, way, MAIN, lr, seed)
        add(name, CONSTANT, 0, 0, 0)
        add(name, BEFORE, 0, 0, 0)
        add(name, BEFORE_ALL, 0, 0, 0)
        for labelled in sorted(STEPS, key=lambda size: size != MAIN):
            for seed in range(SEEDS):
                for way in NETWORKS:
                    add(name, way, labelled, chosen(rows, name, way), seed)
                add(name, BAG, labelled, 0, seed)
                if labelled == MAIN:
                    add(name, LONG, labelled, chosen(rows, name, RANDOM), seed)
        for seed in range(SEEDS, MORE_SEEDS):
            for way in NETWORKS[:3]:
                add(name, way, max(STEPS), chosen(rows, name, way), seed)
        for way in map(way_of, APART):
            for seed in range(SEEDS):
                add(name, way + TEXT_ONLY, MAIN, chosen(rows, name, way), seed)


# --------------------------------------------------------------------------- what is read


@dataclass(frozen=True)
class Found(tuned_results.Seeds):
    """What one way of solving one task reached with one number of labelled examples.

    Attributes:
        text: the language model's loss on the test examples in nats per target, of each seed.
        curves: the classifier's training loss L2, a mean over each `EVERY` steps, of each seed.
    """

    text: list[float]
    curves: list[list[float]]


def read() -> dict[tuple[str, str, int], Found]:
    """The stored experiment, by task, way and number of labelled examples."""
    rows: list[Row] = list(read_rows(FILE))
    lr_of = tuned_results.lr_of(rows, NETWORKS, chosen)
    return {
        setting: Found(
            lr,
            [float(str(r["test"])) for r in mine],
            [float(str(r["text"])) for r in mine],
            list(map(tuned_results.curve, mine)),
        )
        for setting, lr, mine in tuned_results.grouped(rows, lr_of)
    }


def before(name: str = "name", extract: bool = False) -> float:
    """The shipped model's loss on the test texts before fine-tuning, in nats per target."""
    return read()[name, BEFORE_ALL if extract else BEFORE, 0].text[0]


def search(name: str, way: str) -> dict[float, float]:
    """The stored search of a network: mean validation accuracy by learning rate."""
    return tuned_results.searched(list(read_rows(FILE)), name, way, MAIN, SEARCH_SEEDS)


# --------------------------------------------------------------------------- answers

ANSWERS = FOLDER / "gpt_fine_tuned_answers.json"
SHOWN = 12  # answers that are kept


@torch.no_grad()
def answers() -> None:
    """Fine-tune one classifier for "name" with λ = 0.5, and keep what it says of test functions."""
    setting = Setting.load("name")
    task, way = setting.tasks["name"], way_of(0.5)
    lr = chosen(list(read_rows(FILE)), task.name, way)
    with torch.enable_grad():
        model, row = tuned(setting, task, way, 500, lr, 0, STEPS[500])
    kept = []
    for example in task.test[:SHOWN]:
        scores, _ = model.eval()(padded([example]))  # (1, L)
        named = zip(task.labels, scores[0].tolist(), strict=True)
        kept.append({
            "text": example.text, "right": task.labels[example.label],
            "scores": {name: round(score, 2) for name, score in named},
        })  # fmt: skip
    made = {"labelled": 500, "lr": lr, "test": row["test"], "answers": kept}
    write_whole(
        ANSWERS,
        lambda half: half.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8"),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the experiment, or a part of it, and write its file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="", help="tasks with this in their name")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if given.part == "answers":
        answers()
    else:
        measure(given.part)


if __name__ == "__main__":
    main()
