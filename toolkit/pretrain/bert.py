"""The BERT that is shipped: more text than the chapter's, longer pieces of it, more steps.

Masked pieces are predicted as in the chapter, with its own functions. A "sentence" is, as in the
paper, a run of sentences (Devlin et al. 2019, A.2: "two spans of text from the corpus, which we
refer to as sentences"), so that the context of a masked piece is longer than a line.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import training
from toolkit.bert import fine_tuning
from toolkit.corpora import docstrings, library_prose
from toolkit.pretrain import common
from toolkit.pretrain.common import Job

MODEL = "solutions.bert"
NEEDED = ("BertForPreTraining", "build_input", "next_sentence_pairs", "mask_tokens")
HELD_OUT = "held_out.txt"
HELD_OUT_SIZE = 90_000  # characters of the file
SIZES = {
    "cpu": {"d_model": 96, "num_layers": 4, "num_heads": 4, "d_ff": 384, "max_length": 128,
            "dropout": 0.0},
    "gpu": {"d_model": 192, "num_layers": 6, "num_heads": 6, "d_ff": 768, "max_length": 128,
            "dropout": 0.1},
}  # fmt: skip
# Small batches leave the plateau of the first thousands of steps sooner, since they mean more
# steps; larger ones learn more after it. So the learning rate rises and falls twice (Loshchilov and
# Hutter 2017), the second time with larger batches. One cycle of 10,000 steps of 16 ended at 26
# percent of the masked pieces, the first of these two at 31.
PLAN = {
    "cpu": {"steps": 22_000, "batch": 8, "more_steps": 11_000, "more_batch": 16, "lr": 1.5e-3,
            "vocabulary": 3000},
    "gpu": {"steps": 20_000, "batch": 32, "more_steps": 20_000, "more_batch": 128, "lr": 1e-3,
            "vocabulary": 3000},
}  # fmt: skip
SINGLE = 0.3  # share of the pieces of text that are one sentence
LONG = (16, 60)  # tokens of the others, as far as the document reaches
Documents = list[list[list[int]]]
# What the model is asked after 1, 10 and 100 percent of its training; each has one [MASK].
QUESTIONS = (
    "Return the [MASK] of items in the list.",
    "Return True if the file [MASK], False otherwise.",
    "Raises ValueError [MASK] the argument is negative.",
    "The default value is [MASK].",
    "Open the [MASK] for reading.",
    "This method should [MASK] called from a subclass.",
    "Wait until the [MASK] is finished.",
    "Convert a string to an [MASK].",
    "Remove all [MASK] from the dictionary.",
    "If the optional [MASK] is given, it must be a string.",
)


# --------------------------------------------------------------------------- text


def pieces(tokenizer: Path) -> docstrings.Pieces:
    """The vocabulary in a file `tokenizer.json`."""
    known = Tokenizer.from_file(str(tokenizer)).get_vocab()
    return docstrings.Pieces(sorted(known, key=known.__getitem__))


def save_pieces(path: Path, made: docstrings.Pieces) -> None:
    """Write a vocabulary so that the library `tokenizers` reads it, special tokens by name."""
    tokenizer = Tokenizer.from_str(made._tokenizer.to_str())
    tokenizer.add_special_tokens(list(docstrings.NAMES))
    from tokenizers import decoders, processors

    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", docstrings.CLS), ("[SEP]", docstrings.SEP)],
    )  # fmt: skip
    common.write_text(path, tokenizer.to_str(pretty=False))


def held_out_text(size: int = HELD_OUT_SIZE, seed: int = 0) -> str:
    """Documents of the test split, drawn, as lines of text with an empty line after each."""
    documents = library_prose.split(library_prose.read(), "test")
    documents = [d for d in documents if len(d) > 1]
    random.Random(seed).shuffle(documents)
    text, length = [], 0
    for document in documents:
        lines = [" ".join(sentence.split()) for sentence in document[:60]]
        text.append("\n".join(lines) + "\n")
        length += len(text[-1]) + 1
        if length >= size:
            break
    return "\n".join(text)


def read_held_out(path: Path) -> list[list[str]]:
    """The documents of a file that `held_out_text` made, each a list of sentences."""
    blocks = path.read_text(encoding="utf-8").split("\n\n")
    return [block.strip().split("\n") for block in blocks if block.strip()]


def encode(documents: Sequence[Sequence[str]], made: docstrings.Pieces) -> Documents:
    """Documents as ids, without empty sentences."""
    return [[ids for ids in made.encode_all(list(d)) if ids] for d in documents]


def runs(documents: Documents, draw: random.Random, longest: int = LONG[1]) -> Documents:
    """Documents as runs of sentences, of lengths that are drawn; each has two if it can.

    Args:
        documents: each a list of sentences, each a list of ids.
        longest: tokens of a run at most; a longer sentence is cut.
    """
    made = []
    for document in documents:
        whole = sum(map(len, document))
        run: list[int] = []
        result: list[list[int]] = []
        wanted = 0
        for sentence in document:
            if not run:
                wanted = 1 if draw.random() < SINGLE else draw.randint(LONG[0], longest)
                wanted = min(wanted, whole // 2)
            if run and len(run) + len(sentence) > longest:
                result.append(run)
                run = []
            run = (run + sentence)[:longest]
            if len(run) >= wanted:
                result.append(run)
                run = []
        if run:
            result.append(run)
        made.append(result)
    return made


# --------------------------------------------------------------------------- training


def make(module: Any, config: dict[str, Any]) -> nn.Module:
    """A model of the given sizes, its weights drawn."""
    return module.BertForPreTraining(**config)


def train(job: Job) -> None:
    """Train, and write everything but the card."""
    kind = "gpu" if job.large else "cpu"
    plan, parts = dict(PLAN[kind]), job.module
    if job.steps:
        plan |= {"steps": job.steps, "more_steps": job.steps}
    documents = library_prose.read()
    train_texts = library_prose.split(documents, "train")
    tokenizer = job.out / common.TOKENIZER
    if not tokenizer.exists():
        learned = docstrings.Pieces.train([s for d in train_texts for s in d], plan["vocabulary"])
        save_pieces(tokenizer, learned)
        common.write_text(job.out / HELD_OUT, held_out_text())
    known = pieces(tokenizer)
    config = {"vocab_size": len(known)} | SIZES[kind]
    common.write_json(job.out / common.CONFIG, config)
    rows = encode(train_texts, known)
    job.say(f"bert: {sum(len(s) for d in rows for s in d):,} tokens in {len(rows):,} documents")
    validation = encode(library_prose.split(documents, "validation"), known)
    model = fine_tuning.start(make(parts, config))
    curves = common.Curves(job.out / "training" / "curves.jsonl")
    total = plan["steps"] + plan["more_steps"]
    for number, (steps, batch) in enumerate(
        ((plan["steps"], plan["batch"]), (plan["more_steps"], plan["more_batch"]))
    ):
        watch = common.Watch(
            job, "bert", steps, model, curves, before_it=number * plan["steps"], total=total
        )
        _cycle(watch, rows, validation, len(known), batch, plan["lr"], number)
    common.finish(watch, "questions", QUESTIONS, lambda: answers(model, known))


def _cycle(
    watch: common.Watch, rows: Documents, validation: Documents, words: int, batch: int, lr: float,
    number: int,
) -> None:  # fmt: skip
    """One rise and fall of the learning rate."""
    job, parts, model = watch.job, watch.job.module, watch.model
    feed = _feed(rows, parts, batch, 1000 * number)
    position = 0

    def loss(step: int) -> tuple[Tensor, int]:
        nonlocal position
        while position < step:  # an interrupted training goes on with the batch it would have had
            next(feed)
            position += 1
        inputs, labels = next(feed)
        position += 1
        return _loss(model, inputs, labels, parts, words, job, watch)

    def check() -> dict[str, float]:
        found = evaluate(model, validation, parts, words, most=400)
        return {f"held_out_{name}": value for name, value in found.items()}

    common.fit(
        watch, loss, check, lr=lr, schedule="warm-up", seed=number, optimiser=fine_tuning.adam
    )


def _feed(
    rows: Documents, parts: Any, batch: int, number: int
) -> Iterator[tuple[fine_tuning.Rows, Tensor]]:
    """Batches of pairs without end; each pass through the documents draws runs and pairs anew.

    number: of the first pass, from which all its chance comes.
    """
    while True:
        with training.seeded(number):
            pairs = parts.next_sentence_pairs(runs(rows, random.Random(number)))
            inputs, labels = _inputs(pairs, parts)
            orders = fine_tuning._orders(inputs.mask.sum(1), batch)
        for order in orders:
            yield inputs.take(order, torch.device("cpu")), labels[order]
        number += 1


def _inputs(pairs: Sequence[tuple], parts: Any) -> tuple[fine_tuning.Rows, Tensor]:
    longest = 2 * LONG[1] + 3
    rows = fine_tuning.Rows.of([parts.build_input(a, b, longest) for a, b, _ in pairs])
    return rows, torch.tensor([label for _, _, label in pairs])


def _loss(
    model: nn.Module, batch: fine_tuning.Rows, labels: Tensor, parts: Any, words: int, job: Job,
    watch: common.Watch,
) -> tuple[Tensor, int]:  # fmt: skip
    where = job.preset.device
    ids, targets = parts.mask_tokens(batch.ids, words)  # (B, T) both
    hidden, pooled = model.bert(
        ids.to(where), batch.token_type_ids.to(where), batch.mask.to(where)
    )  # (B, T, D), (B, D)
    place = targets != docstrings.IGNORE  # (B, T)
    scores = model.mlm(hidden[place.to(where)])  # (places, V), the only ones that are needed
    mlm = F.cross_entropy(scores.float(), targets[place].to(where), reduction="sum")
    mlm = mlm / max(1, int(place.sum()))  # scalar
    nsp = F.cross_entropy(model.nsp(pooled).float(), labels.to(where))  # scalar
    watch.losses(mlm_loss=mlm, nsp_loss=nsp)
    return mlm + nsp, int(batch.mask.sum())


@torch.no_grad()
def evaluate(
    model: nn.Module, documents: Documents, parts: Any, words: int, *, most: int | None = None,
    single: bool = False, seed: int = 0,
) -> dict[str, float]:  # fmt: skip
    """Losses in nats and accuracies on documents: the same pairs and masks in every call.

    Args:
        documents: each a list of sentences, each a list of ids.
        most: pairs at most, drawn from all.
        single: pairs of single sentences, as in the chapter, in place of runs.

    Returns:
        mlm_loss, mlm_accuracy, nsp_loss, nsp_accuracy.
    """
    where = next(model.parameters()).device
    mode = model.training
    model.eval()
    sums = dict.fromkeys(("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"), 0.0)
    counts = {"mlm": 0, "nsp": 0}
    with training.seeded(seed):
        texts = documents if single else runs(documents, random.Random(seed))
        pairs = parts.next_sentence_pairs(texts)
        if most is not None and most < len(pairs):
            pairs = random.sample(pairs, most)
        inputs, labels = _inputs(pairs, parts)
        for order in fine_tuning._orders(inputs.mask.sum(1), 32):
            batch = inputs.take(order, where)
            ids, targets = parts.mask_tokens(batch.ids.cpu(), words)
            ids, targets = ids.to(where), targets.to(where)  # (B, T) both
            hidden, pooled = model.bert(ids, batch.token_type_ids, batch.mask)
            place = targets != docstrings.IGNORE  # (B, T)
            for name, scores, right in (
                ("mlm", model.mlm(hidden[place]).float(), targets[place]),
                ("nsp", model.nsp(pooled).float(), labels[order].to(where)),
            ):
                sums[f"{name}_loss"] += float(F.cross_entropy(scores, right, reduction="sum"))
                sums[f"{name}_accuracy"] += int((scores.argmax(-1) == right).sum())
                counts[name] += len(right)
    model.train(mode)
    return {name: value / max(1, counts[name[:3]]) for name, value in sums.items()}


def unigram(train: Documents, documents: Documents, words: int) -> float:
    """Accuracy of predicting every masked piece by the most frequent one of training."""
    counts = torch.zeros(words, dtype=torch.int64)
    for document in train:
        for sentence in document:
            counts += torch.bincount(torch.tensor(sentence), minlength=words)
    counts[: docstrings.SPECIAL] = 0
    ids = torch.tensor([i for d in documents for s in d for i in s if i >= docstrings.SPECIAL])
    return float((ids == counts.argmax()).double().mean())


# --------------------------------------------------------------------------- answers


def answers(model: nn.Module, known: docstrings.Pieces, k: int = 5) -> list[list[Any]]:
    """The best pieces for the [MASK] of each of `QUESTIONS`, with their probabilities."""
    found = []
    for question in QUESTIONS:
        blank = fine_tuning.fill_mask(model, known, question, k)[0]
        found.append([[piece, round(share, 4)] for piece, share in blank.guesses])
    return found
