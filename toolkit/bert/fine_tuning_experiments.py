"""The stored experiment of the BERT chapter: what pre-training is worth, and how to repeat it.

    python -m toolkit.bert.fine_tuning_experiments pretraining_worth           # all that is missing
    python -m toolkit.bert.fine_tuning_experiments pretraining_worth module    # one task

It takes about 40 minutes of one core and writes a file of `toolkit/measured/`, row by row, which
`read` reads; rows that are there already are not measured again.

Four tasks (`docstrings.make_tasks`), four ways of solving them: the shipped BERT, the same
network from random weights, logistic regression on bags of words, a constant answer. Each network
has its own search over learning rates, decided on validation examples with two seeds; then five
seeds at the best one. A seed draws the labelled examples, the head's weights, the random network
and the order. Training stops when the validation metric has stopped improving and goes back to the
best weights. The metric can also stand still for long at first, so the random network is trained
on where it is compared (`LONG`). What is reported is measured on test examples. The pre-trained
model is one.

    python -m toolkit.bert.fine_tuning_experiments answers  # what fine-tuned heads answer, a minute
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toolkit import device, models, training, tuned_results
from toolkit.bert import fine_tuning
from toolkit.corpora import docstrings
from toolkit.corpora.docstrings import Corpus, Example, Task
from toolkit.files import write_whole
from toolkit.many_models import FOLDER, SEEDS, read_rows, write_rows
from toolkit.tuned_results import Row

NETWORKS = ("pre-trained", "random")
LONG = "random, long"  # the same, never stopped early: its validation metric can stand still
BLIND = "bag of words, blind"  # of spans: does not know which tokens the question has
WAYS = (*NETWORKS, "bag of words", "constant")
LRS = (2e-4, 5e-4, 1e-3, 2e-3, 5e-3)
SEARCH_SEEDS = 2
MAIN = {"module": 100, "tagging": 100, "span": 300, "pair": 300}  # labelled examples
SIZES = {"module": (1000, 30, 300), "tagging": (30, 300)}  # of the curve, besides
LONGEST = {"span": 40}  # pieces of an input, special tokens not counted; otherwise
SHORT = 28
BATCH = 8
WARMUP = 20  # steps in which the learning rate rises; then it is constant
EVERY, PATIENCE = 25, 4  # validate every 25 steps; stop after 4 times without a new best
LONG_STEPS = 800
LONG_RUNS = (*MAIN.items(), ("module", 300))  # tasks and numbers of labelled examples
MOST_STEPS = {30: 150, 100: 250, 300: 350, 1000: 600}
VALIDATION, TEST = 100, 300  # examples at most
ANSWER_LR = {"module": 1e-3, "tagging": 1e-3, "span": 5e-4}  # of the stored answers
FILE = FOLDER / "bert_pretraining_worth.csv"


@dataclass(frozen=True)
class Setting:
    """What all runs share: the tasks, the shipped model and the chapter's classes."""

    corpus: Corpus
    tasks: dict[str, Task]
    shipped: Any

    @classmethod
    def load(cls) -> Setting:
        shipped = models.load("bert")
        corpus = Corpus(docstrings.read(), shipped.tokenizer)
        made = {
            longest: docstrings.make_tasks(corpus, longest=longest)
            for longest in {SHORT, *LONGEST.values()}
        }
        tasks = {name: made[LONGEST.get(name, SHORT)][name] for name in MAIN}
        return cls(corpus, tasks, shipped)


def tuned(
    setting: Setting, task: Task, way: str, labelled: int, lr: float, seed: int, steps: int
) -> tuple[nn.Module, Row]:
    """Fine-tune one network until validation stops improving, then test it: it, and its row."""
    parts, bert = setting.shipped.module, setting.shipped.model.bert
    if way != "pre-trained":
        bert = fine_tuning.fresh(bert, seed)
    head = fine_tuning.make_head(parts, bert, task, seed)
    few = fine_tuning.few_examples(task, labelled, seed)
    loss = fine_tuning.batch_loss(head, task, few, parts, BATCH, torch.device("cpu"))
    metric = fine_tuning.METRICS[task.kind]

    def validate() -> float:
        return -fine_tuning.score(head, task, parts, split="validation", most=VALIDATION)[metric]

    history = training.fit(
        head, loss, steps, lr=lr, schedule=lambda step: min(1.0, (step + 1) / WARMUP),
        optimiser=fine_tuning.adam, validate=validate, validate_every=EVERY, seed=seed,
        patience=steps if way == LONG else PATIENCE,
        preset=device.preset("cpu"), progress=False,
    )  # fmt: skip
    curve = [-value for value in history.validation]
    test = fine_tuning.score(head, task, parts, most=TEST)[metric]
    return head, {
        "task": task.name, "way": way, "labelled": labelled, "lr": lr, "seed": seed,
        "best_step": history.best_step, "validation": round(max(curve), 4), "test": round(test, 4),
        "curve": " ".join(f"{1000 * value:.0f}" for value in curve),
    }  # fmt: skip


