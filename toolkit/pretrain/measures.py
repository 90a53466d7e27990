"""What a card says beyond the held-out text: tasks, samples, heads, counting, compression.

These need the whole library of the Python that runs, and minutes.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.bert import fine_tuning
from toolkit.bert.attention_heads import kinds, weights
from toolkit.corpora import docstrings, library_prose, translation
from toolkit.pretrain import bert, gpt, translator

TASK_SEEDS = (0, 1, 2)  # of fine-tuning; the pre-trained model is one
# Way of solving the tasks: its name in the metrics, and the learning rate, the best on the
# validation examples of one seed: of 2.5e-4, 5e-4, 1e-3 and 2e-3 for the pre-trained network, of
# 1e-3, 2e-3 and 4e-3, by the mean of the tasks, for the random one.
TASK_WAYS = {"pre-trained": ("tuned", 2e-3), "random": ("random", 2e-3), "bag of words": ("bag", 0)}


def more(shipped: Any) -> dict[str, float]:
    """All metrics that `toolkit.models.measure` leaves out, by name."""
    if shipped.name == "bert":
        return of_bert(shipped)
    if shipped.name == "gpt":
        return of_gpt(shipped)
    return of_recurrent(shipped) if shipped.config["kind"] == "recurrent" else {}


# --------------------------------------------------------------------------- BERT


def of_bert(shipped: Any, seeds: Sequence[int] = TASK_SEEDS) -> dict[str, float]:
    """Counting, the four tasks against bags of words, and what heads attend to."""
    known = shipped.tokenizer
    held = bert.encode(shipped.held_out(), known)
    train = bert.encode(library_prose.split(library_prose.read(), "train"), known)
    found = {"counting_share": bert.unigram(train, held, len(known))}
    found |= tasks(shipped, seeds)
    for name, (_, _, weight) in patterns(shipped.model, held, shipped.module).items():
        found[f"head_{name}"] = weight
    return found


def tasks(shipped: Any, seeds: Sequence[int] = TASK_SEEDS) -> dict[str, float]:
    """Scores on the test examples of the four tasks of the chapter, means over seeds."""
    corpus = docstrings.Corpus(docstrings.read(), shipped.tokenizer)
    found = {}
    for way, (short, lr) in TASK_WAYS.items():
        made = fine_tuning.compare(
            shipped.model, corpus, docstrings.make_tasks(corpus), shipped.module, seeds=seeds,
            ways=(way,), lr=lr,
        )  # fmt: skip
        for task in made.tasks:
            found[f"task_{task}_{short}"] = made.mean(task, way)
            found[f"task_{task}_{short}_spread"] = made.spread(task, way)
    return found


# What a head may attend to; for each the share of its weight that lies there, over all queries
# that have such a key.
PATTERNS = {
    "previous": "previous", "next": "next", "itself": "itself", "same_piece": "same token",
    "sep": "[SEP]", "cls": "[CLS]",
}  # fmt: skip


@torch.no_grad()
def patterns(
    model: nn.Module, documents: bert.Documents, parts: Any, count: int = 60
) -> dict[str, tuple[int, int, float]]:
    """For each of `PATTERNS` the layer and head that attend to it most, and the weight there.

    Args:
        documents: as ids; the first `count` with two runs of sentences are looked at.
    """
    shares: dict[str, list[Tensor]] = {}
    made = bert.runs(documents, random.Random(0))
    rows = [row for row in made if len(row) > 1][:count]
    for first, second, *_ in rows:
        ids, segments = parts.build_input(first, second, 2 * bert.LONG[1] + 3)
        with weights(model) as seen:
            model.bert(torch.tensor([ids]), torch.tensor([segments]), None)
        maps = torch.stack(seen)[:, 0]  # (N, H, T, T)
        for name, keys in _keys(torch.tensor(ids)).items():
            asked = keys.any(1)  # (T,)
            if asked.any():  # an input may have no piece twice
                share = (maps * keys).sum(-1)[..., asked].mean(-1)  # (N, H)
                shares.setdefault(name, []).append(share)
    found = {}
    for name, all_shares in shares.items():
        share = torch.stack(all_shares).mean(0)  # (N, H)
        layer, head = divmod(int(share.argmax()), share.shape[1])
        found[name] = (layer, head, float(share.max()))
    return found


def _keys(ids: Tensor) -> dict[str, Tensor]:
    """For each pattern which keys (T, T) belong to each query."""
    found = kinds(ids[None])
    return {name: found[kind][0] for name, kind in PATTERNS.items()}


# --------------------------------------------------------------------------- GPT


def of_gpt(shipped: Any) -> dict[str, float]:
    """Counting, compression, and what is to be said of samples."""
    made = gpt.corpus(shipped.tokenizer)
    train = [f.text for f in made.of("train")]
    held = shipped.held_out()
    found = {"counting_bits": gpt.counted(train, held, shipped.tokenizer)}
    longer = [f.text for f in gpt.long_functions()]
    squeezed = gpt.compressed(longer + train, held)
    found |= {f"{name}_bits": value for name, value in squeezed.items()}
    judged = gpt.judge_samples(shipped.model, made, shipped.module)
    return found | {f"samples_{name}": value for name, value in judged.items()}


# --------------------------------------------------------------------------- recurrent translator


def of_recurrent(shipped: Any, count: int = 100) -> dict[str, float]:
    """How often the largest weight lies on the source token that a target token renders."""
    pairs = translation.make_pairs(
        count, *shipped.tokenizer.locales, length=(1, 3), seed=4711, with_alignment=True
    )
    shares = []
    for pair in pairs:
        looked = translator.alignment(shipped.model, shipped.tokenizer, pair).argmax(-1).tolist()
        shares += [
            place == true for place, true in zip(looked, pair.alignment, strict=True) if true >= 0
        ]
    return {"aligned_share": statistics.fmean(shares)}