def without_network(setting: Setting, task: Task, way: str, labelled: int, seed: int) -> Row:
    """A bag of words, or the best constant answer: its row."""
    if way == "constant":
        test = fine_tuning.majority(task)
    else:
        test = fine_tuning.bag_of_words(
            task, setting.corpus, labelled=labelled, seed=seed, most_test=TEST,
            compare=way != BLIND,
        ).score  # fmt: skip
    return {
        "task": task.name, "way": way, "labelled": labelled, "lr": 0, "seed": seed, "best_step": 0,
        "validation": 0, "test": round(test, 4), "curve": "",
    }  # fmt: skip


def chosen(rows: Sequence[Row], task: str, way: str) -> float:
    """The learning rate of a network that its search found best."""
    return tuned_results.best(tuned_results.searched(rows, task, way, MAIN[task], SEARCH_SEEDS))


def pretraining_worth(part: str, file: Path) -> None:
    """Measure what is missing of the tasks with `part` in their name; the file grows by row."""
    setting = Setting.load()
    rows: list[Row] = list(read_rows(file)) if file.exists() else []

    def add(name: str, way: str, labelled: int, lr: float, seed: int) -> None:
        if (name, way, labelled, lr, seed) in map(tuned_results.key, rows):
            return
        began, task = time.process_time(), setting.tasks[name]
        if way in (*NETWORKS, LONG):
            steps = LONG_STEPS if way == LONG else MOST_STEPS[labelled]
            _, row = tuned(setting, task, way, labelled, lr, seed, steps)
        else:
            row = without_network(setting, task, way, labelled, seed)
        rows.append(row)
        write_rows(file, rows)
        print({k: v for k, v in row.items() if k != "curve"}, end=" ")
        print(f"{time.process_time() - began:.0f} s", flush=True)

    for name, labelled in _jobs(part):
        for way in NETWORKS:
            if labelled == MAIN[name]:
                for lr in LRS:
                    for seed in range(SEARCH_SEEDS):
                        add(name, way, labelled, lr, seed)
            lr = chosen(rows, name, way)
            for seed in range(SEEDS):
                add(name, way, labelled, lr, seed)
        for seed in range(SEEDS):
            add(name, "bag of words", labelled, 0, seed)
            if name == "span":
                add(name, BLIND, labelled, 0, seed)
            if (name, labelled) in LONG_RUNS:
                add(name, LONG, labelled, lr, seed)  # at the rate of "random"
        add(name, "constant", labelled, 0, 0)


def _jobs(part: str) -> Iterator[tuple[str, int]]:
    """Tasks and numbers of labelled examples, in the order in which they are measured."""
    for name in MAIN:
        if part in name:
            yield name, MAIN[name]
    for name, sizes in SIZES.items():
        if part in name:
            yield from ((name, size) for size in sizes)


# --------------------------------------------------------------------------- what is read


@dataclass(frozen=True)
class Found(tuned_results.Seeds):
    """What one way of solving one task reached with one number of labelled examples.

    Attributes:
        curves: the validation metric of each seed after 25, 50, … steps, up to where it stopped.
    """

    curves: list[list[float]]


def read() -> dict[tuple[str, str, int], Found]:
    """The stored experiment, by task, way and number of labelled examples."""
    rows: list[Row] = list(read_rows(FILE))
    lr_of = tuned_results.lr_of(rows, NETWORKS, chosen)
    return {
        setting: Found(
            lr, [float(str(r["test"])) for r in mine], list(map(tuned_results.curve, mine))
        )
        for setting, lr, mine in tuned_results.grouped(rows, lr_of)
    }


def search(name: str, way: str) -> dict[float, float]:
    """The stored search of a network: mean validation metric by learning rate."""
    return tuned_results.searched(list(read_rows(FILE)), name, way, MAIN[name], SEARCH_SEEDS)


# --------------------------------------------------------------------------- answers

ANSWERS = FOLDER / "bert_fine_tuned_answers.json"
SHOWN = {"module": 12, "span": 24, "tagging": 12}  # answers that are kept
LABELLED = {"module": 300, "span": 600, "tagging": 300}


@torch.no_grad()
def answers(part: str = "") -> None:
    """Fine-tune one head for each of three tasks and keep what it answers to some test examples."""
    setting = Setting.load()
    kept = json.loads(ANSWERS.read_text(encoding="utf-8")) if ANSWERS.exists() else {}
    for name, task in setting.tasks.items():
        if part not in name or name not in SHOWN:
            continue
        with torch.enable_grad():
            head, row = tuned(
                setting, task, "pre-trained", LABELLED[name], ANSWER_LR[name], 0, MOST_STEPS[300]
            )
        answer = {"module": _class_answer, "span": _span_answer,
                  "tagging": _tag_answer}[name]  # fmt: skip
        kept[name] = {
            "labelled": LABELLED[name], "test": row["test"],
            "answers": [
                answer(head, task, example, setting.shipped)
                for example in _chosen(task)[: SHOWN[name]]
            ],
        }  # fmt: skip
        if name == "span":
            kept[name] |= decodings(head, task, setting.shipped)
        if name == "tagging":
            kept[name]["prose"] = prose(task)
        print({k: v for k, v in row.items() if k != "curve"}, flush=True)
        write_whole(
            ANSWERS,
            lambda half: half.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8"),
        )


def _chosen(task: Task) -> list[Example]:
    """Test examples that a page has room for."""
    if task.kind == "span":
        return [e for e in task.test if e.second is not None and len(e.second) <= 22]
    if task.kind == "tagging":
        return [e for e in task.test if e.word_labels and 1 in e.word_labels and len(e.words) < 22]
    return task.test


def prose(task: Task) -> float:
    """The share of words without a tag in the test of "tagging"."""
    labels = [label for e in task.test[:TEST] for label in e.word_labels or ()]
    return round(labels.count(0) / len(labels), 4)


def _forward(head: nn.Module, example: Example, shipped: Any) -> Any:
    rows = fine_tuning.Rows.of([shipped.module.build_input(example.first, example.second)])
    return head.eval()(rows.ids, rows.token_type_ids, rows.mask)


def _class_answer(head: nn.Module, task: Task, example: Example, shipped: Any) -> Row:
    shares = _forward(head, example, shipped)[0].softmax(-1)  # (L,)
    return {
        "text": example.text, "right": task.labels[example.label],
        "shares": {n: round(v, 4) for n, v in zip(task.labels, shares.tolist(), strict=True)},
    }  # fmt: skip


def _span_answer(head: nn.Module, task: Task, example: Example, shipped: Any) -> Row:
    """Logits of the passage's tokens; those of [CLS] are "no answer"."""
    start, end = (x[0] for x in _forward(head, example, shipped))  # (T,) both
    inside = slice(len(example.first) + 2, len(example.first) + 2 + len(example.second))
    return {
        "question": example.text, "tokens": shipped.tokenizer.tokens(example.second),
        "start": [round(v, 2) for v in start[inside].tolist()],
        "end": [round(v, 2) for v in end[inside].tolist()],
        "null": round(float(start[0] + end[0]), 2), "right": example.span,
    }  # fmt: skip


def _tag_answer(head: nn.Module, task: Task, example: Example, shipped: Any) -> Row:
    shares = fine_tuning.tag_probabilities(head, example, shipped.module)
    return {
        "words": example.words, "right": example.word_labels,
        "shares": [round(v, 3) for v in shares.tolist()],
    }  # fmt: skip


def decodings(head: nn.Module, task: Task, shipped: Any) -> Row:
    """Questions with an answer: how many are exactly right by three ways of choosing the span."""
    right = {"anywhere": 0, "apart": 0, "jointly": 0}
    backwards = 0
    asked = [e for e in task.test if e.span is not None]
    for e in asked:
        start, end = (x[0] for x in _forward(head, e, shipped))  # (T,) both
        shift = len(e.first) + 2
        passage = torch.zeros(len(start), dtype=torch.bool)
        passage[shift : shift + len(e.second)] = True
        wanted = (e.span[0] + shift, e.span[1] + shift)
        right["anywhere"] += (int(start.argmax()), int(end.argmax())) == wanted
        i, j = (int(x.masked_fill(~passage, -torch.inf).argmax()) for x in (start, end))
        right["apart"] += (i, j) == wanted
        backwards += j < i
        right["jointly"] += tuple(shipped.module.best_span(start, end, passage)) == wanted
    return {"questions": len(asked), "backwards": backwards, "exact": right}


# --------------------------------------------------------------------------- command


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure an experiment, or a part of it, and write its file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=("pretraining_worth", "answers"))
    parser.add_argument("part", nargs="?", default="", help="tasks with this in their name")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if given.name == "answers":
        answers(given.part)
    else:
        pretraining_worth(given.part, FILE)


if __name__ == "__main__":
    main()
